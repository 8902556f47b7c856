"""What the scheduler tells the worker about a step, and what the worker answers.

The scheduler sends counts and new block ids, never positions or sampled tokens: the worker derives those from
its rows.
"""

from __future__ import annotations

import enum

import msgspec

from octavo.types.params import SamplingParams
from octavo.types.sampling import TokenLogprobs

BlockIds = tuple[list[int], ...]  # one list for each KV cache group


class PauseState(enum.Enum):
    """What may run."""

    UNPAUSED = "unpaused"
    PAUSED_NEW = "paused_new"  # only requests that have begun
    PAUSED_ALL = "paused_all"  # nothing


class NewRequestData(msgspec.Struct, frozen=True, kw_only=True):
    """A request that takes a row, at first or again after a preemption. Overwrites the row whole."""

    req_id: str
    row: int
    token_ids: list[int]  # prompt, then what was generated so far
    num_prompt_tokens: int
    num_computed_tokens: int  # tokens whose KV is in `block_ids` already (prefix cache)
    block_ids: BlockIds  # all blocks, for the cached tokens and for this step's
    sampling_params: SamplingParams


class CachedRequestData(msgspec.Struct, frozen=True):
    """The step's requests that are in a row already, as differences. The lists run in parallel."""

    req_ids: list[str]
    new_block_ids: list[BlockIds | None]  # appended to the row's tables; None = no new block


class SchedulerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One step, as planned by `Scheduler.schedule`, in the order of `num_scheduled_tokens`."""

    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    finished_req_ids: set[str]  # finished since the last step: the worker forgets them before anything else
    # Have lost their rows since the last step. They come back as NewRequestData, perhaps at once.
    preempted_req_ids: set[str]
    num_common_prefix_blocks: list[int]  # per KV cache group: leading blocks that all running requests share
    scheduled_spec_decode_tokens: dict[str, list[int]] = {}  # drafts to verify, for requests that have any
    new_block_ids_to_zero: list[int] | None = None  # blocks that must not show what they held before
    # (from, to): content that a block is to begin with, copied after zeroing and before anything is computed.
    kv_cache_block_copies: list[tuple[int, int]] = []


class ModelRunnerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step produced. Requests whose prompt is not complete yet sampled nothing and are absent."""

    sampled_token_ids: dict[str, list[int]]
    logprobs: dict[str, list[TokenLogprobs]]  # for requests that asked for them, one entry a sampled token
    prompt_logprobs: dict[str, list[TokenLogprobs]]  # of a whole prompt, with its first sampled token

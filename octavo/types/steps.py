"""What the scheduler tells the worker about a step, and what the worker answers.

For a request that has a row, the scheduler sends counts and new block ids: the worker knows the request's
tokens and derives positions from the row. `NewRequestData` carries all tokens, since it fills a row.

A feature's data crosses this border under the feature's name; only the feature's own halves look inside. It
must be plain data (numbers, text, bytes, lists, maps), since the worker may be another process.
"""

from __future__ import annotations

import enum
from typing import Any

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
    feature_data: dict[str, Any] = {}  # by feature: what its front-end half prepared for the request


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
    # The drafts that requests verify in this step, after their last known token. Counted in
    # `num_scheduled_tokens`; requests without drafts are absent.
    scheduled_spec_decode_tokens: dict[str, list[int]] = {}
    new_block_ids_to_zero: list[int] | None = None  # blocks that must not show what they held before
    # (from, to): content that a block is to begin with, copied after zeroing and before anything is computed.
    kv_cache_block_copies: list[tuple[int, int]] = []
    feature_data: dict[str, Any] = {}  # by feature: what its core half tells its worker half about this step


class ModelRunnerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step produced. Requests with tokens still to be computed sampled nothing and are absent."""

    sampled_token_ids: dict[str, list[int]]  # one or, where drafts were accepted, more for each request
    logprobs: dict[str, list[TokenLogprobs]]  # of requests that want them, one entry for each sampled token
    draft_token_ids: dict[str, list[int]] = {}  # guesses of the tokens that follow, to be verified next
    # By feature and request: results on their way to the front-end half.
    results: dict[str, dict[str, Any]] = {}

    def add_result(self, feature: str, req_id: str, result: Any) -> None:
        """Send a feature's result home with the request's tokens."""
        self.results.setdefault(feature, {})[req_id] = result

"""The messages between scheduler and worker: the plan of a step, and its results.

For a request that has a row, the scheduler sends only counts and new block ids: the worker knows the
request's tokens and derives positions from the row. `NewRequestData` holds all tokens, since it fills a row.

The data of a feature is sent under the feature's name, and only the feature's halves read it. It must be
plain data (numbers, text, bytes, lists, maps), since the worker may be another process.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from octavo.types.params import SamplingParams
from octavo.types.sampling import TokenLogprobs

BlockIds = tuple[list[int], ...]  # one list for each KV cache group


class PauseState(enum.Enum):
    """Which requests may run."""

    UNPAUSED = "unpaused"
    PAUSED_NEW = "paused_new"  # only requests that have begun
    PAUSED_ALL = "paused_all"  # none


class NewRequestData(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is admitted, at first or after a preemption. Overwrites its whole row."""

    req_id: str
    row: int
    token_ids: list[int]  # prompt, then all generated tokens
    num_prompt_tokens: int
    num_computed_tokens: int  # tokens whose KV `block_ids` already hold (prefix cache)
    block_ids: BlockIds  # all blocks, for the cached tokens and for this step's
    sampling_params: SamplingParams
    feature_data: dict[str, Any] = {}  # by feature: data from its front-end half


class CachedRequestData(msgspec.Struct, frozen=True):
    """The step's requests that already have a row, as differences. The lists are parallel."""

    req_ids: list[str]
    new_block_ids: list[BlockIds | None]  # appended to the row's tables; None = no new block


class SchedulerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One step, as planned by `Scheduler.schedule`. `num_scheduled_tokens` gives the order of requests."""

    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    finished_req_ids: set[str]  # finished since the last step; the worker drops them first
    # Requests that have lost their rows since the last step. They return as NewRequestData, possibly in this
    # step.
    preempted_req_ids: set[str]
    num_common_prefix_blocks: list[int]  # per KV cache group: leading blocks that all running requests share
    # The drafts that requests verify in this step, after their last known token. Counted in
    # `num_scheduled_tokens`; requests without drafts are absent.
    scheduled_spec_decode_tokens: dict[str, list[int]] = {}
    new_block_ids_to_zero: list[int] | None = None  # blocks whose old content must not be read
    # (source, destination) block ids, copied after zeroing and before the step computes anything.
    kv_cache_block_copies: list[tuple[int, int]] = []
    feature_data: dict[str, Any] = {}  # by feature: data of this step from its core half


class ModelRunnerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one step. Requests that still have tokens to compute sampled nothing and are absent."""

    sampled_token_ids: dict[str, list[int]]  # for each request one, or more if drafts were accepted
    logprobs: dict[str, list[TokenLogprobs]]  # only requests that want them; one entry for each sampled token
    draft_token_ids: dict[str, list[int]] = {}  # guesses of the tokens that follow, to be verified next
    # By feature, then by request: results for the feature's front-end half.
    results: dict[str, dict[str, Any]] = {}

    def add_result(self, feature: str, req_id: str, result: Any) -> None:
        """Add a feature's result for a request. It is sent to the front end with the request's tokens."""
        self.results.setdefault(feature, {})[req_id] = result

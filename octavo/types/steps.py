"""The messages between scheduler and worker: the plan of a step, and its results.

For a request that has a row, the scheduler sends counts and new block ids: the worker knows the request's
tokens and derives positions from the row. `NewRequestData` carries all tokens, since it fills a row.

The data of a feature is sent under the feature's name, and only the feature's own halves read it. It must be
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
    PAUSED_NEW = "paused_new"  # requests that have begun
    PAUSED_ALL = "paused_all"  # no requests


class NewRequestData(msgspec.Struct, frozen=True, kw_only=True):
    """A request that takes a row, at first or after a preemption. It replaces all content of the row."""

    req_id: str
    row: int
    token_ids: list[int]  # the prompt, then the output so far
    num_prompt_tokens: int
    num_computed_tokens: int  # tokens whose KV is in `block_ids` already (prefix cache)
    block_ids: BlockIds  # all blocks, for the cached tokens and for this step's
    sampling_params: SamplingParams
    feature_data: dict[str, Any] = {}  # by feature: data of its front-end half for the request


class CachedRequestData(msgspec.Struct, frozen=True):
    """The step's requests that already have a row: only what changes. The lists run in parallel."""

    req_ids: list[str]
    new_block_ids: list[BlockIds | None]  # appended to the row's tables; None = no new block


class SchedulerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One step, as planned by `Scheduler.schedule`, in the order of `num_scheduled_tokens`."""

    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    finished_req_ids: set[str]  # finished since the last step: the worker releases their rows first
    # Lost their rows since the last step. They return as NewRequestData, perhaps in this step.
    preempted_req_ids: set[str]
    num_common_prefix_blocks: list[
        int
    ]  # per KV cache group: number of leading blocks that all running requests share
    # The drafts that requests verify in this step, after their last known token. Counted in
    # `num_scheduled_tokens`; requests without drafts are absent.
    scheduled_spec_decode_tokens: dict[str, list[int]] = {}
    new_block_ids_to_zero: list[int] | None = None  # blocks whose old content must not be read
    # (source, destination): blocks to copy, after zeroing and before anything is computed.
    kv_cache_block_copies: list[tuple[int, int]] = []
    feature_data: dict[str, Any] = {}  # by feature: data of its core half for its worker half


class ModelRunnerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one step. A request that sampled nothing, since it has tokens to compute, is absent."""

    sampled_token_ids: dict[str, list[int]]  # one or, where drafts were accepted, more for each request
    logprobs: dict[
        str, list[TokenLogprobs]
    ]  # of requests that ask for them: one entry for each sampled token
    draft_token_ids: dict[str, list[int]] = {}  # guesses of the tokens that follow, to be verified next
    # By feature and request: results for the front-end half.
    results: dict[str, dict[str, Any]] = {}

    def add_result(self, feature: str, req_id: str, result: Any) -> None:
        """Add a feature's result for a request. It goes to the front end with the request's tokens."""
        self.results.setdefault(feature, {})[req_id] = result

"""`Request`: everything the core knows of one request, and the states it goes through."""

from __future__ import annotations

import enum
from typing import Any

from octavo.kv_cache.hashing import BlockHash
from octavo.types.outputs import FinishReason
from octavo.types.requests import EngineCoreRequest


class RequestStatus(enum.IntEnum):
    """WAITING → RUNNING → (PREEMPTED → RUNNING)* → one of FINISHED_*."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    # Everything after PREEMPTED is an end.
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_IGNORED = enum.auto()
    FINISHED_ERROR = enum.auto()
    FINISHED_REPETITION = enum.auto()

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come of the request."""
        return self > RequestStatus.PREEMPTED

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the end is called outside; None for a request that goes on."""
        return _FINISH_REASONS.get(self)


_FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_IGNORED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
    RequestStatus.FINISHED_REPETITION: FinishReason.REPETITION,
}


class Request:
    """A request in the core. Mutable; only the scheduler changes it (and the KV cache its `block_hashes`)."""

    __slots__ = (
        "adapter",
        "arrival_time",
        "block_hashes",
        "cache_salt",
        "eos_token_ids",
        "max_tokens",
        "media",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_encoder_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "order",
        "priority",
        "request_id",
        "row",
        "sampling_params",
        "skip_reading_prefix_cache",
        "status",
        "stop_reason",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(self, request: EngineCoreRequest, max_model_len: int, order: tuple[Any, ...] = ()) -> None:
        """`order` says how urgent it is, the smallest most; by default priority, then arrival, then id."""
        params = request.sampling_params
        self.request_id = request.request_id
        self.sampling_params = params
        self.priority = request.priority
        self.arrival_time = request.arrival_time
        self.order = order or (request.priority, request.arrival_time, request.request_id)
        self.cache_salt = request.cache_salt
        self.adapter = request.adapter
        self.media = request.media
        self.num_encoder_tokens = request.num_encoder_tokens
        self.skip_reading_prefix_cache = not params.reads_prefix_cache
        self.eos_token_ids = frozenset() if params.ignore_eos else request.eos_token_ids
        self.stop_token_ids = frozenset(params.stop_token_ids)
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_tokens = max_model_len if params.max_tokens is None else params.max_tokens
        self.token_ids = list(request.prompt_token_ids)  # prompt, then output
        self.status = RequestStatus.WAITING
        self.row = -1  # in the worker, while RUNNING
        self.num_computed_tokens = 0  # tokens whose KV is in the cache once every planned step has run
        self.num_cached_tokens = -1  # prompt tokens the prefix cache had at first admission; -1 = not yet
        self.block_hashes: list[BlockHash] = []
        self.num_preemptions = 0
        self.stop_reason: int | str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens known, prompt and output: what `num_computed_tokens` chases."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def __lt__(self, other: Request) -> bool:
        """Whether this one is more urgent."""
        return self.order < other.order

    def __repr__(self) -> str:
        progress = f"{self.num_computed_tokens}/{self.num_tokens} tokens"
        return f"Request({self.request_id!r}, {self.status.name}, {progress})"

"""`Request`: all that the core knows about one request, and the states of a request."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from octavo.kv_cache.hashing import BlockHash
from octavo.types.outputs import FinishReason
from octavo.types.requests import EngineCoreRequest, MediaSpan


class RequestStatus(enum.IntEnum):
    """WAITING → RUNNING → (PREEMPTED → RUNNING)* → one of FINISHED_*."""

    WAITING = enum.auto()
    WAITING_FOR_PREPARATION = enum.auto()  # a constraint prepares something for it (a grammar, say)
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
        """Whether the request has ended."""
        return self > RequestStatus.PREEMPTED

    @property
    def finish_reason(self) -> FinishReason | None:
        """The reason that the front end reports; None for a request that has not ended."""
        return _FINISH_REASONS.get(self)


_FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_IGNORED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
    RequestStatus.FINISHED_REPETITION: FinishReason.REPETITION,
}


class Context(NamedTuple):
    """The text of a session before the prompt of its next turn. Read only: a request copies it."""

    token_ids: Sequence[int] = ()
    block_hashes: Sequence[BlockHash] = ()  # of the leading full blocks whose hashes are known
    media: Sequence[MediaSpan] = ()
    cache_salt: str | None = None
    adapter: str | None = None


class Request:
    """A request in the core. Mutable; only the scheduler changes it (and the KV cache its `block_hashes`).

    A step is *in flight* from its planning until its results have been taken in. The tokens that it computes
    count as computed at once. The token that it will sample is a placeholder until then.
    """

    __slots__ = (
        "adapter",
        "arrival_time",
        "block_hashes",
        "cache_salt",
        "eos_token_ids",
        "feature_data",
        "max_length",
        "media",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_drafts_in_flight",
        "num_encoder_tokens",
        "num_in_flight_tokens",
        "num_output_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_restarts",
        "order",
        "preparations",
        "priority",
        "request_id",
        "row",
        "sampling_params",
        "skip_reading_prefix_cache",
        "spec_token_ids",
        "status",
        "stop_reason",
        "stop_token_ids",
        "tenant",
        "token_ids",
    )

    def __init__(
        self, request: EngineCoreRequest, max_model_len: int, context: Context | None = None
    ) -> None:
        """Make a request whose prompt follows `context`. None = the prompt begins the text."""
        if context is None:
            context = Context(cache_salt=request.cache_salt, adapter=request.adapter)
        params = request.sampling_params
        self.request_id = request.request_id
        self.tenant = request.tenant
        self.priority = request.priority
        self.arrival_time = request.arrival_time
        self.order: tuple[Any, ...] = ()  # the smallest is the most urgent; given by the policy
        self.sampling_params = params
        self.feature_data = request.feature_data
        self.skip_reading_prefix_cache = not params.reads_prefix_cache
        self.eos_token_ids = frozenset() if params.ignore_eos else request.eos_token_ids
        self.stop_token_ids = frozenset(params.stop_token_ids)
        self.cache_salt = context.cache_salt
        self.adapter = context.adapter
        self.token_ids = [*context.token_ids, *request.prompt_token_ids]  # context and prompt, then output
        self.block_hashes = list(context.block_hashes)
        self.media = [*context.media, *(span.moved(len(context.token_ids)) for span in request.media)]
        self.num_encoder_tokens = request.num_encoder_tokens
        self.num_prompt_tokens = len(self.token_ids)  # with the context
        most = max_model_len if params.max_tokens is None else self.num_prompt_tokens + params.max_tokens
        self.max_length = min(most, max_model_len)  # it ends at this many tokens, prompt and output
        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None
        self.row = -1  # its row in the worker while RUNNING, else -1
        self.num_computed_tokens = 0  # tokens whose KV is in the cache once every planned step has run
        self.num_in_flight_tokens = 0  # tokens that steps in flight compute
        self.num_output_placeholders = 0  # tokens that steps in flight sample
        self.num_drafts_in_flight = 0  # drafts that a step in flight verifies
        self.spec_token_ids: list[int] = []  # drafts: guesses of the next tokens, to be verified
        self.num_cached_tokens = -1  # prompt tokens hit at its first admission; -1 = not yet admitted
        self.num_preemptions = 0
        self.preparations: list[Future[None]] = []  # it waits until all are done
        self.num_restarts = 0  # how often it dropped the results of steps in flight

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the request has ended; None while it has not."""
        return self.status.finish_reason

    @property
    def num_good_tokens(self) -> int:
        """Number of tokens whose KV is in the cache now, without those that steps in flight compute."""
        return self.num_computed_tokens - self.num_in_flight_tokens

    @property
    def num_tokens(self) -> int:
        """Number of known tokens, prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def prefills(self, start: int) -> bool:
        """Whether the request prefills from `start` on. It does if prompt tokens remain, or if it must
        compute more than its last token (again, after a preemption).
        """
        return start < self.num_prompt_tokens or start < len(self.token_ids) - 1

    @property
    def num_planned_tokens(self) -> int:
        """Number of tokens, without drafts, that are known once every planned step has run."""
        return len(self.token_ids) + self.num_output_placeholders

    def restart(self) -> None:
        """Drop the results of steps in flight for this request. They will not be taken in."""
        self.num_restarts += 1
        self.num_in_flight_tokens = self.num_output_placeholders = self.num_drafts_in_flight = 0

    def __lt__(self, other: Request) -> bool:
        """Whether this request is more urgent than `other`."""
        return self.order < other.order

    def __repr__(self) -> str:
        progress = f"{self.num_computed_tokens}/{self.num_tokens} tokens"
        return f"Request({self.request_id!r}, {self.status.name}, {progress})"

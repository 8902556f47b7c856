"""`Request`: everything the core knows of one request, and the states it goes through."""

from __future__ import annotations

import copy
import enum
from collections import deque
from typing import Any

from octavo.kv_cache.hashing import BlockHash
from octavo.types.outputs import FinishReason
from octavo.types.requests import EngineCoreRequest, MediaSpan


class RequestStatus(enum.IntEnum):
    """WAITING → RUNNING → (PREEMPTED → RUNNING)* → one of FINISHED_*.

    A session goes from RUNNING to WAITING_FOR_STREAMING_REQ when a turn ends, and to WAITING with the next.
    """

    WAITING = enum.auto()
    WAITING_FOR_STREAMING_REQ = enum.auto()  # an idle session: it holds no row and no block
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
        """Whether nothing more will come of the request (of a session: of its turn)."""
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
    """A request in the core. Mutable; only the scheduler changes it (and the KV cache its `block_hashes`).

    A step that has been planned and whose results are not in yet is *in flight*. What it computes counts as
    computed at once; the token it will sample is a placeholder until then.
    """

    __slots__ = (
        "adapter",
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
        "order",
        "request_id",
        "resumable",
        "row",
        "sampling_params",
        "skip_reading_prefix_cache",
        "source",
        "spec_token_ids",
        "status",
        "stop_reason",
        "stop_token_ids",
        "streaming_queue",
        "tenant",
        "token_ids",
        "turn",
    )

    def __init__(self, request: EngineCoreRequest, max_model_len: int) -> None:
        self.request_id = request.request_id
        self.tenant = request.tenant
        self.cache_salt = request.cache_salt
        self.adapter = request.adapter
        self.resumable = request.resumable
        # Turns to come; one that is not resumable is the end.
        self.streaming_queue: deque[EngineCoreRequest] = deque()
        self.turn = 0  # grows when a turn ends: what was planned before is void
        self.row = -1  # in the worker, while RUNNING
        self.num_preemptions = 0
        self.num_in_flight_tokens = 0  # of those computed, the ones that steps in flight compute
        self.num_output_placeholders = 0  # tokens that steps in flight sample
        self.num_drafts_in_flight = 0  # drafts that a step in flight verifies
        self.spec_token_ids: list[int] = []  # drafts: guesses of the next tokens, to be verified
        self.token_ids: list[int] = []  # prompt, then output
        self.block_hashes: list[BlockHash] = []
        self.media: list[MediaSpan] = []
        self.begin_turn(request, max_model_len)

    def begin_turn(self, request: EngineCoreRequest, max_model_len: int) -> None:
        """Append a prompt to what there is, and go on by the parameters that came with it.

        How urgent it is, `order`, the smallest most, is then the policy's to say.
        """
        params = request.sampling_params
        start = len(self.token_ids)
        self.source = request  # of the present turn
        self.sampling_params = params
        self.feature_data = request.feature_data
        self.order: tuple[Any, ...] = ()
        self.skip_reading_prefix_cache = not params.reads_prefix_cache
        self.eos_token_ids = frozenset() if params.ignore_eos else request.eos_token_ids
        self.stop_token_ids = frozenset(params.stop_token_ids)
        self.token_ids += request.prompt_token_ids
        self.media += [span.moved(start) for span in request.media]
        self.num_encoder_tokens = request.num_encoder_tokens
        self.num_prompt_tokens = len(self.token_ids)
        most = max_model_len if params.max_tokens is None else self.num_prompt_tokens + params.max_tokens
        self.max_length = min(most, max_model_len)  # tokens, prompt and output, at which it ends
        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None
        self.num_computed_tokens = 0  # tokens whose KV is in the cache once every planned step has run
        self.num_cached_tokens = -1  # prompt tokens the prefix cache had at first admission; -1 = not yet

    def copy(self) -> Request:
        """Another with the same tokens and hashes, to see what a turn would come to."""
        other = copy.copy(self)
        other.token_ids = self.token_ids.copy()
        other.block_hashes = self.block_hashes.copy()
        other.media = self.media.copy()
        other.streaming_queue = self.streaming_queue.copy()
        return other

    def end_turn(self) -> None:
        """Nothing that is in flight concerns it any longer. A session goes on without its last token, which
        was sampled and never run.
        """
        if self.num_output_tokens:
            del self.token_ids[-1]
        self.void_shares()

    def void_shares(self) -> None:
        """Make its shares of steps in flight void: their results are not taken in."""
        self.turn += 1
        self.num_in_flight_tokens = self.num_output_placeholders = self.num_drafts_in_flight = 0
        self.spec_token_ids = []

    def awaits(self, turn: EngineCoreRequest) -> bool:
        """Whether `turn` is under way here or to come."""
        return (self.source is turn and not self.is_idle) or any(
            each is turn for each in self.streaming_queue
        )

    @property
    def is_idle(self) -> bool:
        """Whether it is a session between two turns."""
        return self.status is RequestStatus.WAITING_FOR_STREAMING_REQ

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it (of a session: its turn) has ended; None while it goes on."""
        return self.status.finish_reason

    @property
    def num_turns_awaited(self) -> int:
        """Turns whose end is still to be told: the one under way, and those to come."""
        return (not self.is_idle) + sum(turn.resumable for turn in self.streaming_queue)

    @property
    def num_good_tokens(self) -> int:
        """Tokens whose KV is in the cache: those that steps in flight compute are not there yet."""
        return self.num_computed_tokens - self.num_in_flight_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens known, prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far (of a session: in this turn)."""
        return len(self.token_ids) - self.num_prompt_tokens

    def prefills(self, start: int) -> bool:
        """Whether what it runs from `start` on is more than the token it sampled last: its prompt, or what it
        had and computes again.
        """
        return start < self.num_prompt_tokens or start < len(self.token_ids) - 1

    @property
    def num_planned_tokens(self) -> int:
        """Tokens known for certain once every planned step has run: what `num_computed_tokens` chases."""
        return len(self.token_ids) + self.num_output_placeholders

    @property
    def num_tokens_with_spec(self) -> int:
        """The same with the drafts to verify."""
        return self.num_planned_tokens + len(self.spec_token_ids)

    def __lt__(self, other: Request) -> bool:
        """Whether this one is more urgent."""
        return self.order < other.order

    def __repr__(self) -> str:
        progress = f"{self.num_computed_tokens}/{self.num_tokens} tokens"
        return f"Request({self.request_id!r}, {self.status.name}, {progress})"

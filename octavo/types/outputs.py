"""The outputs that the core sends to the front end, and the outputs that the front end gives to the user."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.types.params import FIELD_FEATURES
from octavo.types.sampling import TokenLogprobs


class FinishReason(enum.Enum):
    """Why a request ended. Values are those of the OpenAI API where it has one for the reason."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"

    def __str__(self) -> str:
        return self.value


class Rejection(msgspec.Struct, frozen=True):
    """Why a request cannot run. The front end raises it as a RequestError."""

    message: str
    param: str | None = None  # the wrong field, if there is one


class EngineCoreOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The new tokens and results of one request after a step, or its rejection."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the token id that ended it; for errors, what happened
    new_logprobs: list[TokenLogprobs] | None = None  # parallel to new_token_ids
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    results: dict[str, Any] | None = None  # by feature: results of its worker half, plain data
    rejection: Rejection | None = None  # only with FinishReason.ERROR: the request never ran


class PrefixCacheStats(msgspec.Struct, frozen=True):
    """Counts of tokens that were looked up in the prefix cache (queries) and found (hits), since the start.

    A request counts once, when it is first admitted. Look-ups after a preemption have counts of their own:
    they find blocks of the same request, which says nothing about the use of the cache.
    """

    requests: int = 0
    queries: int = 0  # tokens
    hits: int = 0  # tokens
    preempted_requests: int = 0
    preempted_queries: int = 0  # tokens
    preempted_hits: int = 0  # tokens


class SchedulerStats(msgspec.Struct, frozen=True):
    """The scheduler's state after a step, and its counts since the start.

    Counts only grow. A rate is the difference of two counts, so a reader may miss some of these structs.
    """

    num_running_reqs: int
    num_waiting_reqs: int
    kv_cache_usage: float  # share of the blocks held by requests, 0 to 1
    prefix_cache: PrefixCacheStats = PrefixCacheStats()
    num_computed_prompt_tokens: int = 0  # not those from the prefix cache, nor recomputation
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    # Requests that have ended (each turn of a session counts). A stop string counts as STOP.
    num_finished_reqs: Mapping[FinishReason, int] = {}

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens that were computed or found in the prefix cache."""
        return self.num_computed_prompt_tokens + self.prefix_cache.hits


class EngineCoreEventType(enum.IntEnum):
    """The kinds of events in the life of a request."""

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


class EngineCoreEvent(msgspec.Struct, frozen=True):
    """An event in the life of a request, and its time."""

    type: EngineCoreEventType
    timestamp: float  # seconds, monotonic: the same clock for every process of a machine


class EngineCoreOutputs(msgspec.Struct):
    """All outputs of one step. Observers fill the other fields; without them these stay empty."""

    outputs: list[EngineCoreOutput]
    scheduler_stats: SchedulerStats | None = None
    events: dict[str, list[EngineCoreEvent]] = {}  # since the last step, by request
    timestamp: float | None = None  # end of the step, by the clock of the events


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about an engine that a front end needs to check requests."""

    model_name: str
    vocab_size: int  # token ids in a prompt are 0 to vocab_size - 1
    max_model_len: int  # most tokens of a request, prompt and output together
    max_logprobs: int  # most logprobs a request may ask for; -1 = no limit
    scheduling_policy: str
    features: frozenset[str]  # optional features that are built in


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability at one position."""

    logprob: float  # natural logarithm
    rank: int  # 1 = the most likely token
    decoded_token: str


PositionLogprobs = Mapping[int, Logprob]  # token id → its logprob: the chosen token and the most likely ones


@dataclass(slots=True)
class CompletionOutput:
    """One of the n answers to a prompt."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None  # sum over the chosen tokens, if logprobs were asked for
    logprobs: list[PositionLogprobs] | None = None  # parallel to token_ids
    finish_reason: str | None = None  # a FinishReason's value; None while it is running
    stop_reason: int | str | None = None  # the stop string or token id; for errors, what happened

    def finished(self) -> bool:
        """Whether this answer is complete."""
        return self.finish_reason is not None


# A Struct, because one is made for every output, and a dataclass takes longer to make.
class RequestMetrics(msgspec.Struct, frozen=True):
    """The times of events in the life of a request, in seconds since the epoch; None = not yet.

    All times but the arrival come from a monotonic clock, so their differences are exact. For a request with
    several answers, each first time is that of the earliest answer, and each last time that of the latest.
    """

    arrival_time: float
    queued_time: float | None = None  # accepted by the core
    scheduled_time: float | None = None  # first admitted
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    mean_inter_token_time: float | None = None  # seconds between consecutive tokens of an answer

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return _seconds_between(self.arrival_time, self.first_token_time)

    @property
    def queue_time(self) -> float | None:
        """Seconds from the acceptance of the request by the core to its first admission."""
        return _seconds_between(self.queued_time, self.scheduled_time)

    @property
    def prefill_time(self) -> float | None:
        """Seconds from the first admission to the first token."""
        return _seconds_between(self.scheduled_time, self.first_token_time)

    @property
    def decode_time(self) -> float | None:
        """Seconds from the first token to the last."""
        return _seconds_between(self.first_token_time, self.last_token_time)


def _seconds_between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


@dataclass(slots=True)
class RequestOutput:
    """A prompt and what has been generated for it."""

    request_id: str
    prompt: str | None  # None when it was given as token ids
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int = 0  # prompt tokens from the prefix cache; in a session, of earlier turns too
    seed: int | None = None  # the seed of the sampling; drawn at random if none was given
    # By feature: its result. The field of `SamplingParams` that asks for it is also an attribute here, with
    # the same result; None = there is none.
    results: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if (feature := FIELD_FEATURES.get(name)) is not None:
            return self.results.get(feature)
        raise AttributeError(f"RequestOutput has no attribute {name!r}")

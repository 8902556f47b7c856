"""What the core reports to the front end, and what the front end hands to the user."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from octavo.types.sampling import TokenLogprobs


class FinishReason(enum.Enum):
    """Why a request ended, in the words of the OpenAI API where it has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"

    def __str__(self) -> str:
        return self.value


class EngineCoreOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """News of one request from one step."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the token id that ended it; for errors, what happened
    new_logprobs: list[TokenLogprobs] | None = None  # parallel to new_token_ids
    prompt_logprobs: list[TokenLogprobs] | None = None  # of the whole prompt, with the first token
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache


class SchedulerStats(msgspec.Struct, frozen=True):
    """The scheduler's state after a step."""

    num_running_reqs: int
    num_waiting_reqs: int
    kv_cache_usage: float  # share of the blocks held by requests, 0 to 1


class EngineCoreOutputs(msgspec.Struct):
    """News from one step."""

    outputs: list[EngineCoreOutput]
    scheduler_stats: SchedulerStats | None = None  # filled by an observer, if there is one


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a front end must know of its engine to check requests."""

    model_name: str
    vocab_size: int  # ids a prompt may hold: 0 to vocab_size - 1
    max_model_len: int  # most tokens of a sequence, prompt and output together
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
    """One answer to a prompt (there are n of them)."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None  # sum over the chosen tokens, where logprobs were asked for
    logprobs: list[PositionLogprobs] | None = None  # parallel to token_ids
    finish_reason: str | None = None  # a FinishReason's value; None while it is running
    stop_reason: int | str | None = None  # the stop string or token id; for errors, what happened

    def finished(self) -> bool:
        """Whether this answer is complete."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds since the epoch; None = not yet."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and what has been generated for it."""

    request_id: str
    prompt: str | None  # None when it was given as token ids
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[PositionLogprobs | None] | None = None  # nothing precedes the first: None
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    seed: int | None = None  # the seed the sampling used (drawn at random where none was given)

"""What the sampler is told about each row of logits, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

NO_LOGPROBS = -1  # in SamplingMetadata.num_logprobs: this row wants none
INVALID_TOKEN_ID = -1  # sampled where the logits were not numbers: the request ends with an error


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: of the token chosen (or given), then of the most likely."""

    token_ids: list[int]  # [1 + k]
    logprobs: list[float]  # [1 + k], natural logarithm
    rank: int  # of the chosen token: how many tokens are at least as likely, itself included


@dataclass(frozen=True, slots=True, eq=False)
class SamplingMetadata:
    """How each of the step's L rows of logits is to be sampled. All arrays are [L], in their order."""

    temperature: np.ndarray  # float32; 0 = greedy
    top_k: np.ndarray  # int32; 0 = off
    top_p: np.ndarray  # float32; 1 = off
    min_p: np.ndarray  # float32; 0 = off
    seeds: np.ndarray  # uint64
    positions: np.ndarray  # int64: position in its sequence of the token that is being sampled
    num_logprobs: np.ndarray  # int32: likeliest tokens to report; NO_LOGPROBS = not even the chosen one


@dataclass(frozen=True, slots=True, eq=False)
class SamplerOutput:
    """What was sampled from L rows of logits."""

    sampled_token_ids: np.ndarray  # [L] int64; INVALID_TOKEN_ID where the row held no usable number
    logprobs: list[TokenLogprobs | None]  # [L]; None for rows that wanted none

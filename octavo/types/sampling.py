"""The input of the sampler besides the logits, and its output."""

from __future__ import annotations

import msgspec
import numpy as np

NO_LOGPROBS = -1  # in SamplingMetadata.num_logprobs: report none for this row
INVALID_TOKEN_ID = -1  # sampled from unusable logits (NaN, +inf, all -inf); ends the request with an error


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: of the chosen (or given) token, then of the most likely tokens."""

    token_ids: list[int]  # [1 + k]
    logprobs: list[float]  # [1 + k], natural logarithm
    rank: int  # of the chosen token: how many tokens are at least as likely, itself included


class TokenLists(msgspec.Struct, frozen=True, eq=False):
    """A list of tokens for each of L rows. The list of row r is token_ids[offsets[r] : offsets[r + 1]]."""

    offsets: np.ndarray  # [L + 1] int64, from 0 to len(token_ids), never falling
    token_ids: np.ndarray  # [n] int32, each an id of the vocabulary


class LogitBias(msgspec.Struct, frozen=True, eq=False):
    """Values that are added to the logits of some tokens of each row."""

    tokens: TokenLists  # a token that is listed twice gets both values
    values: np.ndarray  # [n] float32, of tokens.token_ids


class Penalties(msgspec.Struct, frozen=True, eq=False):
    """Penalties for the tokens that requests have seen, for each of L rows of logits.

    The tokens that a request has seen are kept in one row of tables that outlive the step. The tables have R
    rows, at most C distinct tokens in each, and V' token ids. The sampler only reads them.
    """

    # [L] float32, > 0: positive logits of seen tokens are divided by it, others multiplied.
    repetition: np.ndarray
    frequency: np.ndarray  # [L] float32: subtracted from a logit for each time the token is in the output
    presence: np.ndarray  # [L] float32: subtracted once from the logits of tokens in the output
    rows: np.ndarray  # [L] int64: the tables' row of each row of logits
    seen: np.ndarray  # [R, C] int32: distinct tokens of prompt and output, in any order
    num_seen: np.ndarray  # [R] int64: how many entries of `seen` are set
    counts: np.ndarray  # [R, V'] int32: for a seen token 1 + how often it is in the output; for others 0


class SamplingMetadata(msgspec.Struct, frozen=True, eq=False):
    """How each of the step's L rows of logits is to be sampled. Arrays are [L], in the rows' order.

    `allowed`, `bias` and `penalties` change the logits of any row, also of greedy rows. Each is None if no
    row of the step asks for it.
    """

    temperature: np.ndarray  # float32; 0 = greedy
    top_k: np.ndarray  # int32; 0 = off
    top_p: np.ndarray  # float32; 1 = off
    min_p: np.ndarray  # float32; 0 = off
    seeds: np.ndarray  # uint64
    positions: np.ndarray  # int64: position in its sequence of the token that is being sampled
    num_logprobs: np.ndarray  # int32: likeliest tokens to report; NO_LOGPROBS = not even the chosen one
    # [L, ceil(V / 32)] uint32: token t may be chosen if bit t % 32 of word t // 32 is set.
    allowed: np.ndarray | None = None
    bias: LogitBias | None = None
    penalties: Penalties | None = None

    @property
    def adjusts_logits(self) -> bool:
        """Whether any row's logits change before a token is chosen from them."""
        return self.allowed is not None or self.bias is not None or self.penalties is not None


class SamplerOutput(msgspec.Struct, frozen=True, eq=False):
    """What was sampled from L rows of logits, which belong to S requests (`Batch.logits_start_loc`)."""

    sampled_token_ids: np.ndarray  # [L] int64; INVALID_TOKEN_ID for a row of unusable logits
    logprobs: list[TokenLogprobs | None]  # [L]; None for rows that ask for none
    # [S] int64: tokens that each request gains: one, and one more for each accepted draft. None = every
    # request has one row.
    num_gained: np.ndarray | None = None

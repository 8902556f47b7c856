"""`Sampler`: samples tokens from a step's logits.

The result of a row does not depend on other rows, to the bit. Operations over all rows at once are exact
(comparisons, arg max) or act on each logit alone. The rest is float64 arithmetic on one row at a time, since
a sum over a row of a larger array may add in another order.
"""

from __future__ import annotations

import numpy as np

from octavo.sampling.adjustments import apply_adjustments
from octavo.sampling.filters import apply_min_p, apply_top_k, apply_top_p
from octavo.sampling.logprobs import LOGPROBS_MODES, gather_logprobs
from octavo.sampling.noise import gumbel_noise
from octavo.types.sampling import (
    INVALID_TOKEN_ID,
    NO_LOGPROBS,
    SamplerOutput,
    SamplingMetadata,
    TokenLogprobs,
)


class Sampler:
    """Samples a token from each row of logits.

    In this order: mask padding and find unusable rows; adjust logits by mask, bias and penalties; take the
    most likely token of each greedy row; for each other row divide by the temperature, filter by min_p, top_k
    and top_p, and draw; gather logprobs.
    """

    def __init__(self, num_token_ids: int | None, logprobs_mode: str = "raw_logprobs") -> None:
        """`num_token_ids`: ids in the tokenizer; logits past them are padding. None = no padding."""
        self._num_token_ids = num_token_ids
        self._logprobs_are_processed, self._logprobs_are_normalized = LOGPROBS_MODES[logprobs_mode]

    def forward(self, logits: np.ndarray, metadata: SamplingMetadata) -> SamplerOutput:
        """Sample from logits [L, V] float32, which may be overwritten.

        Processed logprobs of a greedy row are computed from its adjusted logits, since neither temperature
        nor filters apply to it. A row with NaN or +inf among its logits, or with nothing but -inf, before or
        after they are adjusted, gets INVALID_TOKEN_ID and no logprobs; the other rows are not affected.
        """
        self._mask_padding(logits)
        raw = logits
        usable = np.isfinite(logits.max(axis=1))  # max is NaN if any logit is
        if metadata.adjusts_logits:
            if not self._logprobs_are_processed and (metadata.num_logprobs != NO_LOGPROBS).any():
                raw = logits.copy()
            apply_adjustments(logits, metadata)
            usable &= np.isfinite(logits.max(axis=1))
        token_ids = logits.argmax(axis=1)  # the first of equals
        token_ids[~usable] = INVALID_TOKEN_ID

        reported: dict[int, np.ndarray] = {}  # row → processed logits
        for row in np.flatnonzero(usable & (metadata.temperature > 0)).tolist():
            processed = _process(logits[row], metadata, row)
            token_ids[row] = _draw(processed, int(metadata.seeds[row]), int(metadata.positions[row]))
            if self._logprobs_are_processed and metadata.num_logprobs[row] != NO_LOGPROBS:
                reported[row] = processed

        logprobs: list[TokenLogprobs | None] = [None] * len(logits)
        for row in np.flatnonzero(usable & (metadata.num_logprobs != NO_LOGPROBS)).tolist():
            logprobs[row] = gather_logprobs(
                reported.get(row, raw[row]),
                int(token_ids[row]),
                int(metadata.num_logprobs[row]),
                normalize=self._logprobs_are_normalized,
            )
        return SamplerOutput(token_ids, logprobs)

    def gather_logprobs(
        self, logits: np.ndarray, token_ids: np.ndarray, num_logprobs: int
    ) -> list[TokenLogprobs]:
        """Return raw log-probabilities of given tokens [L], such as a prompt's, and of the likeliest.

        The logits [L, V] may be overwritten.
        """
        self._mask_padding(logits)
        return [
            gather_logprobs(row, int(token_id), num_logprobs, normalize=True)
            for row, token_id in zip(logits, token_ids, strict=True)
        ]

    def _mask_padding(self, logits: np.ndarray) -> None:
        if self._num_token_ids is not None:
            logits[:, self._num_token_ids :] = -np.inf


def _process(logits: np.ndarray, metadata: SamplingMetadata, row: int) -> np.ndarray:
    """Return the row's logits after temperature and filters: [V] float64, -inf = dropped."""
    # In float64 the division keeps distinct float32 logits distinct, so it makes no new ties.
    processed = logits.astype(np.float64) / float(metadata.temperature[row])
    if metadata.min_p[row] > 0:
        apply_min_p(processed, float(metadata.min_p[row]))
    if metadata.top_k[row] > 0:
        apply_top_k(processed, int(metadata.top_k[row]))
    if metadata.top_p[row] < 1:
        apply_top_p(processed, float(metadata.top_p[row]))
    return processed


def _draw(processed: np.ndarray, seed: int, position: int) -> int:
    """Draw from softmax(processed) by the Gumbel-max trick over the tokens that are not dropped."""
    ids = np.flatnonzero(processed > -np.inf)
    return int(ids[np.argmax(processed[ids] + gumbel_noise(seed, position, ids))])

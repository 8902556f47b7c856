"""`NativeSampler`: octavo.sampling.sampler.Sampler on all threads of a native device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.native.library import load_library
from octavo.sampling.logprobs import LOGPROBS_MODES
from octavo.types.sampling import SamplerOutput, SamplingMetadata, TokenLogprobs

if TYPE_CHECKING:
    from octavo.backends.native._native import Device, Sampler


class NativeSampler:
    """Samples a token from each row of logits, as `Sampler` does: the same tokens, in C++.

    Logits are only read. A row's result doesn't depend on the other rows nor on the number of threads.
    """

    def __init__(
        self, device: Device, num_token_ids: int | None, logprobs_mode: str = "raw_logprobs"
    ) -> None:
        """`num_token_ids`: ids the tokenizer knows; logits past them are padding. None = no padding."""
        processed, normalized = LOGPROBS_MODES[logprobs_mode]
        self._sampler: Sampler = load_library().Sampler(device, num_token_ids, processed, normalized)

    def forward(self, logits: np.ndarray, metadata: SamplingMetadata) -> SamplerOutput:
        """Sample from logits [L, V] float32, C-contiguous. Unusable rows are treated as in `Sampler.forward`.

        Raises ValueError for arrays with a wrong shape, type or layout.
        """
        token_ids, reported = self._sampler.sample(logits, metadata)
        if reported is None:
            return SamplerOutput(token_ids, [None] * len(token_ids))
        return SamplerOutput(token_ids, _unpack(*reported))

    def gather_logprobs(
        self, logits: np.ndarray, token_ids: np.ndarray, num_logprobs: int
    ) -> list[TokenLogprobs]:
        """Raw log-probabilities of the tokens `token_ids` [L] int64 (for example of a prompt) and of the
        `num_logprobs` most likely tokens, from logits [L, V].

        Raises ValueError as `forward` does.
        """
        reported = _unpack(*self._sampler.gather_logprobs(logits, token_ids, num_logprobs))
        return [logprobs for logprobs in reported if logprobs is not None]


def _unpack(
    offsets: np.ndarray, counts: np.ndarray, ranks: np.ndarray, token_ids: np.ndarray, values: np.ndarray
) -> list[TokenLogprobs | None]:
    """The logprobs of each row [L]: `counts` entries from the row's offset on, or None if there are none."""
    return [
        TokenLogprobs(token_ids[start : start + count].tolist(), values[start : start + count].tolist(), rank)
        if count
        else None
        for start, count, rank in zip(offsets[:-1].tolist(), counts.tolist(), ranks.tolist(), strict=True)
    ]

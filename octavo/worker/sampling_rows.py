"""`SamplingRows`: sampling parameters as arrays by row, so that a step needs no loop over requests."""

from __future__ import annotations

import numpy as np

from octavo.types.params import SamplingParams
from octavo.types.sampling import NO_LOGPROBS, SamplingMetadata


class SamplingRows:
    """Sampling parameters by row. A row is overwritten when a request is admitted to it."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.temperature = np.zeros(num_rows, np.float32)
        self.top_k = np.zeros(num_rows, np.int32)
        self.top_p = np.ones(num_rows, np.float32)
        self.min_p = np.zeros(num_rows, np.float32)
        self.seeds = np.zeros(num_rows, np.uint64)
        self.num_logprobs = np.full(num_rows, NO_LOGPROBS, np.int32)

    def set_row(self, row: int, params: SamplingParams) -> None:
        """Store `params` for `row`. They must have a seed: the front end draws one if the user gave none."""
        assert params.seed is not None, "a request reached the worker without a seed"
        self.temperature[row] = 0 if params.greedy else params.temperature
        self.top_k[row] = max(params.top_k, 0)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.seeds[row] = params.seed % 2**64
        if params.logprobs is None:
            self.num_logprobs[row] = NO_LOGPROBS
        else:
            self.num_logprobs[row] = self.vocab_size if params.logprobs < 0 else params.logprobs

    def get_metadata(self, rows: np.ndarray, positions: np.ndarray) -> SamplingMetadata:
        """Return the parameters of `rows` [L]. Each row samples the token at its position [L]."""
        return SamplingMetadata(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            seeds=self.seeds[rows],
            positions=positions,
            num_logprobs=self.num_logprobs[rows],
        )

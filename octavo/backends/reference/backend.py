"""`ReferenceBackend`: the numpy implementation of `Backend`. Its handles are float32 arrays."""

from __future__ import annotations

import math

import numpy as np

from octavo.backends.capacity import kv_cache_must_fit, weights_must_fit
from octavo.backends.reference.attention import HEAD_BYTES, KVCache
from octavo.backends.reference.ops import ReferenceOps
from octavo.backends.reference.parameters import Parameters
from octavo.backends.token_table import TokenTable
from octavo.models.model import Model, forward
from octavo.sampling.sampler import Sampler
from octavo.types.batch import Batch
from octavo.types.kv import KVCacheConfig
from octavo.types.protocols import Done
from octavo.types.sampling import SamplerOutput, SamplingMetadata, TokenLogprobs


class ReferenceBackend:
    """Implements `Backend`. `load_model` and `allocate_kv_cache` are called before all other methods.

    The same request gives the same bits whatever the other requests, the chunks and the size of the blocks.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def kv_head_bytes(self, head_size: int) -> int:
        return HEAD_BYTES * head_size

    def load_model(self, model: Model) -> None:
        self._model = model
        num_bytes = 4 * sum(math.prod(weight.shape) for weight in model.weights)
        with weights_must_fit(model, num_bytes, " as float32, in which the reference backend computes"):
            self._parameters = Parameters(model.weights)

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        with kv_cache_must_fit(config):
            self._cache = KVCache(config)

    def allocate_rows(self, num_rows: int, max_model_len: int) -> None:
        self._tokens = TokenTable(num_rows, max_model_len)

    def write_tokens(self, row: int, start: int, token_ids: list[int]) -> None:
        self._tokens.write(row, start, token_ids)

    def forward(self, batch: Batch) -> np.ndarray:
        ops = ReferenceOps(self._parameters, self._cache, batch.attention, batch.inputs)
        return forward(self._model, ops, self._tokens.gather(batch), batch.positions)

    def compute_logits(self, hidden: np.ndarray, indices: np.ndarray) -> np.ndarray:
        ops = ReferenceOps(self._parameters, self._cache, metadata=())
        return self._model.compute_logits(ops, hidden[indices])

    def sample(self, logits: np.ndarray, batch: Batch, metadata: SamplingMetadata) -> Done[SamplerOutput]:
        return Done(self._tokens.take_in(batch, self._sampler.forward(logits, metadata)))

    def gather_logprobs(
        self, logits: np.ndarray, token_ids: np.ndarray, num_logprobs: int
    ) -> list[TokenLogprobs]:
        return self._sampler.gather_logprobs(logits, token_ids, num_logprobs)

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        self._cache.zero(block_ids)

    def copy_blocks(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        self._cache.copy(sources, destinations)

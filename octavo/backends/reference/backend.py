"""`ReferenceBackend`: the numpy implementation of `Backend`. Its handles are float32 arrays."""

from __future__ import annotations

import math

import numpy as np

from octavo.backends.capacity import room_for_kv_cache, room_for_weights
from octavo.backends.reference.attention import HEAD_BYTES, KVCache
from octavo.backends.reference.ops import ReferenceOps
from octavo.backends.reference.parameters import Parameters
from octavo.models.model import Model
from octavo.sampling.sampler import Sampler
from octavo.types.batch import Batch
from octavo.types.kv import KVCacheConfig
from octavo.types.sampling import SamplerOutput, SamplingMetadata, TokenLogprobs


class ReferenceBackend:
    """Implements `Backend`. `load_model` and `allocate_kv_cache` come before all else.

    For the same request it gives the same bits: whatever runs beside it, in whatever chunks, on blocks of
    whatever size.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def kv_head_bytes(self, head_size: int) -> int:
        """K and V are float32."""
        return HEAD_BYTES * head_size

    def load_model(self, model: Model) -> None:
        """Dequantize the model's weights. Raises CapacityError when there is no room for them as float32."""
        self._model = model
        num_bytes = 4 * sum(math.prod(weight.shape) for weight in model.weights)
        with room_for_weights(model, num_bytes, " as float32, in which the reference backend computes"):
            self._parameters = Parameters(model.weights)

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        """Reserve zeroed pages. Raises CapacityError when there is no room, and UnsupportedError for layers
        that keep anything but K and V.
        """
        with room_for_kv_cache(config):
            self._cache = KVCache(config)

    def forward(self, batch: Batch) -> np.ndarray:
        """Run the model over the batch. Returns hidden states [T, hidden] float32."""
        ops = ReferenceOps(self._parameters, self._cache, batch.attention, batch.inputs)
        return self._model.forward(ops, batch.token_ids, batch.positions)

    def compute_logits(self, hidden: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Logits [L, vocab] float32 of the tokens `indices` [L]."""
        ops = ReferenceOps(self._parameters, self._cache, metadata=())
        return self._model.compute_logits(ops, hidden[indices])

    def sample(self, logits: np.ndarray, metadata: SamplingMetadata) -> SamplerOutput:
        """Sample one token from each row of `logits`, which are overwritten."""
        return self._sampler.forward(logits, metadata)

    def gather_logprobs(
        self, logits: np.ndarray, token_ids: np.ndarray, num_logprobs: int
    ) -> list[TokenLogprobs]:
        """Raw log-probabilities of one token for each row of `logits`, and of the most likely tokens."""
        return self._sampler.gather_logprobs(logits, token_ids, num_logprobs)

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        """Set every page of `block_ids` to zero."""
        self._cache.zero(block_ids)

    def copy_blocks(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        """Copy every page of `sources` to `destinations`."""
        self._cache.copy(sources, destinations)

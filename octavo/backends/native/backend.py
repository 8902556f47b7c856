"""`NativeBackend`: models run by C++ kernels. Its handles are float32 arrays over memory of its programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.capacity import room_for_kv_cache, room_for_weights
from octavo.backends.native.fusion import fuse
from octavo.backends.native.kv_cache import KVCaches, KVType, head_bytes
from octavo.backends.native.operations import Recording
from octavo.backends.native.program import Program
from octavo.backends.native.recorder import record
from octavo.backends.native.sampling import NativeSampler
from octavo.backends.native.support import check_supported
from octavo.backends.native.weights import PackedWeights
from octavo.models.model import Model
from octavo.types.batch import Batch
from octavo.types.kv import KVCacheConfig
from octavo.types.sampling import SamplerOutput, SamplingMetadata, TokenLogprobs

if TYPE_CHECKING:
    from octavo.backends.native._native import Device


def record_model(model: Model) -> tuple[Recording, Recording]:
    """The two programs of a model, fused: tokens to hidden states, hidden states to logits.

    Raises UnsupportedError, naming weight or layer, for what no kernel can run.
    """
    forward = fuse(record(model.forward))
    logits = fuse(
        record(
            lambda ops, token_ids, positions, hidden: model.compute_logits(ops, hidden),
            {"hidden": model.spec.hidden_size},
        )
    )
    for recording in (forward, logits):
        check_supported(recording)
    return forward, logits


class NativeBackend:
    """Implements `Backend` on a device (`library.make_device`). `load_model` and `allocate_kv_cache` come
    before all else.

    Hidden states and logits are the caller's for as long as it holds them; their memory is used again when it
    does not.
    """

    def __init__(self, device: Device, sampler: NativeSampler, kv_type: KVType = "bf16") -> None:
        self.device = device
        self._sampler = sampler
        self._kv_type = kv_type

    def kv_head_bytes(self, head_size: int) -> int:
        """Bytes of one token's K and V in one KV head."""
        return head_bytes(self._kv_type, head_size)

    def load_model(self, model: Model) -> None:
        """Record the model and pack its weights.

        Raises UnsupportedError, before anything is packed, for a model that the kernels cannot run, and
        CapacityError when there is no room for its weights.
        """
        self._forward_recording, logits = record_model(model)
        with room_for_weights(model, sum(weight.nbytes for weight in model.weights)):
            self._weights = PackedWeights(self.device, [self._forward_recording, logits])
        self._logits = Program(self.device, logits, self._weights)

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        """Reserve zeroed pages. Raises CapacityError when there is no room, and UnsupportedError for layers
        that keep anything but K and V.
        """
        with room_for_kv_cache(config):
            self._caches = KVCaches(config, self._kv_type)
        self._forward = Program(self.device, self._forward_recording, self._weights, self._caches)

    def forward(self, batch: Batch) -> np.ndarray:
        """Run the model over the batch. Returns hidden states [T, hidden] float32."""
        (hidden,) = self._forward.run(
            len(batch.token_ids),
            token_ids=batch.token_ids,
            positions=batch.positions,
            attention=batch.attention,
            rows_inputs=batch.inputs,
        )
        return hidden

    def compute_logits(self, hidden: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Logits [L, vocab] float32 of the tokens `indices` [L]."""
        (logits,) = self._logits.run(len(indices), hidden=hidden[indices])
        return logits

    def sample(self, logits: np.ndarray, metadata: SamplingMetadata) -> SamplerOutput:
        """Sample one token from each row of `logits`, which may be overwritten."""
        return self._sampler.forward(logits, metadata)

    def gather_logprobs(
        self, logits: np.ndarray, token_ids: np.ndarray, num_logprobs: int
    ) -> list[TokenLogprobs]:
        """Raw log-probabilities of one token for each row of `logits`, and of the most likely tokens."""
        return self._sampler.gather_logprobs(logits, token_ids, num_logprobs)

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        """Set every page of `block_ids` to zero."""
        self._caches.zero(block_ids)

    def copy_blocks(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        """Copy every page of `sources` to `destinations`."""
        self._caches.copy(sources, destinations)

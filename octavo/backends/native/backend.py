"""`NativeBackend`: runs models with C++ kernels. Its handles are float32 arrays over its programs' memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.capacity import kv_cache_must_fit, weights_must_fit
from octavo.backends.native.fusion import fuse
from octavo.backends.native.kv_cache import KVCaches, KVType, head_bytes
from octavo.backends.native.operations import Recording
from octavo.backends.native.program import Program
from octavo.backends.native.recorder import record
from octavo.backends.native.sampling import NativeSampler
from octavo.backends.native.support import check_supported
from octavo.backends.native.weights import PackedWeights
from octavo.backends.token_table import TokenTable
from octavo.models.model import Model, forward
from octavo.types.batch import Batch
from octavo.types.kv import KVCacheConfig
from octavo.types.protocols import Done
from octavo.types.sampling import SamplerOutput, SamplingMetadata, TokenLogprobs

if TYPE_CHECKING:
    from octavo.backends.native._native import Device


def record_model(model: Model) -> tuple[Recording, Recording]:
    """The two programs of a model, fused: tokens to hidden states, and hidden states to logits.

    Raises UnsupportedError, which names the weight or layer, for an operation that no kernel can run.
    """
    hidden = fuse(record(partial(forward, model)))
    logits = fuse(
        record(
            lambda ops, token_ids, positions, hidden: model.compute_logits(ops, hidden),
            {"hidden": model.spec.hidden_size},
        )
    )
    for recording in (hidden, logits):
        check_supported(recording)
    return hidden, logits


class NativeBackend:
    """Implements `Backend` on a device (`library.make_device`). `load_model` and `allocate_kv_cache` are
    called before all other methods.

    The memory of hidden states and logits is used again only when the caller no longer holds them.
    """

    def __init__(self, device: Device, sampler: NativeSampler, kv_type: KVType = "bf16") -> None:
        self.device = device
        self._sampler = sampler
        self._kv_type = kv_type

    def kv_head_bytes(self, head_size: int) -> int:
        return head_bytes(self._kv_type, head_size)

    def load_model(self, model: Model) -> None:
        self._forward_recording, logits = record_model(model)  # refuses a model before anything is packed
        with weights_must_fit(model, sum(weight.nbytes for weight in model.weights)):
            self._weights = PackedWeights(self.device, [self._forward_recording, logits])
        self._logits = Program(self.device, logits, self._weights)

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        with kv_cache_must_fit(config):
            self._caches = KVCaches(config, self._kv_type)
        self._forward = Program(self.device, self._forward_recording, self._weights, self._caches)

    def allocate_rows(self, num_rows: int, max_model_len: int) -> None:
        self._tokens = TokenTable(num_rows, max_model_len)

    def write_tokens(self, row: int, start: int, token_ids: list[int]) -> None:
        self._tokens.write(row, start, token_ids)

    def forward(self, batch: Batch) -> np.ndarray:
        (hidden,) = self._forward.run(
            batch.num_tokens,
            token_ids=self._tokens.gather(batch),
            positions=batch.positions,
            attention=batch.attention,
            rows_inputs=batch.inputs,
        )
        return hidden

    def compute_logits(self, hidden: np.ndarray, indices: np.ndarray) -> np.ndarray:
        (logits,) = self._logits.run(len(indices), hidden=hidden[indices])
        return logits

    def sample(self, logits: np.ndarray, batch: Batch, metadata: SamplingMetadata) -> Done[SamplerOutput]:
        return Done(self._tokens.take_in(batch, self._sampler.forward(logits, metadata)))

    def gather_logprobs(
        self, logits: np.ndarray, token_ids: np.ndarray, num_logprobs: int
    ) -> list[TokenLogprobs]:
        return self._sampler.gather_logprobs(logits, token_ids, num_logprobs)

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        self._caches.zero(block_ids)

    def copy_blocks(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        self._caches.copy(sources, destinations)

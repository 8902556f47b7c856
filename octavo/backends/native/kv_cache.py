"""The paged KV cache of every layer, in memory that the kernels lay out (csrc/program/instructions.h)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from octavo.backends.native.library import load_library
from octavo.types.kv import KVCacheConfig

KVType = Literal["bf16", "f32", "fp8_e4m3"]


def head_bytes(kv_type: KVType, head_size: int) -> int:
    """Bytes of one token's K and V in one KV head. Raises UnsupportedError without the native extension."""
    return load_library().kv_head_bytes(kv_type, head_size)


class LayerPlace(NamedTuple):
    """Where a layer's K and V are: the native cache of its group, and its place in it."""

    group: int
    cache: Any
    layer: int


class KVCaches:
    """One native cache for each KV cache group. Raises MemoryError when there is no room for them."""

    def __init__(self, config: KVCacheConfig, kv_type: KVType) -> None:
        self._caches: list[Any] = []
        self._places: dict[int, LayerPlace] = {}
        for number, group in enumerate(config.groups):
            spec = group.spec
            assert spec.head_bytes == head_bytes(kv_type, spec.head_size), "planned for another type"
            cache = load_library().KVCache(
                type=kv_type,
                num_layers=len(group.layers),
                num_blocks=config.num_blocks,
                block_size=spec.block_size,
                num_kv_heads=spec.num_kv_heads,
                head_size=spec.head_size,
            )
            self._caches.append(cache)
            self._places |= {
                layer: LayerPlace(number, cache, place) for place, layer in enumerate(group.layers)
            }

    def place_of(self, layer: int) -> LayerPlace:
        """Where K and V of the model's layer `layer` are."""
        return self._places[layer]

    def zero(self, block_ids: np.ndarray) -> None:
        """Set K and V of `block_ids` [k] int32 to zero in every layer."""
        for cache in self._caches:
            cache.zero_blocks(block_ids)

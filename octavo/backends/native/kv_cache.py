"""The paged KV cache of every layer. Kernels define the layout of a page (csrc/program/instructions.h)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from octavo.backends.cache_pages import find_pages
from octavo.backends.native.library import load_library
from octavo.types.kv import KVCacheConfig

if TYPE_CHECKING:
    from octavo.backends.native._native import KVCache, KVPages

KVType = Literal["bf16", "f32", "fp8_e4m3"]


def head_bytes(kv_type: KVType, head_size: int) -> int:
    """Bytes of one token's K and V in one KV head. Raises UnsupportedError without the native extension."""
    return int(load_library().kv_head_bytes(kv_type, head_size))


class LayerCache(NamedTuple):
    """The KV cache group of a layer, and the layer's native cache."""

    group: int
    cache: KVCache


class KVCaches:
    """The pages that all KV cache groups share, and the cache of each layer in them.

    Raises MemoryError if the pages do not fit into memory, and UnsupportedError for layers that keep anything
    but keys and values.
    """

    def __init__(self, config: KVCacheConfig, kv_type: KVType) -> None:
        pages_of_layers = find_pages(config)  # before anything is allocated
        self.pages: KVPages = load_library().KVPages(
            num_pages=config.group_size, num_blocks=config.num_blocks, page_bytes=config.page_bytes
        )
        self._layers: dict[int, LayerCache] = {}
        for layer, (group, page, spec) in pages_of_layers.items():
            assert spec.head_bytes == head_bytes(kv_type, spec.head_size), "the config is for another KV type"
            cache = self.pages.layer(
                page=page,
                type=kv_type,
                block_size=spec.block_size,
                num_kv_heads=spec.num_kv_heads,
                head_size=spec.head_size,
            )
            self._layers[layer] = LayerCache(group, cache)

    def of_layer(self, layer: int) -> LayerCache:
        """The cache of the model's layer `layer`."""
        return self._layers[layer]

    def zero(self, block_ids: np.ndarray) -> None:
        """Set all pages of `block_ids` [k] int32 to zero. Raises ValueError for an unknown block."""
        self.pages.zero_blocks(block_ids)

    def copy(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        """Copy all pages of `sources` [k] int32 to `destinations` [k] int32.

        Raises ValueError for an unknown block, and if the result would depend on the order of copies.
        """
        self.pages.copy_blocks(sources, destinations)

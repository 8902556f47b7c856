"""Where layers keep what they keep of sequences: from a `KVCacheConfig` to each layer's pages.

What a page holds and how is the backend's own affair.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.errors import UnsupportedError
from octavo.types.kv import AttentionSpec, KVCacheConfig


class LayerPlace(NamedTuple):
    """Where a layer's K and V lie, and what they look like there."""

    group: int  # its KV cache group, whose block ids are its own
    page: int  # which of a block's pages, from 0
    spec: AttentionSpec


def place_layers(config: KVCacheConfig) -> dict[int, LayerPlace]:
    """The place of every layer. Raises UnsupportedError for a layer that keeps anything but K and V."""
    places = {}
    for number, group in enumerate(config.groups):
        if not isinstance(group.spec, AttentionSpec):
            raise UnsupportedError(
                f"layers {', '.join(map(str, group.layers))} need a KV cache of kind "
                f"{type(group.spec).__name__}; this backend can only keep K and V of tokens"
            )
        for page, layer in enumerate(group.layers):
            places[layer] = LayerPlace(number, page, group.spec)
    return places

"""Finds the pages of each layer's keys and values in a `KVCacheConfig`.

Each backend defines the layout of a page itself.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.errors import UnsupportedError
from octavo.types.kv import AttentionSpec, KVCacheConfig


class LayerPages(NamedTuple):
    """The pages of a layer: page number `page` of every block that its group holds."""

    group: int  # the layer's KV cache group, which has a block table of its own
    page: int  # the number of the page in a block, from 0
    spec: AttentionSpec


def find_pages(config: KVCacheConfig) -> dict[int, LayerPages]:
    """The pages of every layer. Raises UnsupportedError, naming the layers, if any layer keeps anything but
    keys and values.
    """
    pages: dict[int, LayerPages] = {}
    refused: dict[int, str] = {}
    for number, group in enumerate(config.groups):
        for page, layer in enumerate(group.layers):
            if isinstance(group.spec, AttentionSpec):
                pages[layer] = LayerPages(number, page, group.spec)
            else:
                refused[layer] = type(group.spec).__name__
    if refused:
        raise UnsupportedError(
            f"layers {', '.join(map(str, sorted(refused)))} need a KV cache of kind "
            f"{' or '.join(sorted(set(refused.values())))}; this backend can only keep keys and values"
        )
    return pages

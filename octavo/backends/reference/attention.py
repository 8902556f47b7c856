"""The paged KV cache as numpy arrays, and attention over it.

Each query is computed alone, over exactly the tokens that it attends to, in order. So the shapes of all
products depend only on the length of that context. Results do not depend on chunks, on other requests, on the
size of blocks or on what else the blocks hold.
"""

from __future__ import annotations

import numpy as np

from octavo.backends.cache_pages import LayerPages, find_pages
from octavo.ops import AttentionLayer
from octavo.types.batch import CommonAttentionMetadata
from octavo.types.kv import KVCacheConfig

HEAD_BYTES = 2 * 4  # of one token's K and V in one KV head, for each of its features: they are float32


class KVCache:
    """K and V of every layer, in pages that layers of all groups share.

    Raises MemoryError when they do not fit into memory, and UnsupportedError for layers that keep anything
    else.
    """

    def __init__(self, config: KVCacheConfig) -> None:
        self._layers = find_pages(config)
        shape = (config.group_size, config.num_blocks, config.page_bytes // 4)
        self._memory = np.zeros(shape, np.float32)  # [pages of a block, num_blocks, numbers of a page]
        # layer: the same memory as [num_blocks, 2, block_size, num_kv_heads, head_size], K first
        self._pages = {layer: self._view(pages) for layer, pages in self._layers.items()}

    def group_of(self, layer: int) -> int:
        """Number of the KV cache group of `layer`."""
        return self._layers[layer].group

    def write(self, layer: int, k: np.ndarray, v: np.ndarray, slots: np.ndarray) -> None:
        """Write k and v [T, num_kv_heads, head_size] into `slots` [T]. Tokens with slot -1 are left out."""
        kept = slots >= 0
        block_ids, offsets = np.divmod(slots[kept], self._layers[layer].spec.block_size)
        self._pages[layer][block_ids, 0, offsets] = k[kept]
        self._pages[layer][block_ids, 1, offsets] = v[kept]

    def read(
        self, layer: int, block_table: np.ndarray, start: int, stop: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Copies of K and V of positions `start` up to `stop`, each [positions, num_kv_heads, head_size].

        Only the entries of `block_table` [B] for these positions are read.
        """
        block_size = self._layers[layer].spec.block_size
        first = start // block_size
        block_ids = block_table[first : -(-stop // block_size)]
        wanted = slice(start - first * block_size, stop - first * block_size)
        pages = self._pages[layer]
        k, v = (pages[block_ids, part].reshape(-1, *pages.shape[3:])[wanted] for part in (0, 1))
        return k, v

    def zero(self, block_ids: np.ndarray) -> None:
        """Set all pages of `block_ids` [k] to zero. Raises ValueError for blocks that are not there."""
        self._require_blocks("block_ids", block_ids)
        self._memory[:, block_ids] = 0.0

    def copy(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        """Copy all pages of `sources` [k] to `destinations` [k].

        Raises ValueError for blocks that are not there, and where the result would depend on the order.
        """
        self._require_blocks("sources", sources)
        self._require_blocks("destinations", destinations)
        if len(sources) != len(destinations):
            raise ValueError(f"destinations has {len(destinations)} entries; it must have {len(sources)}")
        unique, counts = np.unique(destinations, return_counts=True)
        if len(unique) < len(destinations):
            raise ValueError(
                f"destinations holds {unique[counts.argmax()]} twice; a block can take only one copy"
            )
        if len(both := np.intersect1d(unique, sources)):
            raise ValueError(
                f"destinations holds {both[0]}, which sources holds too; a block can be only one of them"
            )
        self._memory[:, destinations] = self._memory[:, sources]

    def _view(self, layer: LayerPages) -> np.ndarray:
        spec = layer.spec
        assert spec.head_bytes == HEAD_BYTES * spec.head_size, "planned for another type"
        pages = self._memory[layer.page, :, : spec.page_bytes // 4]  # the rest of a page is not used
        return pages.reshape(len(pages), 2, spec.block_size, spec.num_kv_heads, spec.head_size)

    def _require_blocks(self, name: str, block_ids: np.ndarray) -> None:
        num_blocks = self._memory.shape[1]
        unknown = block_ids[(block_ids < 0) | (block_ids >= num_blocks)]
        if len(unknown):
            raise ValueError(f"{name} holds {unknown[0]}; blocks are 0 up to {num_blocks - 1}")


def paged_attention(
    q: np.ndarray,
    cache: KVCache,
    layer: AttentionLayer,
    sinks: np.ndarray | None,
    metadata: CommonAttentionMetadata,
) -> np.ndarray:
    """The attention output [T, num_heads, head_size] for q [T, num_heads, head_size].

    K and V of the step's own tokens must already be in the cache. `sinks` [num_heads] are the values of
    `layer.sinks`.
    """
    out = np.empty_like(q)
    starts = metadata.query_start_loc
    for request, seq_len in enumerate(metadata.seq_lens):
        start, end = starts[request], starts[request + 1]
        first = _seen(
            layer, seq_len - (end - start), seq_len
        ).start  # no token of the step attends to an earlier one
        k, v = cache.read(layer.index, metadata.block_table[request], first, seq_len)
        for token in range(start, end):
            seen = _seen(layer, seq_len - (end - token), seq_len)
            context = slice(seen.start - first, seen.stop - first)
            out[token] = _attend(q[token], k[context], v[context], layer, sinks)
    return out


def _seen(layer: AttentionLayer, position: int, seq_len: int) -> slice:
    """Which of `seq_len` tokens the token at `position` attends to."""
    start = 0 if layer.window is None else max(0, position + 1 - layer.window)
    return slice(start, position + 1 if layer.causal else seq_len)


def _attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, layer: AttentionLayer, sinks: np.ndarray | None
) -> np.ndarray:
    """The output for one token's q [num_heads, head_size] over k, v [context, num_kv_heads, head_size]."""
    queries = q.reshape(k.shape[1], -1, k.shape[2])  # [num_kv_heads, heads that share one, head_size]
    scores = queries @ k.transpose(1, 2, 0) * np.float32(layer.scale)
    if layer.soft_cap is not None:
        scores = np.tanh(scores / np.float32(layer.soft_cap)) * np.float32(layer.soft_cap)
    # A sink is one more score of its head.
    logits = scores if sinks is None else np.append(scores, sinks.reshape(*scores.shape[:2], 1), axis=-1)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    values = weights[..., : len(k)] @ v.transpose(1, 0, 2)
    attended: np.ndarray = values / weights.sum(axis=-1, keepdims=True)
    return attended.reshape(q.shape)

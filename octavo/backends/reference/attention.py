"""The paged KV cache as numpy arrays, and attention over it.

A query is computed alone: its scores are over exactly its own context, laid out in order, so every shape that
BLAS sees depends on the length of that context and on nothing else. Chunks, other requests and the size of
blocks leave no trace.
"""

from __future__ import annotations

import numpy as np

from octavo.ops import AttentionLayer
from octavo.types.batch import CommonAttentionMetadata
from octavo.types.kv import KVCacheConfig


class KVCache:
    """K and V of every layer, in pages. Raises MemoryError when there is no room for them."""

    def __init__(self, config: KVCacheConfig) -> None:
        # layer: [2, num_blocks, block_size, num_kv_heads, head_size] float32, K first
        self._pages: dict[int, np.ndarray] = {}
        self._groups: dict[int, int] = {}  # layer: number of its KV cache group
        for number, group in enumerate(config.groups):
            spec = group.spec
            shape = (2, config.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size)
            for layer in group.layers:
                self._pages[layer] = np.zeros(shape, np.float32)
                self._groups[layer] = number

    def group_of(self, layer: int) -> int:
        """Number of the KV cache group of `layer`."""
        return self._groups[layer]

    def write(self, layer: int, k: np.ndarray, v: np.ndarray, slots: np.ndarray) -> None:
        """Put k and v [T, num_kv_heads, head_size] into `slots` [T]; slot -1 is nowhere."""
        pages = self._pages[layer]
        by_slot = pages.reshape(2, -1, *pages.shape[3:])
        kept = slots >= 0
        by_slot[0, slots[kept]] = k[kept]
        by_slot[1, slots[kept]] = v[kept]

    def read(self, layer: int, block_table: np.ndarray, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Copies of K and V, each [num_tokens, num_kv_heads, head_size], from the blocks of `block_table`."""
        pages = self._pages[layer]
        num_blocks = -(-num_tokens // pages.shape[2])
        k, v = pages[:, block_table[:num_blocks]].reshape(2, -1, *pages.shape[3:])[:, :num_tokens]
        return k, v

    def zero(self, block_ids: np.ndarray) -> None:
        """Set K and V of `block_ids` to zero in every layer."""
        for pages in self._pages.values():
            pages[:, block_ids] = 0.0


def paged_attention(
    q: np.ndarray,
    cache: KVCache,
    layer: AttentionLayer,
    sinks: np.ndarray | None,
    metadata: CommonAttentionMetadata,
) -> np.ndarray:
    """From q [T, num_heads, head_size] to what each token sees of its request, the same shape.

    K and V of the step's own tokens must be in the cache. `sinks` [num_heads] are what `layer.sinks` holds.
    """
    out = np.empty_like(q)
    starts = metadata.query_start_loc
    for request, seq_len in enumerate(metadata.seq_lens):
        k, v = cache.read(layer.index, metadata.block_table[request], seq_len)
        start, end = starts[request], starts[request + 1]
        for token in range(start, end):
            seen = _seen(layer, seq_len - (end - token), seq_len)
            out[token] = _attend(q[token], k[seen], v[seen], layer, sinks)
    return out


def _seen(layer: AttentionLayer, position: int, seq_len: int) -> slice:
    """The tokens that the one at `position` attends to, of `seq_len`."""
    start = 0 if layer.window is None else max(0, position + 1 - layer.window)
    return slice(start, position + 1 if layer.causal else seq_len)


def _attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, layer: AttentionLayer, sinks: np.ndarray | None
) -> np.ndarray:
    """One token's q [num_heads, head_size] over k and v [context, num_kv_heads, head_size]."""
    queries = q.reshape(k.shape[1], -1, k.shape[2])  # [num_kv_heads, heads that share one, head_size]
    scores = queries @ k.transpose(1, 2, 0) * np.float32(layer.scale)
    if layer.soft_cap is not None:
        scores = np.tanh(scores / np.float32(layer.soft_cap)) * np.float32(layer.soft_cap)
    # A sink is one more score of its head.
    logits = scores if sinks is None else np.append(scores, sinks.reshape(*scores.shape[:2], 1), axis=-1)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    values = weights[..., : len(k)] @ v.transpose(1, 0, 2)
    return (values / weights.sum(axis=-1, keepdims=True)).reshape(q.shape)

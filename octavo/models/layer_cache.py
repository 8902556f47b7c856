"""The values by which a model says what each layer keeps of a sequence between steps: shapes, not bytes.

`octavo.engine.cache_layout` turns these values into the specs of the KV cache, in a backend's bytes. A layer
that keeps nothing has None in place of such a value. So does a layer that reads another layer's keys and
values: its `AttentionLayer` has the index of the layer that keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from octavo.ops import AttentionLayer


@dataclass(frozen=True, slots=True)
class FullAttentionCache:
    """A key and a value of every token, in each of `num_kv_heads` heads of `head_size` features."""

    num_kv_heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class SlidingWindowCache:
    """Keys and values of the last `window` tokens. A token sees at most `window` tokens, itself included."""

    num_kv_heads: int
    head_size: int
    window: int


@dataclass(frozen=True, slots=True)
class ChunkedAttentionCache:
    """Keys and values of the current chunk. Chunks begin at the multiples of `chunk_size`, and a token sees
    the tokens of its own chunk up to itself (Llama 4, 2025).
    """

    num_kv_heads: int
    head_size: int
    chunk_size: int  # tokens


@dataclass(frozen=True, slots=True)
class LatentCache:
    """One vector of every token, from which the keys and values of all heads are computed, and the rotated
    features that all keys share (multi-head latent attention; DeepSeek-V2, 2024).
    """

    latent_size: int
    rope_size: int


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """A state of fixed size, which each token replaces: float32 arrays of these `shapes`.

    Mamba 2 and the gated delta net have two arrays: the last inputs of a short convolution, and the state of
    the recurrence. A layer that is only a short convolution has one. States are float32 on every backend,
    because a state sums over the whole sequence.
    """

    shapes: tuple[tuple[int, ...], ...]


LayerCache: TypeAlias = (
    FullAttentionCache | SlidingWindowCache | ChunkedAttentionCache | LatentCache | RecurrentState
)


def cache_of_attention(layer: AttentionLayer) -> FullAttentionCache | SlidingWindowCache:
    """The cache of a layer with the attention `layer`."""
    if layer.window is None:
        return FullAttentionCache(layer.num_kv_heads, layer.head_size)
    return SlidingWindowCache(layer.num_kv_heads, layer.head_size, layer.window)

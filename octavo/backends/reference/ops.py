"""`ReferenceOps`: the `Ops` vocabulary in numpy and float32, computed at once.

Every operation treats each token by itself. The order of its sums depends only on the token's own context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from octavo.backends.reference.attention import KVCache, paged_attention
from octavo.backends.reference.parameters import Parameters
from octavo.ops import AttentionLayer, Linear, Rope
from octavo.types.batch import CommonAttentionMetadata, RowsInput
from octavo.weights.weight import Weight


class ReferenceOps:
    """Operations on float32 arrays, for one step. `metadata`, one for each KV cache group, says where the
    step's tokens lie in `cache`. `inputs` are the rows that the step brings, by name.

    Implements `Ops`, which defines each operation.
    """

    def __init__(
        self,
        parameters: Parameters,
        cache: KVCache,
        metadata: tuple[CommonAttentionMetadata, ...],
        inputs: Mapping[str, RowsInput] = MappingProxyType({}),
    ) -> None:
        self._parameters = parameters
        self._cache = cache
        self._metadata = metadata
        self._inputs = inputs

    def embedding(self, token_ids: np.ndarray, table: Weight, scale: float = 1.0) -> np.ndarray:
        rows: np.ndarray = self._parameters.matrices[table].values[token_ids] * np.float32(scale)
        return rows

    def replace_rows(self, x: np.ndarray, name: str) -> np.ndarray:
        """Returns x itself if the step replaces no rows."""
        given = self._inputs.get(name)
        if given is None:
            return x
        y = x.copy()
        y[given.indices] = given.values
        return y

    def rms_norm(
        self, x: np.ndarray, weight: Weight, eps: float, residual: np.ndarray | None = None
    ) -> np.ndarray:
        # A sum along contiguous memory: its order depends only on the length.
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        y: np.ndarray = x / np.sqrt(mean_square + np.float32(eps)) * self._parameters.vectors[weight]
        return y if residual is None else y + residual

    def linear(self, x: np.ndarray, layer: Linear, residual: np.ndarray | None = None) -> np.ndarray:
        y = np.concatenate(
            [self._parameters.matrices[weight].multiply(x) for weight in layer.weights], axis=-1
        )
        if layer.biases:
            y += np.concatenate([self._parameters.vectors[bias] for bias in layer.biases])
        if residual is not None:
            y += residual
        return y

    def split_heads(self, x: np.ndarray, num_heads: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        heads = x.reshape(len(x), sum(num_heads), x.shape[1] // sum(num_heads))
        return tuple(np.split(heads, np.cumsum(num_heads[:-1]), axis=1))

    def rope(self, x: np.ndarray, positions: np.ndarray, rope: Rope) -> np.ndarray:
        # The angles are products of float32 numbers, as in the code that models are trained with.
        angles = positions.astype(np.float32)[:, None, None] * rope.inverse_frequencies
        cos, sin = np.cos(angles) * np.float32(rope.magnitude), np.sin(angles) * np.float32(rope.magnitude)
        size, half = rope.rotary_size, rope.rotary_size // 2
        firsts, seconds = slice(0, half), slice(half, size)
        if rope.style == "interleaved":
            firsts, seconds = slice(0, size, 2), slice(1, size, 2)
        a, b = x[..., firsts], x[..., seconds]
        y = x.copy()
        y[..., firsts] = a * cos - b * sin
        y[..., seconds] = b * cos + a * sin
        return y

    def attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, layer: AttentionLayer) -> np.ndarray:
        metadata = self._metadata[self._cache.group_of(layer.index)]
        self._cache.write(layer.index, k, v, metadata.slot_mapping)
        sinks = None if layer.sinks is None else self._parameters.vectors[layer.sinks]
        return paged_attention(q, self._cache, layer, sinks, metadata).reshape(len(q), -1)

    def silu_and_mul(self, x: np.ndarray) -> np.ndarray:
        gate, up = np.split(x, 2, axis=-1)
        with np.errstate(over="ignore"):  # e^-z is infinite for a very negative z; z / infinity = 0
            product: np.ndarray = gate / (1 + np.exp(-gate)) * up
        return product

    def gelu_tanh_and_mul(self, x: np.ndarray) -> np.ndarray:
        gate, up = np.split(x, 2, axis=-1)
        with np.errstate(over="ignore"):  # tanh(infinity) = 1
            inner = np.float32(math.sqrt(2 / math.pi)) * (gate + np.float32(0.044715) * gate * gate * gate)
        product: np.ndarray = gate * np.float32(0.5) * (1 + np.tanh(inner)) * up
        return product

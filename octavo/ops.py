"""`Ops`: every operation a model may use, documented once, and the layer values the operations take.

A model is a function written in these operations; a backend is whatever implements them. Operations may
compute at once or only note what is to be computed. So that both are possible, a model does nothing with a
tensor but pass it on: `Tensor` is a type variable, and a type checker refuses a model that looks inside one.

In the shapes below T is the number of tokens of the step, and the same token is always the same row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np

from octavo.weights.weight import Weight

Tensor = TypeVar("Tensor")

RopeStyle = Literal["half", "interleaved"]


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A linear map whose rows may lie in several weights, each in a format of its own.

    The weights, all `(out_features, in_features)` with one `in_features`, are stacked: the output is theirs
    side by side. `biases` is empty or has one vector for each weight.
    """

    weights: tuple[Weight, ...]
    biases: tuple[Weight, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """A rotary position embedding (RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021).

    At position p, pair i of a head's first `rotary_size` features turns by the angle p *
    inverse_frequencies[i]. The pair is features (i, i + rotary_size / 2) in style "half", (2i, 2i + 1) in
    style "interleaved". What was turned is then multiplied by `magnitude`. Features from `rotary_size` on
    stay as they are.
    """

    inverse_frequencies: np.ndarray  # [rotary_size / 2] float32, radians per position
    style: RopeStyle
    magnitude: float = 1.0

    @property
    def rotary_size(self) -> int:
        """How many features of each head turn."""
        return 2 * len(self.inverse_frequencies)


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """One layer that attends: which it is, its heads, and what each token sees. Query heads share KV heads
    evenly, in order.

    Scores are q·k times `scale`, then capped, then masked, then joined by the sinks, then the softmax.
    """

    index: int  # the layer's number, as in KVCacheGroup.layers
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float  # of the scores, before the softmax
    # A token sees its request's tokens up to itself; otherwise all that the step has of them, as encoders do.
    causal: bool = True
    # Of those before it, it sees the last window - 1 (Longformer: The Long-Document Transformer, 2020).
    window: int | None = None
    # Scores become soft_cap * tanh(score / soft_cap) (Gemma 2: Improving Open Language Models at a Practical
    # Size, 2024).
    soft_cap: float | None = None
    # [num_heads] logits that take their part of the softmax and give no value (Efficient Streaming Language
    # Models with Attention Sinks, 2023; learned, one a head, in gpt-oss, 2025).
    sinks: Weight | None = None


class Ops(Protocol[Tensor]):
    """The vocabulary of models. Every operation gives a new tensor and leaves its arguments alone."""

    def embedding(self, token_ids: Tensor, table: Weight, scale: float = 1.0) -> Tensor:
        """Rows `token_ids` [T] of `table` (vocab, hidden), times `scale` → [T, hidden]."""

    def replace_rows(self, x: Tensor, name: str) -> Tensor:
        """x [T, width] with the rows replaced that the step gives by this name (`Batch.inputs`) → [T, width].

        A step that gives none costs nothing.
        """

    def rms_norm(self, x: Tensor, weight: Weight, eps: float, residual: Tensor | None = None) -> Tensor:
        """`x / sqrt(mean(x²) + eps) * weight`, the mean over each row of x [T, size], plus `residual`, of the
        same shape → [T, size].

        Root Mean Square Layer Normalization, 2019.
        """

    def linear(self, x: Tensor, layer: Linear, residual: Tensor | None = None) -> Tensor:
        """x [T, in] times the layer's stacked weights, plus biases, plus `residual` [T, out] → [T, out]."""

    def split_heads(self, x: Tensor, num_heads: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Cut the columns of x [T, sum(num_heads) * head_size] into heads: one [T, n, head_size] for each n
        of `num_heads`.
        """

    def rope(self, x: Tensor, positions: Tensor, rope: Rope) -> Tensor:
        """Turn each head of x [T, heads, head_size] as far as `positions` [T] says → the same shape."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: AttentionLayer) -> Tensor:
        """Put this step's k and v into the layer's KV cache, then let each token attend to those of its
        request's tokens that `layer` lets it see.

        q [T, num_heads, head_size], k and v [T, num_kv_heads, head_size] → [T, num_heads * head_size]. Where
        the cache is and which tokens belong together is the step's matter, not the model's.
        """

    def silu_and_mul(self, x: Tensor) -> Tensor:
        """`silu(gate) * up` with gate and up the two halves of x [T, 2 * size] → [T, size]; silu(z) = z / (1
        + e^-z).

        GLU Variants Improve Transformer, 2020.
        """

    def gelu_tanh_and_mul(self, x: Tensor) -> Tensor:
        """As silu_and_mul with `gelu(z) = z / 2 * (1 + tanh(sqrt(2 / π) * (z + 0.044715 z³)))`.

        Gaussian Error Linear Units, 2016, which gives this formula as an approximation.
        """

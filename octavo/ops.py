"""`Ops`: every operation that a model may use, documented once, and the layer values that operations take.

A model is written in these operations, and a backend implements them. An implementation may compute at once,
or only record what is to be computed. To allow both, a model only passes tensors on: `Tensor` is a type
variable, so a type checker refuses a model that reads one.

In the shapes below T is the number of tokens of the step. A token has the same row in all tensors.
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
    """A linear map that stacks several weights, each in a format of its own.

    All weights are `(out_features, in_features)` with the same `in_features`. The output is the outputs of
    the weights, side by side. `biases` is empty or has one vector for each weight.
    """

    weights: tuple[Weight, ...]
    biases: tuple[Weight, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """A rotary position embedding (RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021).

    At position p, pair i of a head's first `rotary_size` features turns by the angle p *
    inverse_frequencies[i]. The pair is features (i, i + rotary_size / 2) in style "half", (2i, 2i + 1) in
    style "interleaved". The rotated features are then multiplied by `magnitude`. Features from `rotary_size`
    on are not changed.
    """

    inverse_frequencies: np.ndarray  # [rotary_size / 2] float32, radians per position
    style: RopeStyle
    magnitude: float = 1.0

    @property
    def rotary_size(self) -> int:
        """The number of features of each head that are rotated."""
        return 2 * len(self.inverse_frequencies)


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """The attention of one layer: its heads, and which tokens each token attends to. Query heads share KV
    heads evenly, in order.

    Scores are q·k times `scale`. They are capped, then masked, then the sinks are appended; then comes the
    softmax.
    """

    index: int  # of the layer whose keys and values it reads, as in KVCacheGroup.layers
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float  # of the scores, before the softmax
    # True: a token attends to its request's tokens up to itself. False: to all that the step has, as in an
    # encoder.
    causal: bool = True
    # A token attends to at most `window` tokens, itself included (Longformer: The Long-Document Transformer,
    # 2020).
    window: int | None = None
    # Scores become soft_cap * tanh(score / soft_cap) (Gemma 2: Improving Open Language Models at a Practical
    # Size, 2024).
    soft_cap: float | None = None
    # [num_heads] further logits in the softmax, which have no value (Efficient Streaming Language Models with
    # Attention Sinks, 2023; learned, one for each head, in gpt-oss, 2025).
    sinks: Weight | None = None


class Ops(Protocol[Tensor]):
    """The vocabulary of models. No operation changes its arguments, and a model must not change a result."""

    def embedding(self, token_ids: Tensor, table: Weight, scale: float = 1.0) -> Tensor:
        """Rows `token_ids` [T] of `table` (vocab, hidden), times `scale` → [T, hidden]."""

    def replace_rows(self, x: Tensor, name: str) -> Tensor:
        """x [T, width], with some rows replaced by those that `Batch.inputs` has under `name` → [T, width].

        A step without such rows costs nothing.
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
        """Rotate each head of x [T, heads, head_size] by the angles of `positions` [T] → the same shape."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: AttentionLayer) -> Tensor:
        """Write the step's k and v into the layer's KV cache, then let each token attend to those tokens of
        its request that `layer` allows.

        q [T, num_heads, head_size], k and v [T, num_kv_heads, head_size] → [T, num_heads * head_size]. The
        implementation knows where the cache is, and which tokens belong to one request.
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

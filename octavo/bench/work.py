"""Counts the work of a model's step: the bytes that it must read, and the operations that it must compute.

The model is run with an `Ops` that counts and computes nothing. Only products with weights and in attention
count, since all other operations are a few numbers for each token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.models.model import Model, forward
from octavo.ops import AttentionLayer, Linear
from octavo.types.kv import KVCacheConfig

# Format → the arithmetic of its products. In all other formats both factors are quantized to int8.
PLAIN_ARITHMETIC: Mapping[str, str] = {"F32": "f32", "F16": "f32", "BF16": "bf16"}
ATTENTION_ARITHMETIC = "bf16"


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes to read, and operations (multiplications and additions) by their arithmetic."""

    num_bytes: float
    num_ops: Mapping[str, float]

    def __add__(self, other: Work) -> Work:
        num_ops = dict(Counter(self.num_ops) + Counter(other.num_ops))
        return Work(self.num_bytes + other.num_bytes, num_ops)


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """The work of one layer's attention."""

    pair_ops: int  # operations for a token and one token that it attends to
    kv_bytes: float  # of one token of context
    window: int | None  # most tokens that a token attends to

    @classmethod
    def of_layer(cls, layer: AttentionLayer, kv_bytes: float) -> AttentionWork:
        """The work of `layer`. In each head, a pair of tokens takes a product and a sum for each feature of
        the key and for each feature of the value.
        """
        return cls(4 * layer.num_heads * layer.head_size, kv_bytes, layer.window)

    def of_step(self, num_requests: int, num_new_tokens: int, context: int, shared: int = 0) -> Work:
        """The work of this layer in a step; the arguments are those of `ModelWork.of_step`."""
        most = self.window or context
        seen = np.arange(context - num_new_tokens + 1, context + 1).clip(max=most)  # by each new token
        read = min(context, most + num_new_tokens - 1)
        read_again = max(read + shared - context, 0)  # tokens that are read once for all requests
        num_ops = float(num_requests * self.pair_ops * seen.sum())
        num_read = num_requests * read - (num_requests - 1) * read_again
        return Work(self.kv_bytes * num_read, {ATTENTION_ARITHMETIC: num_ops})


@dataclass(frozen=True, slots=True)
class ModelWork:
    """The work of one model's steps. `weight_bytes` includes the weights of the output layer."""

    weight_bytes: int  # read by every step, whatever its number of tokens
    token_ops: Mapping[str, int]  # of one token, by arithmetic
    head_ops: Mapping[str, int]  # of one token's logits, by arithmetic
    attention: tuple[AttentionWork, ...]  # by layer

    def of_step(self, num_requests: int, num_new_tokens: int, context: int, shared: int = 0) -> Work:
        """The work of a step in which each request runs `num_new_tokens`. After the step each request has
        `context` tokens. The first `shared` of these are the same in all requests.
        """
        num_tokens = num_requests * num_new_tokens
        work = Work(self.weight_bytes, {name: count * num_tokens for name, count in self.token_ops.items()})
        work += Work(0, {name: count * num_requests for name, count in self.head_ops.items()})
        for layer in self.attention:
            work += layer.of_step(num_requests, num_new_tokens, context, shared)
        return work


def count_work(model: Model, kv_config: KVCacheConfig) -> ModelWork:
    """The work of `model` with a KV cache of `kv_config`."""
    body, head = _Counter(), _Counter()
    forward(model, body, None, None)
    model.compute_logits(head, None)
    kv_bytes = {
        layer: group.spec.page_bytes / group.spec.block_size
        for group in kv_config.groups
        for layer in group.layers
    }
    return ModelWork(
        weight_bytes=body.weight_bytes + head.weight_bytes,
        token_ops=dict(body.num_ops),
        head_ops=dict(head.num_ops),
        attention=tuple(AttentionWork.of_layer(each, kv_bytes[each.index]) for each in body.attention_layers),
    )


def arithmetic_of(format_name: str) -> str:
    """The arithmetic of products with weights in a format."""
    return PLAIN_ARITHMETIC.get(format_name, "int8")


class _Counter:
    """An `Ops` whose tensors are None. It counts the work of linear maps, and collects attention layers."""

    def __init__(self) -> None:
        self.attention_layers: list[AttentionLayer] = []
        self.weight_bytes = 0
        self.num_ops: Counter[str] = Counter()

    def linear(self, x: None, layer: Linear, residual: None = None) -> None:
        """Count the weights' bytes, and a product and a sum for each of their values."""
        for weight in layer.weights:
            self.weight_bytes += weight.nbytes
            self.num_ops[arithmetic_of(weight.format.name)] += 2 * int(np.prod(weight.shape))

    def attention(self, q: None, k: None, v: None, layer: AttentionLayer) -> None:
        """Keep the layer, because the work of its attention depends on the step."""
        self.attention_layers.append(layer)

    def split_heads(self, x: None, num_heads: Sequence[int]) -> tuple[None, ...]:
        """One None for each of `num_heads`."""
        return (None,) * len(num_heads)

    def __getattr__(self, name: str) -> Any:
        """A function that counts nothing, for all other operations."""
        return lambda *arguments, **named: None

"""What a step of a model costs at least: the bytes it reads and the operations it computes.

Counted from the model itself, by running it with an `Ops` that multiplies nothing. Only products count, with
weights and in attention: everything else is a few numbers for each token.
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

# Format → the numbers that its products are made of. With any other, both factors are quantized, to int8.
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
    """What one layer's attention costs."""

    pair_ops: int  # of a token and one of those it attends to
    kv_bytes: float  # of one token of context
    window: int | None  # most tokens that a token attends to

    @classmethod
    def of_layer(cls, layer: AttentionLayer, kv_bytes: float) -> AttentionWork:
        """In each head a score, and a share of a value: a product and a sum for each feature of both."""
        return cls(4 * layer.num_heads * layer.head_size, kv_bytes, layer.window)

    def of_step(self, num_requests: int, num_new_tokens: int, context: int, shared: int = 0) -> Work:
        """The work of this layer in a step; the arguments are those of `ModelWork.of_step`."""
        most = self.window or context
        seen = np.arange(context - num_new_tokens + 1, context + 1).clip(max=most)  # by each new token
        read = min(context, most + num_new_tokens - 1)
        read_again = max(read + shared - context, 0)  # what each request but one finds read already
        num_ops = float(num_requests * self.pair_ops * seen.sum())
        num_read = num_requests * read - (num_requests - 1) * read_again
        return Work(self.kv_bytes * num_read, {ATTENTION_ARITHMETIC: num_ops})


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What the steps of one model cost. The weights of the output layer are among `weight_bytes`."""

    weight_bytes: int  # that every step reads, whatever its number of tokens
    token_ops: Mapping[str, int]  # of one token, by arithmetic
    head_ops: Mapping[str, int]  # of one token's logits
    attention: tuple[AttentionWork, ...]  # by layer

    def of_step(self, num_requests: int, num_new_tokens: int, context: int, shared: int = 0) -> Work:
        """A step in which each request runs `num_new_tokens`, and has `context` tokens after it, of which the
        first `shared` are the same in all.
        """
        num_tokens = num_requests * num_new_tokens
        work = Work(self.weight_bytes, {name: count * num_tokens for name, count in self.token_ops.items()})
        work += Work(0, {name: count * num_requests for name, count in self.head_ops.items()})
        for layer in self.attention:
            work += layer.of_step(num_requests, num_new_tokens, context, shared)
        return work


def count_work(model: Model, kv_config: KVCacheConfig) -> ModelWork:
    """The work of `model`, whose keys and values lie as `kv_config` says."""
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
    """The kind of numbers that products with weights in a format are made of."""
    return PLAIN_ARITHMETIC.get(format_name, "int8")


class _Counter:
    """An `Ops` whose tensors are None. It counts what linear maps cost, and notes the layers that attend."""

    def __init__(self) -> None:
        self.attention_layers: list[AttentionLayer] = []
        self.weight_bytes = 0
        self.num_ops: Counter[str] = Counter()

    def linear(self, x: None, layer: Linear, residual: None = None) -> None:
        """Count the weights, and a product and a sum for each of their numbers."""
        for weight in layer.weights:
            self.weight_bytes += weight.nbytes
            self.num_ops[arithmetic_of(weight.format.name)] += 2 * int(np.prod(weight.shape))

    def attention(self, q: None, k: None, v: None, layer: AttentionLayer) -> None:
        """Note the layer: what its attention costs depends on the step."""
        self.attention_layers.append(layer)

    def split_heads(self, x: None, num_heads: Sequence[int]) -> tuple[None, ...]:
        """As many parts as asked for."""
        return (None,) * len(num_heads)

    def __getattr__(self, name: str) -> Any:
        """Every other operation is counted elsewhere, or costs next to nothing."""
        return lambda *arguments, **named: None

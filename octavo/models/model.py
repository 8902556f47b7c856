"""`Model`: what a family's module makes of a spec and a file's weights.

A model knows no device and no batch: it is layers, and two functions over them in the `Ops` vocabulary.
"""

from __future__ import annotations

from typing import Protocol

from octavo.models.spec import ModelSpec
from octavo.ops import AttentionLayer, Ops, Tensor
from octavo.weights.weight import Weight


class Model(Protocol):
    """A model whose weights have all been found and checked."""

    @property
    def spec(self) -> ModelSpec:
        """The shape of the model."""

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every weight its operations use, each once."""

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        """The layers that need a KV cache, by index."""

    def forward(self, ops: Ops[Tensor], token_ids: Tensor, positions: Tensor) -> Tensor:
        """From `token_ids` and `positions`, both [T], to the final hidden states [T, hidden], normalized."""

    def compute_logits(self, ops: Ops[Tensor], hidden: Tensor) -> Tensor:
        """From hidden states [L, hidden] of a `forward` to logits [L, vocab]."""

"""`Model`: the interface of a model, which a family's module makes of a spec and a file's weights.

A model knows no device and no batch. Its methods are functions in the `Ops` vocabulary.
"""

from __future__ import annotations

from typing import Protocol

from octavo.models.layer_cache import LayerCache
from octavo.models.spec import ModelSpec
from octavo.ops import Ops, Tensor
from octavo.weights.weight import Weight

EMBEDDINGS = "embeddings"  # the name in `Batch.inputs` of rows that replace the embeddings of tokens


class Model(Protocol):
    """A model whose weights have all been found and checked.

    It is split into `embed`, its layers, `finish` and `compute_logits`, so that a pipeline stage can run some
    of the layers, embeddings of tokens can be replaced by others, and hidden states can be read between
    layers. `forward` below runs all parts except `compute_logits`.
    """

    @property
    def spec(self) -> ModelSpec:
        """The shape of the model."""

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every weight that the model's operations use, each once."""

    @property
    def num_layers(self) -> int:
        """The number of layers."""

    def cache_specs(self) -> tuple[LayerCache | None, ...]:
        """What each layer keeps of a sequence between steps, by layer; None for a layer that keeps nothing.

        A layer that keeps two things has its second entry after those of all layers.
        """

    def embed(self, ops: Ops[Tensor], token_ids: Tensor) -> Tensor:
        """The input [T, hidden] of the first layer for `token_ids` [T]."""

    def layer(self, ops: Ops[Tensor], index: int, x: Tensor, positions: Tensor) -> Tensor:
        """The output [T, hidden] of layer `index` for its input x [T, hidden] at `positions` [T]."""

    def finish(self, ops: Ops[Tensor], x: Tensor) -> Tensor:
        """The final hidden states [T, hidden] for the output x [T, hidden] of the last layer."""

    def compute_logits(self, ops: Ops[Tensor], hidden: Tensor) -> Tensor:
        """The logits [L, vocab] of final hidden states [L, hidden]."""


def forward(model: Model, ops: Ops[Tensor], token_ids: Tensor, positions: Tensor) -> Tensor:
    """The final hidden states [T, hidden] of `token_ids` [T] at `positions` [T]."""
    x = embed_inputs(model, ops, token_ids)
    x = run_layers(model, ops, x, positions, range(model.num_layers))
    return model.finish(ops, x)


def embed_inputs(model: Model, ops: Ops[Tensor], token_ids: Tensor) -> Tensor:
    """The input [T, hidden] of the first layer for `token_ids` [T].

    A step may have other embeddings for some of its tokens, such as those of an image (`EMBEDDINGS`).
    """
    return ops.replace_rows(model.embed(ops, token_ids), EMBEDDINGS)


def run_layers(model: Model, ops: Ops[Tensor], x: Tensor, positions: Tensor, layers: range) -> Tensor:
    """The output [T, hidden] of the last of `layers` for the input x [T, hidden] of the first."""
    for index in layers:
        x = model.layer(ops, index, x, positions)
    return x

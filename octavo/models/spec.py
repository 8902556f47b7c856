"""`ModelSpec`: the shape of a model, read once from its file and true from then on.

How it is read is `gguf_spec` and `huggingface_spec`; nothing here knows a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.errors import WeightError
from octavo.models.rope import RopeSpec

Layout = Literal["gguf", "huggingface"]


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The layers that see the end of their context alone, and turn by a rope of their own."""

    size: int  # tokens that a token sees at most, itself included
    layers: frozenset[int]
    rope: RopeSpec


def layers_but_every(period: int, num_layers: int) -> frozenset[int]:
    """All of `num_layers` layers but the last of every `period`."""
    return frozenset(layer for layer in range(num_layers) if (layer + 1) % period)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder of the usual kind. Raises WeightError when its numbers contradict each other."""

    name: str  # what the model calls itself
    architecture: str  # a key of the registry
    layout: Layout  # whose tensor names, and whose order of rotary pairs, the weights have
    num_layers: int
    hidden_size: int
    intermediate_size: int  # of the feed-forward block
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int  # rows of the embedding
    max_position_embeddings: int  # tokens, stretching included
    rms_norm_eps: float
    rope: RopeSpec
    attention_scale: float  # by which q·k is multiplied
    tied_head: bool  # logits are made with the embedding
    window: WindowSpec | None = None  # None: every layer sees its whole context
    attention_bias: bool = False  # of queries, keys and values
    attention_output_bias: bool = False
    mlp_bias: bool = False

    def window_of(self, layer: int) -> WindowSpec | None:
        """The window of `layer`; None for one that sees its whole context."""
        return self.window if self.window is not None and layer in self.window.layers else None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise WeightError(
                f"{self.name}: {self.num_heads} attention heads cannot share "
                f"{self.num_kv_heads} KV heads evenly"
            )
        if self.rope.rotary_size % 2 or self.rope.rotary_size > self.head_size:
            raise WeightError(
                f"{self.name}: {self.rope.rotary_size} rotary features must be an even number, at most the "
                f"{self.head_size} of a head"
            )

"""`ModelSpec`: the shape of a model, read once from its file.

A family's module extends `DecoderSpec`, or `ModelSpec` where it has nothing of the usual decoder, with the
fields that only this family has. Nothing here knows a file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

from octavo.errors import WeightError
from octavo.models.rope import RopeSpec

Layout = Literal["gguf", "huggingface"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The fields that every model has."""

    architecture: ClassVar[str]  # the family's name in the registry

    name: str  # from the file
    layout: Layout  # of the file: its tensor names, and its order of rotary pairs
    num_layers: int
    hidden_size: int
    vocab_size: int  # rows of the embedding
    max_position_embeddings: int  # tokens, stretching included

    @classmethod
    def extend(cls, base: ModelSpec, **more: Any) -> Self:
        """A spec of this class with the fields of `base`, and those of `more`, which replace the former."""
        return cls(**{field.name: getattr(base, field.name) for field in fields(base)} | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec(ModelSpec):
    """A decoder whose layers are attention with rotary positions and a gated feed-forward network.

    Raises WeightError when its numbers contradict each other.
    """

    intermediate_size: int  # of the feed-forward network
    num_heads: int
    num_kv_heads: int
    head_size: int
    rms_norm_eps: float
    rope: RopeSpec
    attention_scale: float  # factor on q·k
    tied_head: bool  # the embedding is the output matrix, too

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

    @property
    def q_size(self) -> int:
        """Features of the queries of all heads."""
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Features of the keys of all KV heads, and of their values."""
        return self.num_kv_heads * self.head_size

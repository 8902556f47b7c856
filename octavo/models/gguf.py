"""Reads the metadata of a GGUF file that all families share.

Keys are those of the GGUF specification (docs/gguf.md in the ggml repository). The keys of YaRN are
llama.cpp's, which defines what they mean.
"""

from __future__ import annotations

from octavo.models.keys import Keys
from octavo.models.rope import LinearScaling, NoScaling, RopeScaling, RopeSpec, YarnScaling, yarn_magnitude
from octavo.models.spec import DecoderSpec
from octavo.models.tensors import ModelTensors


def read_decoder(keys: Keys, name: str, tensors: ModelTensors) -> DecoderSpec:
    """The fields that decoders share. GGUF has no keys for two of them: the size of the vocabulary, and
    whether the output matrix is the embedding. Both follow from the `tensors`.
    """
    head_size = read_head_size(keys)
    num_heads = keys.integer("attention.head_count")
    vocab_size, _ = tensors.matrix_shape("embedding", "[vocabulary, hidden size]")
    return DecoderSpec(
        name=name,
        layout="gguf",
        num_layers=keys.integer("block_count"),
        hidden_size=keys.integer("embedding_length"),
        vocab_size=vocab_size,
        max_position_embeddings=keys.integer("context_length"),
        intermediate_size=keys.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", default=num_heads),
        head_size=head_size,
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=RopeSpec(
            theta=read_theta(keys, "rope.freq_base"),
            rotary_size=keys.integer("rope.dimension_count", default=head_size),
            scaling=read_scaling(keys),
        ),
        attention_scale=head_size**-0.5,
        tied_head=not tensors.has("head"),
    )


def read_head_size(keys: Keys) -> int:
    """The features of a head's keys. Without a key for them, the hidden size is divided among the heads."""
    hidden_size, num_heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    return keys.integer("attention.key_length", default=hidden_size // num_heads)


def read_theta(keys: Keys, key: str) -> float:
    """The base of a rotary embedding."""
    return keys.number(key, default=10000.0, above=1.0)


def read_scaling(keys: Keys) -> RopeScaling:
    """How positions are stretched. Files older than the keys `rope.scaling.*` have `rope.scale_linear`. A
    factor without a type is a linear one.
    """
    kind = keys.text("rope.scaling.type", default="linear")
    factor = keys.number("rope.scaling.factor", default=keys.number("rope.scale_linear", default=1.0))
    if kind == "none":
        return NoScaling()
    if kind == "linear":
        return LinearScaling(factor)
    keys.accept("rope.scaling.type", "none", "linear", "yarn")
    keys.accept("rope.scaling.yarn_ext_factor", 1.0)
    keys.accept("rope.scaling.yarn_attn_factor", 1.0)
    keys.accept("rope.scaling.yarn_log_multiplier")
    context = keys.integer("context_length")
    return YarnScaling(
        factor=factor,
        original_context=keys.integer("rope.scaling.original_context_length", default=context),
        magnitude=yarn_magnitude(factor) * keys.number("rope.scaling.attn_factor", default=1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", default=32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", default=1.0),
    )

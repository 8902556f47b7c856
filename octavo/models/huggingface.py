"""Reads the keys of a config.json that all families share.

Two spellings of the rotary embedding are read: `rope_theta` with `rope_scaling` (transformers 4) and
`rope_parameters` (transformers 5). A key that is absent has the default that transformers gives it.
"""

from __future__ import annotations

from octavo.models.keys import Keys
from octavo.models.rope import (
    LinearScaling,
    Llama3Scaling,
    NoScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
    yarn_magnitude,
)
from octavo.models.spec import DecoderSpec

_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def read_decoder(keys: Keys, name: str, rope: RopeSpec) -> DecoderSpec:
    """The fields that decoders share. Families read the `rope` in keys of their own."""
    head_size = read_head_size(keys)
    num_heads = keys.integer("num_attention_heads")
    return DecoderSpec(
        name=name,
        layout="huggingface",
        num_layers=keys.integer("num_hidden_layers"),
        hidden_size=keys.integer("hidden_size"),
        vocab_size=keys.integer("vocab_size"),
        max_position_embeddings=keys.integer("max_position_embeddings"),
        intermediate_size=keys.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("num_key_value_heads", default=num_heads),
        head_size=head_size,
        rms_norm_eps=keys.number("rms_norm_eps", default=1e-6),
        rope=rope,
        attention_scale=head_size**-0.5,
        tied_head=keys.flag("tie_word_embeddings", default=False),
    )


def read_head_size(keys: Keys) -> int:
    """The features of a head. Without a key for them, the hidden size is divided among the heads."""
    hidden_size, num_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    return keys.integer("head_dim", default=hidden_size // num_heads)


def read_theta(keys: Keys, key: str, default: float) -> float:
    """The base of a rotary embedding."""
    return keys.number(key, default=default, above=1.0)


def read_rope(section: Keys, theta: float, rotary_size: int, original_context: int) -> RopeSpec:
    """The rotary embedding that `section` describes. `theta` and `original_context` hold where the section
    has no keys for them.
    """
    original_context = section.integer("original_max_position_embeddings", default=original_context)
    theta = read_theta(section, "rope_theta", theta)
    return RopeSpec(theta, rotary_size, _read_scaling(section, original_context))


def _read_scaling(rope: Keys, original_context: int) -> RopeScaling:
    key = "rope_type" if "rope_type" in rope else "type"
    kind = rope.text(key, default="default")
    rope.accept(key, *_ROPE_TYPES)
    if kind == "default":
        return NoScaling()
    factor = rope.number("factor")
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "llama3":
        low = rope.number("low_freq_factor")
        return Llama3Scaling(factor, low, rope.number("high_freq_factor", above=low), original_context)
    return YarnScaling(
        factor=factor,
        original_context=original_context,
        magnitude=_read_yarn_magnitude(rope, factor),
        beta_fast=rope.number("beta_fast", default=32.0),
        beta_slow=rope.number("beta_slow", default=1.0),
        truncate=rope.flag("truncate", default=True),
    )


def _read_yarn_magnitude(rope: Keys, factor: float) -> float:
    if "mscale" in rope and "mscale_all_dim" in rope:
        advised = yarn_magnitude(factor, rope.number("mscale")) / yarn_magnitude(
            factor, rope.number("mscale_all_dim")
        )
    else:
        advised = yarn_magnitude(factor)
    return rope.number("attention_factor", default=advised)

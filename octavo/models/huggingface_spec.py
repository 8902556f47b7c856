"""`ModelSpec` from the config.json of a Hugging Face model folder.

Two spellings of the rotary embedding are read: `rope_theta` with `rope_scaling` (transformers 4) and
`rope_parameters` (transformers 5). Absent keys have the defaults that transformers gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models.keys import Keys
from octavo.models.registry import HUGGING_FACE_ARCHITECTURES, find_architecture
from octavo.models.rope import (
    LinearScaling,
    Llama3Scaling,
    NoScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
    yarn_magnitude,
)
from octavo.models.spec import ModelSpec

_FILE = "config.json"
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def spec_from_config(config: Mapping[str, Any], name: str) -> ModelSpec:
    """The shape of the model `name` whose config.json holds `config`.

    Raises UnsupportedError for an architecture or a variation of it that cannot be run, WeightError, naming
    the key, for what is missing or makes no sense.
    """
    keys = Keys(config, _FILE)
    family = find_architecture(str(keys.first("architectures")), HUGGING_FACE_ARCHITECTURES)
    keys.accept("hidden_act", "silu")
    keys.accept("quantization_config")
    hidden_size, num_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    head_size = keys.integer("head_dim", default=hidden_size // num_heads)
    max_position_embeddings = keys.integer("max_position_embeddings")
    if keys.integer("sliding_window", default=max_position_embeddings) < max_position_embeddings:
        keys.accept("sliding_window")
    attention_bias = keys.flag("attention_bias", default=False)
    return ModelSpec(
        name=name,
        architecture=family,
        layout="huggingface",
        num_layers=keys.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("num_key_value_heads", default=num_heads),
        head_size=head_size,
        vocab_size=keys.integer("vocab_size"),
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=keys.number("rms_norm_eps", default=1e-6),
        rope=_rope(keys, head_size, max_position_embeddings),
        tied_head=keys.flag("tie_word_embeddings", default=False),
        attention_bias=attention_bias,
        attention_output_bias=attention_bias,
        mlp_bias=keys.flag("mlp_bias", default=False),
    )


def _rope(keys: Keys, head_size: int, max_position_embeddings: int) -> RopeSpec:
    rope = keys.section("rope_parameters" if "rope_parameters" in keys else "rope_scaling")
    theta = rope.number(
        "rope_theta", default=keys.number("rope_theta", default=10000.0, above=1.0), above=1.0
    )
    original_context = rope.integer(
        "original_max_position_embeddings",
        default=keys.integer("original_max_position_embeddings", default=max_position_embeddings),
    )
    return RopeSpec(theta, head_size, _scaling(rope, original_context))


def _scaling(rope: Keys, original_context: int) -> RopeScaling:
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
        magnitude=_yarn_magnitude(rope, factor),
        beta_fast=rope.number("beta_fast", default=32.0),
        beta_slow=rope.number("beta_slow", default=1.0),
        truncate=rope.flag("truncate", default=True),
    )


def _yarn_magnitude(rope: Keys, factor: float) -> float:
    if "mscale" in rope and "mscale_all_dim" in rope:
        advised = yarn_magnitude(factor, rope.number("mscale")) / yarn_magnitude(
            factor, rope.number("mscale_all_dim")
        )
    else:
        advised = yarn_magnitude(factor)
    return rope.number("attention_factor", default=advised)

"""`ModelSpec` from the config.json of a Hugging Face model folder.

Two spellings of the rotary embedding are read: `rope_theta` with `rope_scaling` (transformers 4) and
`rope_parameters` (transformers 5). Absent keys have the defaults that transformers gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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
from octavo.models.spec import ModelSpec, WindowSpec, layers_but_every

_FILE = "config.json"
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")

# What absent keys mean, where it is not the same for all families.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {},
        "gemma3": {
            "head_dim": 256,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
    }
)


def spec_from_config(config: Mapping[str, Any], name: str) -> ModelSpec:
    """The shape of the model `name` whose config.json holds `config`.

    Raises UnsupportedError for an architecture or a variation of it that cannot be run, WeightError, naming
    the key, for what is missing or makes no sense.
    """
    family = find_architecture(str(Keys(config, _FILE).first("architectures")), HUGGING_FACE_ARCHITECTURES)
    keys = Keys({**_DEFAULTS[family], **config}, _FILE)
    keys.accept("quantization_config")
    hidden_size, num_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    head_size = keys.integer("head_dim", default=hidden_size // num_heads)
    num_layers = keys.integer("num_hidden_layers")
    max_position_embeddings = keys.integer("max_position_embeddings")
    attention = _ATTENTION[family](keys, num_layers, head_size, max_position_embeddings)
    attention_bias = keys.flag("attention_bias", default=False)
    return ModelSpec(
        name=name,
        architecture=family,
        layout="huggingface",
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("num_key_value_heads", default=num_heads),
        head_size=head_size,
        vocab_size=keys.integer("vocab_size"),
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=keys.number("rms_norm_eps", default=1e-6),
        rope=attention.rope,
        attention_scale=attention.scale,
        window=attention.window,
        tied_head=keys.flag("tie_word_embeddings", default=False),
        attention_bias=attention_bias,
        attention_output_bias=attention_bias,
        mlp_bias=keys.flag("mlp_bias", default=False),
    )


class _Attention(NamedTuple):
    """How layers attend, which families say each in keys of its own."""

    rope: RopeSpec
    scale: float
    window: WindowSpec | None = None


def _llama_attention(keys: Keys, num_layers: int, head_size: int, max_position_embeddings: int) -> _Attention:
    keys.accept("hidden_act", "silu")
    if keys.integer("sliding_window", default=max_position_embeddings) < max_position_embeddings:
        keys.accept("sliding_window")
    section = keys.section("rope_parameters" if "rope_parameters" in keys else "rope_scaling")
    original_context = keys.integer("original_max_position_embeddings", default=max_position_embeddings)
    theta = keys.number("rope_theta", default=10000.0, above=1.0)
    return _Attention(_rope(section, theta, head_size, original_context), head_size**-0.5)


def _gemma3_attention(
    keys: Keys, num_layers: int, head_size: int, max_position_embeddings: int
) -> _Attention:
    keys.accept("hidden_activation", "gelu_pytorch_tanh")
    keys.accept("attn_logit_softcapping")
    keys.accept("final_logit_softcapping")
    keys.accept("use_bidirectional_attention", False)
    keys.accept("attention_bias", False)
    both = keys.section("rope_parameters")
    full = both.section("full_attention") if "rope_parameters" in keys else keys.section("rope_scaling")
    theta = keys.number("rope_theta", default=1e6, above=1.0)
    local_theta = keys.number("rope_local_base_freq", default=10000.0, above=1.0)
    return _Attention(
        rope=_rope(full, theta, head_size, max_position_embeddings),
        scale=keys.number("query_pre_attn_scalar", default=256.0) ** -0.5,
        window=WindowSpec(
            size=keys.integer("sliding_window", default=4096),
            layers=_window_layers(keys, num_layers),
            rope=_rope(both.section("sliding_attention"), local_theta, head_size, max_position_embeddings),
        ),
    )


_ATTENTION: Mapping[str, Callable[[Keys, int, int, int], _Attention]] = MappingProxyType(
    {"llama": _llama_attention, "gemma3": _gemma3_attention}
)


def _window_layers(keys: Keys, num_layers: int) -> frozenset[int]:
    if "layer_types" not in keys:  # configs older than transformers 4.53
        return layers_but_every(keys.integer("sliding_window_pattern", default=6), num_layers)
    kinds = keys.choices("layer_types", num_layers, ("sliding_attention", "full_attention"))
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")


def _rope(section: Keys, theta: float, head_size: int, original_context: int) -> RopeSpec:
    """The rope that `section` describes; `theta` and `original_context` are for what it does not say."""
    original_context = section.integer("original_max_position_embeddings", default=original_context)
    theta = section.number("rope_theta", default=theta, above=1.0)
    return RopeSpec(theta, head_size, _scaling(section, original_context))


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

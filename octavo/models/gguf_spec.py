"""`ModelSpec` from the metadata of a GGUF file.

Keys are those of the GGUF specification (docs/gguf.md in the ggml repository), and for YaRN those of
llama.cpp, which defines what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.errors import WeightError
from octavo.models.keys import Keys
from octavo.models.registry import GGUF_ARCHITECTURES, find_architecture
from octavo.models.rope import LinearScaling, NoScaling, RopeScaling, RopeSpec, YarnScaling, yarn_magnitude
from octavo.models.spec import ModelSpec, WindowSpec, layers_but_every
from octavo.models.tensors import tensor_name
from octavo.weights.weight import WeightSource

_FILE = "GGUF metadata"


def spec_from_gguf(metadata: Mapping[str, Any], source: WeightSource) -> ModelSpec:
    """The shape of the model in a GGUF file. What GGUF does not say is seen from the tensors in `source`: the
    size of the vocabulary, whether there are biases, and whether the head is tied.

    Raises UnsupportedError for an architecture or a variation of it that cannot be run, WeightError, naming
    the key, for what is missing or makes no sense.
    """
    general = Keys(metadata, _FILE, "general.")
    architecture = general.text("architecture")
    family = find_architecture(architecture, GGUF_ARCHITECTURES)
    keys = Keys(metadata, _FILE, f"{architecture}.")
    keys.accept("expert_count", 0)
    keys.accept("attention.scale")
    hidden_size, num_heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_size = keys.integer("attention.key_length", default=hidden_size // num_heads)
    keys.accept("attention.value_length", head_size)
    max_position_embeddings = keys.integer("context_length")
    embedding = source.get(tensor_name("gguf", "embedding"))
    if len(embedding.shape) != 2:
        raise WeightError(
            f"tensor {embedding.name!r} has shape {embedding.shape}; it must be [vocabulary, hidden size]"
        )

    def has(role: str, kind: str) -> bool:
        return tensor_name("gguf", role, kind=kind) in source

    spec = ModelSpec(
        name=general.text("name", default=architecture),
        architecture=family,
        layout="gguf",
        num_layers=keys.integer("block_count"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", default=num_heads),
        head_size=head_size,
        vocab_size=embedding.shape[0],
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=RopeSpec(
            theta=keys.number("rope.freq_base", default=10000.0, above=1.0),
            rotary_size=keys.integer("rope.dimension_count", default=head_size),
            scaling=_scaling(keys, max_position_embeddings),
        ),
        attention_scale=head_size**-0.5,
        tied_head=not has("head", "weight"),
        attention_bias=has("q", "bias"),
        attention_output_bias=has("attention_output", "bias"),
        mlp_bias=has("gate", "bias"),
    )
    return _gemma3(spec, keys) if family == "gemma3" else spec


def _gemma3(spec: ModelSpec, keys: Keys) -> ModelSpec:
    """What Gemma 3 has besides. Keys, and what their absence means, are llama.cpp's."""
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        keys.accept(name, 0.0)
    # No key says so, but the 27B alone, known by its number of layers, scales as if its heads were narrower.
    heads_width = spec.hidden_size // spec.num_heads if spec.num_layers == 62 else spec.head_size
    window = None
    if "attention.sliding_window" in keys:
        period = keys.integer("attention.sliding_window_pattern", default=6)
        window = WindowSpec(
            size=keys.integer("attention.sliding_window"),
            layers=layers_but_every(period, spec.num_layers),
            rope=RopeSpec(
                keys.number("rope.freq_base_swa", default=10000.0, above=1.0), spec.rope.rotary_size
            ),
        )
    return replace(spec, attention_scale=heads_width**-0.5, window=window)


def _scaling(keys: Keys, max_position_embeddings: int) -> RopeScaling:
    """How positions are stretched. Files older than `rope.scaling.*` have `rope.scale_linear`, and a factor
    without a type is linear, too.
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
    return YarnScaling(
        factor=factor,
        original_context=keys.integer(
            "rope.scaling.original_context_length", default=max_position_embeddings
        ),
        magnitude=yarn_magnitude(factor) * keys.number("rope.scaling.attn_factor", default=1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", default=32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", default=1.0),
    )

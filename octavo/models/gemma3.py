"""Gemma 3, text only (Gemma 3 Technical Report, 2025).

Most layers attend to a sliding window and have a rotary embedding of their own. Each head's queries and keys
are normalized. Attention and feed-forward each have a norm before them and another one after them. The gate
is GELU. Embeddings are multiplied by the square root of the hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from octavo.models import gguf, huggingface
from octavo.models.family import Family
from octavo.models.keys import Keys
from octavo.models.layer_cache import LayerCache, cache_of_attention
from octavo.models.rope import RopeSpec, make_rope
from octavo.models.spec import DecoderSpec
from octavo.models.tensors import DECODER_NAMES, ModelTensors
from octavo.ops import AttentionLayer, Linear, Ops, Rope, Tensor
from octavo.weights.weight import Weight

NAMES = {
    **DECODER_NAMES,
    "q_norm": ("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"),
    "k_norm": ("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"),
    "attention_post_norm": ("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
    "mlp_norm": ("blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"),
    "mlp_post_norm": ("blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"),
}

# What absent keys of config.json mean.
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "head_dim": 256,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    }
)


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The layers that attend to a sliding window."""

    size: int  # tokens that a token sees at most, itself included
    layers: frozenset[int]
    rope: RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Spec(DecoderSpec):
    """The shape of a Gemma 3. `rope` is that of the layers that attend to the whole context."""

    architecture = "gemma3"

    window: WindowSpec | None = None  # None: every layer attends to its whole context

    def window_of(self, layer: int) -> WindowSpec | None:
        """The window of `layer`; None for a layer that attends to its whole context."""
        return self.window if self.window is not None and layer in self.window.layers else None


def read_config(keys: Keys, name: str) -> Gemma3Spec:
    """The spec from config.json."""
    keys = keys.with_defaults(_DEFAULTS)
    keys.accept("quantization_config")
    keys.accept("hidden_activation", "gelu_pytorch_tanh")
    keys.accept("attn_logit_softcapping")
    keys.accept("final_logit_softcapping")
    keys.accept("use_bidirectional_attention", False)
    keys.accept("attention_bias", False)
    head_size, context = huggingface.read_head_size(keys), keys.integer("max_position_embeddings")
    both = keys.section("rope_parameters")
    full = both.section("full_attention") if "rope_parameters" in keys else keys.section("rope_scaling")
    theta = huggingface.read_theta(keys, "rope_theta", 1e6)
    rope = huggingface.read_rope(full, theta, head_size, context)
    local = both.section("sliding_attention")
    local_theta = huggingface.read_theta(keys, "rope_local_base_freq", 10000.0)
    base = huggingface.read_decoder(keys, name, rope)
    return Gemma3Spec.extend(
        base,
        attention_scale=keys.number("query_pre_attn_scalar", default=256.0) ** -0.5,
        window=WindowSpec(
            size=keys.integer("sliding_window", default=4096),
            layers=_read_window_layers(keys, base.num_layers),
            rope=huggingface.read_rope(local, local_theta, head_size, context),
        ),
    )


def _read_window_layers(keys: Keys, num_layers: int) -> frozenset[int]:
    if "layer_types" not in keys:  # configs older than transformers 4.53
        return _layers_but_every(keys.integer("sliding_window_pattern", default=6), num_layers)
    kinds = keys.choices("layer_types", num_layers, ("sliding_attention", "full_attention"))
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")


def read_gguf(keys: Keys, name: str, tensors: ModelTensors) -> Gemma3Spec:
    """The spec from GGUF metadata. Keys, and what their absence means, are llama.cpp's."""
    keys.accept("expert_count", 0)
    keys.accept("attention.scale")
    keys.accept("attention.value_length", gguf.read_head_size(keys))
    keys.accept("attn_logit_softcapping", 0.0)
    keys.accept("final_logit_softcapping", 0.0)
    base = gguf.read_decoder(keys, name, tensors)
    # The 27B model scales as if its heads were narrower. No key says so: it is known by its 62 layers.
    scaled_size = base.hidden_size // base.num_heads if base.num_layers == 62 else base.head_size
    window = None
    if "attention.sliding_window" in keys:
        period = keys.integer("attention.sliding_window_pattern", default=6)
        window = WindowSpec(
            size=keys.integer("attention.sliding_window"),
            layers=_layers_but_every(period, base.num_layers),
            rope=RopeSpec(gguf.read_theta(keys, "rope.freq_base_swa"), base.rope.rotary_size),
        )
    return Gemma3Spec.extend(base, attention_scale=scaled_size**-0.5, window=window)


def _layers_but_every(period: int, num_layers: int) -> frozenset[int]:
    """All of `num_layers` layers but the last of every `period`."""
    return frozenset(layer for layer in range(num_layers) if (layer + 1) % period)


@dataclass(frozen=True, slots=True, eq=False)
class Gemma3Layer:
    """Attention, then feed-forward. Each has a norm before it and one after it, and what the second norm
    gives is added to the input of the first.
    """

    attention_norm: Weight
    qkv: Linear
    q_norm: Weight
    k_norm: Weight
    rope: Rope
    attention: AttentionLayer
    attention_output: Linear
    attention_post_norm: Weight
    mlp_norm: Weight
    gate_up: Linear
    down: Linear
    mlp_post_norm: Weight


class Gemma3:
    """A Gemma 3 model. Implements `Model`."""

    def __init__(self, spec: Gemma3Spec, tensors: ModelTensors) -> None:
        self.spec = spec
        self.heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        self.embedding = tensors.weight("embedding", (spec.vocab_size, spec.hidden_size))
        self.embedding_scale = spec.hidden_size**0.5
        self.layers = _make_layers(spec, tensors)
        self.norm = _norm("norm", spec.hidden_size, spec, tensors)
        self.head = tensors.head(spec.vocab_size, spec.hidden_size, spec.tied_head)
        self.weights = tensors.taken

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def cache_specs(self) -> tuple[LayerCache, ...]:
        return tuple(cache_of_attention(layer.attention) for layer in self.layers)

    def embed(self, ops: Ops[Tensor], token_ids: Tensor) -> Tensor:
        return ops.embedding(token_ids, self.embedding, self.embedding_scale)

    def layer(self, ops: Ops[Tensor], index: int, x: Tensor, positions: Tensor) -> Tensor:
        layer, eps = self.layers[index], self.spec.rms_norm_eps
        h = ops.rms_norm(x, layer.attention_norm, eps)
        q, k, v = ops.split_heads(ops.linear(h, layer.qkv), self.heads)
        q, k = ops.rms_norm(q, layer.q_norm, eps), ops.rms_norm(k, layer.k_norm, eps)
        q, k = ops.rope(q, positions, layer.rope), ops.rope(k, positions, layer.rope)
        h = ops.linear(ops.attention(q, k, v, layer.attention), layer.attention_output)
        x = ops.rms_norm(h, layer.attention_post_norm, eps, residual=x)
        h = ops.rms_norm(x, layer.mlp_norm, eps)
        h = ops.linear(ops.gelu_tanh_and_mul(ops.linear(h, layer.gate_up)), layer.down)
        return ops.rms_norm(h, layer.mlp_post_norm, eps, residual=x)

    def finish(self, ops: Ops[Tensor], x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.norm, self.spec.rms_norm_eps)

    def compute_logits(self, ops: Ops[Tensor], hidden: Tensor) -> Tensor:
        return ops.linear(hidden, self.head)


def _make_layers(spec: Gemma3Spec, tensors: ModelTensors) -> tuple[Gemma3Layer, ...]:
    # In files of both layouts the two features of a rotary pair lie half a head apart.
    ropes: dict[WindowSpec | None, Rope] = {None: make_rope(spec.rope, "half")}
    if spec.window is not None:
        ropes[spec.window] = make_rope(spec.window.rope, "half")
    return tuple(
        _make_layer(index, ropes[spec.window_of(index)], spec, tensors) for index in range(spec.num_layers)
    )


def _make_layer(index: int, rope: Rope, spec: Gemma3Spec, tensors: ModelTensors) -> Gemma3Layer:
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    window = spec.window_of(index)
    qkv = {"q": spec.q_size, "k": spec.kv_size, "v": spec.kv_size}
    return Gemma3Layer(
        attention_norm=_norm("attention_norm", hidden, spec, tensors, index),
        qkv=tensors.linear(qkv, hidden, index),
        q_norm=_norm("q_norm", spec.head_size, spec, tensors, index),
        k_norm=_norm("k_norm", spec.head_size, spec, tensors, index),
        rope=rope,
        attention=AttentionLayer(
            *(index, spec.num_heads, spec.num_kv_heads, spec.head_size, spec.attention_scale),
            window=window.size if window else None,
        ),
        attention_output=tensors.linear({"attention_output": hidden}, spec.q_size, index),
        attention_post_norm=_norm("attention_post_norm", hidden, spec, tensors, index),
        mlp_norm=_norm("mlp_norm", hidden, spec, tensors, index),
        gate_up=tensors.linear({"gate": intermediate, "up": intermediate}, hidden, index),
        down=tensors.linear({"down": hidden}, intermediate, index),
        mlp_post_norm=_norm("mlp_post_norm", hidden, spec, tensors, index),
    )


def _norm(role: str, size: int, spec: Gemma3Spec, tensors: ModelTensors, layer: int = 0) -> Weight:
    # Hugging Face folders hold a norm's factors less 1. Conversion to GGUF adds the 1.
    return tensors.weight(role, (size,), layer, offset=1.0 if spec.layout == "huggingface" else None)


FAMILY = Family(NAMES, read_config, read_gguf, Gemma3)

"""Llama, and the models that share its shape: pre-norm layers, rotary positions, grouped-query attention and
a feed-forward network gated by SiLU (LLaMA: Open and Efficient Foundation Language Models, 2023; Llama 2,
2023; Mistral 7B without its window, 2023; The Llama 3 Herd of Models, 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.models import gguf, huggingface
from octavo.models.family import Family
from octavo.models.keys import Keys
from octavo.models.layer_cache import LayerCache, cache_of_attention
from octavo.models.rope import make_rope
from octavo.models.spec import DecoderSpec
from octavo.models.tensors import DECODER_NAMES, ModelTensors
from octavo.ops import AttentionLayer, Linear, Ops, Rope, Tensor
from octavo.weights.weight import Weight

NAMES = {
    **DECODER_NAMES,
    "rope_divisors": ("rope_freqs", "rope_freqs"),  # only GGUF files have it
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSpec(DecoderSpec):
    """The shape of a Llama."""

    architecture = "llama"

    attention_bias: bool = False  # of queries, keys and values
    attention_output_bias: bool = False
    mlp_bias: bool = False


def read_config(keys: Keys, name: str) -> LlamaSpec:
    """The spec from config.json."""
    keys.accept("quantization_config")
    keys.accept("hidden_act", "silu")
    context = keys.integer("max_position_embeddings")
    if keys.integer("sliding_window", default=context) < context:
        keys.accept("sliding_window")
    rope = huggingface.read_rope(
        keys.section("rope_parameters" if "rope_parameters" in keys else "rope_scaling"),
        theta=huggingface.read_theta(keys, "rope_theta", 10000.0),
        rotary_size=huggingface.read_head_size(keys),
        original_context=keys.integer("original_max_position_embeddings", default=context),
    )
    attention_bias = keys.flag("attention_bias", default=False)
    return LlamaSpec.extend(
        huggingface.read_decoder(keys, name, rope),
        attention_bias=attention_bias,
        attention_output_bias=attention_bias,
        mlp_bias=keys.flag("mlp_bias", default=False),
    )


def read_gguf(keys: Keys, name: str, tensors: ModelTensors) -> LlamaSpec:
    """The spec from GGUF metadata, which has no keys for biases."""
    keys.accept("expert_count", 0)
    keys.accept("attention.scale")
    keys.accept("attention.value_length", gguf.read_head_size(keys))
    return LlamaSpec.extend(
        gguf.read_decoder(keys, name, tensors),
        attention_bias=tensors.has("q", "bias"),
        attention_output_bias=tensors.has("attention_output", "bias"),
        mlp_bias=tensors.has("gate", "bias"),
    )


@dataclass(frozen=True, slots=True, eq=False)
class LlamaLayer:
    """Attention, then feed-forward. Each has a norm before it, and its result is added to its input."""

    attention_norm: Weight
    qkv: Linear
    attention: AttentionLayer
    attention_output: Linear
    mlp_norm: Weight
    gate_up: Linear
    down: Linear


class Llama:
    """A Llama model. Implements `Model`."""

    def __init__(self, spec: LlamaSpec, tensors: ModelTensors) -> None:
        self.spec = spec
        self.heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        self.rope = _make_rope(spec, tensors)
        self.embedding = tensors.weight("embedding", (spec.vocab_size, spec.hidden_size))
        self.layers = tuple(_make_layer(index, spec, tensors) for index in range(spec.num_layers))
        self.norm = tensors.weight("norm", (spec.hidden_size,))
        self.head = tensors.head(spec.vocab_size, spec.hidden_size, spec.tied_head)
        self.weights = tensors.taken

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def cache_specs(self) -> tuple[LayerCache, ...]:
        return tuple(cache_of_attention(layer.attention) for layer in self.layers)

    def embed(self, ops: Ops[Tensor], token_ids: Tensor) -> Tensor:
        return ops.embedding(token_ids, self.embedding)

    def layer(self, ops: Ops[Tensor], index: int, x: Tensor, positions: Tensor) -> Tensor:
        layer, eps = self.layers[index], self.spec.rms_norm_eps
        h = ops.rms_norm(x, layer.attention_norm, eps)
        q, k, v = ops.split_heads(ops.linear(h, layer.qkv), self.heads)
        q, k = ops.rope(q, positions, self.rope), ops.rope(k, positions, self.rope)
        x = ops.linear(ops.attention(q, k, v, layer.attention), layer.attention_output, residual=x)
        h = ops.rms_norm(x, layer.mlp_norm, eps)
        return ops.linear(ops.silu_and_mul(ops.linear(h, layer.gate_up)), layer.down, residual=x)

    def finish(self, ops: Ops[Tensor], x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.norm, self.spec.rms_norm_eps)

    def compute_logits(self, ops: Ops[Tensor], hidden: Tensor) -> Tensor:
        return ops.linear(hidden, self.head)


def _make_rope(spec: LlamaSpec, tensors: ModelTensors) -> Rope:
    divisors = None
    if tensors.has("rope_divisors"):
        divisors = tensors.constant("rope_divisors", (spec.rope.rotary_size // 2,))
    # Conversion to GGUF reorders the rows of q and k, so that the two features of a pair become neighbours.
    return make_rope(spec.rope, "interleaved" if spec.layout == "gguf" else "half", divisors)


def _make_layer(index: int, spec: LlamaSpec, tensors: ModelTensors) -> LlamaLayer:
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    qkv = {"q": spec.q_size, "k": spec.kv_size, "v": spec.kv_size}
    gate_up = {"gate": intermediate, "up": intermediate}
    return LlamaLayer(
        attention_norm=tensors.weight("attention_norm", (hidden,), index),
        qkv=tensors.linear(qkv, hidden, index, spec.attention_bias),
        attention=AttentionLayer(
            index, spec.num_heads, spec.num_kv_heads, spec.head_size, spec.attention_scale
        ),
        attention_output=tensors.linear(
            {"attention_output": hidden}, spec.q_size, index, spec.attention_output_bias
        ),
        mlp_norm=tensors.weight("mlp_norm", (hidden,), index),
        gate_up=tensors.linear(gate_up, hidden, index, spec.mlp_bias),
        down=tensors.linear({"down": hidden}, intermediate, index, spec.mlp_bias),
    )


FAMILY = Family(NAMES, read_config, read_gguf, Llama)

"""Llama and what shares its shape (LLaMA: Open and Efficient Foundation Language Models, 2023; Llama 2, 2023;
Mistral 7B without its window, 2023; The Llama 3 Herd of Models, 2024): pre-norm blocks, rotary positions,
grouped-query attention, a SiLU-gated feed-forward.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.models.rope import make_rope
from octavo.models.spec import ModelSpec
from octavo.models.tensors import ModelTensors
from octavo.ops import AttentionLayer, Linear, Ops, Rope, Tensor
from octavo.weights.weight import Weight


@dataclass(frozen=True, slots=True, eq=False)
class LlamaLayer:
    """One block: attention, then feed-forward, each behind a norm and added to what it was given."""

    attention_norm: Weight
    qkv: Linear
    attention: AttentionLayer
    attention_output: Linear
    mlp_norm: Weight
    gate_up: Linear
    down: Linear


class Llama:
    """A Llama model. Implements `Model`."""

    def __init__(self, spec: ModelSpec, tensors: ModelTensors) -> None:
        self.spec = spec
        self.heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        self.rope = _make_rope(spec, tensors)
        self.embedding = tensors.weight("embedding", (spec.vocab_size, spec.hidden_size))
        self.layers = tuple(_make_layer(index, spec, tensors) for index in range(spec.num_layers))
        self.norm = tensors.weight("norm", (spec.hidden_size,))
        self.head = tensors.head(spec.vocab_size, spec.hidden_size, spec.tied_head)
        self.weights = tensors.taken
        self.attention_layers = tuple(layer.attention for layer in self.layers)

    def forward(self, ops: Ops[Tensor], token_ids: Tensor, positions: Tensor) -> Tensor:
        """From `token_ids` and `positions`, both [T], to the final hidden states [T, hidden], normalized."""
        eps = self.spec.rms_norm_eps
        x = ops.embedding(token_ids, self.embedding)
        for layer in self.layers:
            h = ops.rms_norm(x, layer.attention_norm, eps)
            q, k, v = ops.split_heads(ops.linear(h, layer.qkv), self.heads)
            q, k = ops.rope(q, positions, self.rope), ops.rope(k, positions, self.rope)
            x = ops.linear(ops.attention(q, k, v, layer.attention), layer.attention_output, residual=x)
            h = ops.rms_norm(x, layer.mlp_norm, eps)
            x = ops.linear(ops.silu_and_mul(ops.linear(h, layer.gate_up)), layer.down, residual=x)
        return ops.rms_norm(x, self.norm, eps)

    def compute_logits(self, ops: Ops[Tensor], hidden: Tensor) -> Tensor:
        """From hidden states [L, hidden] of a `forward` to logits [L, vocab]."""
        return ops.linear(hidden, self.head)


def _make_rope(spec: ModelSpec, tensors: ModelTensors) -> Rope:
    divisors = None
    if tensors.has("rope_divisors"):
        divisors = tensors.constant("rope_divisors", (spec.rope.rotary_size // 2,))
    # Conversion to GGUF reorders the rows of q and k, so that features that turn as a pair become neighbours.
    return make_rope(spec.rope, "interleaved" if spec.layout == "gguf" else "half", divisors)


def _make_layer(index: int, spec: ModelSpec, tensors: ModelTensors) -> LlamaLayer:
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
    return LlamaLayer(
        attention_norm=tensors.weight("attention_norm", (hidden,), index),
        qkv=tensors.linear({"q": q_size, "k": kv_size, "v": kv_size}, hidden, index, spec.attention_bias),
        attention=AttentionLayer(
            index, spec.num_heads, spec.num_kv_heads, spec.head_size, spec.attention_scale
        ),
        attention_output=tensors.linear(
            {"attention_output": hidden}, q_size, index, spec.attention_output_bias
        ),
        mlp_norm=tensors.weight("mlp_norm", (hidden,), index),
        gate_up=tensors.linear({"gate": intermediate, "up": intermediate}, hidden, index, spec.mlp_bias),
        down=tensors.linear({"down": hidden}, intermediate, index, spec.mlp_bias),
    )

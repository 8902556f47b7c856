"""Gemma 3, text alone (Gemma 3 Technical Report, 2025): most layers see only a window of their context, and
turn by a rope of their own; queries and keys are normalized, head by head; attention and feed-forward stand
between two norms each; GELU is the gate; embeddings are multiplied by the root of their size.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.models.rope import make_rope
from octavo.models.spec import ModelSpec, WindowSpec
from octavo.models.tensors import ModelTensors
from octavo.ops import AttentionLayer, Linear, Ops, Rope, Tensor
from octavo.weights.weight import Weight


@dataclass(frozen=True, slots=True, eq=False)
class Gemma3Layer:
    """One block: attention, then feed-forward, each between two norms, and what the second gives is added to
    what the first was given.
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

    def __init__(self, spec: ModelSpec, tensors: ModelTensors) -> None:
        self.spec = spec
        self.heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        self.embedding = tensors.weight("embedding", (spec.vocab_size, spec.hidden_size))
        self.embedding_scale = spec.hidden_size**0.5
        self.layers = _make_layers(spec, tensors)
        self.norm = _norm("norm", spec.hidden_size, spec, tensors)
        self.head = tensors.head(spec.vocab_size, spec.hidden_size, spec.tied_head)
        self.weights = tensors.taken
        self.attention_layers = tuple(layer.attention for layer in self.layers)

    def forward(self, ops: Ops[Tensor], token_ids: Tensor, positions: Tensor) -> Tensor:
        """From `token_ids` and `positions`, both [T], to the final hidden states [T, hidden], normalized."""
        eps = self.spec.rms_norm_eps
        x = ops.embedding(token_ids, self.embedding, self.embedding_scale)
        for layer in self.layers:
            h = ops.rms_norm(x, layer.attention_norm, eps)
            q, k, v = ops.split_heads(ops.linear(h, layer.qkv), self.heads)
            q, k = ops.rms_norm(q, layer.q_norm, eps), ops.rms_norm(k, layer.k_norm, eps)
            q, k = ops.rope(q, positions, layer.rope), ops.rope(k, positions, layer.rope)
            h = ops.linear(ops.attention(q, k, v, layer.attention), layer.attention_output)
            x = ops.rms_norm(h, layer.attention_post_norm, eps, residual=x)
            h = ops.rms_norm(x, layer.mlp_norm, eps)
            h = ops.linear(ops.gelu_tanh_and_mul(ops.linear(h, layer.gate_up)), layer.down)
            x = ops.rms_norm(h, layer.mlp_post_norm, eps, residual=x)
        return ops.rms_norm(x, self.norm, eps)

    def compute_logits(self, ops: Ops[Tensor], hidden: Tensor) -> Tensor:
        """From hidden states [L, hidden] of a `forward` to logits [L, vocab]."""
        return ops.linear(hidden, self.head)


def _make_layers(spec: ModelSpec, tensors: ModelTensors) -> tuple[Gemma3Layer, ...]:
    # Both layouts keep features that turn as a pair half a head apart.
    ropes: dict[WindowSpec | None, Rope] = {None: make_rope(spec.rope, "half")}
    if spec.window is not None:
        ropes[spec.window] = make_rope(spec.window.rope, "half")
    return tuple(
        _make_layer(index, ropes[spec.window_of(index)], spec, tensors) for index in range(spec.num_layers)
    )


def _make_layer(index: int, rope: Rope, spec: ModelSpec, tensors: ModelTensors) -> Gemma3Layer:
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
    window = spec.window_of(index)
    return Gemma3Layer(
        attention_norm=_norm("attention_norm", hidden, spec, tensors, index),
        qkv=tensors.linear({"q": q_size, "k": kv_size, "v": kv_size}, hidden, index),
        q_norm=_norm("q_norm", spec.head_size, spec, tensors, index),
        k_norm=_norm("k_norm", spec.head_size, spec, tensors, index),
        rope=rope,
        attention=AttentionLayer(
            *(index, spec.num_heads, spec.num_kv_heads, spec.head_size, spec.attention_scale),
            window=window.size if window else None,
        ),
        attention_output=tensors.linear({"attention_output": hidden}, q_size, index),
        attention_post_norm=_norm("attention_post_norm", hidden, spec, tensors, index),
        mlp_norm=_norm("mlp_pre_norm", hidden, spec, tensors, index),
        gate_up=tensors.linear({"gate": intermediate, "up": intermediate}, hidden, index),
        down=tensors.linear({"down": hidden}, intermediate, index),
        mlp_post_norm=_norm("mlp_post_norm", hidden, spec, tensors, index),
    )


def _norm(role: str, size: int, spec: ModelSpec, tensors: ModelTensors, layer: int = 0) -> Weight:
    # Files of Hugging Face have what exceeds 1; conversion to GGUF adds the 1.
    return tensors.weight(role, (size,), layer, offset=1.0 if spec.layout == "huggingface" else None)

"""Hugging Face transformers running a GGUF file, dequantized to float32: the outside opinion on real models.

Reads the file with the PyPI package `gguf`, so nothing of Octavo's own reader is taken on trust.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


class TransformersLlama:
    """A LlamaForCausalLM with the weights of a GGUF file that has a tied head."""

    def __init__(self, path: Path) -> None:
        import gguf
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        reader = gguf.GGUFReader(path)

        def number(key: str) -> Any:
            return reader.fields[f"llama.{key}"].contents()

        self.config = LlamaConfig(
            hidden_size=number("embedding_length"),
            intermediate_size=number("feed_forward_length"),
            num_hidden_layers=number("block_count"),
            num_attention_heads=number("attention.head_count"),
            num_key_value_heads=number("attention.head_count_kv"),
            rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
            rope_theta=number("rope.freq_base"),
            max_position_embeddings=number("context_length"),
            vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
            tie_word_embeddings=True,
        )
        self.model = LlamaForCausalLM(self.config).eval()
        state = {
            self._name(tensor.name): torch.from_numpy(
                self._in_original_order(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
            )
            for tensor in reader.tensors
        }
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
        self.model.load_state_dict(state)

    def logits(self, token_ids: list[int]) -> np.ndarray:
        """Logits [len(token_ids), vocab] float32 of every position."""
        import torch

        with torch.inference_mode():
            return self.model(torch.tensor([token_ids])).logits[0].numpy()

    def _name(self, name: str) -> str:
        if name in _NAMES:
            return _NAMES[name]
        _, layer, part, kind = name.split(".")
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"

    def _in_original_order(self, name: str, values: np.ndarray) -> np.ndarray:
        """GGUF holds the rows of q and k with the features that turn as a pair side by side; put them back in halves."""
        heads = {"attn_q": self.config.num_attention_heads, "attn_k": self.config.num_key_value_heads}
        part = name.split(".")[-2]
        if part not in heads:
            return np.array(values)
        pairs = values.reshape(heads[part], -1, 2, values.shape[-1])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)

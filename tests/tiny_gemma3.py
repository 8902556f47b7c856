"""A tiny random Gemma 3: the sixth of seven layers sees its whole context, the others a window of 24 tokens.

As a Hugging Face folder with the tokenizer of `tiny_model`, as config.json and tensors, or as what GGUF files
hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny_model import CONFIG as TINY_MODEL
from tests.tiny_model import write_folder

Arrays = dict[str, np.ndarray]

WINDOW = 24
CONFIG: Mapping[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "vocab_size": TINY_MODEL["vocab_size"],
    "max_position_embeddings": TINY_MODEL["max_position_embeddings"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_HUGGINGFACE_NAMES = {gguf: huggingface for huggingface, gguf in _GGUF_NAMES.items()}


def write_tiny_gemma3(folder: Path, seed: int = 0) -> Path:
    """Write the model to `folder`, which must exist, and return it."""
    return write_folder(folder, CONFIG, make_arrays(CONFIG, seed))


def make_arrays(config: Mapping[str, Any], seed: int = 0) -> Arrays:
    """Random tensors for `config`, by their Hugging Face names."""
    random = np.random.default_rng(seed)
    hidden, intermediate, head_size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_size = config["num_attention_heads"] * head_size
    kv_size = config["num_key_value_heads"] * head_size
    layer_shapes = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (q_size, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.q_norm": (head_size,),
        "self_attn.k_norm": (head_size,),
        "self_attn.o_proj": (hidden, q_size),
        "post_attention_layernorm": (hidden,),
        "pre_feedforward_layernorm": (hidden,),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
        "post_feedforward_layernorm": (hidden,),
    }
    shapes = {"model.embed_tokens": (config["vocab_size"], hidden), "model.norm": (hidden,)} | {
        f"model.layers.{layer}.{name}": shape
        for layer in range(config["num_hidden_layers"])
        for name, shape in layer_shapes.items()
    }
    return {f"{name}.weight": _random_tensor(random, name, shape) for name, shape in shapes.items()}


def gguf_content(config: Mapping[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """Metadata and tensors of the same model in a GGUF file, as llama.cpp's converter writes them."""
    tensors = {_gguf_name(name): array + 1 if "norm" in name else array for name, array in arrays.items()}
    metadata = {
        "general.architecture": "gemma3",
        "general.name": "tiny",
        "gemma3.block_count": config["num_hidden_layers"],
        "gemma3.context_length": config["max_position_embeddings"],
        "gemma3.embedding_length": config["hidden_size"],
        "gemma3.feed_forward_length": config["intermediate_size"],
        "gemma3.attention.head_count": config["num_attention_heads"],
        "gemma3.attention.head_count_kv": config["num_key_value_heads"],
        "gemma3.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "gemma3.attention.key_length": config["head_dim"],
        "gemma3.attention.value_length": config["head_dim"],
        "gemma3.attention.sliding_window": config["sliding_window"],
        "gemma3.rope.freq_base": config["rope_theta"],
    }
    if "rope_scaling" in config:
        metadata["gemma3.rope.scaling.type"] = config["rope_scaling"]["rope_type"]
        metadata["gemma3.rope.scaling.factor"] = config["rope_scaling"]["factor"]
    return metadata, tensors


def as_huggingface(gguf_name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Name and values, in a Hugging Face folder, of a GGUF file's tensor."""
    values = array - 1 if "norm" in gguf_name else array
    module, _, kind = gguf_name.rpartition(".")
    if not module.startswith("blk."):
        return f"{_HUGGINGFACE_NAMES[module]}.{kind}", values
    _, layer, part = module.split(".")
    return f"model.layers.{layer}.{_HUGGINGFACE_NAMES[part]}.{kind}", values


def _random_tensor(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    # Layers outweigh the embedding and the last norm turns signs: otherwise a head that is the embedding
    # would repeat the last token for ever.
    deviations = {"model.embed_tokens": 0.05, "model.norm": 8.0}
    usual = 1.5 / shape[-1] ** 0.5 if len(shape) == 2 else 0.2
    return random.normal(0, deviations.get(name, usual), shape).astype(np.float32)


def _gguf_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if not module.startswith("model.layers."):
        return f"{_GGUF_NAMES[module]}.{kind}"
    layer, _, part = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"

"""Tiny random Llamas, as config.json with Hugging Face tensors or as the content of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.errors import WeightError
from octavo.models.load import load_model, spec_from_config
from octavo.models.model import Model
from octavo.weights.formats import FORMATS
from octavo.weights.weight import Weight

Arrays = dict[str, np.ndarray]

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_HUGGINGFACE_NAMES = {gguf: huggingface for huggingface, gguf in _GGUF_NAMES.items()}


class ArraySource:
    """A WeightSource over float32 arrays."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._weights = {name: make_weight(array, name) for name, array in arrays.items()}

    def names(self) -> list[str]:
        return list(self._weights)

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def get(self, name: str) -> Weight:
        if name not in self._weights:
            raise WeightError(f"no tensor {name!r}")
        return self._weights[name]


def make_weight(array: np.ndarray, name: str = "test") -> Weight:
    """A float32 array as a Weight in format F32."""
    rows = np.ascontiguousarray(array, np.float32).reshape(-1, array.shape[-1] if array.ndim else 1)
    return Weight(name, array.shape, FORMATS["F32"], rows.view(np.uint8))


def make_config(**changes: Any) -> dict[str, Any]:
    """The config.json of a tiny Llama: six query heads on two KV heads, everything plain."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 101,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    }
    return {**config, **changes}


def make_arrays(config: Mapping[str, Any], seed: int = 0) -> Arrays:
    """Random tensors for `config`, by their Hugging Face names."""
    random = np.random.default_rng(seed)
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    matrices = {
        "self_attn.q_proj": (q_size, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, q_size),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    arrays = {"model.embed_tokens.weight": _normal(random, config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        arrays[prefix + "input_layernorm.weight"] = 1 + _normal(random, hidden)
        arrays[prefix + "post_attention_layernorm.weight"] = 1 + _normal(random, hidden)
        for name, shape in matrices.items():
            arrays[f"{prefix}{name}.weight"] = _normal(random, *shape)
            if config["attention_bias" if "self_attn" in name else "mlp_bias"]:
                arrays[f"{prefix}{name}.bias"] = _normal(random, shape[0])
    arrays["model.norm.weight"] = 1 + _normal(random, hidden)
    if not config["tie_word_embeddings"]:
        arrays["lm_head.weight"] = _normal(random, config["vocab_size"], hidden)
    return arrays


def make_model(config: Mapping[str, Any], seed: int = 0) -> Model:
    """A tiny Llama with random weights."""
    return load_model(ArraySource(make_arrays(config, seed)), spec_from_config(config, "tiny"))


def gguf_content(config: Mapping[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """Metadata (but for rope scaling) and tensors of the same model in a GGUF file, as llama.cpp's converter
    writes them.
    """
    tensors = {_gguf_name(name): _as_neighbours(name, array, config) for name, array in arrays.items()}
    metadata = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.rope.freq_base": config["rope_theta"],
    }
    return metadata, tensors


def huggingface_name(gguf_name: str) -> str:
    """What a Hugging Face folder calls the tensor `gguf_name` of a GGUF file."""
    module, _, kind = gguf_name.rpartition(".")
    if not module.startswith("blk."):
        return f"{_HUGGINGFACE_NAMES[module]}.{kind}"
    _, layer, part = module.split(".")
    return f"model.layers.{layer}.{_HUGGINGFACE_NAMES[part]}.{kind}"


def as_halves(name: str, array: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Undoes what conversion to GGUF does to the tensor that a Hugging Face folder calls `name`."""
    num_heads = _num_rotary_heads(name, config)
    if not num_heads:
        return array
    pairs = array.reshape(num_heads, -1, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def _as_neighbours(name: str, array: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Rows of q and k reordered: features that turn as a pair, half a head apart, become neighbours."""
    num_heads = _num_rotary_heads(name, config)
    if not num_heads:
        return array
    halves = array.reshape(num_heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def _num_rotary_heads(name: str, config: Mapping[str, Any]) -> int:
    """Heads in the rows of the tensor `name`, if rotary embeddings are applied to them, else 0."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    return next((count for part, count in heads.items() if part in name), 0)


def _gguf_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if not module.startswith("model.layers."):
        return f"{_GGUF_NAMES[module]}.{kind}"
    layer, _, part = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"


def _normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.normal(0, 0.2, shape).astype(np.float32)

"""A tiny random Llama as a Hugging Face folder, with a byte-level tokenizer and a chat template: a whole
model in 0.3 MB.

Its vocabulary is what makes it handy: id b is the byte b, then come the control tokens, then rows of the
output matrix that no token has (padding, as real models have it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKENS = ["<|bos|>", "<|eos|>", "<|turn|>", "<|end|>"]
NUM_TOKENS = 256 + len(CONTROL_TOKENS)
EOS_TOKEN_ID = 257
END_TOKEN_ID = 259
CONTEXT = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}: {{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant: {% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": NUM_TOKENS + 12,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def write_tiny_model(folder: Path, seed: int = 0, context: int = CONTEXT) -> Path:
    """Write the model to `folder`, which must exist, and return it."""
    config = {**CONFIG, "max_position_embeddings": context}
    return write_folder(folder, config, _random_weights(np.random.default_rng(seed)))


def write_folder(folder: Path, config: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> Path:
    """Write a model with this tokenizer, and so of CONFIG's vocabulary, to `folder` and return it."""
    save_file(dict(weights), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    _make_tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer_config = {"eos_token": "<|eos|>", "bos_token": "<|bos|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS_TOKEN_ID, END_TOKEN_ID]}))
    return folder


def _random_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    hidden, ffn, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    kv = hidden * CONFIG["num_key_value_heads"] // CONFIG["num_attention_heads"]
    shapes = {"model.embed_tokens": (vocab, hidden), "model.norm": (hidden,), "lm_head": (vocab, hidden)}
    for layer in range(CONFIG["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}": shape
            for name, shape in {
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (hidden, hidden),
                "self_attn.k_proj": (kv, hidden),
                "self_attn.v_proj": (kv, hidden),
                "self_attn.o_proj": (hidden, hidden),
                "mlp.gate_proj": (ffn, hidden),
                "mlp.up_proj": (ffn, hidden),
                "mlp.down_proj": (hidden, ffn),
            }.items()
        }
    # Matrices large enough that attention matters and logits are far apart; norms near 1.
    return {
        f"{name}.weight": (
            rng.standard_normal(shape, np.float32) * (1.5 / shape[-1] ** 0.5)
            if len(shape) == 2
            else 1 + rng.standard_normal(shape, np.float32) * np.float32(0.1)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def _make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({letter: byte for byte, letter in enumerate(_byte_letters())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROL_TOKENS])
    return tokenizer


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]

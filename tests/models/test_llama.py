"""Llama against Hugging Face's, on the same random weights, from both kinds of file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.comparison import assert_equal_logits, logits_of, model_in_folder, model_in_gguf
from tests.models.tiny_llama import gguf_content, make_arrays, make_config

NUM_TOKENS = 200  # more than twice the original context of the scalings below
TOKEN_IDS = np.random.default_rng(0).integers(0, 101, NUM_TOKENS)

SHAPES: dict[str, dict[str, Any]] = {
    "grouped-query": {},
    "multi-head": {"num_key_value_heads": 6},
    "multi-query": {"num_key_value_heads": 1},
    "heads wider than hidden": {"head_dim": 16},
    "attention biases": {"attention_bias": True},
    "mlp biases": {"mlp_bias": True},
    "tied head": {"tie_word_embeddings": True},
    "one layer, other eps and base": {"num_hidden_layers": 1, "rms_norm_eps": 0.01, "rope_theta": 500.0},
}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "linear, factor 1": {"rope_type": "linear", "factor": 1.0},
    "llama3": LLAMA3,
    "llama3, factor 1": {**LLAMA3, "factor": 1.0},
    "yarn": YARN,
    "yarn, factor 1": {**YARN, "factor": 1.0, "original_max_position_embeddings": 256},
    "yarn, its own betas": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False},
    "yarn, its own magnitude": {**YARN, "attention_factor": 1.3},
    "yarn, mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
}


def expected_logits(config: dict[str, Any], folder: Path) -> np.ndarray:
    """Logits of Hugging Face's Llama with the weights of `make_arrays`, which is saved in `folder`."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    llama_config = transformers.LlamaConfig.from_dict(config, attn_implementation="eager")
    llama = transformers.LlamaForCausalLM(llama_config).eval()
    state = {name: torch.from_numpy(array) for name, array in make_arrays(config).items()}
    missing, unexpected = llama.load_state_dict(state, strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if config["tie_word_embeddings"] else [])
    llama.save_pretrained(folder)
    with torch.no_grad():
        return llama(torch.from_numpy(TOKEN_IDS)[None]).logits[0].numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_folder_gives_the_logits_of_hugging_face(shape: str, tmp_path: Path) -> None:
    expected = expected_logits(make_config(**SHAPES[shape]), tmp_path)
    assert_equal_logits(logits_of(model_in_folder(tmp_path), TOKEN_IDS), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_gguf_gives_the_logits_of_hugging_face(shape: str, tmp_path: Path) -> None:
    config = make_config(**SHAPES[shape])
    expected = expected_logits(config, tmp_path)
    model = model_in_gguf(tmp_path / "tiny.gguf", *gguf_content(config, make_arrays(config)))
    assert_equal_logits(logits_of(model, TOKEN_IDS), expected)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_folder_with_scaled_rope_is_right_beyond_the_original_context(scaling: str, tmp_path: Path) -> None:
    expected = expected_logits(make_config(rope_scaling=SCALINGS[scaling]), tmp_path)
    assert_equal_logits(logits_of(model_in_folder(tmp_path), TOKEN_IDS), expected)


@pytest.mark.parametrize(
    ("scaling", "keys"),
    [
        ("linear", {"type": "linear", "factor": 4.0}),
        ("linear", {"factor": 4.0}),
        ("linear, factor 1", {"type": "none", "factor": 4.0}),
        ("yarn", {"type": "yarn", "factor": 4.0, "original_context_length": 64}),
        ("yarn, factor 1", {"type": "yarn", "factor": 1.0, "original_context_length": 256}),
        (
            "yarn, its own magnitude",
            {
                "type": "yarn",
                "factor": 4.0,
                "original_context_length": 64,
                "attn_factor": 1.3 / (1 + 0.1 * np.log(4)),
            },
        ),
    ],
)
def test_gguf_with_scaled_rope_is_right_beyond_the_original_context(
    scaling: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    expected = expected_logits(make_config(rope_scaling=SCALINGS[scaling]), tmp_path)
    metadata, tensors = gguf_content(make_config(), make_arrays(make_config()))
    for key, value in keys.items():
        metadata[f"llama.rope.scaling.{key}"] = float(value) if isinstance(value, np.floating) else value
    assert_equal_logits(
        logits_of(model_in_gguf(tmp_path / "tiny.gguf", metadata, tensors), TOKEN_IDS), expected
    )


def test_gguf_with_a_rope_freqs_tensor_is_right_beyond_the_original_context(tmp_path: Path) -> None:
    """The converter writes Llama 3's scaling as divisors of the frequencies, and no rope.scaling keys."""
    config = make_config(rope_scaling=LLAMA3)
    expected = expected_logits(config, tmp_path)
    metadata, tensors = gguf_content(config, make_arrays(config))
    tensors["rope_freqs.weight"] = llama3_divisors()
    assert_equal_logits(
        logits_of(model_in_gguf(tmp_path / "tiny.gguf", metadata, tensors), TOKEN_IDS), expected
    )


def llama3_divisors() -> np.ndarray:
    """As llama.cpp's converter works them out, one by one."""
    divisors = []
    for frequency in 10000.0 ** -(np.arange(0, 8, 2) / 8):
        wavelength = 2 * np.pi / frequency
        if wavelength < 64 / 4:
            divisors.append(1.0)
        elif wavelength > 64 / 1:
            divisors.append(8.0)
        else:
            smooth = (64 / wavelength - 1) / (4 - 1)
            divisors.append(1 / ((1 - smooth) / 8 + smooth))
    return np.array(divisors, np.float32)

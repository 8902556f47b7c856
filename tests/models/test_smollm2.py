"""The real SmolLM2-135M-Instruct against Hugging Face's Llama, both with the weights of one GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference.backend import ReferenceBackend
from octavo.models.gguf_spec import spec_from_gguf
from octavo.models.registry import load_model
from octavo.sampling.sampler import Sampler
from octavo.weights.loader import open_weights
from tests.backends.steps import whole_prompt_logits
from tests.models.tiny_llama import as_halves, huggingface_name

# A chat's beginning: <|im_start|>user … <|im_end|> <|im_start|>assistant The capital of
PROMPT = np.array(
    [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198, 504, 3575, 282], np.int32
)

# The model's published config.json.
CONFIG = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}


def expected_logits(path: Path) -> np.ndarray:
    """Logits of Hugging Face's Llama, the file read and dequantized by the gguf package."""
    gguf = pytest.importorskip("gguf")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    state: dict[str, Any] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        name = huggingface_name(tensor.name)
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        state[name] = torch.from_numpy(np.array(as_halves(name, array, CONFIG), np.float32))
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(CONFIG)).eval()
    missing, unexpected = llama.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    with torch.no_grad():
        return llama(torch.from_numpy(PROMPT.astype(np.int64))[None]).logits[0].numpy()


def test_logits_are_those_of_hugging_face(smollm2_path: Path) -> None:
    source = open_weights(smollm2_path)
    model = load_model(source, spec_from_gguf(source.metadata, source))
    backend = ReferenceBackend(Sampler(None))
    backend.load_model(model)
    logits = whole_prompt_logits(backend, model, PROMPT)

    expected = expected_logits(smollm2_path)
    # float32 through thirty layers, sums in another order; 2e-6 is the most that was seen.
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    assert np.array_equal(logits.argmax(axis=1), expected.argmax(axis=1))

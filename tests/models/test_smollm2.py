"""The real default model, SmolLM2-135M-Instruct, against Hugging Face's Llama with the weights of the same
file.

The file is read and dequantized by the PyPI package `gguf`, so nothing of Octavo's own reader is taken on
trust.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.models.load import open_model
from tests.models.comparison import (
    assert_equal_logits,
    assert_greedy_tokens_are_theirs,
    logits_of,
    score_a_text,
)
from tests.models.tiny_llama import as_halves, huggingface_name
from tests.native import BACKENDS

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
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "The three primary colours are",
    "Q: What is 12 times 12?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "El sol sale por el",
    "import numpy as np\n\nx = np.",
    "The opposite of hot is cold. The opposite of up is",
]
NUM_NEW_TOKENS = 16
# Native kernels round activations to 8 bits and K and V to bfloat16.
NEAR_TIE_NATS = {"reference": 0.1, "native": 1.0}
NUM_SCORED_TOKENS = 1000


class TransformersLlama:
    """Hugging Face's Llama in float32."""

    def __init__(self, path: Path) -> None:
        gguf = pytest.importorskip("gguf")
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        state: dict[str, Any] = {}
        for tensor in gguf.GGUFReader(path).tensors:
            name = huggingface_name(tensor.name)
            array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            state[name] = torch.from_numpy(np.array(as_halves(name, array, CONFIG), np.float32))
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(CONFIG)).eval()
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert (missing, unexpected) == (["lm_head.weight"], [])

    def logits(self, token_ids: list[int]) -> np.ndarray:
        """Logits [len(token_ids), vocab] float32 of every position."""
        import torch

        with torch.inference_mode():
            return self.model(torch.tensor([token_ids])).logits[0].numpy()


@pytest.fixture(scope="module")
def transformers_model(smollm2_path: Path) -> TransformersLlama:
    return TransformersLlama(smollm2_path)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def llm(smollm2_path: Path, backend: str) -> LLM:
    return LLM(str(smollm2_path), kv_cache_memory="256MiB", max_model_len=2048, backend=backend)


def test_logits_are_those_of_hugging_face(smollm2_path: Path, transformers_model: TransformersLlama) -> None:
    logits = logits_of(open_model(smollm2_path), PROMPT)
    expected = transformers_model.logits(PROMPT.tolist())
    assert_equal_logits(logits, expected)
    assert np.array_equal(logits.argmax(axis=1), expected.argmax(axis=1))


def test_the_capital_of_france_is_paris(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    assert llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0].text.startswith(" Paris.")


def test_greedy_tokens_are_those_of_transformers(
    llm: LLM, backend: str, transformers_model: TransformersLlama
) -> None:
    near_tie = NEAR_TIE_NATS[backend]
    assert_greedy_tokens_are_theirs(llm, PROMPTS, NUM_NEW_TOKENS, transformers_model.logits, near_tie)


@pytest.mark.slow
def test_loss_over_a_thousand_tokens_is_that_of_transformers(
    llm: LLM, transformers_model: TransformersLlama
) -> None:
    token_ids, logprobs = score_a_text(llm, NUM_SCORED_TOKENS)
    ours = -np.mean(logprobs)
    logits = transformers_model.logits(token_ids)[:-1].astype(np.float64)
    largest = logits.max(axis=1, keepdims=True)
    log_sums = largest[:, 0] + np.log(np.exp(logits - largest).sum(axis=1))
    theirs = np.mean(log_sums - logits[np.arange(NUM_SCORED_TOKENS), token_ids[1:]])
    assert ours == pytest.approx(theirs, rel=1e-3)

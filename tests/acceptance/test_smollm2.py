"""The real default model against Hugging Face transformers on the same file, dequantized to float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo import LLM, SamplingParams
from tests.transformers_oracle import TransformersLlama

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
NEAR_TIE_NATS = 0.1
NUM_SCORED_TOKENS = 1000


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> LLM:
    return LLM(str(smollm2_path), kv_cache_memory="256MiB", max_model_len=2048)


@pytest.fixture(scope="module")
def transformers_model(smollm2_path: Path) -> TransformersLlama:
    return TransformersLlama(smollm2_path)


def test_the_capital_of_france(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    assert llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0].text.startswith(" Paris.")


def test_greedy_tokens_are_those_of_transformers(llm: LLM, transformers_model: TransformersLlama) -> None:
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW_TOKENS, ignore_eos=True)
    num_compared = 0
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        prompt, answer = output.prompt_token_ids, output.outputs[0].token_ids
        logits = transformers_model.logits(prompt + answer)[len(prompt) - 1 : -1]
        best = np.sort(logits, axis=1)[:, -2:]
        for ours, row, (second, first) in zip(answer, logits, best, strict=True):
            if first - second > NEAR_TIE_NATS:
                assert ours == row.argmax(), f"after {output.prompt!r}"
                num_compared += 1
    assert num_compared > 0.8 * len(PROMPTS) * NUM_NEW_TOKENS, "too many near ties to say anything"


def test_loss_over_a_thousand_tokens_is_that_of_transformers(llm: LLM, transformers_model: TransformersLlama) -> None:
    text = (Path(octavo.__file__).parent.parent / "docs/architecture.md").read_text(encoding="utf-8")
    token_ids = llm.get_tokenizer().encode(text)[: NUM_SCORED_TOKENS + 1]
    assert len(token_ids) == NUM_SCORED_TOKENS + 1

    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    output = llm.generate({"prompt_token_ids": token_ids}, params, use_tqdm=False)[0]
    places = zip(token_ids[1:], output.prompt_logprobs[1:], strict=True)
    ours = -np.mean([place[token_id].logprob for token_id, place in places])

    logits = transformers_model.logits(token_ids)[:-1].astype(np.float64)
    largest = logits.max(axis=1, keepdims=True)
    log_sums = largest[:, 0] + np.log(np.exp(logits - largest).sum(axis=1))
    theirs = np.mean(log_sums - logits[np.arange(NUM_SCORED_TOKENS), token_ids[1:]])
    assert ours == pytest.approx(theirs, rel=1e-3)

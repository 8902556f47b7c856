"""What tests of models compare with transformers: logits, choices, log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo import LLM, SamplingParams
from octavo.backends.reference.backend import ReferenceBackend
from octavo.models.load import load_model, spec_from_config, spec_from_gguf
from octavo.models.model import Model
from octavo.sampling.sampler import Sampler
from octavo.weights.loader import open_weights
from tests.backends.steps import whole_prompt_logits
from tests.weights.gguf_writer import build_gguf

# As a share of the largest logit. Both compute in float32 and add in different orders; 4e-6 is the most that
# was seen.
TOLERANCE = 2e-5


def model_in_folder(folder: Path) -> Model:
    """The model in a folder that transformers has saved."""
    config = json.loads((folder / "config.json").read_text())
    return load_model(open_weights(folder), spec_from_config(config, "tiny"))


def model_in_gguf(path: Path, metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> Model:
    """The model in a GGUF file of this content, which is written to `path`."""
    path.write_bytes(build_gguf(metadata, tensors))
    source = open_weights(path)
    return load_model(source, spec_from_gguf(source.metadata, source))


def logits_of(model: Model, token_ids: np.ndarray) -> np.ndarray:
    """Logits [len(token_ids), vocab] of every position, on the reference backend."""
    backend = ReferenceBackend(Sampler(None))
    backend.load_model(model)
    return whole_prompt_logits(backend, model, token_ids)


def assert_equal_logits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the order of sums."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


def assert_greedy_tokens_are_theirs(
    llm: LLM,
    prompts: Sequence[str],
    num_new_tokens: int,
    their_logits: Callable[[list[int]], np.ndarray],
    near_tie_nats: float,
) -> None:
    """Each token is the one they would choose after the tokens before it, unless their two best are close."""
    params = SamplingParams(temperature=0, max_tokens=num_new_tokens, ignore_eos=True)
    num_compared = 0
    for output in llm.generate(prompts, params, use_tqdm=False):
        prompt, answer = output.prompt_token_ids, output.outputs[0].token_ids
        logits = their_logits(prompt + answer)[len(prompt) - 1 : -1]
        for ours, row in zip(answer, logits, strict=True):
            second, first = np.partition(row, -2)[-2:]
            if first - second > near_tie_nats:
                assert ours == row.argmax(), f"after {output.prompt!r}"
                num_compared += 1
    assert num_compared > 0.5 * len(prompts) * num_new_tokens, "too many near ties to say anything"


def score_a_text(llm: LLM, num_scored: int) -> tuple[list[int], np.ndarray]:
    """The beginning of a text, and our log-probabilities [num_scored] of its tokens from the second on."""
    # A text of its own: with a document of the project, every change of that would change the test.
    text = (Path(__file__).parent / "text_to_score.md").read_text(encoding="utf-8")
    token_ids = llm.get_tokenizer().encode(text)[: num_scored + 1]
    assert len(token_ids) == num_scored + 1
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    output = llm.generate({"prompt_token_ids": token_ids}, params, use_tqdm=False)[0]
    places = zip(token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return token_ids, np.array([place[token_id].logprob for token_id, place in places])

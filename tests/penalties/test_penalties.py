"""Penalties: which tokens they touch, from which step on, and that counts follow the row."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.penalties.extension import TokenCounts
from octavo.types.outputs import RequestOutput
from tests.frontend.tiny_llm import make_llm
from tests.native import BACKENDS
from tests.tiny_model import NUM_TOKENS

PROMPT = "Paris Paris Paris"
P = ord("P")


@pytest.fixture(scope="module", params=BACKENDS)
def llm(request: pytest.FixtureRequest, tiny_model: Path) -> LLM:
    return make_llm(tiny_model, backend=request.param, max_logprobs=-1, logprobs_mode="processed_logits")


def run(llm: LLM, **fields: object) -> RequestOutput:
    fields = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "logprobs": -1, **fields}
    return llm.generate(PROMPT, SamplingParams(**fields), use_tqdm=False)[0]


def first_logits(llm: LLM, **fields: object) -> dict[int, float]:
    places = run(llm, max_tokens=1, **fields).outputs[0].logprobs
    return {token_id: at.logprob for token_id, at in places[0].items()}


def test_repetition_penalty_counts_the_prompt_from_the_first_token_on(llm: LLM) -> None:
    plain, penalized = first_logits(llm), first_logits(llm, repetition_penalty=2)
    assert penalized[P] == (plain[P] / 2 if plain[P] > 0 else plain[P] * 2)
    assert penalized[ord("Q")] == plain[ord("Q")]


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty"])
def test_presence_and_frequency_do_not_count_the_prompt(llm: LLM, field: str) -> None:
    assert first_logits(llm, **{field: 2}) == first_logits(llm)


@pytest.mark.parametrize(("field", "times"), [("presence_penalty", 1), ("frequency_penalty", 3)])
def test_frequency_grows_with_the_count_and_presence_does_not(llm: LLM, field: str, times: int) -> None:
    always_z = {"logit_bias": {ord("Z"): 100}, "max_tokens": 4}
    plain = run(llm, **always_z).outputs[0].logprobs[3][ord("Z")].logprob
    penalized = run(llm, **always_z, **{field: 0.5}).outputs[0].logprobs[3][ord("Z")].logprob
    assert plain - penalized == pytest.approx(0.5 * times, abs=1e-4)


def test_a_row_that_changes_hands_leaves_no_counts_behind(tiny_model: Path) -> None:
    llm = make_llm(tiny_model, max_num_seqs=1)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, repetition_penalty=1.5)
    alone = make_llm(tiny_model, max_num_seqs=1).generate("second", params, use_tqdm=False)[0]
    outputs = llm.generate(["the first of them", "second", "second"], params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs[1:]] == [alone.outputs[0].token_ids] * 2


def test_token_counts_are_those_of_the_tokens_whatever_was_done_before() -> None:
    rng = random.Random(0)
    counts = TokenCounts(3, 100, NUM_TOKENS)
    for _ in range(300):
        row = rng.randrange(3)
        prompt, output = (rng.choices(range(20), k=rng.randrange(1, 30)) for _ in range(2))
        counts.clear(row)
        counts.add_prompt(row, prompt)
        for start in range(0, len(output), 7):
            counts.add_output(row, output[start : start + 7])
        if rng.random() < 0.3:
            source, row = row, (row + 1) % 3
            counts.copy(source, row)
        seen = counts.seen[row, : counts.num_seen[row]].tolist()
        assert sorted(seen) == sorted(set(prompt + output))
        assert {token: int(counts.counts[row, token]) - 1 for token in seen} == {
            token: Counter(output)[token] for token in seen
        }
        assert np.count_nonzero(counts.counts[row]) == len(seen)

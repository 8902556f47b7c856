"""Logprobs of prompt tokens: right, whole, and the same however the prompt was computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo import LLM, SamplingParams
from octavo.errors import RequestError
from octavo.prompt_logprobs.extension import PromptLogprobsExtension
from octavo.scheduler.request_table import RequestTable
from octavo.types.outputs import RequestOutput
from octavo.types.steps import NewRequestData
from tests.tiny_model import NUM_TOKENS

PROMPT = "The quick brown fox jumps over the lazy dog, and over it again."
PARAMS = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=2, ignore_eos=True)


def run(model: Path, prompts: list[str], **settings: Any) -> list[RequestOutput]:
    llm = LLM(str(model), **{"kv_cache_memory": "8MiB", **settings})
    return llm.generate(prompts, PARAMS, use_tqdm=False)


@pytest.fixture(scope="module")
def whole(tiny_model: Path) -> RequestOutput:
    return run(tiny_model, [PROMPT])[0]


def test_there_is_one_for_every_token_and_none_for_the_first(whole: RequestOutput) -> None:
    assert len(whole.prompt_logprobs) == len(whole.prompt_token_ids)
    assert whole.prompt_logprobs[0] is None
    for token_id, place in zip(whole.prompt_token_ids[1:], whole.prompt_logprobs[1:], strict=True):
        assert token_id in place
        assert len(place) in (2, 3)
        assert all(at.logprob <= 0 for at in place.values())


def test_they_equal_what_generation_reports_for_the_same_tokens(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), kv_cache_memory="8MiB", max_logprobs=-1)
    generated = llm.generate(
        "The quick", SamplingParams(temperature=0, max_tokens=10, logprobs=1, ignore_eos=True), use_tqdm=False
    )[0]
    answer = generated.outputs[0]
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    prompt = generated.prompt_token_ids + answer.token_ids
    scored = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0]
    # The text of a token that ends inside a character depends on what came before; values and ranks do not.
    values = [
        [{i: (at.logprob, at.rank) for i, at in place.items()} for place in places]
        for places in (scored.prompt_logprobs[-10:], answer.logprobs)
    ]
    assert values[0] == values[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 7},
        {"block_size": 32},
        {"enable_prefix_caching": False},
    ],
)
def test_chunks_neighbours_and_preemptions_change_nothing(
    tiny_model: Path, whole: RequestOutput, settings: dict[str, Any]
) -> None:
    others = [f"{index} {PROMPT}" for index in range(4)]
    outputs = run(tiny_model, [*others, PROMPT], **settings)
    assert outputs[-1].prompt_logprobs == whole.prompt_logprobs
    assert all(len(output.prompt_logprobs) == len(output.prompt_token_ids) for output in outputs)


def test_a_preempted_request_reports_every_prompt_token_once(
    tiny_model: Path, whole: RequestOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    preempted: list[tuple[int, int]] = []  # tokens of the prompt, tokens known
    original = RequestTable.preempt

    def counting(self: RequestTable, victim: Any) -> None:
        preempted.append((victim.num_prompt_tokens, victim.num_tokens))
        original(self, victim)

    monkeypatch.setattr(RequestTable, "preempt", counting)
    llm = LLM(str(tiny_model), block_size=16, num_blocks_override=12, max_model_len=160)
    params = msgspec.structs.replace(PARAMS, max_tokens=40)
    outputs = llm.generate([PROMPT, PROMPT], params, use_tqdm=False)
    assert any(num_known > num_prompt for num_prompt, num_known in preempted)
    assert [output.prompt_logprobs for output in outputs] == [whole.prompt_logprobs] * 2


def test_several_answers_compute_them_once(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(str(tiny_model), kv_cache_memory="8MiB")
    admitted = []
    original = PromptLogprobsExtension.admit

    def counting(self: PromptLogprobsExtension, request: NewRequestData) -> None:
        original(self, request)
        admitted.append(request.row in self.prompts)

    monkeypatch.setattr(PromptLogprobsExtension, "admit", counting)
    params = msgspec.structs.replace(PARAMS, n=3)
    output = llm.generate(PROMPT, params, use_tqdm=False)[0]
    assert sorted(admitted) == [False, False, True]
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_they_do_not_read_the_prefix_cache_but_fill_it(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), block_size=16, kv_cache_memory="8MiB")
    outputs = [llm.generate(PROMPT, PARAMS, use_tqdm=False)[0] for _ in range(2)]
    assert [output.num_cached_tokens for output in outputs] == [0, 0]
    assert outputs[0].prompt_logprobs == outputs[1].prompt_logprobs
    plain = llm.generate(PROMPT, SamplingParams(max_tokens=1), use_tqdm=False)[0]
    assert plain.num_cached_tokens == len(plain.prompt_token_ids) - 1


def test_the_whole_vocabulary_where_allowed(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), kv_cache_memory="8MiB", max_logprobs=-1)
    output = llm.generate("abc", SamplingParams(max_tokens=1, prompt_logprobs=-1), use_tqdm=False)[0]
    assert [len(place) for place in output.prompt_logprobs[1:]] == [NUM_TOKENS] * 2


def test_more_of_them_than_memory_should_hold_are_refused_with_the_limit(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.prompt_logprobs.handler.MAX_PROMPT_LOGPROBS", 3 * NUM_TOKENS)
    llm = LLM(str(tiny_model), kv_cache_memory="8MiB", max_logprobs=-1)
    params = SamplingParams(max_tokens=1, prompt_logprobs=-1)
    assert len(llm.generate("abc", params, use_tqdm=False)[0].prompt_logprobs) == 3
    with pytest.raises(RequestError, match=f"makes {4 * NUM_TOKENS} log-probabilities.*{3 * NUM_TOKENS}"):
        llm.generate("abcd", params, use_tqdm=False)

"""What prompts may be, how long they may be, and what is found of them in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.errors import RequestError
from tests.frontend.tiny_llm import GREEDY, make_llm
from tests.tiny_model import CONTEXT, NUM_TOKENS


def test_prompts_may_be_text_or_ids_or_either_by_name(llm: LLM) -> None:
    ids = list(b"hello")
    forms: list[Any] = ["hello", ids, {"prompt": "hello"}, {"prompt_token_ids": ids}]
    outputs = [output for form in forms for output in llm.generate(form, GREEDY, use_tqdm=False)]
    assert [output.prompt_token_ids for output in outputs] == [ids] * 4
    assert len({output.outputs[0].text for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["hello", None, "hello", None]
    assert len(llm.generate([ids, "hello"], GREEDY, use_tqdm=False)) == 2


@pytest.mark.parametrize("ids", [[-1], [NUM_TOKENS], [2**63 - 1], [1.5], ["a", 3], [True]])
def test_prompt_ids_out_of_vocabulary_are_refused(llm: LLM, ids: list[Any]) -> None:
    with pytest.raises(RequestError, match="out of vocabulary"):
        llm.generate({"prompt_token_ids": ids}, GREEDY, use_tqdm=False)


def test_the_last_id_of_the_tokenizer_is_accepted(llm: LLM) -> None:
    assert llm.generate([[NUM_TOKENS - 1]], GREEDY, use_tqdm=False)[0].finished


def test_context_overflow_names_limit_prompt_and_max_tokens(llm: LLM) -> None:
    with pytest.raises(
        RequestError, match=f"100 tokens and max_tokens is {CONTEXT}.*{CONTEXT - 100}"
    ) as error:
        llm.generate("x" * 100, SamplingParams(max_tokens=CONTEXT), use_tqdm=False)
    assert error.value.param == "max_tokens"


def test_a_prompt_that_leaves_room_for_one_token_gets_one(llm: LLM) -> None:
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    answer = llm.generate("x" * (CONTEXT - 1), params, use_tqdm=False)[0].outputs[0]
    assert len(answer.token_ids) == 1
    assert answer.finish_reason == "length"


def test_max_tokens_none_means_the_rest_of_the_context(llm: LLM) -> None:
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    answer = llm.generate("x" * (CONTEXT - 20), params, use_tqdm=False)[0].outputs[0]
    assert len(answer.token_ids) == 20


@pytest.mark.parametrize(("keep", "kept"), [(5, 5), (1, 1), (CONTEXT - 6, CONTEXT - 6)])
def test_truncation_keeps_the_last_tokens(llm: LLM, keep: int, kept: int) -> None:
    prompt = "".join(chr(97 + index % 26) for index in range(CONTEXT + 100))
    params = SamplingParams(temperature=0, max_tokens=1, truncate_prompt_tokens=keep)
    output = llm.generate(prompt, params, use_tqdm=False)[0]
    assert output.prompt_token_ids == list(prompt.encode())[-kept:]


def test_truncation_to_what_fits(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, truncate_prompt_tokens=-1)
    assert len(llm.generate("x" * (2 * CONTEXT), params, use_tqdm=False)[0].prompt_token_ids) == CONTEXT - 1
    roomy = SamplingParams(temperature=0, max_tokens=7, truncate_prompt_tokens=-1, ignore_eos=True)
    output = llm.generate("x" * (2 * CONTEXT), roomy, use_tqdm=False)[0]
    assert (len(output.prompt_token_ids), len(output.outputs[0].token_ids)) == (CONTEXT - 7, 7)
    with pytest.raises(RequestError, match="truncate_prompt_tokens is 512"):
        llm.generate("x", SamplingParams(truncate_prompt_tokens=CONTEXT), use_tqdm=False)


def test_the_second_of_two_equal_prompts_comes_from_the_cache(tiny_model: Path) -> None:
    llm = make_llm(tiny_model)
    cached = [llm.generate("x" * 50, GREEDY, use_tqdm=False)[0].num_cached_tokens for _ in range(2)]
    assert cached == [0, 49]
    assert llm.reset_prefix_cache()
    assert llm.generate("x" * 50, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0


def test_requests_with_different_salts_share_nothing(tiny_model: Path) -> None:
    llm = make_llm(tiny_model)
    salts = [None, "a", "b", "a"]
    cached = [
        llm.generate("x" * 50, GREEDY, use_tqdm=False, cache_salt=salt)[0].num_cached_tokens for salt in salts
    ]
    assert cached == [0, 0, 0, 49]
    with pytest.raises(RequestError, match="cache_salt is ''"):
        llm.generate("x", GREEDY, use_tqdm=False, cache_salt="")


def test_the_answers_to_one_cold_prompt_count_no_cached_tokens(tiny_model: Path) -> None:
    llm = make_llm(tiny_model, max_num_seqs=1)
    params = SamplingParams(n=2, max_tokens=2, ignore_eos=True)
    cached = [llm.generate("x" * 50, params, use_tqdm=False)[0].num_cached_tokens for _ in range(2)]
    assert cached == [0, 49]


def test_prompts_may_be_numpy_arrays(llm: LLM) -> None:
    ids = np.frombuffer(b"hello", np.uint8)
    for prompt in (ids, list(ids), [ids], {"prompt_token_ids": ids}):
        assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].prompt_token_ids == list(b"hello")


@pytest.mark.parametrize("salt", ["\ud800", 5, b"x"])
def test_a_salt_that_is_no_text_is_refused(llm: LLM, salt: Any) -> None:
    with pytest.raises(RequestError, match="cache_salt is"):
        llm.generate("x", GREEDY, cache_salt=salt, use_tqdm=False)

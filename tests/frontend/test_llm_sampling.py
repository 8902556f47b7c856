"""What parameters make of an answer: logprobs, seeds, several answers, stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import RequestError, UnsupportedError
from tests.frontend.tiny_llm import assert_idle, make_llm
from tests.tiny_model import EOS_TOKEN_ID, NUM_TOKENS


def test_fields_whose_feature_is_not_built_in_are_refused_by_name(llm: LLM) -> None:
    with pytest.raises(UnsupportedError, match=r"thinking_token_budget is 5.*'thinking_budget'"):
        llm.generate("x", SamplingParams(thinking_token_budget=5), use_tqdm=False)


def test_more_logprobs_than_the_engine_allows_are_refused_with_the_limit(llm: LLM) -> None:
    with pytest.raises(RequestError, match="at most 20"):
        llm.generate("x", SamplingParams(logprobs=21), use_tqdm=False)
    with pytest.raises(RequestError, match="at most 20"):
        llm.generate("x", SamplingParams(logprobs=-1), use_tqdm=False)


def test_all_logprobs_where_the_operator_allows_it(tiny_model: Path) -> None:
    llm = make_llm(tiny_model, max_logprobs=-1)
    answer = llm.generate("x", SamplingParams(logprobs=-1, max_tokens=1), use_tqdm=False)[0].outputs[0]
    assert len(answer.logprobs[0]) == NUM_TOKENS
    assert sum(2.718281828459045**at.logprob for at in answer.logprobs[0].values()) == pytest.approx(1)


def test_logprobs_hold_the_chosen_token_and_the_likeliest(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=3, max_tokens=10, logprobs=2, ignore_eos=True)
    answer = llm.generate("hello", params, use_tqdm=False)[0].outputs[0]
    assert len(answer.logprobs) == len(answer.token_ids)
    for token_id, place in zip(answer.token_ids, answer.logprobs, strict=True):
        assert token_id in place
        assert len(place) in (2, 3)
        assert all(at.logprob <= 0 for at in place.values())
        others = [at.logprob for other, at in place.items() if other != token_id]
        assert others == sorted(others, reverse=True)
    total = sum(
        place[token_id].logprob for token_id, place in zip(answer.token_ids, answer.logprobs, strict=True)
    )
    assert answer.cumulative_logprob == pytest.approx(total)


def test_logprobs_zero_reports_the_chosen_token_alone(llm: LLM) -> None:
    answer = llm.generate("x", SamplingParams(logprobs=0, max_tokens=2), use_tqdm=False)[0].outputs[0]
    assert [list(place) for place in answer.logprobs] == [[token_id] for token_id in answer.token_ids]


def test_n_answers_differ_by_seed_and_repeat_with_it(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1, seed=11, max_tokens=12, ignore_eos=True)
    first, second = (llm.generate("hello", params, use_tqdm=False)[0] for _ in range(2))
    assert [answer.index for answer in first.outputs] == [0, 1, 2]
    assert len({answer.text for answer in first.outputs}) == 3
    assert [answer.token_ids for answer in first.outputs] == [answer.token_ids for answer in second.outputs]
    alone = llm.generate("hello", SamplingParams(seed=12, max_tokens=12, ignore_eos=True), use_tqdm=False)
    assert alone[0].outputs[0].token_ids == first.outputs[1].token_ids


def test_n_greedy_answers_are_equal(llm: LLM) -> None:
    output = llm.generate("x", SamplingParams(n=2, temperature=0, ignore_eos=True), use_tqdm=False)[0]
    assert output.outputs[0].token_ids == output.outputs[1].token_ids


def test_more_answers_than_rows_run_in_waves(tiny_model: Path) -> None:
    llm = make_llm(tiny_model, max_num_seqs=2)
    output = llm.generate("x", SamplingParams(n=5, max_tokens=3, ignore_eos=True), use_tqdm=False)[0]
    assert [len(answer.token_ids) for answer in output.outputs] == [3] * 5


def test_unseeded_requests_differ_and_report_a_seed_that_repeats_them(llm: LLM) -> None:
    params = SamplingParams(temperature=1, max_tokens=16, ignore_eos=True)
    first, second = (llm.generate("hello", params, use_tqdm=False)[0] for _ in range(2))
    assert first.outputs[0].token_ids != second.outputs[0].token_ids
    again = SamplingParams(temperature=1, seed=first.seed, max_tokens=16, ignore_eos=True)
    assert llm.generate("hello", again, use_tqdm=False)[0].outputs[0].token_ids == first.outputs[0].token_ids


def test_no_sampled_id_is_padding(llm: LLM) -> None:
    params = SamplingParams(n=4, temperature=2, seed=0, max_tokens=200, ignore_eos=True)
    for answer in llm.generate("hello", params, use_tqdm=False)[0].outputs:
        assert max(answer.token_ids) < NUM_TOKENS


def test_stop_tokens_end_a_request_and_are_not_text(llm: LLM) -> None:
    free = llm.generate(
        "hello", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True), use_tqdm=False
    )
    ids = free[0].outputs[0].token_ids
    stop = next(token_id for token_id in ids if ids.index(token_id) > 2)
    params = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[stop], ignore_eos=True)
    answer = llm.generate("hello", params, use_tqdm=False)[0].outputs[0]
    assert answer.token_ids == ids[: ids.index(stop) + 1]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    assert answer.text == llm.get_tokenizer().decode(ids[: ids.index(stop)])


def test_stop_strings_end_a_request_in_the_core_too(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    text = llm.generate("hello", params, use_tqdm=False)[0].outputs[0].text
    # A stop string of characters that are whole in the text (the tiny model writes bytes).
    stop = next(text[i : i + 2] for i in range(4, len(text) - 1) if "\ufffd" not in text[i : i + 2])
    cut = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=[stop])
    answer = llm.generate("hello", cut, use_tqdm=False)[0].outputs[0]
    assert answer.text == text[: text.index(stop)]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    assert_idle(llm)


def test_detokenize_off_gives_ids_and_no_text(llm: LLM) -> None:
    answer = llm.generate("hello", SamplingParams(detokenize=False, max_tokens=4), use_tqdm=False)[0].outputs[
        0
    ]
    assert answer.text == ""
    assert answer.token_ids


def test_eos_ends_a_request_unless_it_is_to_be_ignored(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm(tiny_model)
    sampler = llm.engine.client.core.executor.runner.backend._sampler
    forward = sampler.forward

    def only_eos(logits: Any, metadata: Any) -> Any:
        logits[:, EOS_TOKEN_ID] = 1e9
        return forward(logits, metadata)

    monkeypatch.setattr(sampler, "forward", only_eos)
    ended = llm.generate("a", SamplingParams(max_tokens=5), use_tqdm=False)[0].outputs[0]
    assert (ended.token_ids, ended.text, ended.finish_reason) == ([EOS_TOKEN_ID], "", "stop")
    ignored = llm.generate("a", SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)[0].outputs[0]
    assert (len(ignored.token_ids), ignored.finish_reason) == (5, "length")

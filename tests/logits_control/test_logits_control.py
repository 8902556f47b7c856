"""What a request may say of its logits: bias, allowed tokens, bad words, a least number of tokens."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import RequestError
from tests.frontend.tiny_llm import make_llm
from tests.native import BACKENDS
from tests.tiny_model import END_TOKEN_ID, EOS_TOKEN_ID

X, Y, Z = map(ord, "xyz")


@pytest.fixture(scope="module", params=BACKENDS)
def llm(request: pytest.FixtureRequest, tiny_model: Path) -> LLM:
    return make_llm(tiny_model, backend=request.param)


def tokens(llm: LLM, prompt: str = "hello", **fields: object) -> list[int]:
    fields = {"temperature": 1.0, "max_tokens": 30, "seed": 7, "ignore_eos": True, **fields}
    return llm.generate(prompt, SamplingParams(**fields), use_tqdm=False)[0].outputs[0].token_ids


def test_a_bias_of_100_forces_a_token_and_one_of_minus_100_keeps_it_out(llm: LLM) -> None:
    assert tokens(llm, logit_bias={X: 100}) == [X] * 30
    plain = tokens(llm)
    rarest = dict.fromkeys(set(plain), -100)
    assert not set(tokens(llm, logit_bias=rarest)) & set(plain)


def test_only_allowed_tokens_come_out(llm: LLM) -> None:
    assert set(tokens(llm, allowed_token_ids=[X, Y, Z], max_tokens=60)) == {X, Y, Z}


def test_a_bad_word_of_one_token_never_comes_out(llm: LLM) -> None:
    assert set(tokens(llm, allowed_token_ids=[X, Y, Z], bad_words=["y"], max_tokens=60)) == {X, Z}


def test_of_a_bad_word_of_two_tokens_the_second_never_follows_the_first(llm: LLM) -> None:
    fields = {"allowed_token_ids": [X, Y, Z], "temperature": 2.0, "max_tokens": 300}
    pairs = {bytes(pair).decode() for pair in pairwise(tokens(llm, **fields))}
    assert len(pairs) == 9, "without the bad word every pair comes out"
    pairs = {bytes(pair).decode() for pair in pairwise(tokens(llm, **fields, bad_words=["xy"]))}
    assert "xy" not in pairs
    assert {"zy", "yx", "yy"} <= pairs


def test_the_end_of_the_prompt_is_no_part_of_a_bad_word(llm: LLM) -> None:
    assert tokens(llm, "ends in x", bad_words=["xy"], logit_bias={Y: 100}, max_tokens=1) == [Y]


def test_a_bad_word_is_kept_out_after_a_space_too(llm: LLM) -> None:
    always_spaced = {"allowed_token_ids": [ord(" "), X, Y], "bad_words": [" xy"], "max_tokens": 200}
    assert " xy" not in bytes(tokens(llm, **always_spaced)).decode()


def test_allowed_tokens_that_are_all_bad_words_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="bad_words forbids every token in allowed_token_ids"):
        tokens(llm, allowed_token_ids=[X, Y], bad_words=["x", "y"])


def test_a_request_left_with_nothing_to_choose_ends_with_an_error_and_harms_no_other(llm: LLM) -> None:
    stuck = SamplingParams(allowed_token_ids=[X], bad_words=["xx"], max_tokens=5, temperature=0)
    fine = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    bad, good = llm.generate(["a", "b"], [stuck, fine], use_tqdm=False)
    assert bad.outputs[0].finish_reason == "error"
    assert "every token is forbidden" in bad.outputs[0].stop_reason
    assert bad.outputs[0].token_ids == [X]
    assert len(good.outputs[0].token_ids) == 5


@pytest.mark.parametrize("end", [EOS_TOKEN_ID, END_TOKEN_ID, X])
def test_no_end_is_sampled_before_min_tokens(llm: LLM, end: int) -> None:
    fields = {"logit_bias": {end: 100}, "ignore_eos": False, "stop_token_ids": [X], "max_tokens": 10}
    assert len(tokens(llm, **fields)) == 1
    generated = tokens(llm, **fields, min_tokens=5)
    assert len(generated) == 6
    assert generated[-1] == end
    assert not set(generated[:5]) & {EOS_TOKEN_ID, END_TOKEN_ID, X}


def test_min_tokens_counts_from_the_beginning_of_the_answer_also_after_a_preemption(tiny_model: Path) -> None:
    llm = make_llm(tiny_model, max_model_len=96, num_blocks_override=8, block_size=16)
    ends_early = SamplingParams(
        temperature=0, logit_bias={END_TOKEN_ID: 100}, min_tokens=40, max_tokens=60, bad_words=["ab"]
    )
    outputs = llm.generate(["a" * 20, "b" * 20], ends_early, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [41, 41]


def test_a_stop_string_before_min_tokens_does_not_end_the_text(llm: LLM) -> None:
    assert len(tokens(llm, logit_bias={X: 100}, stop=["xxx"], min_tokens=8)) > 8

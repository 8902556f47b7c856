"""Output text as it arrives: the same for every way of cutting the output into steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.frontend.detokenizer import IncrementalDetokenizer
from octavo.frontend.tokenizer import Tokenizer
from octavo.types.params import SamplingParams
from tests.frontend.tokenizer_files import byte_tokenizer, ids_of, sentencepiece_metadata

TOKENIZER = byte_tokenizer(merges=["a b", "b a"])
END = 1  # id of the control token <|end|>
AB = TOKENIZER.encode("ab")[0]


def stream(
    steps: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    tokenizer: Tokenizer | None = TOKENIZER,
    ends_on_token: bool = False,
    prompt: Sequence[int] | None = None,
) -> tuple[list[str], str | None, IncrementalDetokenizer]:
    """The deltas of each step, the stop string that ended the output, and the detokenizer."""
    detokenizer = IncrementalDetokenizer(tokenizer, params, prompt)
    deltas = []
    for index, step in enumerate(steps, start=1):
        stop = detokenizer.update(step, ends_on_token and index == len(steps))
        finished = stop is not None or index == len(steps)
        deltas.append(detokenizer.get_next_output_text(finished, delta=True))
        if finished:
            break
    return deltas, stop, detokenizer


def cut(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(c for c in cuts if c <= len(ids))})
    return [ids[start:end] for start, end in pairwise(edges)] or [[]]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_streaming_in_any_split_is_decoding_at_once(data: bytes, cuts: list[int]) -> None:
    ids = ids_of(TOKENIZER, data)
    deltas, stop, detokenizer = stream(cut(ids, cuts), SamplingParams())
    assert stop is None
    assert (
        "".join(deltas) == detokenizer.output_text == TOKENIZER.decode(ids) == data.decode(errors="replace")
    )


def test_characters_come_out_as_soon_as_they_are_complete_and_never_before() -> None:
    ids = ids_of(TOKENIZER, "a\u65e5b".encode())
    assert stream([[i] for i in ids], SamplingParams())[0] == ["a", "", "", "\u65e5", "b"]


def test_pending_bytes_come_out_at_the_end() -> None:
    ids = ids_of(TOKENIZER, b"a\xe6\x97")
    assert stream([[i] for i in ids], SamplingParams())[0] == ["a", "", "\ufffd"]


@given(
    st.text(alphabet="ab\U0001f642", max_size=40),
    st.lists(st.integers(0, 160)),
    st.lists(st.text(alphabet="ab\U0001f642", min_size=1, max_size=4), max_size=3),
    st.booleans(),
    st.integers(0, 6),
)
def test_stop_strings_end_the_text_where_the_definition_says(
    text: str, cuts: list[int], stop: list[str], include: bool, min_tokens: int
) -> None:
    ids = ids_of(TOKENIZER, text.encode())
    params = SamplingParams(
        stop=stop, include_stop_str_in_output=include, min_tokens=min_tokens, max_tokens=None
    )
    deltas, found, detokenizer = stream(cut(ids, cuts), params)
    expected_text, expected_stop, num_tokens = stopped(ids, stop, include, min_tokens)
    assert "".join(deltas) == detokenizer.output_text == expected_text
    assert (found, detokenizer.num_output_tokens) == (expected_stop, num_tokens)


def stopped(ids: list[int], stop: list[str], include: bool, min_tokens: int) -> tuple[str, str | None, int]:
    """Text, stop string and number of tokens of the output, by looking at the whole text after each token."""
    before = ""
    for count in range(1, len(ids) + 1):
        text = b"".join(map(TOKENIZER.token_bytes, ids[:count])).decode(errors="ignore")
        ends = [
            (end, rank, candidate)
            for rank, candidate in enumerate(stop)
            for end in range(len(before) + 1, len(text) + 1)
            if text[:end].endswith(candidate)
        ]
        if ends and count > min_tokens:
            end, _, candidate = min(ends)
            return text[: end if include else end - len(candidate)], candidate, count
        before = text
    return before, None, len(ids)


@pytest.mark.parametrize("stop", [("ab", "b"), ("b", "ab")])
def test_of_stop_strings_complete_at_once_the_first_in_the_list_counts(stop: tuple[str, str]) -> None:
    assert stream([[AB]], SamplingParams(stop=stop))[1] == stop[0]


def test_bytes_after_a_stop_string_do_not_come_out() -> None:
    tokenizer = byte_tokenizer(
        merges=["a \u00e6"]
    )  # the token is b"a\xe6", which breaks off inside a character
    token_id = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b"a\xe6")
    params = SamplingParams(stop=["a"], include_stop_str_in_output=True)
    assert stream([[token_id]], params, tokenizer=tokenizer)[:2] == (["a"], "a")


def test_held_back_text_comes_out_when_the_stop_never_completes() -> None:
    deltas, stop, _ = stream([[AB]] * 4, SamplingParams(stop=["ababab#"]))
    assert deltas == ["", "", "", "abababab"]
    assert stop is None


def test_text_is_cut_right_after_an_included_stop_string() -> None:
    deltas, stop, _ = stream([[AB]] * 4, SamplingParams(stop=["ba"], include_stop_str_in_output=True))
    assert deltas == ["ab", "a"]
    assert stop == "ba"


def test_stop_string_that_is_a_multi_byte_character_leaves_the_text_before_it() -> None:
    ids = ids_of(TOKENIZER, "\u65e5\u672c\u8a9e\U0001f642end".encode())
    assert "".join(stream([[i] for i in ids], SamplingParams(stop=["\U0001f642"]))[0]) == "\u65e5\u672c\u8a9e"


def test_tokens_after_the_stop_string_in_one_step_do_not_count() -> None:
    deltas, stop, detokenizer = stream([[AB, AB, AB, AB]], SamplingParams(stop=["ba"]))
    assert (deltas, stop, detokenizer.num_output_tokens) == (["a"], "ba", 2)


@pytest.mark.parametrize(
    ("skip", "include", "text"),
    [(True, False, "abab"), (False, False, "abab"), (True, True, "abab"), (False, True, "abab<|end|>")],
)
def test_stop_token_shows_only_if_included_and_not_skipped(skip: bool, include: bool, text: str) -> None:
    params = SamplingParams(skip_special_tokens=skip, include_stop_str_in_output=include)
    deltas, _, detokenizer = stream([[AB], [AB, END]], params, ends_on_token=True)
    assert "".join(deltas) == text
    assert detokenizer.num_output_tokens == 3


def test_last_token_shows_when_the_output_ends_by_length() -> None:
    params = SamplingParams(skip_special_tokens=False)
    assert "".join(stream([[AB], [END]], params)[0]) == "ab<|end|>"


def test_cumulative_text_is_the_sum_of_the_deltas() -> None:
    params = SamplingParams(stop=["zzz"])
    detokenizer = IncrementalDetokenizer(TOKENIZER, params)
    seen = []
    for finished in (False, False, True):
        detokenizer.update([AB], False)
        seen.append(detokenizer.get_next_output_text(finished, delta=False))
    assert seen == ["", "ab", "ababab"]


def test_without_a_tokenizer_the_text_stays_empty() -> None:
    for tokenizer, params in ((None, SamplingParams()), (TOKENIZER, SamplingParams(detokenize=False))):
        deltas, stop, detokenizer = stream([[AB], [AB]], params, tokenizer=tokenizer)
        assert (deltas, stop, detokenizer.output_text) == (["", ""], None, "")
        assert detokenizer.num_output_tokens == 2


@pytest.mark.parametrize("prompt", ["", "ab", "ab ab", " "])
@pytest.mark.parametrize("skip", [True, False])
def test_prompt_and_output_decode_to_prompt_text_and_output_text(prompt: str, skip: bool) -> None:
    scores = {"\u2581": -3.0, "a": -4.0, "b": -5.0, "ab": -1.0, "\u2581ab": -2.0}
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(scores))
    prompt_ids = tokenizer.encode(prompt)
    output_ids = tokenizer.encode("ab ab", add_special_tokens=False)
    params = SamplingParams(skip_special_tokens=skip)
    deltas, _, _ = stream([[i] for i in output_ids], params, tokenizer=tokenizer, prompt=prompt_ids)
    whole = tokenizer.decode(prompt_ids + output_ids, skip)
    assert whole == tokenizer.decode(prompt_ids, skip) + "".join(deltas)

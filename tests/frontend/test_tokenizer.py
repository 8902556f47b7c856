"""Encoding and decoding, on vocabularies small enough to know the answer."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import RequestError
from octavo.frontend.tokenizer import Tokenizer
from tests.frontend.tokenizer_files import (
    CONTROL,
    USER_DEFINED,
    byte_level_metadata,
    byte_tokenizer,
    ids_of,
    sentencepiece_metadata,
)


def texts(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in token_ids]


def test_control_token_in_text_is_one_id() -> None:
    tokenizer = byte_tokenizer()
    assert texts(tokenizer, tokenizer.encode("a<|end|>b")) == ["a", "<|end|>", "b"]


def test_user_defined_token_is_one_id_but_not_special() -> None:
    tokenizer = byte_tokenizer(extra={"<think>": USER_DEFINED})
    (token_id,) = tokenizer.encode("<think>")
    assert tokenizer.token_text(token_id) == "<think>"
    assert not tokenizer.is_special(token_id)
    assert tokenizer.decode([token_id]) == "<think>"


def test_control_token_with_characters_outside_the_byte_alphabet_is_one_id() -> None:
    name = "<\uff5cend\u2581of\u2581sentence\uff5c>"
    tokenizer = byte_tokenizer(extra={name: CONTROL})
    (token_id,) = tokenizer.encode(name)
    assert tokenizer.token_bytes(token_id) == name.encode()


@given(st.text(alphabet="<|end>bos a\u00e9", max_size=40))
def test_plain_encoding_has_no_control_token_and_loses_nothing(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode_segments([text])
    assert not any(map(tokenizer.is_special, ids))
    assert tokenizer.decode(ids) == text


def test_plain_encoding_avoids_a_control_token_that_is_also_a_word() -> None:
    # llama-bpe takes a word that is a token whole, and "END" is a word by its pattern.
    tokenizer = byte_tokenizer(extra={"END": CONTROL}, pre="llama-bpe")
    assert len(tokenizer.encode("END", add_special_tokens=False)) == 1
    assert texts(tokenizer, tokenizer.encode_segments(["an END"])) == ["a", "n", " ", "E", "N", "D"]


@pytest.mark.parametrize(
    ("pre", "flag", "starts_with_bos"),
    [
        ("gpt-2", None, False),
        ("gpt-2", True, True),
        ("gpt-2", False, False),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ],
)
def test_bos_follows_the_flag_and_without_it_the_custom_of_the_model(
    pre: str, flag: bool | None, starts_with_bos: bool
) -> None:
    tokenizer = byte_tokenizer(pre=pre, **({} if flag is None else {"add_bos_token": flag}))
    assert tokenizer.add_bos_token == starts_with_bos
    assert tokenizer.encode("a")[:-1] == [0] * starts_with_bos
    assert len(tokenizer.encode("a", add_special_tokens=False)) == 1


def test_eos_is_added_where_the_file_asks_for_it() -> None:
    assert byte_tokenizer(add_eos_token=True).encode("a")[1:] == [1]


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(RequestError, match="Unicode"):
        byte_tokenizer().encode("a\ud800")


def test_token_bytes_are_exact_and_token_text_is_readable() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("\u00e9")
    assert [tokenizer.token_bytes(token_id) for token_id in ids] == [b"\xc3", b"\xa9"]
    assert texts(tokenizer, ids) == ["\ufffd", "\ufffd"]


def test_decode_shows_special_tokens_only_when_asked() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("a<|end|>b")
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|end|>b"


def test_bytes_that_are_no_text_decode_to_replacement_characters() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(ids_of(tokenizer, b"a\xffb\xe6\x97")) == "a\ufffdb\ufffd"


@pytest.mark.parametrize("token_id", [-1, 10**9])
def test_id_out_of_range_is_refused(token_id: int) -> None:
    with pytest.raises(RequestError, match="0 to"):
        byte_tokenizer().decode([token_id])


def test_vocab_size_counts_all_ids() -> None:
    metadata = byte_level_metadata(extra={"<think>": USER_DEFINED})
    assert Tokenizer.from_gguf(metadata).vocab_size == len(metadata["tokenizer.ggml.tokens"])


def test_user_defined_token_is_found_before_words_are_merged() -> None:
    tokenizer = byte_tokenizer(merges=["a b"], extra={"bc": USER_DEFINED})
    assert texts(tokenizer, tokenizer.encode("abc")) == ["a", "bc"]


SCORES = {
    "\u2581": -10.0, "h": -11.0, "e": -12.0, "l": -13.0, "o": -14.0,
    "he": -1.0, "lo": -1.5, "ll": -2.0, "\u2581he": -3.0, "hell": -4.0, "\u2581hell": -5.0,
    "\u2581hello": -6.0,
}  # fmt: skip


def test_sentencepiece_merges_the_best_score_first() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(SCORES))
    # "lo" beats "ll", so "hell" is never reached, and "▁hello" only from there.
    assert texts(tokenizer, tokenizer.encode("hello")) == ["<s>", " he", "l", "lo"]


def test_sentencepiece_space_prefix_is_put_and_dropped_at_the_start_only() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(SCORES))
    ids = tokenizer.encode("hello hello")
    assert tokenizer.decode(ids) == "hello hello"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s> hello hello"
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_sentencepiece_puts_and_drops_no_space_where_the_file_says_so() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(SCORES, add_space_prefix=False))
    assert texts(tokenizer, tokenizer.encode("he he")) == ["<s>", "he", " he"]
    assert tokenizer.decode(tokenizer.encode(" he")) == " he"


def test_sentencepiece_falls_back_to_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(SCORES, add_space_prefix=False))
    ids = tokenizer.encode("\u65e5", add_special_tokens=False)
    assert [tokenizer.token_bytes(token_id) for token_id in ids] == [b"\xe6", b"\x97", b"\xa5"]
    assert tokenizer.decode(ids) == "\u65e5"


def test_sentencepiece_runs_of_spaces_are_single_tokens() -> None:
    metadata = sentencepiece_metadata(
        SCORES, {"  ": USER_DEFINED, "   ": USER_DEFINED}, add_space_prefix=False, add_bos_token=False
    )
    tokenizer = Tokenizer.from_gguf(metadata)
    assert texts(tokenizer, tokenizer.encode("he   he  he")) == ["he", "   ", "he", "  ", "he"]


def test_sentencepiece_never_builds_a_control_token_from_text() -> None:
    pieces = {"<": -1.0, "s": -2.0, ">": -3.0, "<s": -4.0, "/": -5.0}
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(pieces, add_space_prefix=False))
    assert texts(tokenizer, tokenizer.encode_segments(["<s>"])) == ["<s", ">"]


@given(
    st.dictionaries(st.text(alphabet="ab\u2581", min_size=2, max_size=5), st.integers(), max_size=25),
    st.text(alphabet="ab ", max_size=30),
)
def test_sentencepiece_encoding_is_the_greedy_merge_of_the_definition(
    scores: dict[str, int], text: str
) -> None:
    ranked = {token: -float(rank) for rank, token in enumerate(sorted(scores, key=lambda t: (-scores[t], t)))}
    ranked |= {"a": -100.0, "b": -101.0, "\u2581": -102.0}
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(ranked, add_space_prefix=False))
    tokens = [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text, add_special_tokens=False)]
    assert tokens == [
        piece.replace("\u2581", " ") for piece in greedy_merge(text.replace(" ", "\u2581"), ranked)
    ]


def greedy_merge(text: str, scores: dict[str, float]) -> list[str]:
    """Join the best-scored neighbours, the leftmost of equals, until none are left."""
    pieces = list(text)
    while True:
        joins = [
            (scores[left + right], -position)
            for position, (left, right) in enumerate(pairwise(pieces))
            if left + right in scores
        ]
        if not joins:
            return pieces
        position = -max(joins)[1]
        pieces[position : position + 2] = [pieces[position] + pieces[position + 1]]

"""What the metadata of a GGUF file means for its tokenizer, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import UnsupportedError, WeightError
from octavo.frontend.tokenizer import Tokenizer
from octavo.frontend.tokenizers.pre_tokenizers import find_pre_tokenizer
from tests.frontend.tokenizer_files import (
    CONTROL,
    NORMAL,
    byte_level_metadata,
    byte_tokenizer,
    sentencepiece_metadata,
)

KNOWN = [
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "dbrx", "smaug-bpe", "glm4",
    "chatglm-bpe", "qwen2", "deepseek-r1-qwen", "qwen35", "gpt-4o", "llama4", "tekken", "gpt-2", "phi-2",
    "mpt", "olmo", "smollm", "starcoder", "refact", "command-r", "deepseek-llm", "deepseek-coder",
    "deepseek-v3",
]  # fmt: skip


@pytest.mark.parametrize("pre", [None, "foo"])
def test_pre_tokenizer_that_is_missing_or_unknown_is_refused_with_the_known_ones(pre: str | None) -> None:
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.pre.*llama-bpe.*smollm") as error:
        byte_tokenizer(pre=pre)
    assert all(name in str(error.value) for name in KNOWN)


def words(pre: str, text: str) -> list[str]:
    """The words that text is cut into."""
    pieces = find_pre_tokenizer(pre).pre_tokenizer().pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in pieces]


@pytest.mark.parametrize("pre", KNOWN)
def test_every_pre_tokenizer_keeps_all_of_the_text(pre: str) -> None:
    text = (
        "It's 12345 m\u00b2, \u65e5\u672c\u306e\u30c6\u3002\n\n\tfooBar  e\u0301 \U0001f642 \u0967\r\n <x> "
    )
    assert "".join(words(pre, text)) == text


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["We", "'", "RE", " ", " fooBar", "12345", "!", "\n\n"]),
        ("smollm", ["We", "'", "RE", " ", " fooBar", "1", "2", "3", "4", "5", "!", "\n\n"]),
        ("llama-bpe", ["We", "'RE", " ", " fooBar", "123", "45", "!\n\n"]),
        ("qwen2", ["We", "'RE", " ", " fooBar", "1", "2", "3", "4", "5", "!\n\n"]),
        ("gpt-4o", ["We'RE", " ", " foo", "Bar", "123", "45", "!\n\n"]),
        ("tekken", ["We", "'RE", " ", " foo", "Bar", "1", "2", "3", "4", "5", "!\n\n"]),
        ("deepseek-coder", ["We", "'", "RE", " ", " fooBar", "1", "2", "3", "4", "5", "!", "\n", "\n"]),
        ("deepseek-llm", ["We", "'", "RE", " ", " fooBar", "1", "2", "3", "4", "5", "!", "\n", "\n"]),
        ("deepseek-v3", ["We", "'RE", " ", " fooBar", "123", "45", "!\n\n"]),
    ],
)
def test_pre_tokenizer_cuts_words_as_its_model_does(pre: str, expected: list[str]) -> None:
    assert words(pre, "We'RE  fooBar12345!\n\n") == expected


def test_combining_marks_belong_to_words_where_the_model_says_so() -> None:
    assert words("qwen2", "ka\u0301 x") == ["ka", "\u0301", " x"]
    assert words("qwen35", "ka\u0301 x") == ["ka\u0301", " x"]


def test_text_is_composed_for_models_trained_on_composed_text() -> None:
    assert byte_tokenizer(pre="qwen2").encode("e\u0301") == byte_tokenizer(pre="qwen2").encode("\u00e9")
    assert byte_tokenizer(pre="gpt-2").encode("e\u0301") != byte_tokenizer(pre="gpt-2").encode("\u00e9")


def test_word_that_is_a_token_is_taken_whole_where_the_model_says_so() -> None:
    assert len(byte_tokenizer(extra={"abc": NORMAL}, pre="tekken", add_bos_token=False).encode("abc")) == 1
    assert len(byte_tokenizer(extra={"abc": NORMAL}, pre="gpt-2").encode("abc")) == 3


def test_unknown_kind_of_tokenizer_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'bert'.*gpt2.*llama"):
        byte_tokenizer(model="bert")


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"merges": ["a"]}, "merges"),
        ({"merges": ["a zz"]}, "merges"),
        ({"merges": [1]}, "merges"),
        ({"merges": "a b"}, "merges"),
        ({"tokens": 7}, "tokens"),
        ({"tokens": [7]}, "tokens"),
        ({"token_type": [[1]]}, "token_type"),
        ({"eos_token_id": "1"}, "eos_token_id"),
        ({"token_type": [1]}, "token_type"),
        ({"eos_token_id": 10**6}, "eos_token_id"),
        ({"tokens": ["x", "y", "x"], "token_type": [1, 1, 1]}, "twice"),
    ],
)
def test_metadata_that_contradicts_itself_is_refused_by_name(keys: dict[str, Any], named: str) -> None:
    metadata = byte_level_metadata()
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    with pytest.raises(WeightError, match=named):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_missing_array_is_refused_by_name(key: str) -> None:
    metadata = byte_level_metadata()
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(WeightError, match=key):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize("scores", [None, 7, [[]]])
def test_sentencepiece_without_scores_is_refused(scores: object) -> None:
    metadata = sentencepiece_metadata({"a": -1.0})
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(WeightError, match="scores"):
        Tokenizer.from_gguf(metadata if scores is None else {**metadata, "tokenizer.ggml.scores": scores})


def test_chat_template_that_is_no_text_is_refused() -> None:
    with pytest.raises(WeightError, match=r"tokenizer\.chat_template"):
        Tokenizer.from_gguf({**byte_level_metadata(), "tokenizer.chat_template": 7})


def test_pre_tokenizer_whose_name_is_no_text_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.pre = \[\]"):
        Tokenizer.from_gguf({**byte_level_metadata(), "tokenizer.ggml.pre": []})


def test_bos_that_is_asked_for_must_exist() -> None:
    metadata = byte_level_metadata(add_bos_token=True)
    del metadata["tokenizer.ggml.bos_token_id"]
    with pytest.raises(WeightError, match="add_bos_token"):
        Tokenizer.from_gguf(metadata)


def test_every_way_to_end_generation_is_known_and_the_models_own_comes_first() -> None:
    control = ("<|bos|>", "<|stop|>", "<|im_end|>", "<|my_eot|>", "<|my_eom|>")
    tokenizer = byte_tokenizer(control=control, eot_token_id=3, eom_token_id=4)
    assert tokenizer.eos_token_ids == (1, 3, 4, 2)


def test_text_that_usually_ends_generation_does_not_where_it_is_no_control_token() -> None:
    assert byte_tokenizer(extra={"<|im_end|>": NORMAL}).eos_token_ids == (1,)


def test_end_of_a_harmony_message_does_not_end_generation() -> None:
    harmony = {"<|return|>": CONTROL, "<|call|>": CONTROL}
    tokenizer = byte_tokenizer(control=("<|bos|>", "<|stop|>", "<|end|>"), extra=harmony)
    assert {tokenizer.token_text(token_id) for token_id in tokenizer.eos_token_ids} == {"<|stop|>", *harmony}


def test_chat_template_and_its_token_names_come_from_the_file() -> None:
    tokenizer = Tokenizer.from_gguf({**byte_level_metadata(), "tokenizer.chat_template": "{{ bos_token }}"})
    assert tokenizer.chat_template == "{{ bos_token }}"
    assert tokenizer.role_texts == {"bos_token": "<|bos|>", "eos_token": "<|end|>"}

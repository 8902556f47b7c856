"""Tokenizers of Hugging Face folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from octavo.errors import ModelNotFoundError, UnsupportedError, WeightError
from octavo.frontend.tokenizer import Tokenizer
from tests.frontend.tokenizer_files import byte_level_backend, write_folder

BOS, EOS, END = 256, 257, 258
SPECIAL = ("<|bos|>", "<|eos|>", "<|end|>")


def test_roles_are_read_from_the_files_beside_it(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<|bos|>"}, "eos_token": "<|eos|>", "chat_template": "in the config"}
    write_folder(
        tmp_path,
        byte_level_backend(SPECIAL),
        tokenizer_config=config,
        generation_config={"eos_token_id": [END, EOS]},
        special_tokens_map={"pad_token": "<|end|>"},
    )
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.bos_token_id == BOS
    assert tokenizer.eos_token_ids == (EOS, END)
    assert tokenizer.role_texts == {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|end|>"}
    assert tokenizer.chat_template == "in the config"
    assert tokenizer.vocab_size == 259


def test_chat_template_file_wins_and_of_several_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    write_folder(tmp_path, byte_level_backend(SPECIAL), tokenizer_config={"chat_template": named})
    assert Tokenizer.from_folder(tmp_path).chat_template == "plain"
    (tmp_path / "chat_template.jinja").write_text("of the file", encoding="utf-8")
    assert Tokenizer.from_folder(tmp_path).chat_template == "of the file"


@pytest.mark.parametrize(("flag", "ids"), [(True, [BOS]), (False, []), (None, [])])
def test_bos_flag_of_the_config_is_obeyed(tmp_path: Path, flag: bool | None, ids: list[int]) -> None:
    config = {"bos_token": "<|bos|>"} | ({} if flag is None else {"add_bos_token": flag})
    write_folder(tmp_path, byte_level_backend(SPECIAL), tokenizer_config=config)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("") == ids
    assert tokenizer.add_bos_token == bool(ids)


def test_truncation_and_padding_of_the_training_are_not_applied(tmp_path: Path) -> None:
    backend = byte_level_backend(SPECIAL)
    backend.enable_truncation(max_length=2)
    backend.enable_padding(length=9)
    assert len(Tokenizer.from_folder(write_folder(tmp_path, backend)).encode("abcd")) == 4


def test_plain_encoding_keeps_the_ids_of_tokens_outside_the_models_vocabulary(tmp_path: Path) -> None:
    backend = byte_level_backend(SPECIAL)
    backend.add_tokens(["<think>"])
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, backend))
    assert tokenizer.encode_segments(["<think>"]) == tokenizer.encode("<think>") == [259]
    assert tokenizer.decode(tokenizer.encode_segments(["<|end|>"])) == "<|end|>"


def metaspace_folder(folder: Path, special: AddedToken) -> Path:
    """A SentencePiece tokenizer that puts a space before the first word of a text only."""
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate("\u2581abc")}, []))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.add_special_tokens([special])
    return write_folder(folder, backend)


@pytest.mark.parametrize("strip", [{}, {"rstrip": True}, {"lstrip": True}])
@pytest.mark.parametrize("parts", [("a", " b"), ("", "b"), (" a ", ""), ("a b ", " c"), ("", "")])
def test_segments_encode_like_the_text_they_make(
    tmp_path: Path, strip: dict[str, bool], parts: tuple[str, str]
) -> None:
    tokenizer = Tokenizer.from_folder(metaspace_folder(tmp_path, AddedToken("<x>", **strip)))
    (special_id,) = tokenizer.special_tokens.find("<x>")
    segments = [parts[0], special_id[2], parts[1]]
    assert tokenizer.encode_segments(segments) == tokenizer.encode("<x>".join(parts))


def test_first_space_of_metaspace_is_dropped_by_decoding(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(metaspace_folder(tmp_path, AddedToken("<x>")))
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"


def test_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


NAMES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", [b"{", b"7", b"[]", b"null", b'"text"', b"\xff", b"[" * 100_000])
def test_file_that_is_no_json_object_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    write_folder(tmp_path, byte_level_backend(SPECIAL))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightError, match=name):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("tokenizer_config", "bos_token", 7),
        ("tokenizer_config", "eos_token", {"content": ["<|eos|>"]}),
        ("special_tokens_map", "pad_token", []),
        ("special_tokens_map", "unk_token", "\ud800"),
        ("generation_config", "eos_token_id", "2"),
        ("generation_config", "eos_token_id", [2, None]),
        ("tokenizer_config", "chat_template", 7),
        ("tokenizer_config", "chat_template", {"default": "plain"}),
        ("tokenizer_config", "chat_template", ["plain"]),
        ("tokenizer_config", "chat_template", [{"name": "default"}]),
        ("tokenizer_config", "chat_template", [{"name": [], "template": "plain"}]),
        ("tokenizer_config", "chat_template", [{"name": "default", "template": 7}]),
    ],
)
def test_value_that_makes_no_sense_is_refused_by_file_and_key(
    tmp_path: Path, file: str, key: str, value: object
) -> None:
    write_folder(tmp_path, byte_level_backend(SPECIAL), **{file: {key: value}})
    with pytest.raises(WeightError, match=rf"{file}\.json: {key} is "):
        Tokenizer.from_folder(tmp_path)


def test_chat_template_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, byte_level_backend(SPECIAL))
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(WeightError, match=r"chat_template\.jinja is not UTF-8"):
        Tokenizer.from_folder(tmp_path)


def test_bos_that_is_asked_for_must_be_in_the_vocabulary(tmp_path: Path) -> None:
    config = {"bos_token": "<|nowhere|>", "add_bos_token": True}
    write_folder(tmp_path, byte_level_backend(SPECIAL), tokenizer_config=config)
    with pytest.raises(WeightError, match=r"tokenizer_config\.json: add_bos_token .* '<\|nowhere\|>'"):
        Tokenizer.from_folder(tmp_path)


def test_an_unused_bos_may_be_unknown(tmp_path: Path) -> None:
    write_folder(tmp_path, byte_level_backend(SPECIAL), tokenizer_config={"bos_token": "<|nowhere|>"})
    assert Tokenizer.from_folder(tmp_path).bos_token_id is None


@pytest.mark.parametrize("text", ["$B", "$A", "<s>:1", ":"])
def test_bos_may_be_spelled_with_what_a_template_of_the_library_takes_for_itself(
    tmp_path: Path, text: str
) -> None:
    config = {"bos_token": text, "add_bos_token": True}
    write_folder(tmp_path, byte_level_backend([text]), tokenizer_config=config)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("")[:1] == [tokenizer.bos_token_id]


def test_tokenizer_that_cannot_spell_its_tokens_still_encodes(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, backend))
    assert tokenizer.encode("a") == [1]
    with pytest.raises(UnsupportedError, match="WordPiece"):
        tokenizer.decode([1])

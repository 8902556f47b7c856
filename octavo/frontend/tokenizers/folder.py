"""A whole tokenizer from a Hugging Face folder: `tokenizer.json` and the small files beside it."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from pathlib import Path

import tokenizers

from octavo.errors import ModelNotFoundError, WeightError
from octavo.frontend.tokenizers.parts import TokenizerParts, add_affixes
from octavo.weights.json_object import read_object

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
_SURROGATE = re.compile("[\ud800-\udfff]")


def load_folder(folder: Path) -> TokenizerParts:
    """Build the tokenizer that `folder` holds.

    Reads tokenizer.json, and where they exist tokenizer_config.json, special_tokens_map.json,
    generation_config.json and chat_template.jinja. Raises ModelNotFoundError without a tokenizer.json,
    WeightError, naming file and key, for what does not load or makes no sense.
    """
    backend = _load_backend(folder / "tokenizer.json")
    config = _JSONFile(folder / "tokenizer_config.json")
    given = _JSONFile(folder / "special_tokens_map.json").role_texts() | config.role_texts()
    role_texts = {role: text for role, text in given.items() if text is not None}
    _obey_affix_flags(backend, config, role_texts)
    generation = _JSONFile(folder / "generation_config.json")
    template = _read_text(folder / "chat_template.jinja")
    return TokenizerParts(
        backend=backend,
        bos_token_id=_token_id(backend, role_texts.get("bos_token")),
        eos_token_ids=_unique(
            _token_id(backend, role_texts.get("eos_token")), *generation.token_ids("eos_token_id")
        ),
        role_texts=role_texts,
        chat_template=config.chat_template() if template is None else template,
    )


class _JSONFile:
    """The tokenizer's settings in the file at `path`. They are empty if the file does not exist.

    Raises WeightError, naming the file and the key, for a value that makes no sense.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values = read_object(path) if path.is_file() else {}

    def role_texts(self) -> dict[str, str | None]:
        """The texts of the tokens with a role. In the file each is a text or an object with the text."""
        texts: dict[str, str | None] = {}
        for role in _ROLES:
            if role in self.values:
                entry = self.values[role]
                text = entry.get("content") if isinstance(entry, dict) else entry
                # JSON can spell a lone surrogate, which is not valid Unicode.
                if text is not None and (not isinstance(text, str) or _SURROGATE.search(text)):
                    raise self.wrong(role, "the text of a token")
                texts[role] = text
        return texts

    def token_ids(self, key: str) -> list[int]:
        """The token ids under `key`, which holds one id or a list."""
        given = self.values.get(key)
        ids = given if isinstance(given, list) else [] if given is None else [given]
        if not all(type(token_id) is int for token_id in ids):
            raise self.wrong(key, "a token id or a list of them")
        return ids

    def chat_template(self) -> str | None:
        """The chat template. Of several, the one named "default"."""
        given = self.values.get("chat_template")
        if isinstance(given, list):
            try:
                given = {entry["name"]: entry["template"] for entry in given}.get("default")
            except (KeyError, TypeError):
                raise self.wrong("chat_template", "a list of objects with name and template") from None
        if not isinstance(given, str | None):
            raise self.wrong("chat_template", "text or a list of named texts")
        return given

    def wrong(self, key: str, allowed: str) -> WeightError:
        """The error for a key whose value is not `allowed`."""
        return WeightError(f"{self.path}: {key} is {reprlib.repr(self.values[key])}; it must be {allowed}")


def _load_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ModelNotFoundError(
            f"{path} does not exist, and a tokenizer folder needs it; one with only a tokenizer.model "
            "can be converted: load it with transformers.AutoTokenizer, then save_pretrained"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise WeightError(f"{path} does not load as a tokenizer: {error}") from error
    # The file may hold truncation and padding from training. Requests must not be cut or padded silently.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _obey_affix_flags(
    backend: tokenizers.Tokenizer, config: _JSONFile, role_texts: Mapping[str, str]
) -> None:
    """Let the flags of tokenizer_config.json override the tokens that tokenizer.json puts around a text."""
    roles = ("bos_token", "eos_token")
    if not any(isinstance(config.values.get(f"add_{role}"), bool) for role in roles):
        return
    bos, eos = (role_texts.get(role) if config.values.get(f"add_{role}") else None for role in roles)
    for role, text in zip(roles, (bos, eos), strict=True):
        if text is not None and backend.token_to_id(text) is None:
            raise WeightError(
                f"{config.path}: add_{role} is true, but the {role}, {text!r}, is not in tokenizer.json"
            )
    add_affixes(backend, bos, eos)


def _token_id(backend: tokenizers.Tokenizer, text: str | None) -> int | None:
    return None if text is None else backend.token_to_id(text)


def _unique(*token_ids: int | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token_id for token_id in token_ids if token_id is not None))


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except UnicodeError as error:
        raise WeightError(f"{path} is not UTF-8 text: {error}") from error

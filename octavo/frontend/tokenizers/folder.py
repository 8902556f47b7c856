"""A whole tokenizer from a Hugging Face folder: `tokenizer.json` and the small files beside it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from octavo.errors import ModelNotFoundError, WeightError
from octavo.frontend.tokenizers.parts import TokenizerParts, add_affixes

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def load_folder(folder: Path) -> TokenizerParts:
    """Build the tokenizer that `folder` holds.

    Reads tokenizer.json, and where they exist tokenizer_config.json, special_tokens_map.json,
    generation_config.json and chat_template.jinja. Raises ModelNotFoundError without a tokenizer.json,
    WeightError for one that does not load.
    """
    backend = _load_backend(folder / "tokenizer.json")
    config = {
        **_read_json(folder / "special_tokens_map.json"),
        **_read_json(folder / "tokenizer_config.json"),
    }
    role_texts = {role: text for role in _ROLES if (text := _token_text(config.get(role))) is not None}
    _obey_affix_flags(backend, config, role_texts)
    eos_token_ids = _read_json(folder / "generation_config.json").get("eos_token_id") or []
    return TokenizerParts(
        backend=backend,
        bos_token_id=_token_id(backend, role_texts.get("bos_token")),
        eos_token_ids=_unique(
            _token_id(backend, role_texts.get("eos_token")),
            *(eos_token_ids if isinstance(eos_token_ids, list) else [eos_token_ids]),
        ),
        role_texts=role_texts,
        chat_template=_read_chat_template(folder, config),
    )


def _load_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ModelNotFoundError(
            f"{path} does not exist. A tokenizer folder needs a tokenizer.json; one with only a "
            "tokenizer.model can be converted: load it with transformers.AutoTokenizer, then save_pretrained."
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise WeightError(f"{path} does not load as a tokenizer: {error}") from error
    # The file may carry settings of its training; requests are never cut or padded behind the caller's back.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _obey_affix_flags(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], role_texts: Mapping[str, str]
) -> None:
    """Let flags of tokenizer_config.json overrule what tokenizer.json puts around a text."""
    if not any(isinstance(config.get(flag), bool) for flag in ("add_bos_token", "add_eos_token")):
        return
    bos, eos = (
        role_texts.get(role) if config.get(f"add_{role}") else None for role in ("bos_token", "eos_token")
    )
    add_affixes(backend, bos, eos)


def _read_chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template of chat_template.jinja or tokenizer_config.json; of several the one named "default"."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise WeightError(f"{path} is not a JSON object: {error}") from error


def _token_text(entry: Any) -> str | None:
    """A token is written as its text or as an object that holds it."""
    return entry.get("content") if isinstance(entry, dict) else entry


def _token_id(backend: tokenizers.Tokenizer, text: str | None) -> int | None:
    return None if text is None else backend.token_to_id(text)


def _unique(*token_ids: int | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token_id for token_id in token_ids if token_id is not None))

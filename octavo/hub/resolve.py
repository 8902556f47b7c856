"""Finds the path of a model or a tokenizer on this disk by the name that a user gives."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError, ModelNotFoundError
from octavo.hub.aliases import ALIASES, Alias
from octavo.hub.cache import alias_folder, cached_file
from octavo.hub.selection import Select, select_model, select_tokenizer

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:.+)?")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of thing that a name can mean, called `noun`. A folder of this kind has a file `folder_file`."""

    noun: str
    folder_file: str
    readable: str
    select: Select


_MODEL = _Kind(
    "model",
    "config.json",
    "a model is a .gguf file, or a folder with config.json, tokenizer and .safetensors files",
    select_model,
)
_TOKENIZER = _Kind(
    "tokenizer",
    "tokenizer.json",
    "a tokenizer is taken from a .gguf file, or from a folder with tokenizer.json",
    select_tokenizer,
)


def resolve_model(name: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """The GGUF file or the Hugging Face folder that `name` means. It is fetched if it is not on this disk.

    `name` is an alias ("smollm2"), else the path of a GGUF file or of a folder with config.json, else a
    Hugging Face id: "org/name", or "org/name:file.gguf" and "org/name:Q4_K_M" for one of several GGUF files.
    An alias comes before a path, so that a folder that happens to have its name does not change its meaning;
    "./smollm2" is always a path. `revision` is a branch, tag or commit of a Hugging Face id. With `offline`
    nothing is fetched.

    Raises ModelNotFoundError, with suggestions, if there is no model of this name; DownloadError if the model
    cannot be fetched; WeightError if the downloaded file is damaged; ConfigError for a `revision` of anything
    but a Hugging Face id.
    """
    return _resolve(name, _MODEL, revision, offline)


def pull_model(name: str, *, revision: str | None = None) -> Path:
    """As `resolve_model`, but an alias on this disk is hashed, and fetched again if it is damaged."""
    alias = ALIASES.get(name)
    if alias is None or revision is not None:
        return resolve_model(name, revision=revision)
    from octavo.hub.fetch import fetch_alias

    return fetch_alias(alias, alias_folder(alias))


def resolve_tokenizer(name: str, *, revision: str | None = None) -> Path:
    """The GGUF file or the Hugging Face folder to read a tokenizer from. It is fetched if not on this disk.

    As `resolve_model`, but a folder needs only tokenizer.json. If a Hugging Face repository has this file, no
    weights are fetched.
    """
    return _resolve(name, _TOKENIZER, revision, offline=False)


def _resolve(name: str, kind: _Kind, revision: str | None, offline: bool) -> Path:
    alias = ALIASES.get(name)
    path = Path(os.path.expanduser(name))
    is_hub_id = alias is None and not os.path.exists(path) and _looks_like_hub_id(name)
    if revision is not None and not is_hub_id:
        raise ConfigError(
            f"revision {revision!r} is for a Hugging Face id (org/name), and {name!r} is not one"
        )
    if alias is not None:
        return _resolve_alias(alias, offline)
    if is_hub_id:
        from octavo.hub.repository import fetch_repository

        return fetch_repository(name, select=kind.select, revision=revision, offline=offline)
    return _resolve_path(name, path, kind)


def _looks_like_hub_id(name: str) -> bool:
    if name.startswith((".", "/", "~")) or (name.endswith(".gguf") and ":" not in name):
        return False
    return _HUB_ID.fullmatch(name) is not None


def _resolve_alias(alias: Alias, offline: bool) -> Path:
    folder = alias_folder(alias)
    if (path := cached_file(alias, folder)) is not None:
        return path
    if offline:
        raise ModelNotFoundError(
            f"{alias.name} is not in {folder}, and nothing may be fetched; "
            f"run `octavo pull {alias.name}` while online"
        )
    from octavo.hub.fetch import fetch_alias

    return fetch_alias(alias, folder)


def _resolve_path(name: str, path: Path, kind: _Kind) -> Path:
    if not name or not os.path.exists(path):
        raise ModelNotFoundError(_explain_unknown(name, path, kind))
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) == b"GGUF":
                return path
        is_part = (path.parent / kind.folder_file).is_file()
        advice = f"give its folder, {path.parent}" if is_part else kind.readable
        raise ModelNotFoundError(f"{name} is not a GGUF file: {advice}")
    if not path.is_dir():
        raise ModelNotFoundError(f"{name} is neither a regular file nor a folder: {kind.readable}")
    if (path / kind.folder_file).is_file():
        return path
    files = sorted(file.name for file in path.glob("*.gguf"))
    advice = f"name one of its GGUF files, {', '.join(files)}" if files else kind.readable
    raise ModelNotFoundError(f"the folder {name} has no {kind.folder_file}: {advice}")


def _explain_unknown(name: str, path: Path, kind: _Kind) -> str:
    neighbours = [
        entry
        for entry in (os.listdir(path.parent) if path.parent.is_dir() else ())
        if entry.endswith(".gguf") or os.path.isfile(path.parent / entry / kind.folder_file)
    ]
    if not name:
        problem, suggestions = f"no {kind.noun} was named", []
    elif path.name != name or name.endswith(".gguf"):
        problem = f"there is no file or folder {name!r}"
        suggestions = [str(path.parent / match) for match in _most_like(path.name, neighbours)]
    else:
        problem = f"there is no {kind.noun} {name!r}"
        suggestions = _most_like(name, [*ALIASES, *neighbours])
    question = f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""
    return (
        f"{problem}{question}\na {kind.noun} is one of:\n"
        f"  an alias            {', '.join(ALIASES)}\n"
        f"  a path              a .gguf file, or a folder with {kind.folder_file}\n"
        "  a Hugging Face id   org/name, org/name:file.gguf or org/name:Q4_K_M"
    )


def _most_like(word: str, names: Iterable[str]) -> list[str]:
    """The names that are most like `word`, ignoring case, best first."""
    import difflib

    by_lower_case = {name.lower(): name for name in names}
    return [by_lower_case[match] for match in difflib.get_close_matches(word.lower(), by_lower_case)]

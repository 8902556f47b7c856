"""From what a user calls a model to where it lies on this disk."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from octavo.errors import ConfigError, ModelNotFoundError
from octavo.hub.aliases import ALIASES, Alias
from octavo.hub.cache import alias_folder, cached_file

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:.+)?")

_READABLE = "a model is a .gguf file, or a folder with config.json, tokenizer and .safetensors files"


def resolve_model(name: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """The GGUF file or the Hugging Face folder that `name` means, fetched first where it is not here yet.

    `name` is an alias ("smollm2"), else the path of a GGUF file or of a folder with config.json, else a
    Hugging Face id: "org/name", or "org/name:file.gguf" and "org/name:Q4_K_M" for one of several GGUF files.
    An alias wins over a path, so that no folder which happens to lie around changes its meaning; "./smollm2"
    is always a path.

    Args:
        name: what the user wrote.
        revision: branch, tag or commit of a Hugging Face id.
        offline: take what is on this disk and fetch nothing.

    Raises:
        ModelNotFoundError: `name` leads nowhere; the message lists what could be meant.
        DownloadError: the model could not be brought here.
        WeightError: what was downloaded is damaged.
        ConfigError: `revision` with something other than a Hugging Face id.
    """
    alias = ALIASES.get(name)
    path = Path(os.path.expanduser(name))
    is_hub_id = alias is None and not os.path.exists(path) and _looks_like_hub_id(name)
    if revision is not None and not is_hub_id:
        raise ConfigError(
            f"revision {revision!r} goes with a Hugging Face id (org/name), which {name!r} is not."
        )
    if alias is not None:
        return _resolve_alias(alias, offline)
    if is_hub_id:
        from octavo.hub.repository import fetch_repository

        return fetch_repository(name, revision=revision, offline=offline)
    return _resolve_path(name, path)


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
            f"{alias.name} is not in {folder}, and nothing may be fetched. "
            f"Run `octavo pull {alias.name}` while online."
        )
    from octavo.hub.fetch import fetch_alias

    return fetch_alias(alias, folder)


def _resolve_path(name: str, path: Path) -> Path:
    if not name or not os.path.exists(path):
        raise ModelNotFoundError(_explain_unknown(name, path))
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) == b"GGUF":
                return path
        advice = f"give its folder, {path.parent}" if (path.parent / "config.json").is_file() else _READABLE
        raise ModelNotFoundError(f"{name} is not a GGUF file: {advice}.")
    if (path / "config.json").is_file():
        return path
    files = sorted(file.name for file in path.glob("*.gguf"))
    advice = f"name one of its GGUF files, {', '.join(files)}" if files else _READABLE
    raise ModelNotFoundError(f"the folder {name} has no config.json: {advice}.")


def _explain_unknown(name: str, path: Path) -> str:
    neighbours = os.listdir(path.parent) if path.parent.is_dir() else []
    if not name:
        problem, suggestions = "no model was named", []
    elif path.name != name or name.endswith(".gguf"):
        problem = f"there is no file or folder {name!r}"
        suggestions = [str(path.parent / match) for match in _most_like(path.name, neighbours)]
    else:
        problem = f"there is no model {name!r}"
        suggestions = _most_like(name, [*ALIASES, *neighbours])
    question = f" Did you mean {' or '.join(suggestions)}?" if suggestions else ""
    return (
        f"{problem}.{question}\nA model is one of:\n"
        f"  an alias            {', '.join(ALIASES)}\n"
        "  a path              a .gguf file, or a folder with config.json\n"
        "  a Hugging Face id   org/name, org/name:file.gguf or org/name:Q4_K_M"
    )


def _most_like(word: str, names: Iterable[str]) -> list[str]:
    """The names that look most like `word` in whatever case, best first."""
    import difflib

    by_lower_case = {name.lower(): name for name in names}
    return [by_lower_case[match] for match in difflib.get_close_matches(word.lower(), by_lower_case)]

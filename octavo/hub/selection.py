"""Selects the files of a Hugging Face repository that make a model or a tokenizer, by their names alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from octavo.errors import ModelNotFoundError

# Configuration and tokenizer of a folder model.
_COMPANION = re.compile(
    r"[^/]+\.(json|jinja|model|tiktoken)|(merges|vocab)\.txt|additional_chat_templates/[^/]+\.jinja"
)
# An embedding model may keep later stages in numbered folders.
_STAGE = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")
_SHARD = re.compile(r"-\d{5}(-of-(\d{5})\.(gguf|safetensors))$")


@dataclass(frozen=True, slots=True)
class Selection:
    """The files to fetch, and the one to open: `entry` is a GGUF file, or "" for the whole folder.

    `weights` must be fetched last, so that a folder with all weights is complete.
    """

    companions: tuple[str, ...]
    weights: tuple[str, ...]
    entry: str

    @property
    def files(self) -> tuple[str, ...]:
        """All files of the selection."""
        return self.companions + self.weights


# Selects files by a repository's name (for messages), its files ("/" between folders), and the user's choice:
# a GGUF file's name, its quantization such as "Q4_K_M", or "" for no choice. Raises ModelNotFoundError, with
# a list of the models, if no model or more than one matches.
Select = Callable[[str, Sequence[str], str], Selection]


def select_model(repository: str, files: Sequence[str], choice: str) -> Selection:
    """The files of one model (`Select`). Without a choice these are the safetensors folder or, if there is
    none, the only GGUF model.
    """
    weights = _folder_weights(files)
    if weights and not choice:
        companions = [file for file in files if _COMPANION.fullmatch(file) or _STAGE.fullmatch(file)]
        return Selection(tuple(companions), tuple(weights), entry="")
    folder = "config.json with safetensors weights (PyTorch's pickled .bin files cannot be read)"
    return _select_gguf(repository, files, choice, folder)


def select_tokenizer(repository: str, files: Sequence[str], choice: str) -> Selection:
    """The files of a tokenizer (`Select`). Without a choice these are tokenizer.json and the files that
    belong to it or, if there is none, the only GGUF model, which holds its tokenizer.
    """
    if "tokenizer.json" in files and not choice:
        return Selection(tuple(file for file in files if _COMPANION.fullmatch(file)), (), entry="")
    return _select_gguf(repository, files, choice, "tokenizer.json (tokenizer.model alone cannot be read)")


def complete_shards(files: Iterable[str]) -> list[str]:
    """`files`, and all shards of the models that they are shards of: three for "a-00002-of-00003.gguf"."""
    complete = dict.fromkeys(files)
    for file, shard in [(file, _SHARD.search(file)) for file in complete]:
        if shard is not None:
            numbers = range(1, int(shard[2]) + 1)
            complete |= dict.fromkeys(f"{file[: shard.start()]}-{number:05}{shard[1]}" for number in numbers)
    return list(complete)


def _folder_weights(files: Sequence[str]) -> list[str]:
    """The weight files of a folder model; none if config.json is missing."""
    if "config.json" not in files:
        return []
    weights = [file for file in files if "/" not in file and file.endswith(".safetensors")]
    # Some repositories hold a copy of the same weights, `consolidated*`, for their author's own library.
    return [file for file in weights if not file.startswith("consolidated")] or weights


def _select_gguf(repository: str, files: Sequence[str], choice: str, folder: str) -> Selection:
    """The GGUF model that `choice` means. `folder` describes the other kind of model, for messages."""
    models = _gguf_models(files)
    if not models:
        raise ModelNotFoundError(
            f"{repository} holds neither a GGUF model nor {folder}; name another repository"
        )
    matching = {
        name: shards for name, shards in models.items() if not choice or _matches(name, shards, choice)
    }
    if len(matching) == 1:
        (shards,) = matching.values()
        return Selection((), shards, entry=shards[0])
    listing = "".join(f"\n  {repository}:{name}" for name in matching or models)
    if matching:
        kind = f"GGUF model {choice!r}" if choice else "GGUF model"
        raise ModelNotFoundError(f"{repository} has more than one {kind}; name one:{listing}")
    raise ModelNotFoundError(f"{repository} has no GGUF model {choice!r}; it has:{listing}")


def _gguf_models(files: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The GGUF models among `files`: the first file of each, and all its files in order."""
    models: dict[str, tuple[str, ...]] = {}
    for file in sorted(files):
        # A projector (mmproj) is a part of another model of the repository.
        if file.endswith(".gguf") and not _base_name(file).startswith("mmproj"):
            name = _SHARD.sub(r"-00001\1", file)
            models[name] = (*models.get(name, ()), file)
    return models


def _matches(name: str, shards: Sequence[str], choice: str) -> bool:
    """Whether `choice` is the name or path of a file of the model, or its quantization: a word of `name`.

    A word ends before "-" or ".", so that "Q4_K" is not found in "model-Q4_K_M.gguf".
    """
    if choice.endswith(".gguf"):
        return choice in shards or choice in map(_base_name, shards)
    return re.search(rf"(^|[-._]){re.escape(choice)}(?=[-.])", _base_name(name), re.IGNORECASE) is not None


def _base_name(file: str) -> str:
    return file.rpartition("/")[2]

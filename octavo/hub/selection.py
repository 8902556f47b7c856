"""Which files of a Hugging Face repository make the model that was asked for. Pure: names in, names out."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.errors import ModelNotFoundError

# Configuration and tokenizer of a folder model. An embedding model may keep later stages in numbered folders.
_COMPANIONS = re.compile(
    r"[^/]+\.(json|jinja|model|tiktoken)|(merges|vocab)\.txt|additional_chat_templates/[^/]+\.jinja"
    r"|\d+_\w+/(config\.json|model\.safetensors)"
)
_SHARD = re.compile(r"-\d{5}(-of-\d{5}\.gguf)$")


@dataclass(frozen=True, slots=True)
class Selection:
    """The files to have, and the one to open: `entry` is a GGUF file, or "" for the folder as a whole."""

    files: tuple[str, ...]
    entry: str


def select_files(repository: str, files: Sequence[str], choice: str) -> Selection:
    """Pick the files of one model out of a repository's `files`.

    Args:
        repository: its name, for messages.
        files: paths in the repository, with "/" between folders.
        choice: a GGUF file's name or its quantization such as "Q4_K_M"; "" takes the safetensors folder or,
            where there is none, the only GGUF model.

    Raises:
        ModelNotFoundError: nothing matches, or more than one model does. The message lists what there is.
    """
    weights = _folder_weights(files)
    if weights and not choice:
        companions = [file for file in files if _COMPANIONS.fullmatch(file)]
        return Selection((*companions, *weights), entry="")
    models = _gguf_models(files)
    matching = {
        name: shards for name, shards in models.items() if not choice or _matches(name, shards, choice)
    }
    if len(matching) == 1:
        (shards,) = matching.values()
        return Selection(shards, entry=shards[0])
    raise ModelNotFoundError(_explain(repository, choice, list(matching), list(models)))


def _folder_weights(files: Sequence[str]) -> list[str]:
    """The weight files of a folder model; none where config.json is missing."""
    if "config.json" not in files:
        return []
    weights = [file for file in files if "/" not in file and file.endswith(".safetensors")]
    # Some repositories hold the same weights once more, as `consolidated*`, for their maker's own library.
    return [file for file in weights if not file.startswith("consolidated")] or weights


def _gguf_models(files: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The GGUF models among `files`: the file that stands for each, and all its files in order."""
    models: dict[str, tuple[str, ...]] = {}
    for file in sorted(files):
        # A projector is a part of some other model of the repository.
        if file.endswith(".gguf") and not _base_name(file).startswith("mmproj"):
            name = _SHARD.sub(r"-00001\1", file)
            models[name] = (*models.get(name, ()), file)
    return models


def _matches(name: str, shards: Sequence[str], choice: str) -> bool:
    """Whether `choice` means this model: the name or path of a file, or the quantization as a word of a name.

    A word ends before "-" or ".", so that "Q4_K" is not found in "model-Q4_K_M.gguf".
    """
    if choice.endswith(".gguf"):
        return choice in shards or choice in map(_base_name, shards)
    return re.search(rf"(^|[-._]){re.escape(choice)}(?=[-.])", _base_name(name), re.IGNORECASE) is not None


def _base_name(file: str) -> str:
    return file.rpartition("/")[2]


def _explain(repository: str, choice: str, matching: Sequence[str], models: Sequence[str]) -> str:
    if not models:
        return (
            f"{repository} holds neither a GGUF model nor config.json with safetensors weights. "
            "Octavo reads those, and not PyTorch's pickled .bin files."
        )
    listing = "".join(f"\n  {repository}:{name}" for name in matching or models)
    if matching:
        kind = f"GGUF model {choice!r}" if choice else "GGUF model"
        return f"{repository} has more than one {kind}. Name one:{listing}"
    return f"{repository} has no GGUF model {choice!r}. It has:{listing}"

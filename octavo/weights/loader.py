"""Opens a model by its path: a GGUF file or a folder of safetensors."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import ModelNotFoundError, WeightError
from octavo.weights.gguf import MAGIC, GGUFFile
from octavo.weights.mapped_file import MappedFile
from octavo.weights.safetensors import INDEX_NAME, SINGLE_NAME, SafetensorsFolder

ModelFiles = GGUFFile | SafetensorsFolder
"""An open model: its files are mapped, its tensors are found, its header is read."""

_ACCEPTED = f"give a GGUF file (any shard of a split one) or a folder with {SINGLE_NAME} or {INDEX_NAME}"


def open_weights(path: Path) -> ModelFiles:
    """Map the model at `path`: a GGUF file, or a folder of safetensors.

    Raises ModelNotFoundError for a path that does not exist, and WeightError for one that is something else
    or damaged.
    """
    if not path.exists():
        raise ModelNotFoundError(f"{path}: there is no such file or folder; {_ACCEPTED}")
    if path.is_dir():
        if (path / SINGLE_NAME).exists() or (path / INDEX_NAME).exists():
            return SafetensorsFolder(path)
        found = ", ".join(sorted(file.name for file in path.glob("*.gguf"))) or "none"
        raise WeightError(f"{path}: the folder has no weights; {_ACCEPTED}; GGUF files in it: {found}")
    # GGUF files are known by their content, too: caches such as Ollama's store them under names without a
    # suffix.
    if path.suffix == ".gguf" or MappedFile(path).buffer[: len(MAGIC)] == MAGIC:
        return GGUFFile.open(path)
    raise WeightError(f"{path}: is not a model file; {_ACCEPTED}")

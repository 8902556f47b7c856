"""From a path to a model: the file's kind decides who reads its shape, its architecture who builds it."""

from __future__ import annotations

import json
from pathlib import Path

from octavo.errors import WeightError
from octavo.models.gguf_spec import spec_from_gguf
from octavo.models.huggingface_spec import spec_from_config
from octavo.models.model import Model
from octavo.models.registry import load_model
from octavo.weights.gguf import GGUFFile
from octavo.weights.loader import open_weights


def open_model(path: Path) -> Model:
    """The model in a GGUF file or a Hugging Face folder, its weights found and checked but not read.

    Raises WeightError or UnsupportedError, in one line that names the file and what is wrong with it.
    """
    source = open_weights(path)
    if isinstance(source, GGUFFile):
        return load_model(source, spec_from_gguf(source.metadata, source))
    return load_model(source, spec_from_config(_read_config(path / "config.json"), path.name))


def _read_config(path: Path) -> dict[str, object]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise WeightError(f"{path}: holds a {type(config).__name__}, not a JSON object")
    return config

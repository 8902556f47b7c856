"""From a path to a model: the file's kind decides who reads its shape, its architecture who builds it."""

from __future__ import annotations

from pathlib import Path

from octavo.models.gguf_spec import spec_from_gguf
from octavo.models.huggingface_spec import spec_from_config
from octavo.models.model import Model
from octavo.models.registry import load_model
from octavo.weights.gguf import GGUFFile
from octavo.weights.json_object import read_object
from octavo.weights.loader import ModelFiles, open_weights


def open_model(path: Path) -> Model:
    """The model in a GGUF file or a Hugging Face folder, its weights found and checked but not read.

    Raises WeightError or UnsupportedError, in one line that names the file and what is wrong with it.
    """
    return make_model(open_weights(path))


def make_model(source: ModelFiles) -> Model:
    """The model in an open GGUF file or Hugging Face folder. Raises what `open_model` raises."""
    if isinstance(source, GGUFFile):
        return load_model(source, spec_from_gguf(source.metadata, source))
    return load_model(source, spec_from_config(read_object(source.path / "config.json"), source.path.name))

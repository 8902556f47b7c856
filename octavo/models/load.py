"""Makes a model from a file. The architecture that the file names decides which family reads and makes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.models.keys import Keys
from octavo.models.model import Model
from octavo.models.registry import (
    GGUF_ARCHITECTURES,
    HUGGING_FACE_ARCHITECTURES,
    find_architecture,
    load_family,
)
from octavo.models.spec import ModelSpec
from octavo.models.tensors import ModelTensors
from octavo.weights.gguf import GGUFFile
from octavo.weights.json_object import read_object
from octavo.weights.loader import open_weights
from octavo.weights.weight import WeightSource

_CONFIG_FILE = "config.json"
_GGUF_FILE = "GGUF metadata"


def open_model(path: Path) -> Model:
    """The model in a GGUF file or a Hugging Face folder. Its weights are found and checked, but not read.

    Raises WeightError or UnsupportedError, in one line that names the file and what is wrong with it.
    """
    source = open_weights(path)
    if isinstance(source, GGUFFile):
        return load_model(source, spec_from_gguf(source.metadata, source))
    return load_model(source, spec_from_config(read_object(source.path / _CONFIG_FILE), source.path.name))


def spec_from_config(config: Mapping[str, Any], name: str) -> ModelSpec:
    """The spec of the model `name` whose config.json holds `config`.

    Raises UnsupportedError for an architecture, or a variation of one, that cannot be run, and WeightError,
    naming the key, for a value that is missing or makes no sense.
    """
    keys = Keys(config, _CONFIG_FILE)
    architecture = find_architecture(str(keys.first("architectures")), HUGGING_FACE_ARCHITECTURES)
    return load_family(architecture).read_config(keys, name)


def spec_from_gguf(metadata: Mapping[str, Any], source: WeightSource) -> ModelSpec:
    """The spec of the model in the GGUF file that holds `metadata` and the tensors of `source`.

    Raises what `spec_from_config` raises.
    """
    general = Keys(metadata, _GGUF_FILE, "general.")
    architecture = general.text("architecture")
    family = load_family(find_architecture(architecture, GGUF_ARCHITECTURES))
    keys = Keys(metadata, _GGUF_FILE, f"{architecture}.")
    name = general.text("name", default=architecture)
    return family.read_gguf(keys, name, ModelTensors(source, "gguf", family.names))


def load_model(source: WeightSource, spec: ModelSpec) -> Model:
    """The model that `spec` describes, with its weights from `source`. No weight is read or converted yet.

    Raises WeightError, naming the tensor, when one is missing, has another shape than the spec says, or has
    no place in the model. Raises UnsupportedError for a tensor in a format that cannot be read.
    """
    family = load_family(spec.architecture)
    tensors = ModelTensors(source, spec.layout, family.names)
    model = family.make_model(spec, tensors)
    tensors.check_all_taken()
    return model

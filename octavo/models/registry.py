"""The families that can be run: from an architecture's name to the module that builds it.

Modules of families are imported only when a model of theirs is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from octavo.errors import UnsupportedError
from octavo.models.model import Model
from octavo.models.spec import ModelSpec
from octavo.models.tensors import ModelTensors
from octavo.weights.weight import WeightSource


def _llama(spec: ModelSpec, tensors: ModelTensors) -> Model:
    from octavo.models.llama import Llama

    return Llama(spec, tensors)


def _gemma3(spec: ModelSpec, tensors: ModelTensors) -> Model:
    from octavo.models.gemma3 import Gemma3

    return Gemma3(spec, tensors)


_FACTORIES: Mapping[str, Callable[[ModelSpec, ModelTensors], Model]] = MappingProxyType(
    {"llama": _llama, "gemma3": _gemma3}
)

# Families by the names that files give their architecture.
GGUF_ARCHITECTURES: Mapping[str, str] = MappingProxyType({"llama": "llama", "gemma3": "gemma3"})
"""By what GGUF files say in `general.architecture`."""
HUGGING_FACE_ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "Gemma3ForCausalLM": "gemma3"}
)
"""By what config.json says in `architectures`."""


def find_architecture(name: str, known: Mapping[str, str]) -> str:
    """The family of what a file calls `name`, which `known` lists by the names of such files.

    Raises UnsupportedError, in the same names, for one that is not there.
    """
    if name not in known:
        raise UnsupportedError(f"model architecture {name!r} is not supported; supported: {', '.join(known)}")
    return known[name]


def load_model(source: WeightSource, spec: ModelSpec) -> Model:
    """The model that `spec` describes, with its weights from `source`. Nothing is read or converted yet.

    Raises WeightError, naming the tensor, when one is missing, has another shape than the spec says, or has
    no place in the model; UnsupportedError when it is in a format that cannot be read.
    """
    tensors = ModelTensors(source, spec.layout)
    model = _FACTORIES[spec.architecture](spec, tensors)
    tensors.check_all_taken()
    return model

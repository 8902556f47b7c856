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


_FACTORIES: Mapping[str, Callable[[ModelSpec, ModelTensors], Model]] = MappingProxyType({"llama": _llama})

# Names that files give their architecture: GGUF's `general.architecture`, and config.json's `architectures`.
_ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {"llama": "llama", "LlamaForCausalLM": "llama", "MistralForCausalLM": "llama"}
)


def find_architecture(name: str) -> str:
    """The registry's key for what a file calls `name`. Raises UnsupportedError, listing what there is."""
    if name not in _ARCHITECTURES:
        raise UnsupportedError(
            f"model architecture {name!r} is not supported; supported: {', '.join(_ARCHITECTURES)}"
        )
    return _ARCHITECTURES[name]


def load_model(source: WeightSource, spec: ModelSpec) -> Model:
    """The model that `spec` describes, with its weights from `source`. Nothing is read or converted yet.

    Raises WeightError, naming the tensor, when one is missing, has another shape than the spec says, or has
    no place in the model; UnsupportedError when it is in a format that cannot be read.
    """
    tensors = ModelTensors(source, spec.layout)
    model = _FACTORIES[spec.architecture](spec, tensors)
    tensors.check_all_taken()
    return model

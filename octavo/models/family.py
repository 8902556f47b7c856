"""`Family`: the interface of a family's module, which has it under the name `FAMILY`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo.models.keys import Keys
from octavo.models.model import Model
from octavo.models.spec import ModelSpec
from octavo.models.tensors import ModelTensors, TensorNames

Spec = TypeVar("Spec", bound=ModelSpec)


@dataclass(frozen=True, slots=True)
class Family(Generic[Spec]):
    """The functions that read and make the models of one family.

    The readers raise UnsupportedError for a variation that the family's module cannot run, and WeightError,
    naming the key, for a value that is missing or makes no sense.
    """

    names: Mapping[str, TensorNames]
    """The name of each role's tensor in files."""
    read_config: Callable[[Keys, str], Spec]
    """`read_config(keys, name)`: the spec of the model `name` from the `keys` of its config.json."""
    read_gguf: Callable[[Keys, str, ModelTensors], Spec]
    """`read_gguf(keys, name, tensors)`: the spec of the model `name` from those `keys` of a GGUF file that
    begin with its architecture, and from its `tensors`.
    """
    make_model: Callable[[Spec, ModelTensors], Model]
    """`make_model(spec, tensors)`: the model, which takes its weights from `tensors`."""

"""The families that can be run, and the names of their architectures in files.

A family's module is imported only when a model of that family is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType

from octavo.errors import UnsupportedError
from octavo.models.family import Family
from octavo.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """A family by the name of its module in `octavo.models`, and the architectures that it runs."""

    name: str
    gguf: tuple[str, ...]  # as GGUF files have them in `general.architecture`
    huggingface: tuple[str, ...]  # as config.json has them in `architectures`


_ENTRIES = (
    FamilyEntry("llama", ("llama",), ("LlamaForCausalLM", "MistralForCausalLM")),
    FamilyEntry("gemma3", ("gemma3",), ("Gemma3ForCausalLM",)),
)

GGUF_ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {architecture: entry.name for entry in _ENTRIES for architecture in entry.gguf}
)
"""The family of each architecture that GGUF files name."""
HUGGING_FACE_ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {architecture: entry.name for entry in _ENTRIES for architecture in entry.huggingface}
)
"""The family of each architecture that config.json names."""


def find_architecture(name: str, known: Mapping[str, str]) -> str:
    """The family of the architecture `name`, from one of the mappings above.

    Raises UnsupportedError, which lists the `known` names, for an architecture that is not among them.
    """
    if name not in known:
        raise UnsupportedError(f"model architecture {name!r} is not supported; supported: {', '.join(known)}")
    return known[name]


def load_family(name: str) -> Family[ModelSpec]:
    """The family `name`. Imports its module."""
    family: Family[ModelSpec] = import_module(f"octavo.models.{name}").FAMILY
    return family

"""Every optional feature, on one screen. Deleting a feature's folder and its line here removes it.

A feature is a folder with a `FEATURE` in its `__init__`, which makes up to three halves: a `RequestHandler`
in the front end, a `Constraint` in the core and an `Extension` in the worker. The halves exchange data under
the feature's name. Modules of features are imported only when an engine is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.backends.backend import Backend
    from octavo.config import EngineConfig
    from octavo.frontend.tokenizer import Tokenizer
    from octavo.scheduler.constraint import Constraint
    from octavo.types.outputs import EngineInfo
    from octavo.types.protocols import Extension, RequestHandler

# The name by which `SamplingParams` asks for a feature (`types.params.FIELD_FEATURES`) → its package.
FEATURES: Mapping[str, str] = {
    "prompt_logprobs": "octavo.prompt_logprobs",
    "penalties": "octavo.penalties",
    "logits_control": "octavo.logits_control",
}


@dataclass(frozen=True, slots=True)
class FrontEndParts:
    """The arguments of `Feature.make_handler`."""

    info: EngineInfo
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The arguments of `Feature.make_constraint` and `Feature.make_extension`."""

    config: EngineConfig
    backend: Backend
    vocab_size: int
    num_rows: int  # rows of the worker: the most requests that run at once
    max_model_len: int  # tokens


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature: the functions that make its halves. None = it has no such half."""

    make_handler: Callable[[FrontEndParts], RequestHandler] | None = None
    make_constraint: Callable[[EngineParts], Constraint] | None = None
    make_extension: Callable[[EngineParts], Extension] | None = None


def load_features() -> dict[str, Feature]:
    """Every feature, by name."""
    return {name: import_module(package).FEATURE for name, package in FEATURES.items()}


def make_handlers(parts: FrontEndParts) -> dict[str, RequestHandler]:
    """The front-end halves of the features that the engine has, by feature."""
    from octavo.types.protocols import RequestHandler

    return {
        name: feature.make_handler(parts) if feature.make_handler else RequestHandler()
        for name, feature in load_features().items()
        if name in parts.info.features
    }

"""Every optional feature, on one screen. Deleting a feature's folder and its line here removes it.

A feature has up to two halves: a `Constraint` in the scheduler and an `Extension` in the worker. Modules of
features are imported only when an engine is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.backends.backend import Backend
from octavo.config import EngineConfig
from octavo.scheduler.constraint import Constraint
from octavo.types.protocols import Extension


@dataclass(frozen=True, slots=True)
class Parts:
    """What halves of features are made from."""

    config: EngineConfig
    backend: Backend
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature as far as it is needed: makers of its halves."""

    make_constraint: Callable[[Parts], Constraint] | None = None
    make_extension: Callable[[Parts], Extension] | None = None


def _prompt_logprobs() -> Feature:
    from octavo.prompt_logprobs.extension import PromptLogprobsExtension

    return Feature(make_extension=lambda parts: PromptLogprobsExtension(parts.backend, parts.vocab_size))


# The name by which `SamplingParams` asks for a feature (`types.params.FIELD_FEATURES`) → the feature.
FEATURES: Mapping[str, Callable[[], Feature]] = {
    "prompt_logprobs": _prompt_logprobs,
}

"""Octavo: an engine that serves large language models, fast on an ordinary CPU.

>>> from octavo import LLM, SamplingParams
>>> LLM("smollm2").generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))

The names below are the public API. They are imported when first used, so that `import octavo` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config import EngineConfig as EngineConfig
    from octavo.frontend.llm import LLM as LLM
    from octavo.frontend.llm_engine import LLMEngine as LLMEngine
    from octavo.types.outputs import CompletionOutput as CompletionOutput
    from octavo.types.outputs import RequestOutput as RequestOutput
    from octavo.types.params import RequestOutputKind as RequestOutputKind
    from octavo.types.params import SamplingParams as SamplingParams

__version__ = "0.1.0"

_HOMES = {
    "LLM": "octavo.frontend.llm",
    "LLMEngine": "octavo.frontend.llm_engine",
    "EngineConfig": "octavo.config",
    "SamplingParams": "octavo.types.params",
    "RequestOutput": "octavo.types.outputs",
    "CompletionOutput": "octavo.types.outputs",
    "RequestOutputKind": "octavo.types.params",
}
__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineConfig",
    "LLMEngine",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])

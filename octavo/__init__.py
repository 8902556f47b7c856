"""Octavo: an engine that serves large language models, fast on an ordinary CPU.

>>> from octavo import LLM, SamplingParams
>>> LLM("smollm2").generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))

The names in `__init__.pyi` are the public API. Each is imported when it is first used, so that `import
octavo` costs nothing.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_modules())
    if name.startswith("__") or name not in _modules():
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(importlib.import_module(_modules()[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_modules()])


@functools.cache
def _modules() -> Mapping[str, str]:
    """The module of each public name, from `__init__.pyi`."""
    import ast
    from importlib.resources import files

    stub = ast.parse(files(__name__).joinpath("__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports for alias in node.names if node.module}

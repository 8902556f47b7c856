"""What `import octavo` offers: these names, and nothing of it loaded before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import octavo
from octavo import config, errors
from octavo.settings import Settings

# A name leaves this list only with a new major version.
PUBLIC = {
    "LLM",
    "LLMEngine",
    "Session",
    "Tokenizer",
    "EngineConfig",
    "Settings",
    "SamplingParams",
    "StructuredOutputsParams",
    "RepetitionDetectionParams",
    "RequestOptions",
    "RequestOutputKind",
    "RequestOutput",
    "CompletionOutput",
    "Logprob",
    "RequestMetrics",
    "PauseState",
    "OctavoError",
    "ConfigError",
    "RequestError",
    "UnsupportedError",
    "WeightError",
    "ModelNotFoundError",
    "DownloadError",
    "CapacityError",
    "EventsLostError",
    "EngineDeadError",
}


def test_the_public_names_are_these() -> None:
    assert set(octavo.__all__) == PUBLIC
    assert set(dir(octavo)) >= PUBLIC


def test_every_public_name_is_documented_where_it_is_defined() -> None:
    for name in PUBLIC:
        public = getattr(octavo, name)
        assert public.__name__ == name
        assert public.__doc__


def test_every_error_of_octavo_is_public() -> None:
    family = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.OctavoError)
    }
    assert family <= PUBLIC


def test_a_name_that_octavo_has_not_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'octavo' has no attribute 'LMM'"):
        _ = octavo.LMM  # type: ignore[attr-defined]


def test_importing_octavo_loads_nothing_but_the_standard_library() -> None:
    script = (
        "import sys; before = set(sys.modules); import octavo; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert set(done.stdout.split()) - sys.stdlib_module_names == {"octavo"}


def test_import_star_brings_every_public_name() -> None:
    names: dict[str, Any] = {}
    exec("from octavo import *", names)
    assert names.keys() >= PUBLIC


def test_the_stub_re_exports_each_name_as_type_checkers_want_it() -> None:
    """`import X as X`: without the second X a name in a stub is private."""
    stub = ast.parse(Path(octavo.__file__).with_suffix(".pyi").read_text())
    aliases = [alias for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for alias in aliases)


def test_settings_have_the_names_and_types_that_the_configuration_has() -> None:
    typed = get_type_hints(Settings)
    known = {name: setting for name, setting in config.settings().items() if name != "model"}
    assert list(typed) == list(known)
    for name, setting in known.items():
        may_be_text = any(kind in setting.kinds for kind in (int, float, Mapping[str, float]))
        assert {*config.kinds_of(typed[name])} == {*setting.kinds, *[str] * may_be_text}, name

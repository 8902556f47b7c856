"""Who may import whom (docs/architecture.md, "Packages"), read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import octavo

ROOT = Path(octavo.__file__).parent
BASE = {"config", "errors", "logs", "settings", "types"}

# Package or module → what of octavo it may import, besides itself. Modules named with a dot are exceptions to
# their package.
ALLOWED: dict[str, set[str]] = {
    "": set(),
    "config": {"errors", "settings"},
    "errors": set(),
    "logs": {"errors"},
    "settings": set(),
    "types": {"errors"},
    "kv_cache": {"types", "errors"},
    "scheduler": {"kv_cache", *BASE},
    "kv_events": {*BASE},
    "engine": set(),
    "engine.cache_layout": {"backends", "kv_cache", "machine", "models", *BASE},
    "engine.core": {"scheduler", "engine.deadlines", *BASE},
    "engine.deadlines": set(BASE),
    "engine.executor": {"worker", "types"},
    "engine.observers": {"engine", "kv_events", *BASE},
    "engine.request_events": {"types"},
    "engine.statistics": {"types"},
    "engine.statistics_log": {"engine.statistics", "logs", "types"},
    "engine.build_core": {"engine", "kv_cache", "scheduler", *BASE},
    # The list of features names their packages and, for type checkers, what their halves are made from.
    "features": {"backends", "frontend.tokenizer", "scheduler", *BASE},
    "engine.build": {
        "engine",
        "backends",
        "features",
        "kv_cache",
        "models",
        "sampling",
        "weights",
        "worker",
        "machine",
        *BASE,
    },
    "engine.client": {"engine", "models.registry", "weights", *BASE},
    "hub": {"errors", "config", "logs"},
    "ops": {"weights"},
    "weights": {"errors"},
    "models": {"ops", "weights", "types", "errors"},
    "sampling": {"types", "errors"},
    "backends": {"models", "ops", "weights", "sampling", "types", "errors"},
    "worker": {"backends", *BASE},
    # A feature's folder names its halves; each half knows what its side of the engine may know.
    "prompt_logprobs": {"features", "prompt_logprobs", "types"},
    "prompt_logprobs.extension": {"prompt_logprobs", "backends", "types"},
    "prompt_logprobs.handler": {"frontend.logprobs", "frontend.tokenizer", "errors", "types"},
    "penalties": {"features", "penalties", "types"},
    "logits_control": {"features", "logits_control", "types"},
    "logits_control.handler": {"frontend.tokenizer", "errors", "types"},
    "frontend": {"engine.client", "features", "hub", "weights", *BASE},
    "machine": {"config", "errors"},
    "cli": {"frontend", "hub", "machine", *BASE},
    "cli.diagnosis": {"cli", "backends.native.library", "hub", "machine", *BASE},
    "cli.native_program": {"backends.native", "hub", "models", *BASE},
    "bench": {"backends.native", "ops", "weights", "machine", *BASE},
    "bench.command": {"bench", "cli.flags", "cli.output", "machine", *BASE},
    "bench.generation": {"engine", "frontend", *BASE},
    "bench.load": {"backends.native", "bench", "frontend", "hub", "models", *BASE},
    "bench.scheduler": {"kv_cache", "scheduler", *BASE},
    "bench.work": {"models", "ops", *BASE},
}
CORE = ["octavo.types", "octavo.kv_cache", "octavo.scheduler", "octavo.engine.core"]
CORE_MAY_IMPORT = {"numpy", "msgspec"}
OPTIONAL = {"torch", "triton"}


def _modules() -> list[str]:
    paths = sorted(ROOT.rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix("__init__").removesuffix(".") for name in names]


def _path(module: str) -> Path:
    path = ROOT.joinpath(*module.split(".")) if module else ROOT
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imports(module: str) -> set[str]:
    """Every module that `module` imports anywhere, functions and TYPE_CHECKING blocks included."""
    found = set()
    for node in ast.walk(ast.parse(_path(module).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            found.add(node.module or "")
    return found


def _rule(module: str) -> tuple[str, set[str]]:
    """The most specific entry of ALLOWED for `module`."""
    for name in (module, module.partition(".")[0]):
        if name in ALLOWED:
            return name, ALLOWED[name]
    raise AssertionError(
        f"{module} has no place in the architecture: name it in ALLOWED and in docs/architecture.md"
    )


@pytest.mark.parametrize("module", [name for name in _modules() if name])
def test_imports_follow_the_architecture(module: str) -> None:
    rule, allowed = _rule(module)
    package = module.partition(".")[0]
    own = {rule} if "." in rule else {package}
    for imported in _imports(module):
        if not imported.startswith("octavo."):
            assert imported.partition(".")[0] not in OPTIONAL, f"{module} imports {imported}"
            continue
        target = imported.removeprefix("octavo.")
        permitted = any(target == name or target.startswith(name + ".") for name in allowed | own)
        assert permitted, f"{module} imports {imported}; it may import {sorted(allowed)}"


def test_only_the_list_of_features_imports_a_feature() -> None:
    from octavo.features import FEATURES

    features = {name for name in FEATURES if (ROOT / name).is_dir()}
    assert features, "no feature has a folder of its own name"
    for module in _modules():
        imported = {name.split(".")[1] for name in _imports(module) if name.startswith("octavo.")}
        if module != "features":
            assert not imported & features - {module.partition(".")[0]}, f"{module} imports a feature"


@pytest.mark.parametrize("package", CORE)
def test_the_core_needs_only_the_standard_library_numpy_and_msgspec(package: str) -> None:
    """Its modules import in a fresh interpreter in which no other third-party module can be found."""
    names = [f"octavo.{name}" for name in _modules()]
    modules = [name for name in names if name == package or name.startswith(package + ".")]
    allowed = sys.stdlib_module_names | CORE_MAY_IMPORT | {"octavo"}
    script = f"""
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {sorted(allowed)!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
for name in {modules!r}:
    importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_torch_is_not_loaded_by_the_whole_of_octavo() -> None:
    modules = [f"octavo.{name}".rstrip(".") for name in _modules()]
    script = "import sys, importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in modules)
    script += "\nassert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_files_stay_small_enough_to_have_one_reason_to_exist() -> None:
    sizes = {name: len(_path(name).read_text().splitlines()) for name in _modules()}
    assert {name: size for name, size in sizes.items() if size > 420} == {}


def test_functions_fit_a_screen() -> None:
    long = {}
    for module in _modules():
        for node in ast.walk(ast.parse(_path(module).read_text())):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                body = node.end_lineno - node.body[0].lineno + 1
                if body > 50:
                    long[f"{module}.{node.name}"] = body
    assert long == {}

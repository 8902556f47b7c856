"""Public methods are documented once: where they are defined first.

ruff asks for the docstrings of modules, classes and functions. It cannot tell an override from a new method
(D102), so methods are looked at here: a base class or an interface must document one that has no docstring.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import octavo

ROOT = Path(octavo.__file__).parent


def _public_methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
            yield method


def _base_names(node: ast.ClassDef) -> set[str]:
    """The names of the base classes, without their modules and type arguments."""
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}


def test_a_public_method_has_a_docstring_or_overrides_one_that_has() -> None:
    classes = [
        (path.relative_to(ROOT), node)
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    bases = set().union(*(_base_names(node) for _, node in classes))
    documented = {
        method.name
        for _, node in classes
        if node.name in bases or "Protocol" in _base_names(node)
        for method in _public_methods(node)
        if ast.get_docstring(method)
    }
    silent = [
        f"{path}:{method.lineno} {node.name}.{method.name}"
        for path, node in classes
        if not node.name.startswith("_")
        for method in _public_methods(node)
        if ast.get_docstring(method) is None and method.name not in documented
    ]
    assert silent == []

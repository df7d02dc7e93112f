"""The source of the helpers that converted programs use, from the files `..._helpers.py`."""

from __future__ import annotations

import ast
import functools
import importlib.resources
from collections.abc import Iterable

import libcst as cst

__all__ = ["sources"]

_FILES = ("program_helpers.py", "training_helpers.py", "column_helpers.py")


@functools.cache
def _all() -> dict[str, tuple[str, frozenset[str]]]:
    """Return helper -> (its source, the names in it)."""
    helpers = {}
    for file in _FILES:
        text = importlib.resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        for node in ast.parse(text).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                names = frozenset(inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
                helpers[node.name] = ("".join(lines[first - 1 : node.end_lineno]), names)
    return helpers


def sources(names: Iterable[str], tf: str) -> list[str]:
    """Return the source of helpers and of those that they use, for a program that imports TensorFlow as `tf`."""
    helpers = _all()
    wanted, waiting = set(), {name for name in names if name in helpers}
    while waiting:
        wanted |= waiting
        waiting = {name for helper in waiting for name in helpers[helper][1] if name in helpers} - wanted
    return [_named(text, tf) for name, (text, _) in helpers.items() if name in wanted]


def _named(text: str, tf: str) -> str:
    if tf == "tf":
        return text

    class Rename(cst.CSTTransformer):
        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
            return updated_node.with_changes(value=tf) if updated_node.value == "tf" else updated_node

    return cst.parse_module(text).visit(Rename()).code

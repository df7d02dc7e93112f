"""The source of the helpers that converted programs use, from `program_helpers.py` and `training_helpers.py`."""

from __future__ import annotations

import ast
import functools
import importlib.resources
from collections.abc import Iterable

import libcst as cst

__all__ = ["names", "sources"]

_FILES = ("program_helpers.py", "training_helpers.py")
# Helper -> the helpers that it calls.
_NEEDS = {"operation": ("TensorFlowOperation",), "pandas_input_fn": ("numpy_input_fn",)}


@functools.cache
def _all() -> dict[str, str]:
    folder = importlib.resources.files(__package__)
    text = "".join(folder.joinpath(file).read_text(encoding="utf-8") for file in _FILES)
    lines, sources_by_name = text.splitlines(keepends=True), {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            sources_by_name[node.name] = "".join(lines[first - 1 : node.end_lineno])
    return sources_by_name


def names() -> frozenset[str]:
    """Return the names of the helpers."""
    return frozenset(_all())


def sources(names: Iterable[str], tf: str) -> list[str]:
    """Return the source of helpers, in the order of the file, for a program that imports TensorFlow as `tf`."""
    wanted = set(names)
    wanted |= {needed for name in wanted for needed in _NEEDS.get(name, ())}
    return [_named(text, tf) for name, text in _all().items() if name in wanted]


def _named(text: str, tf: str) -> str:
    if tf == "tf":
        return text

    class Rename(cst.CSTTransformer):
        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
            return updated_node.with_changes(value=tf) if updated_node.value == "tf" else updated_node

    return cst.parse_module(text).visit(Rename()).code

"""Names of Python code: those that nothing gives a value, and modules by other names."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.rewriter import Rewriter

__all__ = ["modules_by_other_names", "unknown_names"]


def unknown_names(text: str) -> set[str]:
    """Names that a module's functions read, and that nothing in it gives a value."""
    module = ast.parse(text)
    if any(alias.name == "*" for node in ast.walk(module) if isinstance(node, ast.ImportFrom) for alias in node.names):
        return set()
    given, read = set(dir(builtins)) | {"__file__", "__name__", "__doc__"}, set()
    for function in [module, *module.body]:
        here, used = _names(function, deep=function is not module)
        if function is module or not isinstance(function, (ast.FunctionDef, ast.ClassDef)):
            given |= here
        else:
            used -= here
        read |= used
    return read - given


def _names(top: ast.AST, *, deep: bool) -> tuple[set[str], set[str]]:
    """Return the names that are given a value within a node, and those that are read."""
    given: set[str] = set()
    read: set[str] = set()
    for node in ast.walk(top) if deep else top.body:  # type: ignore[attr-defined]
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else given).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            given.add(node.name)
        elif isinstance(node, ast.arg):
            given.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            given |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            given.add(node.name)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            given |= set(node.names)
    return given, read


def modules_by_other_names(reader: Rewriter) -> Iterator[tuple[str, str]]:
    """(name, module of TensorFlow) of each `v1 = tf.compat.v1`."""
    for scope in (reader.tree.scope, *reader.tree.scopes.values()):
        for name, bindings in scope.names.items():
            for one in bindings:
                if one.kind == "value" and isinstance(one.node, cst.Attribute):
                    module = reader.name(one.node)
                elif one.kind == "import" and not reader.is_v1:
                    module = one.module.replace("tensorflow", "tf", 1)
                else:
                    module = ""
                if module.startswith("tf.compat.v1"):
                    yield name, module

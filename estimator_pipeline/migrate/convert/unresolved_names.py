"""Undefined names in Python code."""

from __future__ import annotations

import ast
import builtins

__all__ = ["unknown_names"]


def unknown_names(text: str) -> set[str]:
    """Return the names that a module reads but never defines."""
    module = ast.parse(text)
    if any(alias.name == "*" for node in ast.walk(module) if isinstance(node, ast.ImportFrom) for alias in node.names):
        return set()
    defined, read = set(dir(builtins)) | {"__file__", "__name__", "__doc__"}, set()
    for function in [module, *module.body]:
        bound, used = _names(function, deep=function is not module)
        if function is module or not isinstance(function, (ast.FunctionDef, ast.ClassDef)):
            defined |= bound
        else:
            used -= bound
        read |= used
    return read - defined


def _names(top: ast.AST, *, deep: bool) -> tuple[set[str], set[str]]:
    """Return the names that a node binds and the names that it reads."""
    bound: set[str] = set()
    read: set[str] = set()
    for node in ast.walk(top) if deep else top.body:  # type: ignore[attr-defined]
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            bound |= set(node.names)
    return bound, read

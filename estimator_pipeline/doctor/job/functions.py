"""Check of the functions that a job file names, without running user code."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
from collections.abc import Iterator

from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, error, ok

__all__ = ["check"]

_WHY = "every task fails with this error"
_CODE = "job/bad-function"
# Calls that can define names only at run time.
_UNKNOWN = ("globals", "setattr", "exec", "vars", "locals")


def check(context: Context) -> Iterator[DoctorFinding]:
    """Check that the files, modules and functions exist, and that their top-level imports are installed."""
    job = context.needed_job()
    for field, reference in job.functions:
        yield _problem(context, field, reference) or ok(f"{field}: {reference} exists")


def _problem(context: Context, field: str, reference: str) -> DoctorFinding | None:
    where, _, name = reference.rpartition(":")
    if where.endswith(".py"):
        if not os.path.isfile(where):
            return error(
                f"{field}: the file {where} does not exist in {os.getcwd()}",
                _WHY,
                "correct the path, or start the job in the folder of the file",
                code=_CODE,
            )
        return _in_file(context, field, where, name)
    if context.other_python:
        return None
    path = _file_of(where)
    if path is None:
        return error(
            f"{field}: the module {where} cannot be found",
            _WHY,
            "install it, start the job in its folder, or use path/to/file.py:function",
            code=_CODE,
        )
    # The contents of an extension module are known only after an import.
    return _in_file(context, field, path, name) if path.endswith(".py") else None


def _file_of(module: str) -> str | None:
    """Return a module's file; "" if only importing its package would show it; None if it does not exist."""
    first, _, rest = module.partition(".")
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(first)
    if spec is not None and not rest:
        return spec.origin or ""
    # Tasks also search their working directory, which a console script does not.
    for folder in [first] if spec is None else spec.submodule_search_locations or ():
        path = os.path.join(folder, *rest.split(".")) if rest else folder
        for file in (f"{path}.py", os.path.join(path, "__init__.py")):
            if os.path.isfile(file):
                return file
        if os.path.isdir(path):
            return ""
    # An installed package may have modules without files, such as os.path and tensorflow.keras.
    return None if spec is None else ""


def _listed(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def _in_file(context: Context, field: str, path: str, name: str) -> DoctorFinding | None:
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except SyntaxError as problem:
        return error(
            f"{field}: {path}, line {problem.lineno}, is not valid Python: {problem.msg}",
            _WHY,
            "correct the file",
            code=_CODE,
        )
    except (OSError, ValueError) as problem:
        return error(f"{field}: {path} cannot be read: {problem}", _WHY, "correct the file", code=_CODE)
    if not context.other_python:
        missing = _missing_import(tree, os.path.dirname(os.path.abspath(path)))
        if missing is not None:
            # Environment modules that a job script loads may add packages by PYTHONPATH.
            job = context.needed_job()
            may_add = any(section.setup or "PYTHONPATH" in section.env for section in (job.slurm, job.pbs))
            return DoctorFinding(
                "warning" if may_add else "error",
                f"{field}: {path}, line {missing[1]}, imports {missing[0]}, which is not installed in this Python",
                _WHY,
                f"install {missing[0]} where the tasks run, or start the job from the environment that has it",
                code=_CODE,
            )
    first = name.partition(".")[0]
    names = _names(tree)
    if names is not None and first not in names:
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        public = ", ".join(function for function in functions if not function.startswith("_"))
        return error(
            f"{field}: {path} has no function {name!r} (functions: {public or 'none'})",
            _WHY,
            "correct the name",
            code=_CODE,
        )
    return _without_context(tree, field, path, name) if field.startswith("input.") else None


def _without_context(tree: ast.Module, field: str, path: str, name: str) -> DoctorFinding | None:
    function = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name), None)
    if function is None:
        return None
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if "input_context" in names:
        return None
    return error(
        f"{field}: {name} in {path} has no parameter `input_context`, only ({', '.join(names)})",
        "without it every worker would read the same records, and the job rejects it",
        "add the parameter `input_context=None`, and shard with it",
        code="data/bad-input-fn",
    )


def _names(tree: ast.Module) -> set[str] | None:
    """Return the names that the file defines at top level; None if they are known only at run time."""
    names: set[str] = set()
    for node in _top(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    called: set[str] = set()
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            names |= set(inner.names)
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            called.add(inner.func.id)
    return None if "*" in names or "__getattr__" in names or called & set(_UNKNOWN) else names


def _top(node: ast.AST) -> Iterator[ast.AST]:
    """Iterate over what runs when a module is imported: all but the bodies of functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _top(child)


def _missing_import(tree: ast.Module, folder: str) -> tuple[str, int] | None:
    """Return the first unconditionally imported package that is not installed, and its line."""
    for node in tree.body:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for name in names:
            first = name.partition(".")[0]
            with contextlib.suppress(ImportError, ValueError):
                beside = any(f.partition(".")[0] == first for place in (folder, os.getcwd()) for f in _listed(place))
                if not beside and importlib.util.find_spec(first) is None:
                    return first, node.lineno
    return None

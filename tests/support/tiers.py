"""The tier of a test: what it needs, told by what it uses.

`unit` needs no TensorFlow and starts no process; `tf` uses TensorFlow in the test's own process; `process` starts
others; `cluster` starts TF_CONFIG tasks that train together. Files are read, not imported: those that use TensorFlow
are left alone where it cannot be imported. A test whose subject imports TensorFlow by itself says `@pytest.mark.tf`, or
its file does with `pytestmark`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

TIERS = ("unit", "tf", "process", "cluster")

_STARTING_FIXTURES = {"run_python", "run_warm", "launch", "run_environment"}
_STARTING_MODULES = {"subprocess", "multiprocessing"}
_TENSORFLOW = {"tensorflow", "tensorflow_estimator", "tensorflow_datasets", "keras", "tf_keras"}
_INSTALLERS = {"install", "tensorflow_with_three_cpus"}


def tier_of(item: pytest.Item) -> str:
    """The tier of a test that was collected."""
    used = uses(item.path)
    if item.get_closest_marker("cluster"):
        return "cluster"
    if "processes" in used or _STARTING_FIXTURES & set(getattr(item, "fixturenames", ())):
        return "process"
    return "tf" if "tensorflow" in used or item.get_closest_marker("tf") else "unit"


@functools.cache
def uses(path: Path) -> frozenset[str]:
    """Of "tensorflow" and "processes" what a file of tests uses, by itself or by a helper that it imports."""
    tree = ast.parse(path.read_bytes())
    used = {"tensorflow"} if _is_marked(tree, "tf") else set()
    for name in _names(tree):
        if name in _TENSORFLOW or name in _INSTALLERS:
            used.add("tensorflow")
        elif name in _STARTING_MODULES:
            used.add("processes")
        elif name in _helpers() and _helpers()[name] != path:
            used |= uses(_helpers()[name])
    return frozenset(used)


def _names(tree: ast.Module) -> Iterator[str]:
    """The top packages that are imported, anywhere, and the names of functions that are called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # A helper is a module of tests/support, `tests.support.NAME`, or a name of it.
            parts = node.module.split(".")
            yield from (parts[-1], *(alias.name for alias in node.names)) if parts[0] == "tests" else parts[:1]
        elif isinstance(node, ast.Call):
            yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@functools.cache
def starts_clusters(path: Path) -> bool:
    """Whether all tests of a file start clusters: `pytestmark` says so."""
    return path.is_file() and _is_marked(ast.parse(path.read_bytes()), "cluster")


def _is_marked(tree: ast.Module, mark: str) -> bool:
    """Whether `pytestmark` of the file has a mark."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    marks = [node.value for node in assigned if ast.unparse(node.targets[0]) == "pytestmark"]
    return f"pytest.mark.{mark}" in [
        ast.unparse(each) for value in marks for each in ast.walk(value) if isinstance(each, ast.Attribute)
    ]


@functools.cache
def _helpers() -> dict[str, Path]:
    """Name -> file, of what lies beside the tests. What starts processes for all of them does not count."""
    folder = Path(__file__).parents[1]
    return {path.stem: path for path in folder.rglob("*.py") if path.stem not in ("conftest", "processes")}

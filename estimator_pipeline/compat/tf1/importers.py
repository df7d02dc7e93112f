"""Import of TensorFlow 1's names in a program, but not in the libraries that it uses.

`import tensorflow` in a program must return a different module than in TensorFlow, in Keras or in a library for
TensorFlow 2. So `builtins.__import__` is replaced, which gets the importer's globals. A program is

- `__main__`, and every module that is not installed in this Python environment;
- an installed package that was written for TensorFlow 1: its code uses `tf.contrib` outside of a `try`, or names of
  `tf` that version 2 does not have, and never uses `compat.v1`.

Everything else is a library, for which imports are unchanged.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from estimator_pipeline.compat.tf1 import contrib

__all__ = ["install", "is_program", "mark_program"]

_ROOT = "tensorflow"
_MAIN = ("__main__", "__mp_main__")
# As editable installs these would be treated as programs.
_LIBRARIES = {
    "estimator_pipeline", "model_fns", "tensorflow", "tensorflow_estimator", "keras", "tf_keras", "tf_slim",
    "tensorflow_datasets", "tensorflow_hub", "tensorflow_probability", "tensorboard",
}  # fmt: skip
# Subpackages with TensorFlow's internal modules, which are the same for all importers.
_PRIVATE = ("python", "core", "compiler", "tools", "include", "_api", "tsl", "dtensor", "security")
_CONTRIB = re.compile(rb"\bcontrib\b")
_COMPAT = re.compile(rb"\bcompat\.v[12]\b")
_TENSORFLOW = re.compile(rb"\btensorflow\b")

_programs: set[str] = set()


def mark_program(package: str) -> None:
    """Treat an installed package as a program, as for `exec -m PACKAGE`."""
    _programs.add(package.partition(".")[0])


def install(namespace: ModuleType) -> None:
    """Let programs import `namespace` as `tensorflow` from now on."""
    from estimator_pipeline.compat.tf1 import python_names

    original = builtins.__import__

    @functools.wraps(original)
    def import_(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        restored = python_names.OF_PACKAGES.get(name.partition(".")[0])
        if restored is not None and is_program(globals):
            restored(original(name.partition(".")[0]))
        if level or not name.startswith(_ROOT) or not is_program(globals):
            return original(name, globals, locals, fromlist, level)
        of_tensorflow = name == _ROOT or name.startswith("tensorflow.")
        imported: Callable[..., Any] = functools.partial(original, globals=globals, locals=locals)
        if of_tensorflow:
            imported = functools.partial(_import, namespace=namespace, original=imported)
        if contrib.is_below(str((globals or {}).get("__name__"))):
            # A file of TensorFlow 1.15, which must load even if some of its imports were removed.
            return contrib.files.with_missing(name, fromlist, imported)
        return imported(name, fromlist=fromlist)

    builtins.__import__ = import_


def _import(name: str, fromlist: Sequence[str] | None, *, namespace: ModuleType, original: Callable[..., Any]) -> Any:
    """Implement a program's import statement, like `builtins.__import__`."""
    _, _, below = name.partition(".")
    first = below.partition(".")[0]
    if not below:
        return namespace
    if contrib.is_below(name):
        module = contrib.module(name)
        return module if fromlist else namespace
    if first not in _PRIVATE:
        value: Any = namespace
        for part in below.split("."):
            value = getattr(value, part, None)
        if value is not None:
            return value if fromlist else namespace
    module = original(name, fromlist=fromlist)
    return module if fromlist else namespace


def is_program(globals: Mapping[str, Any] | None) -> bool:
    """Whether the code with these globals belongs to a program, or to a library written for TensorFlow 1."""
    if globals is None:
        return False
    name = globals.get("__name__")
    if not isinstance(name, str):
        return True  # `exec` with custom globals
    if name in _MAIN or contrib.is_below(name):
        return True
    file = globals.get("__file__")
    return _is_program(name.partition(".")[0], file if isinstance(file, str) else None)


@functools.lru_cache(maxsize=4096)
def _is_program(package: str, file: str | None) -> bool:
    if package in _programs:
        return True
    if package in _LIBRARIES or package in sys.stdlib_module_names:
        return False
    if file is None:
        return True
    return not _is_installed(os.path.realpath(file)) or _written_for_version_1(package)


@functools.cache
def _installed_below() -> tuple[str, ...]:
    paths = {sysconfig.get_path(key) for key in ("purelib", "platlib", "stdlib", "platstdlib")}
    paths.update(site.getsitepackages(), [site.getusersitepackages()])
    return tuple(os.path.realpath(path) + os.sep for path in paths if path)


def _is_installed(file: str) -> bool:
    return file.startswith(_installed_below())


@functools.cache
def _written_for_version_1(package: str) -> bool:
    """Whether an installed package uses names that TensorFlow 2 does not have, outside of a `try`."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        return False
    texts = []
    for file in _files(spec.origin):
        with contextlib.suppress(OSError), open(file, "rb") as stream:
            texts.append(stream.read())
    # Code that uses compat.v1 supports TensorFlow 2.
    names = frozenset() if any(map(_COMPAT.search, texts)) else _names_of_version_1()
    for text in texts:
        if _CONTRIB.search(text) or (names and _TENSORFLOW.search(text)):
            with contextlib.suppress(SyntaxError, ValueError, RecursionError):
                if any(_uses_of_version_1(ast.parse(text), names)):
                    return True
    return False


def _names_of_version_1() -> frozenset[str]:
    """Return the names of `tf` that version 2 does not have."""
    tf = sys.modules[_ROOT]
    return frozenset(dir(tf.compat.v1)) - frozenset(dir(tf))


def _files(origin: str) -> Iterator[str]:
    if os.path.basename(origin) != "__init__.py":
        yield origin
        return
    for folder, _, names in os.walk(os.path.dirname(origin)):
        yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py"))


def _uses_of_version_1(node: ast.AST, names: frozenset[str]) -> Iterator[ast.AST]:
    """Iterate over the uses of `tf.contrib`, or of `names` of `tf`, outside of a `try`."""
    if isinstance(node, ast.Try):
        return
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        below = module == "tensorflow.contrib" or module.startswith("tensorflow.contrib.")
        named = module == _ROOT and any(each.name == "contrib" or each.name in names for each in node.names)
        if not node.level and (below or named):
            yield node
    elif isinstance(node, ast.Import):
        if any(f"{each.name}.".startswith("tensorflow.contrib.") for each in node.names):
            yield node
    elif isinstance(node, ast.Attribute):
        of = ast.unparse(node.value) if isinstance(node.value, (ast.Name, ast.Attribute)) else ""
        if of in ("tf.contrib", "tensorflow.contrib") or (of in ("tf", _ROOT) and node.attr in names):
            yield node
    for child in ast.iter_child_nodes(node):
        yield from _uses_of_version_1(child, names)

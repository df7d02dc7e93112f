"""TensorFlow 1.15's files of tf.contrib, if installed with `estimator-pipeline contrib install`.

A file is run for a name without a replacement, unchanged and on the current TensorFlow. Imported names that no longer
exist (wrappers of C++ operations, removed names) become objects that raise an error on use. This package has none of
these files.
"""

from __future__ import annotations

import functools
import importlib
import os
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import CompatError

__all__ = ["VARIABLE", "folder", "installed", "is_loading", "load", "load_op_library", "missing", "with_missing"]

VARIABLE = "ESTIMATOR_PIPELINE_CONTRIB"
VERSION = "1.15.5"


def folder() -> Path:
    """Return the folder of the files, whether installed or not: `contrib` of TensorFlow 1.15."""
    configured = os.environ.get(VARIABLE)
    if configured:
        return Path(configured)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "estimator_pipeline" / f"tensorflow-{VERSION}" / "contrib"


@functools.cache
def installed() -> bool:
    """Whether the files are installed."""
    return (folder() / "__init__.py").is_file()


def path_of(below: str) -> Path | None:
    """Return the file of a module below tf.contrib (`"seq2seq.python.ops.helper"`), or None."""
    if not installed() or not below:
        return None
    base = folder().joinpath(*below.split("."))
    for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
        if path.is_file():
            return path
    return None


_loaded: dict[str, types.ModuleType] = {}
_loading: list[str] = []


def load(below: str) -> types.ModuleType | None:
    """Return the module of a file, which is run on first use; None if there is no file.

    Args:
        below: The module's name below tf.contrib.
    """
    if below in _loaded:
        return _loaded[below]
    path = path_of(below)
    if path is None:
        return None
    # Like an import: a package and its modules import each other, which only works in this order.
    load(below.rpartition(".")[0])
    if below in _loaded:
        return _loaded[below]
    last = below.rpartition(".")[2]
    name = f"tensorflow.contrib.{below}"
    if last.startswith("gen_") or last.endswith("_pb2"):
        _loaded[below] = missing(name)
        return _loaded[below]
    module = types.ModuleType(name)
    module.__file__ = str(path)
    module.__package__ = name if path.name == "__init__.py" else name.rpartition(".")[0]
    _loaded[below] = module
    _loading.append(below)
    try:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del _loaded[below]
        raise
    finally:
        _loading.pop()
    return module


def is_loading() -> bool:
    """Whether a file is being run."""
    return bool(_loading)


def load_op_library(path: str) -> types.ModuleType:
    """Implement `tf.contrib.util.loader.load_op_library` for libraries that do not exist."""
    return missing(path)


@functools.cache
def _all_util() -> types.ModuleType:
    """Return a stub of `tensorflow.python.util.all_util`, which removes undocumented names of a module."""
    module = types.ModuleType("tensorflow.python.util.all_util")
    module.remove_undocumented = lambda *args, **options: None  # type: ignore[attr-defined]
    module.make_all = lambda *args, **options: []  # type: ignore[attr-defined]
    return module


class _Missing:
    """A missing object, which supports attributes, isinstance and subclassing, but not calls."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise _error(self.__name__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<missing {self.__name__}>"


class _MissingModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Missing(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


def missing(name: str) -> types.ModuleType:
    """Return a module whose names raise an error on use."""
    return _MissingModule(name)


def _error(name: str) -> CompatError:
    return CompatError(
        f"{name} is required here, and does not exist",
        code="tensorflow/removed-name",
        found="a file of TensorFlow 1.15's tf.contrib; it needs a C++ operation or a name that TensorFlow removed",
        hint="remove the code that uses it from the program",
    )


class _With(types.ModuleType):
    """A module with additional missing names."""

    def __init__(self, module: Any, names: Sequence[str]) -> None:
        super().__init__(module.__name__)
        self.__dict__["_module"] = module
        for name in names:
            self.__dict__[name] = _Missing(f"{module.__name__}.{name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def with_missing(name: str, fromlist: Sequence[str] | None, original: Callable[..., Any]) -> Any:
    """Implement `import NAME` or `from NAME import FROMLIST` in one of the files.

    Args:
        name: The name of the module.
        fromlist: As for `__import__`.
        original: Imports the module for the same importer.
    """
    if name == "tensorflow.python.util.all_util":
        return _all_util()
    try:
        module = original(name, fromlist=fromlist)
    except ImportError:
        if not fromlist:
            raise
        return missing(name)
    absent = [each for each in fromlist or () if each != "*" and not _has(module, name, each)]
    return _With(module, absent) if absent else module


def _has(module: Any, name: str, each: str) -> bool:
    try:
        getattr(module, each)
    except (AttributeError, ImportError):
        try:
            importlib.import_module(f"{name}.{each}")
        except ImportError:
            return False
    return True

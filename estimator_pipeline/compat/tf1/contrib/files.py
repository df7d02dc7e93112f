"""TensorFlow 1.15's own files of tf.contrib, where the user has installed them: `estimator-pipeline contrib install`.

A file is run when a name is asked for that has no home today. It runs on today's TensorFlow as it is; what it imports
and is nowhere any more (wrappers of C++ operations, names that TensorFlow dropped) becomes an object that raises when
it is used. None of these files is in this package.
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
    """Where the files are, or would be: the folder `contrib` of TensorFlow 1.15."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "estimator_pipeline" / f"tensorflow-{VERSION}" / "contrib"


@functools.cache
def installed() -> bool:
    """Whether they are there."""
    return (folder() / "__init__.py").is_file()


def path_of(below: str) -> Path | None:
    """The file of a module below tf.contrib (`"seq2seq.python.ops.helper"`), None where there is none."""
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
    """The module of a file, run when it is asked for the first time; None where there is no file.

    Args:
        below: its name below tf.contrib.
    """
    if below in _loaded:
        return _loaded[below]
    path = path_of(below)
    if path is None:
        return None
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
    """`tf.contrib.util.loader.load_op_library`: of a library that is not there."""
    return missing(path)


@functools.cache
def _all_util() -> types.ModuleType:
    """`tensorflow.python.util.all_util`, which cuts a module down to its documented names; nothing here needs that."""
    module = types.ModuleType("tensorflow.python.util.all_util")
    module.remove_undocumented = lambda *args, **options: None  # type: ignore[attr-defined]
    module.make_all = lambda *args, **options: []  # type: ignore[attr-defined]
    return module


class _Missing:
    """What is not there: it can be named, asked for by isinstance and be a base of classes; to call it raises."""

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
        made = _Missing(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


def missing(name: str) -> types.ModuleType:
    """A module whose every name raises when it is used."""
    return _MissingModule(name)


def _error(name: str) -> CompatError:
    return CompatError(
        f"{name} is needed here, and is not there",
        code="tensorflow/removed-name",
        found="a file of TensorFlow 1.15's tf.contrib; it needs a C++ operation or a name that TensorFlow dropped",
        hint="take what uses it out of the program",
    )


class _With(types.ModuleType):
    """A module, with names that it does not have."""

    def __init__(self, module: Any, names: Sequence[str]) -> None:
        super().__init__(module.__name__)
        self.__dict__["_module"] = module
        for name in names:
            self.__dict__[name] = _Missing(f"{module.__name__}.{name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def with_missing(name: str, fromlist: Sequence[str] | None, original: Callable[..., Any]) -> Any:
    """What `import NAME` or `from NAME import FROMLIST` gives in one of the files.

    Args:
        name: of the module.
        fromlist: as of `__import__`.
        original: imports the module, and knows who asks.
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

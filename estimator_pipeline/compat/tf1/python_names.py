"""Removed names of Python, NumPy, pandas and PyYAML that TensorFlow 1 programs use.

Only missing names are restored, as their replacements.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import collections.abc
import ctypes
import fractions
import functools
import gc
import importlib.util
import inspect
import math
import sys
import threading
import time
import types
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["NUMPY", "OF_PACKAGES", "restore"]

ArgSpec = namedtuple("ArgSpec", "args varargs keywords defaults")

# NumPy 1.24 and 2.0 removed these.
NUMPY = {
    "int": int, "float": float, "bool": bool, "object": object, "str": str, "complex": complex, "long": int,
    "unicode": str, "float_": np.float64, "complex_": np.complex128, "string_": np.bytes_, "unicode_": np.str_,
    "bool8": np.bool_, "in1d": np.isin, "mat": np.asmatrix, "round_": np.round,
    "Inf": np.inf, "Infinity": np.inf, "infty": np.inf, "NaN": np.nan, "product": np.prod, "cumproduct": np.cumprod,
    "sometrue": np.any, "alltrue": np.all, "row_stack": np.vstack, "asscalar": lambda array: array.item(),
}  # fmt: skip


def restore() -> None:
    """Restore the missing names in this process."""
    _give(inspect, "getargspec", _getargspec)
    _give(inspect, "ArgSpec", ArgSpec)
    _give(fractions, "gcd", math.gcd)
    _give(time, "clock", time.perf_counter)
    _give(asyncio, "coroutine", types.coroutine)
    _give(base64, "encodestring", base64.encodebytes)
    _give(base64, "decodestring", base64.decodebytes)
    _give(threading.Thread, "isAlive", threading.Thread.is_alive)
    for name in collections.abc.__all__:
        _give(collections, name, getattr(collections.abc, name))
    for name, value in NUMPY.items():
        # Not with hasattr: NumPy warns for some of them.
        if name not in np.__dict__:
            setattr(np, name, value)
    if not hasattr(np.lib, "pad"):
        np.lib.pad = np.pad  # type: ignore[attr-defined]
    if not hasattr(np.ndarray, "tostring"):
        _give_method(np.ndarray, "tostring", np.ndarray.tobytes)
    np.fromstring = _fromstring(np.fromstring)
    if "imp" not in sys.modules and sys.version_info >= (3, 12):
        sys.modules["imp"] = _imp()


def _give(module: Any, name: str, value: Any) -> None:
    if not hasattr(module, name):
        setattr(module, name, value)


def _give_method(cls: type, name: str, method: Any) -> None:
    """Set a method of a C class, which rejects `setattr`, in the dictionary behind its proxy."""
    (dictionary,) = gc.get_referents(cls.__dict__)
    dictionary[name] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))


def _fromstring(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `numpy.fromstring` that accepts bytes, for which NumPy 2.3 requires `frombuffer`."""

    @functools.wraps(original)
    def fromstring(string: Any, dtype: Any = float, count: int = -1, *, sep: str = "", like: Any = None) -> Any:
        if sep == "" and isinstance(string, bytes):
            return np.frombuffer(string, dtype, count).copy()
        return original(string, dtype, count, sep=sep)

    return fromstring


def _restore_in_yaml(yaml: types.ModuleType) -> None:
    """Let `yaml.load(text)` without a Loader use FullLoader, as in PyYAML 5.1 to 5.4; PyYAML 6 rejects it."""
    original = yaml.load
    if hasattr(original, "__wrapped__"):
        return  # done

    @functools.wraps(original)
    def load(stream: Any, Loader: Any = None) -> Any:
        return original(stream, yaml.FullLoader if Loader is None else Loader)

    yaml.load = load  # type: ignore[attr-defined]


def _restore_in_pandas(pd: types.ModuleType) -> None:
    """Restore methods that pandas 1.0 and 2.0 removed."""
    for cls in (pd.DataFrame, pd.Series):
        _give(cls, "append", functools.partialmethod(_append, pd))
        _give(cls, "as_matrix", _as_matrix)
        _give(cls, "iteritems", cls.items)


def _as_matrix(self: Any, columns: Any = None) -> np.ndarray:
    """Implement `as_matrix` of pandas 0.25 and before."""
    return (self if columns is None else self[columns]).values


def _append(
    self: Any, pd: Any, other: Any, ignore_index: bool = False, verify_integrity: bool = False, sort: bool = False
) -> Any:
    """Implement `append` of pandas 1.5 and before."""
    if isinstance(self, pd.DataFrame):
        if isinstance(other, dict):
            if not ignore_index:
                raise TypeError("Can only append a dict if ignore_index=True")
            other = pd.Series(other)
        if isinstance(other, pd.Series):
            if other.name is None and not ignore_index:
                raise TypeError("Can only append a Series if ignore_index=True or if the Series has a name")
            other = other.to_frame().T.infer_objects().rename_axis(self.index.names)
        elif isinstance(other, list) and other and not isinstance(other[0], pd.DataFrame):
            other = pd.DataFrame(other)
    others = other if isinstance(other, (list, tuple)) else [other]
    return pd.concat([self, *others], ignore_index=ignore_index, verify_integrity=verify_integrity, sort=sort)


# Package -> the function that restores its names when a program imports it.
OF_PACKAGES: dict[str, Callable[[types.ModuleType], None]] = {"pandas": _restore_in_pandas, "yaml": _restore_in_yaml}


def _getargspec(func: Callable[..., Any]) -> ArgSpec:
    """Implement `inspect.getargspec` of Python 3.10 and before."""
    full = inspect.getfullargspec(func)
    if full.kwonlyargs or full.annotations:
        raise ValueError(
            "Function has keyword-only parameters or annotations, use inspect.signature() API which can support them"
        )
    return ArgSpec(full.args, full.varargs, full.varkw, full.defaults)


def _imp() -> types.ModuleType:
    """Return a module with the commonly used part of `imp`, which Python 3.12 removed."""
    module = types.ModuleType("imp", "The commonly used part of the module that Python 3.12 removed.")

    def load_source(name: str, pathname: str, file: Any = None) -> types.ModuleType:
        spec = importlib.util.spec_from_file_location(name, pathname)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot load {pathname!r} as a module", name=name, path=pathname)
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[name] = loaded
        spec.loader.exec_module(loaded)
        return loaded

    module.load_source = load_source  # type: ignore[attr-defined]
    module.reload = importlib.reload  # type: ignore[attr-defined]
    module.new_module = types.ModuleType  # type: ignore[attr-defined]
    module.acquire_lock = module.release_lock = lambda: None  # type: ignore[attr-defined]
    return module

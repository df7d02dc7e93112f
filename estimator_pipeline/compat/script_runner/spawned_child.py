"""Calls `compat.install()` in a child process after its first import of TensorFlow.

Children that multiprocessing spawns import it first; `child_site` imports it in those that a program under `exec`
starts with subprocess. It imports nothing of this package before a child imports TensorFlow, which most never do.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

_TF1 = "ESTIMATOR_PIPELINE_TF1"


def _install(*, tf1: bool = False) -> None:
    # A child may be a process of this package that is calling `install` right now.
    loaded = sys.modules.get("estimator_pipeline.compat")
    if loaded is not None and loaded._lock.locked():
        return
    from estimator_pipeline import compat

    compat.install(tf1=tf1)


class _InstallAfter(importlib.abc.Loader):
    """Loads TensorFlow as usual, and then installs compat."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        _install()


class _WaitForTensorFlow(importlib.abc.MetaPathFinder):
    """Finds `tensorflow` once, with the spec of the other finders and the loader above."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _InstallAfter(spec.loader)
        return spec


def _install_before(name: str, *args: Any, **options: Any) -> Any:
    """Return replacement of `__import__` until TensorFlow is imported, which must then have TensorFlow 1's names."""
    if name.partition(".")[0] != "tensorflow":
        return _import(name, *args, **options)
    builtins.__import__ = _import
    _install(tf1=True)
    return builtins.__import__(name, *args, **options)


_import = builtins.__import__
if "tensorflow" not in sys.modules:
    if os.environ.get(_TF1) in ("1", "true", "True"):
        builtins.__import__ = _install_before
    else:
        sys.meta_path.insert(0, _WaitForTensorFlow())

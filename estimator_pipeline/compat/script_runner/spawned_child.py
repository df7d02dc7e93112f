"""Imported first by a spawned child of a program under compat: `install()` follows the first import of TensorFlow."""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

from estimator_pipeline.compat import tf1


class _InstallAfter(importlib.abc.Loader):
    """Loads TensorFlow as ever, and then installs compat."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        from estimator_pipeline import compat

        compat.install()


class _WaitForTensorFlow(importlib.abc.MetaPathFinder):
    """Answers for `tensorflow` once, with the spec that the other finders give and the loader above."""

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
    """The import statement until the first one for TensorFlow, which must give TensorFlow 1's names already."""
    if name.partition(".")[0] == "tensorflow":
        builtins.__import__ = _import
        from estimator_pipeline import compat

        compat.install(tf1=True)
        return builtins.__import__(name, *args, **options)
    return _import(name, *args, **options)


_import = builtins.__import__
if tf1.wanted():
    builtins.__import__ = _install_before
elif "tensorflow" not in sys.modules:
    sys.meta_path.insert(0, _WaitForTensorFlow())

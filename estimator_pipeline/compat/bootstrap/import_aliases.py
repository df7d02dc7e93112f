"""Aliases of old import paths to the modules of the estimator package, without second copies.

An `isinstance` check between `tf.estimator.Estimator` and `tensorflow.python.estimator.estimator.Estimator` must
hold, and a setting through one path must be visible through the other. So an alias is the module itself, placed in
`sys.modules` under the old name on first import.

The reimplemented modules that TensorFlow removed are found in the same way.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence

from estimator_pipeline.compat.bootstrap import tpu_stubs as absent

# Old package -> new package. Submodules follow their package.
PACKAGES = {
    "tensorflow.estimator": "tensorflow_estimator.python.estimator.api._v2.estimator",
    "tensorflow.compat.v1.estimator": "tensorflow_estimator.python.estimator.api._v1.estimator",
    "tensorflow.compat.v2.estimator": "tensorflow_estimator.python.estimator.api._v2.estimator",
    "tensorflow._api.v2.compat.v1.estimator": "tensorflow_estimator.python.estimator.api._v1.estimator",
    "tensorflow._api.v2.compat.v2.estimator": "tensorflow_estimator.python.estimator.api._v2.estimator",
    "tensorflow.python.estimator": "tensorflow_estimator.python.estimator",
}

# Single modules whose name changed as well.
MODULES = {
    "tensorflow.python.estimator.keras": "tensorflow_estimator.python.estimator.keras_lib",
    "tensorflow.python.distribute.estimator_training": "estimator_pipeline.compat.internals.distribute_coordinator",
    # Up to 2.15, these re-export modules of the estimator package.
    **{
        f"tensorflow.python.tpu.{name}": f"tensorflow_estimator.python.estimator.tpu.{name}"
        for name in ("error_handling", "tpu_config", "tpu_context", "tpu_estimator", "util")
    },
}


def target_of(name: str) -> str | None:
    """Return the new name of a module, or None if it has no alias."""
    if name in MODULES:
        return MODULES[name]
    for package, home in PACKAGES.items():
        if name == package:
            return home
        if name.startswith(package + "."):
            return home + name[len(package) :]
    return None


class AliasLoader(importlib.abc.Loader):
    """Loads the module `target` under a different name."""

    def __init__(self, target: str) -> None:
        self.target = target

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(self.target)
        # The import system overwrites the module's spec with that of the alias; `exec_module` restores it.
        self.original_spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.original_spec


class _AbsentLoader(importlib.abc.Loader):
    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return absent.AbsentModule(self.name, absent.MODULES[self.name])

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class AliasFinder(importlib.abc.MetaPathFinder):
    """Finder of the old names only; it is the first entry of `sys.meta_path`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("tensorflow."):
            return None
        if fullname in absent.MODULES:
            return importlib.machinery.ModuleSpec(fullname, _AbsentLoader(fullname))
        home = target_of(fullname)
        spec = None if home is None else spec_of(home)
        if home is None or spec is None:
            return None
        return importlib.machinery.ModuleSpec(
            fullname, AliasLoader(home), is_package=spec.submodule_search_locations is not None
        )


def spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module, or None if the module or its package does not exist."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


def install() -> bool:
    """Install the finder; return False if it is already installed."""
    if any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        return False
    sys.meta_path.insert(0, AliasFinder())
    return True


def bind_attributes() -> list[str]:
    """Set `estimator` on `tf`, `tf.compat.v1` and `tf.compat.v2`, and return the names of these modules.

    TensorFlow has several module objects for `compat.v1`, one per import path; a program may use any of them.
    """
    v1 = importlib.import_module(PACKAGES["tensorflow.compat.v1.estimator"])
    v2 = importlib.import_module(PACKAGES["tensorflow.estimator"])
    bound = []
    for name, module in list(sys.modules.items()):
        if name == "tensorflow" or (name.startswith("tensorflow.") and name.endswith(".compat.v2")):
            api = v2
        elif name.startswith("tensorflow.") and name.endswith(".compat.v1"):
            api = v1
        else:
            continue
        module.estimator = api  # type: ignore[attr-defined]
        bound.append(name)
    for old in PACKAGES:
        importlib.import_module(old)
    for old, home in MODULES.items():
        # `from package import module` looks up the attribute on the new package, not on the alias.
        package, _, name = old.rpartition(".")
        setattr(importlib.import_module(package), name, importlib.import_module(home))
    return sorted(bound)

"""Makes the old import paths answer with the estimator package's own modules: one object, never a second copy.

An `isinstance` check between `tf.estimator.Estimator` and `tensorflow.python.estimator.estimator.Estimator` must
hold, and a setting made through one path must be seen through the other. So an alias is the module itself, placed
in `sys.modules` under the old name when a program first asks for it.

The removed modules of TensorFlow that we wrote anew are reached in the same way.
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

# Old package -> where its modules live now. A submodule follows its package.
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
    # Shells, up to 2.15, around those of the estimator package.
    **{
        f"tensorflow.python.tpu.{name}": f"tensorflow_estimator.python.estimator.tpu.{name}"
        for name in ("error_handling", "tpu_config", "tpu_context", "tpu_estimator", "util")
    },
}


def target_of(name: str) -> str | None:
    """The module that answers to the old name, or None when the name is none of ours."""
    if name in MODULES:
        return MODULES[name]
    for package, home in PACKAGES.items():
        if name == package:
            return home
        if name.startswith(package + "."):
            return home + name[len(package) :]
    return None


class AliasLoader(importlib.abc.Loader):
    """Gives the module `target` itself, under another name."""

    def __init__(self, target: str) -> None:
        self.target = target

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(self.target)
        # The import system writes the alias's spec over the module's own; it is put back afterwards.
        self.own_spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.own_spec


class _AbsentLoader(importlib.abc.Loader):
    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return absent.AbsentModule(self.name, absent.MODULES[self.name])

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class AliasFinder(importlib.abc.MetaPathFinder):
    """Finds the old names. It stands first on `sys.meta_path` and answers for nothing but them."""

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
    """The spec of a module, None where there is no such module or no package that it would be in."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


def install() -> bool:
    """Puts the finder in place. Returns False when it is there already."""
    if any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        return False
    sys.meta_path.insert(0, AliasFinder())
    return True


def bind_attributes() -> list[str]:
    """Sets `estimator` on `tf`, `tf.compat.v1` and `tf.compat.v2`; returns the names that were set.

    TensorFlow keeps several module objects for `compat.v1` (one by each path by which it can be imported); a
    program may hold any of them.
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
        # `from package import module` looks the attribute up on the package's home, not on its old name.
        package, _, name = old.rpartition(".")
        setattr(importlib.import_module(package), name, importlib.import_module(home))
    return sorted(bound)

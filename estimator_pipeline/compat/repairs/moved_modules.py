"""Modules that packages import by a private path which TensorFlow or Keras has left since.

`tensorflow.python.training.tracking.*` became `tensorflow.python.trackable.*` and `tensorflow.python.checkpoint.*` in
TensorFlow 2.10 (adanet imports it). `tf_keras.legacy_tf_layers` lies in `tf_keras.src` now, and TensorFlow's own
`tensorflow.python.layers.normalization`, through which tf-slim gets its batch normalization, asks for the old name on
2.15 and later alike. An old name is the module of today itself: one object, no copy.

Private use: the names below. No supported TensorFlow or tf_keras has the old ones.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

from estimator_pipeline.compat import aliases

NAME = "moved-modules"
WHAT = "tensorflow.python.training.tracking.* and tf_keras.legacy_tf_layers.* can be imported by their old paths"

_TRACKING = "tensorflow.python.training.tracking"
_LAYERS = "tf_keras.legacy_tf_layers"
_MOVED = {
    f"{_TRACKING}.base": "tensorflow.python.trackable.base",
    f"{_TRACKING}.data_structures": "tensorflow.python.trackable.data_structures",
    f"{_TRACKING}.graph_view": "tensorflow.python.checkpoint.graph_view",
    f"{_TRACKING}.layer_utils": "tensorflow.python.trackable.layer_utils",
    f"{_TRACKING}.python_state": "tensorflow.python.trackable.python_state",
    f"{_TRACKING}.resource": "tensorflow.python.trackable.resource",
    f"{_TRACKING}.tracking": "tensorflow.python.trackable.autotrackable",
    f"{_TRACKING}.util": "tensorflow.python.checkpoint.checkpoint",
}


def apply() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # First: a package's `__path__` would lead the ordinary finder to a second copy of what lies below it.
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == _TRACKING:
            return importlib.machinery.ModuleSpec(fullname, _Nothing(), is_package=True)
        home = _MOVED.get(fullname)
        if home is None and (fullname == _LAYERS or fullname.startswith(_LAYERS + ".")):
            home = _layers_home() + fullname[len(_LAYERS) :]
        spec = None if home is None else aliases.spec_of(home)
        if home is None or spec is None:
            return None
        package = spec.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, aliases.AliasLoader(home), is_package=package)


class _Nothing(importlib.abc.Loader):
    """An empty package, for the names below it."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _layers_home() -> str:
    """The layers must be of the Keras that `tf.keras` is: on 2.15 that need not be tf_keras."""
    keras = sys.modules["tensorflow"].keras.layers.Layer.__module__.split(".")[0]
    return f"{keras}.src.legacy_tf_layers"

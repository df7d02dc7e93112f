"""The module that a program written for TensorFlow 1 imports as `tensorflow`.

It has the names of `tf.compat.v1`, and other names of TensorFlow 2 (`tf.function`). `tf.contrib` is
`estimator_pipeline.compat.tf1.contrib`. `tf.compat.v1` is the same module, since programs use it for TensorFlow 1's
names; `tf.compat.v2` is the unchanged TensorFlow 2.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType
from typing import Any

from estimator_pipeline.compat.tf1 import contrib

__all__ = ["FallbackModule", "build"]


# The value of `tf.__version__`, by which programs distinguish TensorFlow 1 and 2.
VERSION = "1.15.5"


class FallbackModule(ModuleType):
    """A module whose names are looked up in other modules, in order, on first use."""

    def __init__(self, name: str, *sources: ModuleType, **attributes: Any) -> None:
        super().__init__(name, sources[0].__doc__)
        self.__dict__.update(attributes)
        self.__dict__["_sources"] = sources
        # Its submodules are TensorFlow's: it is a package, for `import tensorflow.python.x`.
        for attribute in ("__file__", "__path__", "__spec__"):
            if hasattr(sources[-1], attribute):
                self.__dict__[attribute] = getattr(sources[-1], attribute)

    def __getattr__(self, name: str) -> Any:
        for source in self._sources:
            with contextlib.suppress(AttributeError):
                return getattr(source, name)
        # TensorFlow 1 had its private packages as attributes, which version 2 removes.
        module = sys.modules.get(f"{self.__name__}.{name}")
        if module is not None:
            return module
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)

    def __dir__(self) -> list[str]:
        names = {name for name in self.__dict__ if not name.startswith("_")}
        return sorted(names.union(*(dir(source) for source in self._sources)))

    @property
    def __all__(self) -> list[str]:
        """For `from tensorflow import *`."""
        return [name for name in dir(self) if not name.startswith("_")]


def build(tf: ModuleType) -> ModuleType:
    """Return the module for programs, based on TensorFlow 2 with `tf.estimator`."""
    v1, v2 = tf.compat.v1, tf.compat.v2
    # TensorFlow 1.13 and before had it as an attribute: `tf.pywrap_tensorflow.NewCheckpointReader`.
    pywrap = importlib.import_module("tensorflow.python.pywrap_tensorflow")
    roots = {name.partition(".")[2]: contrib.module(name) for name in (contrib.ROOT, contrib.EXAMPLES)}
    # The same class as in contrib: TPUClusterResolver("") is a machine without a TPU.
    resolvers = FallbackModule(
        "tensorflow.distribute.cluster_resolver",
        contrib.module(f"{contrib.ROOT}.cluster_resolver"),
        v1.distribute.cluster_resolver,
    )
    distribute = FallbackModule("tensorflow.distribute", v1.distribute, tf.distribute, cluster_resolver=resolvers)
    module = FallbackModule(
        "tensorflow", v1, tf, pywrap_tensorflow=pywrap, VERSION=VERSION, distribute=distribute, **roots
    )
    module.__dict__["__version__"] = VERSION
    module.__dict__["compat"] = FallbackModule("tensorflow.compat", tf.compat, v1.compat, v1=module, v2=v2)
    return module

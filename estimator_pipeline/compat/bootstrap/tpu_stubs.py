"""Stubs of removed TensorFlow modules for TPUs, which raise an error on use, not at import.

TensorFlow 2.16 removed the first TPU embedding API (`tpu_embedding`, `tpu_embedding_gradient`) and the TPU session
watchdog (`session_support`). The estimator package imports them for `TPUEstimator` only. Programs for CPU and GPU do
not use them. So the import must succeed; a program that uses them gets a clear error. The public names of the embedding
optimizers, which TensorFlow removed from `tf.compat.v1.tpu.experimental`, have stubs too.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from estimator_pipeline.errors import CompatError

MODULES = {
    "tensorflow.python.tpu.tpu_embedding": "the TPU embedding API of TPUEstimator",
    "tensorflow.python.tpu.tpu_embedding_gradient": "the TPU embedding API of TPUEstimator",
    "tensorflow.python.tpu.session_support": "the TPU session watchdog of TPUEstimator",
}
# Removed from `tf.compat.v1.tpu.experimental`; an EmbeddingConfigSpec needs one of them.
PUBLIC = ("AdagradParameters", "AdamParameters", "FtrlParameters", "StochasticGradientDescentParameters")


def _error(name: str, purpose: str) -> CompatError:
    return CompatError(
        f"{name} was used, and TensorFlow no longer has it ({purpose})",
        code="tensorflow/removed-name",
        found="TensorFlow 2.16 or later, where it was removed together with the code below it",
        hint="run this program on TensorFlow 2.15, or on CPU or GPU with tf.estimator.Estimator",
    )


class _AbsentType(type):
    """Metaclass of the stub classes: attributes and calls of the class raise an error."""

    _purpose: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise _error(f"{cls.__module__}.{cls.__qualname__}", cls._purpose)

    def __getattr__(cls, name: str) -> Any:
        # Python looks up dunder names itself (copying, pickling, typing), without using the class.
        if name.startswith("__"):
            raise AttributeError(name)
        raise _error(f"{cls.__module__}.{cls.__qualname__}.{name}", cls._purpose)


class AbsentModule(types.ModuleType):
    """A module in which every public name is a stub class, which supports only `isinstance`."""

    def __init__(self, name: str, purpose: str) -> None:
        super().__init__(name, f"Stub of {name}, which TensorFlow removed: {purpose}.")
        self.__dict__["_absent_purpose"] = purpose

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        stub = _AbsentType(name, (), {"__module__": self.__name__, "_purpose": self._absent_purpose})
        setattr(self, name, stub)
        return stub


def bind_public_names() -> bool:
    """Set the stubs of `PUBLIC` where TensorFlow had the classes; return False if none was missing."""
    home = importlib.import_module("tensorflow.python.tpu.tpu_embedding")
    bound = False
    for path, module in list(sys.modules.items()):
        if path.startswith("tensorflow.") and path.endswith("compat.v1.tpu.experimental"):
            for name in PUBLIC:
                if not hasattr(module, name):
                    setattr(module, name, getattr(home, name))
                    bound = True
    return bound

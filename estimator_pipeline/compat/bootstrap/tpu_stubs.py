"""Stand-ins for TensorFlow modules that are gone and that nobody can have back: they complain on use, not at import.

TensorFlow 2.16 removed the first TPU embedding API (`tpu_embedding`, `tpu_embedding_gradient`) and the TPU session
watchdog (`session_support`). The estimator package imports them at its top, for `TPUEstimator` alone. Programs for
CPU and GPU never touch them, so the import must succeed; a program that does use them gets one clear error. The same
goes for the public names of the embeddings' optimizers, which TensorFlow removed from `tf.compat.v1.tpu.experimental`.
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
# What `tf.compat.v1.tpu.experimental` had of the first of them: an EmbeddingConfigSpec cannot be made without one.
PUBLIC = ("AdagradParameters", "AdamParameters", "FtrlParameters", "StochasticGradientDescentParameters")


def _error(name: str, purpose: str) -> CompatError:
    return CompatError(
        f"{name} was used, and TensorFlow no longer has it ({purpose})",
        code="tensorflow/removed-name",
        found="TensorFlow 2.16 or later, where it was removed together with the code below it",
        hint="run this program on TensorFlow 2.15, or on CPU or GPU with tf.estimator.Estimator",
    )


class _AbsentType(type):
    """Metaclass of the stand-in classes: attributes and calls of the class itself raise."""

    _purpose: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise _error(f"{cls.__module__}.{cls.__qualname__}", cls._purpose)

    def __getattr__(cls, name: str) -> Any:
        # Dunder look-ups are Python's own questions (copying, pickling, typing), not a use of the class.
        if name.startswith("__"):
            raise AttributeError(name)
        raise _error(f"{cls.__module__}.{cls.__qualname__}.{name}", cls._purpose)


class AbsentModule(types.ModuleType):
    """A module in which every public name is a class: fit for `isinstance`, for nothing else."""

    def __init__(self, name: str, purpose: str) -> None:
        super().__init__(name, f"Stand-in for {name}, which TensorFlow removed: {purpose}.")
        self.__dict__["_absent_purpose"] = purpose

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        stand_in = _AbsentType(name, (), {"__module__": self.__name__, "_purpose": self._absent_purpose})
        setattr(self, name, stand_in)
        return stand_in


def bind_public_names() -> bool:
    """Puts the stand-ins of :data:`PUBLIC` where TensorFlow had the classes; False where nothing was missing."""
    home = importlib.import_module("tensorflow.python.tpu.tpu_embedding")
    bound = False
    for path, module in list(sys.modules.items()):
        if path.startswith("tensorflow.") and path.endswith("compat.v1.tpu.experimental"):
            for name in PUBLIC:
                if not hasattr(module, name):
                    setattr(module, name, getattr(home, name))
                    bound = True
    return bound

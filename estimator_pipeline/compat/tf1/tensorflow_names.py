"""Changes of TensorFlow and Keras that affect TensorFlow 1 programs and that `compat.v1` does not cover.

Private use: `RegisterShape` and `register_dense_tensor_like_type` of `tensorflow.python.framework.ops`, and `defun` of
`tensorflow.python.eager.function`, which were removed; the property `input_spec` of Keras 2's Functional.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["restore"]


def restore(tf: ModuleType) -> None:
    """Restore the names in this process."""
    ops = importlib.import_module("tensorflow.python.framework.ops")
    # Both registered information that TensorFlow determines automatically now.
    _give(ops, "RegisterShape", lambda op_type: lambda function: function)
    _give(ops, "register_dense_tensor_like_type", lambda tensor_type: None)
    _give(importlib.import_module("tensorflow.python.eager.function"), "defun", _defun(tf))
    _take_any_shape(tf)


def _give(module: ModuleType, name: str, value: Any) -> None:
    # Not with hasattr: the table of moved names raises an error for removed names.
    module.__dict__.setdefault(name, value)


def _defun(tf: ModuleType) -> Callable[..., Any]:
    def defun(func: Any = None, input_signature: Any = None, autograph: bool = True, **options: Any) -> Any:
        return tf.function(func, input_signature=input_signature, autograph=autograph)

    return defun


def _take_any_shape(tf: ModuleType) -> None:
    """Disable the check of a Sequential's inputs against its input_shape, which TensorFlow 1 did not have.

    The official MNIST model calls a model for 784 pixels with [28, 28], which its first layer reshapes.
    """
    package = tf.keras.layers.Layer.__module__.partition(".")[0]
    functional = importlib.import_module(f"{package}.src.engine.functional")
    functional.Functional.input_spec = property(lambda self: None)

"""What TensorFlow and Keras have dropped or added within what programs of TensorFlow 1 lean on, and compat.v1 has not.

Private use: `RegisterShape` and `register_dense_tensor_like_type` of `tensorflow.python.framework.ops`, and `defun` of
`tensorflow.python.eager.function`, which are gone; the property `input_spec` of Keras 2's Functional.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["restore"]


def restore(tf: ModuleType) -> None:
    """Puts them in place, in this process."""
    ops = importlib.import_module("tensorflow.python.framework.ops")
    # Both told TensorFlow of something that it finds out by itself today.
    _give(ops, "RegisterShape", lambda op_type: lambda function: function)
    _give(ops, "register_dense_tensor_like_type", lambda tensor_type: None)
    _give(importlib.import_module("tensorflow.python.eager.function"), "defun", _defun(tf))
    _take_any_shape(tf)


def _give(module: ModuleType, name: str, value: Any) -> None:
    # Not by hasattr: what is gone is known to be, and says so.
    module.__dict__.setdefault(name, value)


def _defun(tf: ModuleType) -> Callable[..., Any]:
    def defun(func: Any = None, input_signature: Any = None, autograph: bool = True, **options: Any) -> Any:
        return tf.function(func, input_signature=input_signature, autograph=autograph)

    return defun


def _take_any_shape(tf: ModuleType) -> None:
    """A Sequential of TensorFlow 1 did not compare what it is called with with its first layer's input_shape.

    The official MNIST calls one of 784 pixels with [28, 28], which its first layer reshapes.
    """
    package = tf.keras.layers.Layer.__module__.partition(".")[0]
    functional = importlib.import_module(f"{package}.src.engine.functional")
    functional.Functional.input_spec = property(lambda self: None)

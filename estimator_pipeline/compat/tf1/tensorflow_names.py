"""Changes of TensorFlow and Keras that affect TensorFlow 1 programs and that `compat.v1` does not cover.

Private use: `RegisterShape` and `register_dense_tensor_like_type` of `tensorflow.python.framework.ops`, and `defun` of
`tensorflow.python.eager.function`, which were removed; the property `input_spec` of Keras 2's Functional; the classes
of resource variables and of the variables of strategies.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["restore"]


def restore(tf: ModuleType) -> None:
    """Restore the names in this process."""
    ops = importlib.import_module("tensorflow.python.framework.ops")
    # Both registered information that TensorFlow determines automatically now.
    _give(ops, "RegisterShape", lambda op_type: lambda function: function)
    _give(ops, "register_dense_tensor_like_type", lambda tensor_type: None)
    _give(importlib.import_module("tensorflow.python.eager.function"), "defun", _defun(tf))
    _take_any_shape(tf)
    _take_whole_floats(tf)
    _restore_variables(tf)


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


def _take_whole_floats(tf: ModuleType) -> None:
    """Accept floats that are whole numbers as dimensions, as TensorFlow 1 did: `LSTMCell(64 / 2)`.

    https://github.com/tensorflow/tensorflow/blob/v1.15.5/tensorflow/python/framework/tensor_shape.py#L193
    """
    dimension = tf.compat.v1.Dimension
    original = dimension.__init__

    @functools.wraps(original)
    def __init__(self: Any, value: Any) -> None:
        if isinstance(value, (float, np.floating)):
            if int(value) != value:
                raise ValueError(f"Ambiguous dimension: {value}")
            value = int(value)
        original(self, value)

    dimension.__init__ = __init__


# Methods that variables of a strategy passed on to the variable of the replica in TensorFlow 1.
_READS = ("gather_nd", "initialized_value", "sparse_read")
_UPDATES = ("batch_scatter_update", "scatter_nd_add", "scatter_nd_sub", "scatter_nd_update")
_OF_EACH_REPLICA = (*_UPDATES, "scatter_add", "scatter_div", "scatter_max", "scatter_min", "scatter_mul", "scatter_sub",
                    "scatter_update")  # fmt: skip


def _restore_variables(tf: ModuleType) -> None:
    """Restore what resource variables were and had in TensorFlow 1, also those of strategies.

    They were a `tf.Variable`, with `initialized_value()`. TensorFlow 2 has both for reference variables only.
    """
    resources = importlib.import_module("tensorflow.python.ops.resource_variable_ops")
    values = importlib.import_module("tensorflow.python.distribute.values")
    v1 = tf.compat.v1.Variable
    v1.register(resources.BaseResourceVariable)
    tf.Variable.initialized_value = v1.initialized_value
    distributed = values.DistributedVariable
    for name in _READS:
        setattr(distributed, name, _of_this_replica(name))
    for name in _UPDATES:
        setattr(distributed, name, _update(tf, name))
    for name in _OF_EACH_REPLICA:
        setattr(values.SyncOnReadVariable, name, _of_this_replica(name))
    distributed.set_shape = _set_shape
    distributed.load = _load


def _of_this_replica(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return getattr(self._get_on_device_or_primary(), name)(*args, **options)

    method.__name__ = name
    return method


def _update(tf: ModuleType, name: str) -> Callable[..., Any]:
    """Return the method of an update: of the replica's variable, or outside of replicas of each."""
    of_replica = _of_this_replica(name)

    def method(self: Any, *args: Any, **options: Any) -> Any:
        if tf.distribute.in_cross_replica_context():
            return self.distribute_strategy.extended.update(
                self, lambda variable: getattr(variable, name)(*args, **options)
            )
        return of_replica(self, *args, **options)

    method.__name__ = name
    return method


def _set_shape(self: Any, shape: Any) -> None:
    for variable in self.values:
        variable.set_shape(shape)


def _load(self: Any, value: Any, session: Any = None) -> None:
    """Load the value into the variable of each replica."""
    for variable in self.values:
        variable.load(value, session)

"""Keras 2 in a function graph as in a graph of TensorFlow 1: layers, models and optimizers that make operations of it.

In a graph of `tf.compat.v1.wrap_function` tf_keras makes layers of TensorFlow 1 (it goes by the graph's name,
tf_keras/src/utils/version_utils.py), and inputs of TensorFlow 2 (it goes by
`tf.compat.v1.executing_eagerly_outside_functions`, tf_keras/src/engine/input_layer.py). A Sequential or functional
model of the two takes the values that its variables have at the time for constants, or calls itself without end. So
both are told that this is a graph. tf_keras asks by `tensorflow.compat.v2.compat.v1`, keras of TensorFlow 2.15 as well.

Tensors and variables are keys of dicts and equal to themselves alone, as in a graph of TensorFlow 1: in a function
graph `tf.Tensor._USE_EQUALITY` makes `==` an operation.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["as_in_graphs"]

_LOCK = threading.RLock()


@contextlib.contextmanager
def as_in_graphs() -> Iterator[None]:
    """A block in which Keras takes the default graph for one of TensorFlow 1."""
    tf: Any = importlib.import_module("tensorflow")
    asked = importlib.import_module("tensorflow.compat.v2").compat.v1
    name = "executing_eagerly_outside_functions"
    with _LOCK:
        real = getattr(asked, name)

        def outside_functions() -> bool:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            # An optimizer would ask the variables, which live outside of the graph, for their operations, and a layer
            # of TensorFlow 1 the graph for those that were there before a regularized one.
            own = any(part in caller for part in (".optimizers.", ".legacy_tf_layers."))
            return bool(real()) if own else False

        setattr(asked, name, outside_functions)
        equality, tf.Tensor._USE_EQUALITY = tf.Tensor._USE_EQUALITY, False
        try:
            yield
        finally:
            setattr(asked, name, real)
            tf.Tensor._USE_EQUALITY = equality

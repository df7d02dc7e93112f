"""Keras 2 in a function graph like in a TensorFlow 1 graph: layers, models and optimizers add operations to it.

In a graph of `tf.compat.v1.wrap_function` tf_keras creates TensorFlow 1 layers (by the graph's name,
tf_keras/src/utils/version_utils.py), but TensorFlow 2 inputs (by
`tf.compat.v1.executing_eagerly_outside_functions`, tf_keras/src/engine/input_layer.py). A Sequential or functional
model with both treats the current values of its variables as constants, or recurses infinitely. So that function
returns False here. tf_keras calls it in `tensorflow.compat.v2.compat.v1`, and so does keras of TensorFlow 2.15.

Tensors and variables are hashable and compared by identity, as in a TensorFlow 1 graph: in a function graph
`tf.Tensor._USE_EQUALITY` makes `==` an operation.
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
    """Let Keras treat the default graph as a TensorFlow 1 graph in the block."""
    tf: Any = importlib.import_module("tensorflow")
    asked = importlib.import_module("tensorflow.compat.v2").compat.v1
    name = "executing_eagerly_outside_functions"
    with _LOCK:
        real = getattr(asked, name)

        def outside_functions() -> bool:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            # Otherwise optimizers would use the operations of variables, which are outside of the graph, and
            # TensorFlow 1 layers would use the graph's operations before a regularized variable.
            is_exempt = any(part in caller for part in (".optimizers.", ".legacy_tf_layers."))
            return bool(real()) if is_exempt else False

        setattr(asked, name, outside_functions)
        equality, tf.Tensor._USE_EQUALITY = tf.Tensor._USE_EQUALITY, False
        try:
            yield
        finally:
            setattr(asked, name, real)
            tf.Tensor._USE_EQUALITY = equality

"""`layer.apply(x)` calls a Keras layer, as in TensorFlow 1.

TensorFlow 1 programs use `tf.keras.layers.Conv2D(8, 3).apply(x)`, which Keras has removed: `AttributeError: 'Conv2D'
object has no attribute 'apply'`. The layers of `tf.compat.v1.layers` still have the method.

Private use: none; `Layer` is a public class.
"""

from __future__ import annotations

from typing import Any

NAME = "layer-apply"
WHAT = "Keras layers have apply(), which calls them, as in TensorFlow 1"


def apply() -> None:
    import tensorflow as tf

    layer = tf.keras.layers.Layer
    if not hasattr(layer, "apply"):
        layer.apply = _apply


def _apply(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the layer."""
    return self(inputs, *args, **kwargs)

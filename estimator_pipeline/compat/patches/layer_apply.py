"""`layer.apply(x)` calls a Keras layer, as it did until TensorFlow 2.

Programs of TensorFlow 1 have `tf.keras.layers.Conv2D(8, 3).apply(x)`, which Keras has dropped: `AttributeError:
'Conv2D' object has no attribute 'apply'`. The layers of `tf.compat.v1.layers` have the method still.

Private use: none; `Layer` is a public class of either Keras 2.
"""

from __future__ import annotations

from typing import Any

NAME = "layer-apply"
WHAT = "layers of Keras have apply(), which calls them, as they had in TensorFlow 1"


def apply() -> None:
    import tensorflow as tf

    layer = tf.keras.layers.Layer
    if not hasattr(layer, "apply"):
        layer.apply = _apply


def _apply(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the layer."""
    return self(inputs, *args, **kwargs)

"""Names of TensorFlow 1's Keras that are the same class or function in `tf.keras`."""

from __future__ import annotations

import re

__all__ = ["of_keras"]

# TensorFlow 1's Keras and TensorFlow's private copy; all but the exceptions below are the same objects as in tf.keras.
_OLD_KERAS = re.compile(
    r"tf\.(?:compat\.v1|python)\.keras\.(?P<module>activations|backend|constraints|datasets|layers|losses|metrics|"
    r"models|regularizers|utils)\.(?P<name>\w.*)"
)
_OTHERS_OF_V1 = {
    "activations": ("gelu",), "backend": ("name_scope",), "losses": ("Reduction", "huber"),
    "layers": ("DenseFeatures", "GRU", "GRUCell", "LSTM", "LSTMCell", "StringLookup", "IntegerLookup",
               "TextVectorization", "HashedCrossing", "experimental"),
}  # fmt: skip


def of_keras(full: str) -> str:
    """Return the tf.keras name of an object that TensorFlow 1's Keras shares, else ""."""
    match = _OLD_KERAS.match(full)
    if match is None or match["name"] in _OTHERS_OF_V1.get(match["module"], ()):
        return ""
    return f"tf.keras.{match['module']}.{match['name']}"

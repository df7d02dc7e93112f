"""Keras as TensorFlow 1 had it: what of it is the very class or function that `tf.keras` has."""

from __future__ import annotations

import re

__all__ = ["of_keras"]

# TensorFlow 1's Keras, and TensorFlow's private copy: all of these but a few is tf.keras's own.
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
    """Return the name below tf.keras of what it has as TensorFlow 1's Keras had it; "" for all other names."""
    found = _OLD_KERAS.match(full)
    if found is None or found["name"] in _OTHERS_OF_V1.get(found["module"], ()):
        return ""
    return f"tf.keras.{found['module']}.{found['name']}"

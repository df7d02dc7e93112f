"""A fully connected network with dropout, for images (flattened) or vectors.

Features: float32 [B, ...], flattened. Logits: [B, classes].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat

LOSS = "sparse_categorical_crossentropy"
METRICS = ("accuracy",)
DEFAULTS: dict[str, Any] = {
    "input_shape": (8, 8, 1),  # in a job: from the data
    "hidden_units": (128, 64),
    "activation": "relu",
    "classes": 10,  # in a job: from the data, if known
    "dropout": 0.0,
    "l2": 0.0,
}


def keras_model(params: Mapping[str, Any]) -> Any:
    """Build the layers. See `DEFAULTS` for the parameters."""
    keras = compat.install().keras
    layers = keras.layers
    stack = [keras.Input(shape=tuple(params["input_shape"])), layers.Flatten()]
    for units in params["hidden_units"]:
        regularizer = keras.regularizers.l2(params["l2"]) if params["l2"] else None
        stack.append(layers.Dense(units, activation=params["activation"], kernel_regularizer=regularizer))
        if params["dropout"]:
            stack.append(layers.Dropout(params["dropout"]))
    stack.append(layers.Dense(params["classes"]))
    return keras.Sequential(stack)

"""The convolutional network of the multi-worker tutorials: one convolution, one hidden layer.

Features: images float32 [B, height, width, channels], values in [0, 1]. Logits: [B, classes].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat

LOSS = "sparse_categorical_crossentropy"
METRICS = ("accuracy",)
DEFAULTS: dict[str, Any] = {
    "input_shape": (8, 8, 1),  # in a job: from the data
    "filters": 32,
    "kernel_size": 3,
    "hidden_units": 64,
    "activation": "relu",
    "classes": 10,  # in a job: from the data, if known
    "dropout": 0.0,
    "l2": 0.0,
}


def keras_model(params: Mapping[str, Any]) -> Any:
    """Build the layers. See `DEFAULTS` for the parameters."""
    keras = compat.install().keras
    layers = keras.layers

    activation = params["activation"]

    def l2() -> Any:
        return keras.regularizers.l2(params["l2"]) if params["l2"] else None

    stack = [
        keras.Input(shape=tuple(params["input_shape"])),
        layers.Conv2D(params["filters"], params["kernel_size"], activation=activation, kernel_regularizer=l2()),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(params["hidden_units"], activation=activation, kernel_regularizer=l2()),
    ]
    if params["dropout"]:
        stack.append(layers.Dropout(params["dropout"]))
    stack.append(layers.Dense(params["classes"]))
    return keras.Sequential(stack)

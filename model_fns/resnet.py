"""A small residual network with BatchNorm (He et al., "Deep Residual Learning for Image Recognition", 2015).

Features: images float32 [B, height, width, channels]. Logits: [B, classes]. Each stage halves the image's sides and has
`blocks` residual blocks of two 3x3 convolutions; where the shape changes, the shortcut is a 1x1 convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat

LOSS = "sparse_categorical_crossentropy"
METRICS = ("accuracy",)
DEFAULTS: dict[str, Any] = {
    "input_shape": (8, 8, 1),  # in a job: from the data
    "filters": (16, 32),  # one number per stage
    "blocks": 1,
    "activation": "relu",
    "classes": 10,  # in a job: from the data, if known
    "momentum": 0.9,  # of the moving statistics
    "l2": 0.0,
}


def keras_model(params: Mapping[str, Any]) -> Any:
    """Build the layers. See `DEFAULTS` for the parameters."""
    keras = compat.install().keras
    layers = keras.layers

    def convolution(x: Any, filters: int, size: int, stride: int) -> Any:
        regularizer = keras.regularizers.l2(params["l2"]) if params["l2"] else None
        x = layers.Conv2D(
            filters, size, strides=stride, padding="same", use_bias=False, kernel_regularizer=regularizer
        )(x)
        return layers.BatchNormalization(momentum=params["momentum"])(x)

    def activation() -> Any:
        return layers.Activation(params["activation"])

    def block(x: Any, filters: int, stride: int) -> Any:
        shortcut = x
        if stride != 1 or x.shape[-1] != filters:
            shortcut = convolution(x, filters, 1, stride)
        y = activation()(convolution(x, filters, 3, stride))
        y = convolution(y, filters, 3, 1)
        return activation()(layers.Add()([y, shortcut]))

    inputs = keras.Input(shape=tuple(params["input_shape"]))
    x = activation()(convolution(inputs, params["filters"][0], 3, 1))
    for stage, filters in enumerate(params["filters"]):
        for number in range(params["blocks"]):
            x = block(x, filters, 2 if stage and not number else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(params["classes"])(x))

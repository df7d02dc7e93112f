"""Softmax regression (`classes` > 1), or linear regression with a different loss: one layer, no hidden units.

Features: float32 [B, ...], flattened. Logits: [B, classes].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat

LOSS = "sparse_categorical_crossentropy"
METRICS = ("accuracy",)
# In a job the shape and, if known, the number of classes come from the data.
DEFAULTS: dict[str, Any] = {"input_shape": (8, 8, 1), "classes": 10, "l2": 0.0}


def keras_model(params: Mapping[str, Any]) -> Any:
    """Build the layers. See `DEFAULTS` for the parameters."""
    keras = compat.install().keras
    regularizer = keras.regularizers.l2(params["l2"]) if params["l2"] else None
    return keras.Sequential(
        [
            keras.Input(shape=tuple(params["input_shape"])),
            keras.layers.Flatten(),
            keras.layers.Dense(params["classes"], kernel_regularizer=regularizer),
        ]
    )

"""Softmax regression (`classes` > 1), or linear regression with a different loss: one layer, no hidden units.

Features: float32 [B, ...], flattened; or a dictionary of columns, as of `wide_deep`. Logits: [B, classes].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from model_fns import table

LOSS = "sparse_categorical_crossentropy"
METRICS = ("accuracy",)
# In a job the shape and, if known, the number of classes come from the data.
DEFAULTS: dict[str, Any] = {"input_shape": (8, 8, 1), "classes": 10, "l2": 0.0, **table.COLUMNS}


def columns(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the model's columns; none for a tensor."""
    return table.names("linear", params)


def keras_model(params: Mapping[str, Any]) -> Any:
    """Build the layers. See `DEFAULTS` for the parameters."""
    keras = compat.install().keras
    regularizer = keras.regularizers.l2(params["l2"]) if params["l2"] else None
    if columns(params):
        inputs = table.columns(params, keras)
        # Numbers come first. The weights of the ids of one column include a bias.
        parts = [
            column.weights(
                keras.layers, params["classes"], use_bias=not number, regularizer=regularizer, initializer="zeros"
            )
            for number, column in enumerate(inputs)
        ]
        logits = keras.layers.Add(name="logits")(parts) if len(parts) > 1 else parts[0]
        return keras.Model({column.name: column.tensor for column in inputs}, table.scaled(params, keras, logits))
    return keras.Sequential(
        [
            keras.Input(shape=tuple(params["input_shape"])),
            keras.layers.Flatten(),
            keras.layers.Dense(params["classes"], kernel_regularizer=regularizer),
        ]
    )

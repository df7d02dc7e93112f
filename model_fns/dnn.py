"""A fully connected network with dropout, for images (flattened), vectors, or tables.

Features: float32 [B, ...], flattened; or a dictionary of columns, as of `wide_deep`. Logits: [B, classes].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from model_fns import table

LOSS = "sparse_categorical_crossentropy"
METRICS = ("accuracy",)
DEFAULTS: dict[str, Any] = {
    "input_shape": (8, 8, 1),  # in a job: from the data
    "hidden_units": (128, 64),
    "activation": "relu",
    "classes": 10,  # in a job: from the data, if known
    "dropout": 0.0,
    "l2": 0.0,
    **table.COLUMNS,
}


def columns(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the model's columns; none for a tensor."""
    return table.names("dnn", params)


def keras_model(params: Mapping[str, Any]) -> Any:
    """Build the layers. See `DEFAULTS` for the parameters."""
    keras = compat.install().keras
    layers = keras.layers
    stack = []
    for units in params["hidden_units"]:
        regularizer = keras.regularizers.l2(params["l2"]) if params["l2"] else None
        stack.append(layers.Dense(units, activation=params["activation"], kernel_regularizer=regularizer))
        if params["dropout"]:
            stack.append(layers.Dropout(params["dropout"]))
    stack.append(layers.Dense(params["classes"]))
    if not columns(params):
        return keras.Sequential([keras.Input(shape=tuple(params["input_shape"])), layers.Flatten(), *stack])
    inputs = table.columns(params, keras)
    x = table.joined(layers, [column.dense(layers) for column in inputs])
    for layer in stack:
        x = layer(x)
    return keras.Model({column.name: column.tensor for column in inputs}, table.scaled(params, keras, x))

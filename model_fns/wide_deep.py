"""Wide & deep (Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016), for tables.

Features: a dictionary of columns, each [B] or [B, 1]: `numeric` columns are float, `categorical` columns integer ids
in [0, buckets). Logits: [B, classes] (one for binary_crossentropy and regression). The wide part is linear in the
numbers, with one weight for each category; the deep part has an embedding for each category and hidden layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from model_fns import table

LOSS = "binary_crossentropy"
METRICS = ("accuracy", "auc")
DEFAULTS: dict[str, Any] = {
    **table.COLUMNS,
    "hidden_units": (64, 32),
    "activation": "relu",
    "classes": 1,
    "dropout": 0.0,
}


def columns(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the model's columns.

    Raises:
        ConfigError: There are no columns, or they are not names.
    """
    return table.names("wide_deep", params, required=True)


def keras_model(params: Mapping[str, Any]) -> Any:
    """Build the layers. See `DEFAULTS` for the parameters."""
    keras = compat.install().keras
    layers = keras.layers
    columns(params)
    deep, wide = [], []
    inputs = table.columns(params, keras)
    for column in inputs:
        deep.append(column.dense(layers))
        wide.append(column.weights(layers, params["classes"]))
    x = table.joined(layers, deep)
    for units in params["hidden_units"]:
        x = layers.Dense(units, activation=params["activation"])(x)
        if params["dropout"]:
            x = layers.Dropout(params["dropout"])(x)
    logits = layers.Add(name="logits")([layers.Dense(params["classes"], name="deep")(x), *wide])
    return keras.Model({column.name: column.tensor for column in inputs}, table.scaled(params, keras, logits))

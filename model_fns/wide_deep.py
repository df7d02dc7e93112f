"""Wide & deep (Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016), for tables.

Features: a dictionary of columns, each [B] or [B, 1]: `numeric` columns are float, `categorical` columns integer ids
in [0, buckets). Logits: [B, classes] (one for binary_crossentropy and regression). The wide part is linear in the
numbers, with one weight for each category; the deep part has an embedding for each category and hidden layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

LOSS = "binary_crossentropy"
METRICS = ("accuracy", "auc")
DEFAULTS: dict[str, Any] = {
    "numeric": (),  # names of columns
    "categorical": {},  # name of a column -> number of ids
    "embedding_dim": 8,
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
    numeric, categorical = params["numeric"], params["categorical"]
    hint = "name them: params: {numeric: [age], categorical: {occupation: 20}}"
    names = isinstance(numeric, list | tuple) and all(isinstance(name, str) for name in numeric)
    if not names or not isinstance(categorical, Mapping):
        raise ConfigError(
            "the columns of wide_deep are a list of names and a mapping of names to numbers of ids",
            code="argument/bad-value",
            found=f"numeric {numeric!r}, categorical {categorical!r}",
            hint=hint,
        )
    if not numeric and not categorical:
        raise ConfigError("wide_deep needs columns", code="argument/missing", hint=hint)
    return (*numeric, *categorical)


def keras_model(params: Mapping[str, Any]) -> Any:
    """Build the layers. See `DEFAULTS` for the parameters."""
    keras = compat.install().keras
    layers = keras.layers
    columns(params)
    inputs: dict[str, Any] = {}
    deep, wide = [], []
    for name in params["numeric"]:
        inputs[name] = keras.Input(shape=(1,), dtype="float32", name=name)
        deep.append(inputs[name])
        wide.append(layers.Dense(params["classes"], use_bias=False, name=f"wide_{name}")(inputs[name]))
    for name, buckets in params["categorical"].items():
        inputs[name] = keras.Input(shape=(1,), dtype="int64", name=name)
        embedding = layers.Embedding(buckets, params["embedding_dim"], name=f"embedding_{name}")(inputs[name])
        deep.append(layers.Flatten()(embedding))
        weight = layers.Embedding(buckets, params["classes"], embeddings_initializer="zeros", name=f"wide_{name}")(
            inputs[name]
        )
        wide.append(layers.Flatten()(weight))
    x = layers.Concatenate()(deep) if len(deep) > 1 else deep[0]
    for units in params["hidden_units"]:
        x = layers.Dense(units, activation=params["activation"])(x)
        if params["dropout"]:
            x = layers.Dropout(params["dropout"])(x)
    logits = layers.Add(name="logits")([layers.Dense(params["classes"], name="deep")(x), *wide])
    return keras.Model(inputs, logits)

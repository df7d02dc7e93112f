"""Inputs of models for tables: numbers, and ids with a weight or an embedding each.

A column is [B] or [B, 1]: `numeric` columns are float, `categorical` columns integer ids in [0, buckets).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from estimator_pipeline.errors import ConfigError

COLUMNS: dict[str, Any] = {
    "numeric": (),  # names of columns
    "categorical": {},  # name of a column -> number of ids, or {buckets: 20, embedding_dim: 4}
    "embedding_dim": 8,
    # Of a number to predict: the network then learns a number of mean 0 and standard deviation 1.
    "target_mean": 0.0,
    "target_deviation": 1.0,
}


class ColumnInput(NamedTuple):
    """An input of the model.

    Attributes:
        name: Its name.
        tensor: The Keras input.
        buckets: The number of ids; None for a number.
        embedding_dim: The size of its embedding.
    """

    name: str
    tensor: Any
    buckets: int | None
    embedding_dim: int

    def weights(
        self,
        layers: Any,
        units: int,
        *,
        use_bias: bool = False,
        regularizer: Any = None,
        initializer: Any = "glorot_uniform",
    ) -> Any:
        """Return the column's part of a linear model: [B, units]. Only numbers can have a bias."""
        name = f"wide_{self.name}"
        if self.buckets is None:
            dense = layers.Dense(
                units, use_bias=use_bias, kernel_initializer=initializer, kernel_regularizer=regularizer, name=name
            )
            return dense(self.tensor)
        weight = layers.Embedding(
            self.buckets, units, embeddings_initializer="zeros", embeddings_regularizer=regularizer, name=name
        )
        return layers.Flatten()(weight(self.tensor))

    def dense(self, layers: Any) -> Any:
        """Return the column as numbers for hidden layers: [B, 1], or its embedding."""
        if self.buckets is None:
            return self.tensor
        embedding = layers.Embedding(self.buckets, self.embedding_dim, name=f"embedding_{self.name}")
        return layers.Flatten()(embedding(self.tensor))


def names(model: str, params: Mapping[str, Any], *, required: bool = False) -> tuple[str, ...]:
    """Return the names of the columns in a model's parameters.

    Raises:
        ConfigError: They are not names and numbers of ids; or there are none, and they are required.
    """
    numeric, categorical = params["numeric"], params["categorical"]
    hint = "name them: params: {numeric: [age], categorical: {occupation: 20}}"
    are_names = isinstance(numeric, list | tuple) and all(isinstance(name, str) for name in numeric)
    if not are_names or not isinstance(categorical, Mapping):
        raise ConfigError(
            f"the columns of {model} are a list of names and a mapping of names to numbers of ids",
            code="argument/bad-value",
            found=f"numeric {numeric!r}, categorical {categorical!r}",
            hint=hint,
        )
    if required and not numeric and not categorical:
        raise ConfigError(f"{model} needs columns", code="argument/missing", hint=hint)
    return (*numeric, *categorical)


def columns(params: Mapping[str, Any], keras: Any) -> list[ColumnInput]:
    """Return the inputs of a model, in the order of its parameters."""
    inputs = []
    for name in params["numeric"]:
        tensor = keras.Input(shape=(1,), dtype="float32", name=name)
        inputs.append(ColumnInput(name, tensor, None, 0))
    for name, about in params["categorical"].items():
        sizes = about if isinstance(about, Mapping) else {"buckets": about}
        tensor = keras.Input(shape=(1,), dtype="int64", name=name)
        embedding_dim = sizes.get("embedding_dim") or params["embedding_dim"]
        inputs.append(ColumnInput(name, tensor, sizes["buckets"], embedding_dim))
    return inputs


def scaled(params: Mapping[str, Any], keras: Any, logits: Any) -> Any:
    """Return the logits in the unit of the target: of deviation `target_deviation` around `target_mean`."""
    if params["target_mean"] == 0.0 and params["target_deviation"] == 1.0:
        return logits
    return keras.layers.Rescaling(params["target_deviation"], params["target_mean"], name="target", dtype="float32")(
        logits
    )


def joined(layers: Any, parts: list[Any]) -> Any:
    """Return tensors side by side."""
    return layers.Concatenate()(parts) if len(parts) > 1 else parts[0]

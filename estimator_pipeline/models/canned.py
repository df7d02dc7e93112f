"""Canned Estimators as models of a job file: `model: {estimator: DNNClassifier}` for a table.

Each is a `model_fn`, whose `params` are the arguments of the class. The feature columns follow from the features of the
table: numbers as they are, ids with a weight each in linear models and an embedding in networks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = [
    "DNNClassifier",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearRegressor",
]

_HIDDEN_UNITS = (64, 32)
_EMBEDDING_DIM = 8
_FROM_TABLE = ("numeric", "categorical", "classes", "label_vocabulary", "embedding_dim")


def _model_fn(name: str) -> Callable[..., Any]:
    def model_fn(features: Any, labels: Any, mode: str, params: Mapping[str, Any], config: Any) -> Any:
        tf = compat.tensorflow()
        estimator = getattr(tf.estimator, name)
        arguments = {key: value for key, value in params.items() if key not in _FROM_TABLE}
        for key, value in arguments.items():
            if key.endswith("optimizer") and isinstance(value, Mapping):
                arguments[key] = _optimizer(tf, key, value)
        linear, dnn = _columns(tf, params)
        if "Combined" in name:
            arguments = {"dnn_hidden_units": _HIDDEN_UNITS, **arguments}
            arguments |= {"linear_feature_columns": linear, "dnn_feature_columns": dnn}
        elif name.startswith("DNN"):
            arguments = {"hidden_units": _HIDDEN_UNITS, **arguments, "feature_columns": dnn}
        else:
            arguments["feature_columns"] = linear
        if name.endswith("Classifier"):
            arguments |= {"n_classes": params["classes"], "label_vocabulary": params["label_vocabulary"] or None}
        return estimator(config=config, **arguments).model_fn(features, labels, mode, config)

    return model_fn


def _columns(tf: Any, params: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the feature columns of a linear model, and those of a network."""
    column = tf.feature_column
    numeric = [column.numeric_column(name) for name in params["numeric"]]
    linear, dnn = list(numeric), list(numeric)
    for name, about in params["categorical"].items():
        sizes = about if isinstance(about, Mapping) else {"buckets": about}
        ids = column.categorical_column_with_identity(name, sizes["buckets"])
        dimension = sizes.get("embedding_dim") or params.get("embedding_dim") or _EMBEDDING_DIM
        linear.append(ids)
        dnn.append(column.embedding_column(ids, dimension))
    return linear, dnn


def _optimizer(tf: Any, key: str, about: Mapping[str, Any]) -> Any:
    """Return an optimizer of {name: Adam, learning_rate: 0.01}."""
    arguments = dict(about)
    wanted = str(arguments.pop("name", "")).lower()
    optimizers = tf.keras.optimizers.legacy
    known = [name for name in dir(optimizers) if isinstance(getattr(optimizers, name), type) and name != "Optimizer"]
    kind = next((name for name in known if name.lower() == wanted), None)
    try:
        if kind is not None:
            return getattr(optimizers, kind)(**arguments)
        problem = "its name is not known"
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise ConfigError(
        f"model.params.{key}: {problem}",
        code="argument/bad-value",
        found=repr(dict(about)),
        hint=f"write {{name: Adam, learning_rate: 0.01}}; names: {', '.join(known)}",
    )


LinearClassifier, LinearRegressor = _model_fn("LinearClassifier"), _model_fn("LinearRegressor")
DNNClassifier, DNNRegressor = _model_fn("DNNClassifier"), _model_fn("DNNRegressor")
DNNLinearCombinedClassifier = _model_fn("DNNLinearCombinedClassifier")
DNNLinearCombinedRegressor = _model_fn("DNNLinearCombinedRegressor")

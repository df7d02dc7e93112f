"""Canned Estimators as compiled Keras models: linear, DNN, and wide and deep, for classification and regression.

Each function takes the arguments of the Estimator of its name, with columns of `keras_columns`, and returns a
`tf.keras.Model`. `fit`, `evaluate` and `predict` take a dataset of (dict of features, labels). Losses, metrics,
predictions and defaults are those of TensorFlow 2's canned Estimators: docs/reference/migrate-equals.md.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime.feature_columns import Column, feature_layer, linear_model
from estimator_pipeline.models.keras_runtime.heads import BinaryClassHead, MultiClassHead, RegressionHead

__all__ = [
    "DNNClassifier", "DNNLinearCombinedClassifier", "DNNLinearCombinedRegressor", "DNNRegressor", "LinearClassifier",
    "LinearRegressor", "add_metrics", "export", "keras_optimizer", "linear_rate",
]  # fmt: skip

_RATES = {"dnn": 0.001, "linear": 0.2, "wide": 0.005}
# The attribute of a model with its head's metrics: part of the keys of checkpoints.
_METRICS_KEY = "told"


def DNNClassifier(
    hidden_units: Sequence[int], feature_columns: Sequence[Column], model_dir: str | None = None, n_classes: int = 2,
    weight_column: Any = None, label_vocabulary: Sequence[str] | None = None, optimizer: Any = "Adagrad",
    activation_fn: Any = "relu", dropout: float | None = None, loss_reduction: str = "sum_over_batch_size",
    batch_norm: bool = False,
) -> Any:  # fmt: skip
    """Build a DNN classifier."""
    head = _classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    deep = _deep(feature_columns, hidden_units, head.width, activation_fn, dropout, batch_norm)
    return _compiled(head, model_dir, deep, None, keras_optimizer(optimizer, None), None)


def DNNRegressor(
    hidden_units: Sequence[int], feature_columns: Sequence[Column], model_dir: str | None = None,
    label_dimension: int = 1, weight_column: Any = None, optimizer: Any = "Adagrad", activation_fn: Any = "relu",
    dropout: float | None = None, loss_reduction: str = "sum_over_batch_size", batch_norm: bool = False,
) -> Any:  # fmt: skip
    """Build a DNN regressor."""
    head = RegressionHead(label_dimension, weight_column, loss_reduction)
    deep = _deep(feature_columns, hidden_units, head.width, activation_fn, dropout, batch_norm)
    return _compiled(head, model_dir, deep, None, keras_optimizer(optimizer, None), None)


def LinearClassifier(
    feature_columns: Sequence[Column], model_dir: str | None = None, n_classes: int = 2, weight_column: Any = None,
    label_vocabulary: Sequence[str] | None = None, optimizer: Any = "Ftrl",
    loss_reduction: str = "sum_over_batch_size", sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a linear classifier: a weight for each category and number."""
    head = _classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    rate = min(_RATES["linear"], 1 / math.sqrt(len(feature_columns)))
    wide = linear_model(feature_columns, head.width, sparse_combiner)
    return _compiled(head, model_dir, None, wide, None, keras_optimizer(optimizer, rate))


def LinearRegressor(
    feature_columns: Sequence[Column], model_dir: str | None = None, label_dimension: int = 1,
    weight_column: Any = None, optimizer: Any = "Ftrl", loss_reduction: str = "sum_over_batch_size",
    sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a linear regressor: a weight for each category and number."""
    head = RegressionHead(label_dimension, weight_column, loss_reduction)
    rate = min(_RATES["linear"], 1 / math.sqrt(len(feature_columns)))
    wide = linear_model(feature_columns, head.width, sparse_combiner)
    return _compiled(head, model_dir, None, wide, None, keras_optimizer(optimizer, rate))


def DNNLinearCombinedClassifier(
    model_dir: str | None = None, linear_feature_columns: Sequence[Column] = (), linear_optimizer: Any = "Ftrl",
    dnn_feature_columns: Sequence[Column] = (), dnn_optimizer: Any = "Adagrad", dnn_hidden_units: Sequence[int] = (),
    dnn_activation_fn: Any = "relu", dnn_dropout: float | None = None, n_classes: int = 2, weight_column: Any = None,
    label_vocabulary: Sequence[str] | None = None, loss_reduction: str = "sum_over_batch_size",
    batch_norm: bool = False, linear_sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a wide and deep classifier: a linear part and a DNN, each with its optimizer."""
    head = _classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    deep = _deep(dnn_feature_columns, dnn_hidden_units, head.width, dnn_activation_fn, dnn_dropout, batch_norm)
    wide = linear_model(linear_feature_columns, head.width, linear_sparse_combiner)
    return _both(head, model_dir, deep, wide, dnn_optimizer, linear_optimizer, linear_feature_columns)


def DNNLinearCombinedRegressor(
    model_dir: str | None = None, linear_feature_columns: Sequence[Column] = (), linear_optimizer: Any = "Ftrl",
    dnn_feature_columns: Sequence[Column] = (), dnn_optimizer: Any = "Adagrad", dnn_hidden_units: Sequence[int] = (),
    dnn_activation_fn: Any = "relu", dnn_dropout: float | None = None, label_dimension: int = 1,
    weight_column: Any = None, loss_reduction: str = "sum_over_batch_size", batch_norm: bool = False,
    linear_sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a wide and deep regressor: a linear part and a DNN, each with its optimizer."""
    head = RegressionHead(label_dimension, weight_column, loss_reduction)
    deep = _deep(dnn_feature_columns, dnn_hidden_units, head.width, dnn_activation_fn, dnn_dropout, batch_norm)
    wide = linear_model(linear_feature_columns, head.width, linear_sparse_combiner)
    return _both(head, model_dir, deep, wide, dnn_optimizer, linear_optimizer, linear_feature_columns)


def _both(head: Any, folder: str | None, deep: Any, wide: Any, dnn: Any, linear: Any, columns: Sequence[Any]) -> Any:
    rate = linear_rate(len(columns))
    return _compiled(head, folder, deep, wide, keras_optimizer(dnn, _RATES["dnn"]), keras_optimizer(linear, rate))


def linear_rate(columns: int) -> float:
    """Return the default learning rate of the linear part of a wide and deep model, by its number of columns."""
    return min(_RATES["wide"], 1 / math.sqrt(max(columns, 1)))


def _classes(classes: int, weights: Any, words: Sequence[str] | None, reduction: str) -> Any:
    """Return the classification head for the number of classes."""
    if classes == 2:
        return BinaryClassHead(weights, label_vocabulary=words, loss_reduction=reduction)
    return MultiClassHead(classes, weights, words, reduction)


def keras_optimizer(optimizer: Any, rate: float | None) -> Any:
    """Return a legacy Keras optimizer, whose variables match those of an Estimator.

    Args:
        optimizer: The optimizer, its name, or a function that returns it.
        rate: The learning rate of a named optimizer; None: its default.

    Raises:
        ConfigError: The name is unknown.
    """
    tf = compat.tensorflow()
    if isinstance(optimizer, str):
        kinds = {"Adagrad": "Adagrad", "Adam": "Adam", "Ftrl": "Ftrl", "RMSProp": "RMSprop", "SGD": "SGD"}
        if optimizer not in kinds:
            raise ConfigError(
                f"the optimizer {optimizer!r} is not known", code="argument/unknown-name", found=", ".join(kinds)
            )
        kind = getattr(tf.keras.optimizers.legacy, kinds[optimizer])
        return kind() if rate is None else kind(learning_rate=rate)
    return (
        optimizer()
        if callable(optimizer) and not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer)
        else optimizer
    )


def add_metrics(
    model: Any, update_arguments: Callable[..., Mapping[str, Sequence[Any]]], metrics: Mapping[str, Any]
) -> Any:
    """Add metrics to a model, as `tf.estimator.add_metrics` does for an Estimator.

    Args:
        model: A model of this module, or any with `predictions(features, outputs)`.
        update_arguments: A function of any of `features`, `labels`, `predictions` that returns the arguments of each
            metric's `update_state`, by the metric's name.
        metrics: Keras metrics, by the same names.

    Returns:
        The same model.
    """
    model.added_metrics = dict(metrics)
    base, parameters = model.compute_metrics, inspect.signature(update_arguments).parameters
    head = getattr(model, "head", None)

    def compute_metrics(x: Any, y: Any, y_pred: Any, sample_weight: Any) -> dict[str, Any]:
        predictions = head.predictions(y_pred) if head is not None else model.predictions(x, y_pred)
        arguments = {"features": x, "labels": y, "predictions": predictions}
        for name, values in update_arguments(**{parameter: arguments[parameter] for parameter in parameters}).items():
            metrics[name].update_state(*values)
        return base(x, y, y_pred, sample_weight)  # type: ignore[no-any-return]

    model.compute_metrics = compute_metrics
    return model


def export(model: Any, folder: str, spec: Mapping[str, Any]) -> bytes:
    """Write a SavedModel that takes serialized `tf.Example`, with the signatures of canned Estimators.

    Args:
        model: A trained model of this module.
        folder: The folder in which a new folder, named after the time, is created for the SavedModel.
        spec: The feature spec of `tf.io.parse_example`: `keras_columns.make_parse_example_spec`.

    Returns:
        The name of the new folder, as `export_saved_model` of an Estimator returns it.
    """
    tf = compat.tensorflow()

    def signature(name: str, answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
        def serve(serialized: Any) -> Mapping[str, Any]:
            features = tf.io.parse_example(serialized, dict(spec))
            return answer(model.head.predictions(model(features, training=False)))

        return tf.function(serve, input_signature=[tf.TensorSpec([None], tf.string, name=name)])

    served = {key: signature("inputs", answer) for key, answer in model.head.outputs().items()}
    first = next(iter(served.values()))
    served |= {"serving_default": first, "predict": signature("examples", lambda predictions: predictions)}
    server = tf.Module()
    server.model, server.served = model, served
    path = os.path.join(folder, str(int(time.time())))
    tf.saved_model.save(server, path, signatures=served)
    return os.fsencode(path)


# Networks


def _deep(
    columns: Sequence[Column], units: Sequence[int], width: int, activation: Any, dropout: float | None, norm: bool
) -> Any:
    layers = compat.tensorflow().keras.layers
    parts = [feature_layer(columns, name="input_layer")]
    for number, size in enumerate(units):
        parts.append(layers.Dense(size, activation=activation, name=f"hiddenlayer_{number}"))
        if dropout:
            parts.append(layers.Dropout(dropout))
        if norm:
            parts.append(layers.BatchNormalization(momentum=0.999, name=f"hiddenlayer_{number}_batchnorm"))
    return [*parts, layers.Dense(width, name="logits")]


# The model


@functools.cache
def _model_class() -> Callable[..., Any]:
    tf = compat.tensorflow()

    class CannedModel(tf.keras.Model):  # type: ignore[misc,name-defined]
        """A DNN, a linear part, or both, and the head of their sum."""

        def __init__(self, head: Any, folder: str | None, deep: Any, wide: Any) -> None:
            super().__init__()
            self.head, self.model_dir = head, folder
            self.deep, self.wide = deep, wide
            self.mean_loss = tf.keras.metrics.Mean(name="loss")
            setattr(self, _METRICS_KEY, head.metrics())

        def call(self, features: Mapping[str, Any], training: bool | None = None) -> Any:
            logits = []
            if self.deep is not None:
                net = features
                for layer in self.deep:
                    passed = isinstance(layer, tf.keras.layers.Dropout | tf.keras.layers.BatchNormalization)
                    net = layer(net, training=training) if passed else layer(net)
                logits.append(net)
            if self.wide is not None:
                logits.append(self.wide(features))
            return tf.add_n(logits) if len(logits) > 1 else logits[0]

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
            loss = self.head.loss(y, y_pred, x)
            self.mean_loss.update_state(loss)
            # The gradients are summed over the replicas.
            return loss / self.distribute_strategy.num_replicas_in_sync

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> dict[str, Any]:
            self.head.update(self.told, y, y_pred, x)
            return self.head.further(self.get_metrics_result())  # type: ignore[no-any-return]

        def predict_step(self, data: Any) -> dict[str, Any]:
            features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
            return self.head.predictions(self(features, training=False))  # type: ignore[no-any-return]

        def compile(self, optimizer: Any = None, linear_optimizer: Any = None, **options: Any) -> None:
            super().compile(optimizer=optimizer, **options)
            self.linear_optimizer = linear_optimizer

        def named_values(self) -> dict[str, Any]:
            """Return the weights' values by the names of the Estimator's variables."""
            values = {}
            for variable in self.variables:
                name = variable.name.partition(":")[0].removeprefix(f"{self.name}/")
                if name.startswith("linear_model/"):
                    values[f"linear/{name}"] = variable.numpy()
                elif "/embedding_weights" in name:
                    values[f"dnn/input_from_feature_columns/{name}"] = variable.numpy()
                elif name.startswith(("hiddenlayer_", "logits/")):
                    values[f"dnn/{name}"] = variable.numpy()
            return values

        def train_step(self, data: Any) -> dict[str, Any]:
            """Run one training step, with an optimizer for each part."""
            if self.linear_optimizer is None:
                return super().train_step(data)  # type: ignore[no-any-return]
            x, y, weights = tf.keras.utils.unpack_x_y_sample_weight(data)
            with tf.GradientTape() as tape:
                logits = self(x, training=True)
                loss = self.compute_loss(x, y, logits, weights)
            wide = self.wide.trainable_variables
            deep = [variable for layer in self.deep for variable in layer.trainable_variables]
            gradients = tape.gradient(loss, [*wide, *deep])
            self.linear_optimizer.apply_gradients(list(zip(gradients[: len(wide)], wide, strict=True)))
            self.optimizer.apply_gradients(list(zip(gradients[len(wide) :], deep, strict=True)))
            return self.compute_metrics(x, y, logits, weights)

    return CannedModel


def _compiled(head: Any, folder: str | None, deep: Any, wide: Any, dnn: Any, linear: Any) -> Any:
    model = _model_class()(head, folder, deep, wide)
    both = deep is not None and wide is not None
    model.compile(optimizer=dnn or linear, linear_optimizer=linear if both else None)
    return model

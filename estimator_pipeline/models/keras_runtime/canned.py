"""The networks of canned Estimators as compiled Keras models: linear, deep, wide and deep; classes or numbers.

Each takes the arguments of the Estimator of its name, with columns of `keras_columns`, and is a `tf.keras.Model`:
`fit`, `evaluate` and `predict` take a data set of (dict of features, labels). Losses, metrics, predictions and what is
taken where nothing is said are those of TensorFlow 2's canned Estimators: docs/reference/migrate-equals.md.
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


def DNNClassifier(
    hidden_units: Sequence[int], feature_columns: Sequence[Column], model_dir: str | None = None, n_classes: int = 2,
    weight_column: Any = None, label_vocabulary: Sequence[str] | None = None, optimizer: Any = "Adagrad",
    activation_fn: Any = "relu", dropout: float | None = None, loss_reduction: str = "sum_over_batch_size",
    batch_norm: bool = False,
) -> Any:  # fmt: skip
    """Return a network of dense layers that tells classes apart."""
    head = _classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    deep = _deep(feature_columns, hidden_units, head.width, activation_fn, dropout, batch_norm)
    return _compiled(head, model_dir, deep, None, keras_optimizer(optimizer, None), None)


def DNNRegressor(
    hidden_units: Sequence[int], feature_columns: Sequence[Column], model_dir: str | None = None,
    label_dimension: int = 1, weight_column: Any = None, optimizer: Any = "Adagrad", activation_fn: Any = "relu",
    dropout: float | None = None, loss_reduction: str = "sum_over_batch_size", batch_norm: bool = False,
) -> Any:  # fmt: skip
    """Return a network of dense layers that gives numbers."""
    head = RegressionHead(label_dimension, weight_column, loss_reduction)
    deep = _deep(feature_columns, hidden_units, head.width, activation_fn, dropout, batch_norm)
    return _compiled(head, model_dir, deep, None, keras_optimizer(optimizer, None), None)


def LinearClassifier(
    feature_columns: Sequence[Column], model_dir: str | None = None, n_classes: int = 2, weight_column: Any = None,
    label_vocabulary: Sequence[str] | None = None, optimizer: Any = "Ftrl",
    loss_reduction: str = "sum_over_batch_size", sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Return a weight for each category and number, that tells classes apart."""
    head = _classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    rate = min(_RATES["linear"], 1 / math.sqrt(len(feature_columns)))
    wide = linear_model(feature_columns, head.width, sparse_combiner)
    return _compiled(head, model_dir, None, wide, None, keras_optimizer(optimizer, rate))


def LinearRegressor(
    feature_columns: Sequence[Column], model_dir: str | None = None, label_dimension: int = 1,
    weight_column: Any = None, optimizer: Any = "Ftrl", loss_reduction: str = "sum_over_batch_size",
    sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Return a weight for each category and number, that gives numbers."""
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
    """Return a linear part and a deep one, each with its optimizer, that tell classes apart."""
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
    """Return a linear part and a deep one, each with its optimizer, that give numbers."""
    head = RegressionHead(label_dimension, weight_column, loss_reduction)
    deep = _deep(dnn_feature_columns, dnn_hidden_units, head.width, dnn_activation_fn, dnn_dropout, batch_norm)
    wide = linear_model(linear_feature_columns, head.width, linear_sparse_combiner)
    return _both(head, model_dir, deep, wide, dnn_optimizer, linear_optimizer, linear_feature_columns)


def _both(head: Any, folder: str | None, deep: Any, wide: Any, one: Any, other: Any, columns: Sequence[Any]) -> Any:
    rate = linear_rate(len(columns))
    return _compiled(head, folder, deep, wide, keras_optimizer(one, _RATES["dnn"]), keras_optimizer(other, rate))


def linear_rate(columns: int) -> float:
    """The learning rate of the linear part of a linear and a deep one, for so many columns, where none is said."""
    return min(_RATES["wide"], 1 / math.sqrt(max(columns, 1)))


def _classes(classes: int, weights: Any, words: Sequence[str] | None, reduction: str) -> Any:
    """Return the head of so many classes."""
    if classes == 2:
        return BinaryClassHead(weights, label_vocabulary=words, loss_reduction=reduction)
    return MultiClassHead(classes, weights, words, reduction)


def keras_optimizer(given: Any, rate: float | None) -> Any:
    """Return an optimizer of Keras, of the kind whose variables an Estimator keeps.

    Args:
        given: its name, the optimizer, or a function that makes it.
        rate: the learning rate of one that is named; None: its own.

    Raises:
        ConfigError: there is none of that name.
    """
    tf = compat.tensorflow()
    if isinstance(given, str):
        kinds = {"Adagrad": "Adagrad", "Adam": "Adam", "Ftrl": "Ftrl", "RMSProp": "RMSprop", "SGD": "SGD"}
        if given not in kinds:
            raise ConfigError(
                f"optimizer {given!r}: there is none of that name", code="argument/unknown-name", found=", ".join(kinds)
            )
        kind = getattr(tf.keras.optimizers.legacy, kinds[given])
        return kind() if rate is None else kind(learning_rate=rate)
    return given() if callable(given) and not isinstance(given, tf.keras.optimizers.legacy.Optimizer) else given


def add_metrics(model: Any, tells: Callable[..., Mapping[str, Sequence[Any]]], metrics: Mapping[str, Any]) -> Any:
    """Return the model with further metrics, as `tf.estimator.add_metrics` gives an Estimator.

    Args:
        model: of a function of this module, or another one that has `predictions(features, outputs)`.
        tells: of `features`, `labels`, `predictions`, those that it has parameters for: what each metric's
            `update_state` is given.
        metrics: of Keras, by the same names.
    """
    model.added_metrics = dict(metrics)
    own, parameters = model.compute_metrics, inspect.signature(tells).parameters
    head = getattr(model, "head", None)

    def compute_metrics(x: Any, y: Any, y_pred: Any, sample_weight: Any) -> dict[str, Any]:
        predictions = head.predictions(y_pred) if head is not None else model.predictions(x, y_pred)
        given = {"features": x, "labels": y, "predictions": predictions}
        for name, values in tells(**{one: given[one] for one in parameters}).items():
            metrics[name].update_state(*values)
        return own(x, y, y_pred, sample_weight)  # type: ignore[no-any-return]

    model.compute_metrics = compute_metrics
    return model


def export(model: Any, folder: str, spec: Mapping[str, Any]) -> bytes:
    """Write a SavedModel that takes serialized `tf.Example`, with the signatures of canned Estimators.

    Args:
        model: of a function of this module, trained.
        folder: a new folder below it, named after the time, is for the SavedModel.
        spec: what `tf.io.parse_example` needs: `keras_columns.make_parse_example_spec`.

    Returns:
        The name of the new folder, as `export_saved_model` of an Estimator gives it.
    """
    tf = compat.tensorflow()

    def signature(name: str, answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
        def serve(serialized: Any) -> Mapping[str, Any]:
            features = tf.io.parse_example(serialized, dict(spec))
            return answer(model.head.predictions(model(features, training=False)))

        return tf.function(serve, input_signature=[tf.TensorSpec([None], tf.string, name=name)])

    served = {key: signature("inputs", answer) for key, answer in model.head.outputs().items()}
    first = next(iter(served.values()))
    served |= {"serving_default": first, "predict": signature("examples", lambda found: found)}
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
        """A deep part, a linear one, or both, and what their sum is for."""

        def __init__(self, head: Any, folder: str | None, deep: Any, wide: Any) -> None:
            super().__init__()
            self.head, self.model_dir = head, folder
            self.deep, self.wide = deep, wide
            self.mean_loss = tf.keras.metrics.Mean(name="loss")
            self.told = head.metrics()

        def call(self, features: Mapping[str, Any], training: bool | None = None) -> Any:
            found = []
            if self.deep is not None:
                net = features
                for layer in self.deep:
                    passed = isinstance(layer, tf.keras.layers.Dropout | tf.keras.layers.BatchNormalization)
                    net = layer(net, training=training) if passed else layer(net)
                found.append(net)
            if self.wide is not None:
                found.append(self.wide(features))
            return tf.add_n(found) if len(found) > 1 else found[0]

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
            loss = self.head.loss(y, y_pred, x)
            self.mean_loss.update_state(loss)
            # The gradients of the replicas are summed.
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
            """Return the weights' values, by the names that they had in the Estimator."""
            found = {}
            for variable in self.variables:
                name = variable.name.partition(":")[0].removeprefix(f"{self.name}/")
                if name.startswith("linear_model/"):
                    found[f"linear/{name}"] = variable.numpy()
                elif "/embedding_weights" in name:
                    found[f"dnn/input_from_feature_columns/{name}"] = variable.numpy()
                elif name.startswith(("hiddenlayer_", "logits/")):
                    found[f"dnn/{name}"] = variable.numpy()
            return found

        def train_step(self, data: Any) -> dict[str, Any]:
            """One step; where there are two parts, each by its own optimizer."""
            if self.linear_optimizer is None:
                return super().train_step(data)  # type: ignore[no-any-return]
            x, y, weights = tf.keras.utils.unpack_x_y_sample_weight(data)
            with tf.GradientTape() as tape:
                logits = self(x, training=True)
                loss = self.compute_loss(x, y, logits, weights)
            wide = self.wide.trainable_variables
            deep = [one for layer in self.deep for one in layer.trainable_variables]
            gradients = tape.gradient(loss, [*wide, *deep])
            self.linear_optimizer.apply_gradients(list(zip(gradients[: len(wide)], wide, strict=True)))
            self.optimizer.apply_gradients(list(zip(gradients[len(wide) :], deep, strict=True)))
            return self.compute_metrics(x, y, logits, weights)

    return CannedModel


def _compiled(head: Any, folder: str | None, deep: Any, wide: Any, one: Any, other: Any) -> Any:
    model = _model_class()(head, folder, deep, wide)
    both = deep is not None and wide is not None
    model.compile(optimizer=one or other, linear_optimizer=other if both else None)
    return model

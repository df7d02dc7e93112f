"""The canned Estimators of TensorFlow 2, such as `tf.estimator.DNNClassifier`, as Keras models of their model_fn.

Arguments, variables, numbers and metric names are those of the Estimators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime.canned import keras_optimizer, linear_rate
from estimator_pipeline.models.keras_runtime.model_fn.canned import listed
from estimator_pipeline.models.keras_runtime.model_fn.heads_v2 import (
    V2BinaryClassHead,
    V2Head,
    V2MultiClassHead,
    V2RegressionHead,
)
from estimator_pipeline.models.keras_runtime.model_fn.model import ModelFnModel
from estimator_pipeline.models.keras_runtime.model_fn.settings import ModelFnRunConfig as RunConfig
from estimator_pipeline.models.keras_runtime.model_fn.settings import ModelFnSpec

__all__ = [
    "DNNClassifierV2", "DNNLinearCombinedClassifierV2", "DNNLinearCombinedRegressorV2", "DNNRegressorV2",
    "LinearClassifierV2", "LinearRegressorV2",
]  # fmt: skip

_MEAN = "sum_over_batch_size"


def DNNClassifierV2(
    hidden_units: Sequence[int], feature_columns: Any, model_dir: str | None = None, n_classes: int = 2,
    weight_column: Any = None, label_vocabulary: Sequence[str] | None = None, optimizer: Any = "Adagrad",
    activation_fn: Any = "relu", dropout: float | None = None, config: RunConfig | None = None,
    warm_start_from: Any = None, loss_reduction: Any = _MEAN, batch_norm: bool = False,
) -> Any:  # fmt: skip
    """Build a DNN classifier."""
    head = _classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    deep = _Deep(feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm)
    return ModelFnModel(_of(head, [deep]), model_dir, config, None, warm_start_from)


def DNNRegressorV2(
    hidden_units: Sequence[int], feature_columns: Any, model_dir: str | None = None, label_dimension: int = 1,
    weight_column: Any = None, optimizer: Any = "Adagrad", activation_fn: Any = "relu", dropout: float | None = None,
    config: RunConfig | None = None, warm_start_from: Any = None, loss_reduction: Any = _MEAN,
    batch_norm: bool = False,
) -> Any:  # fmt: skip
    """Build a DNN regressor."""
    head = V2RegressionHead(label_dimension, weight_column, loss_reduction)
    deep = _Deep(feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm)
    return ModelFnModel(_of(head, [deep]), model_dir, config, None, warm_start_from)


def LinearClassifierV2(
    feature_columns: Any, model_dir: str | None = None, n_classes: int = 2, weight_column: Any = None,
    label_vocabulary: Sequence[str] | None = None, optimizer: Any = "Ftrl", config: RunConfig | None = None,
    warm_start_from: Any = None, loss_reduction: Any = _MEAN, sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a linear classifier: a weight for each category and number."""
    head = _classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    wide = _Wide(feature_columns, optimizer, sparse_combiner, alone=True)
    return ModelFnModel(_of(head, [wide]), model_dir, config, None, warm_start_from)


def LinearRegressorV2(
    feature_columns: Any, model_dir: str | None = None, label_dimension: int = 1, weight_column: Any = None,
    optimizer: Any = "Ftrl", config: RunConfig | None = None, warm_start_from: Any = None,
    loss_reduction: Any = _MEAN, sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a linear regressor: a weight for each category and number."""
    head = V2RegressionHead(label_dimension, weight_column, loss_reduction)
    wide = _Wide(feature_columns, optimizer, sparse_combiner, alone=True)
    return ModelFnModel(_of(head, [wide]), model_dir, config, None, warm_start_from)


def DNNLinearCombinedClassifierV2(
    model_dir: str | None = None, linear_feature_columns: Any = None, linear_optimizer: Any = "Ftrl",
    dnn_feature_columns: Any = None, dnn_optimizer: Any = "Adagrad", dnn_hidden_units: Sequence[int] | None = None,
    dnn_activation_fn: Any = "relu", dnn_dropout: float | None = None, n_classes: int = 2, weight_column: Any = None,
    label_vocabulary: Sequence[str] | None = None, config: RunConfig | None = None, warm_start_from: Any = None,
    loss_reduction: Any = _MEAN, batch_norm: bool = False, linear_sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a wide and deep classifier: a linear part and a DNN, each with its optimizer."""
    head = _classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    deep = _Deep(
        dnn_feature_columns, dnn_optimizer, dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm, rate=0.001
    )
    wide = _Wide(linear_feature_columns, linear_optimizer, linear_sparse_combiner)
    return ModelFnModel(_of(head, [deep, wide]), model_dir, config, None, warm_start_from)


def DNNLinearCombinedRegressorV2(
    model_dir: str | None = None, linear_feature_columns: Any = None, linear_optimizer: Any = "Ftrl",
    dnn_feature_columns: Any = None, dnn_optimizer: Any = "Adagrad", dnn_hidden_units: Sequence[int] | None = None,
    dnn_activation_fn: Any = "relu", dnn_dropout: float | None = None, label_dimension: int = 1,
    weight_column: Any = None, config: RunConfig | None = None, warm_start_from: Any = None,
    loss_reduction: Any = _MEAN, batch_norm: bool = False, linear_sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a wide and deep regressor: a linear part and a DNN, each with its optimizer."""
    head = V2RegressionHead(label_dimension, weight_column, loss_reduction)
    deep = _Deep(
        dnn_feature_columns, dnn_optimizer, dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm, rate=0.001
    )
    wide = _Wide(linear_feature_columns, linear_optimizer, linear_sparse_combiner)
    return ModelFnModel(_of(head, [deep, wide]), model_dir, config, None, warm_start_from)


def _classes(classes: int, weights: Any, words: Sequence[str] | None, reduction: Any) -> V2Head:
    """Return the classification head for the number of classes."""
    if classes == 2:
        return V2BinaryClassHead(weights, None, words, reduction)
    return V2MultiClassHead(classes, weights, words, reduction)


class _Deep:
    """Dense layers on feature columns."""

    def __init__(
        self, columns: Any, optimizer: Any, units: Any, activation: Any, dropout: float | None, norm: bool,
        *, rate: float | None = None,
    ) -> None:  # fmt: skip
        self.columns, self.optimizer, self.rate = listed(columns), optimizer, rate
        self.units, self.activation, self.dropout, self.norm = tuple(units or ()), activation, dropout, norm

    def built(self, features: Any, mode: str, width: int) -> tuple[Any, list[Any], list[Any]]:
        """Return (the logits, the trainable variables, the update operations of moving statistics)."""
        tf = compat.tensorflow()
        v1, keras = tf.compat.v1, tf.keras.layers
        initial, trains, layers = v1.glorot_uniform_initializer(), mode == "train", []
        with v1.name_scope("dnn/"):
            layers.append(keras.DenseFeatures(self.columns, name="input_from_feature_columns/input_layer"))
            net = layers[0](features)
            for number, size in enumerate([*self.units, None]):
                name = "logits" if size is None else f"hiddenlayer_{number}"
                activation = None if size is None else self.activation
                layers.append(keras.Dense(size or width, activation, kernel_initializer=initial, name=name))
                net = layers[-1](net)
                if size is not None and self.dropout is not None and trains:
                    net = keras.Dropout(self.dropout)(net, training=True)
                if size is not None and self.norm:
                    layers.append(keras.BatchNormalization(momentum=0.999, name=f"{name}/batchnorm_{number}"))
                    net = layers[-1](net, training=trains)
                v1.summary.scalar(f"{name}/fraction_of_zero_values", tf.math.zero_fraction(net))
                v1.summary.histogram(f"{name}/activation", net)
        trained = [variable for layer in layers for variable in layer.trainable_variables]
        return net, trained, [variable for layer in layers for variable in layer.updates]


class _Wide:
    """Linear weights of feature columns."""

    def __init__(self, columns: Any, optimizer: Any, combiner: str, *, alone: bool = False) -> None:
        self.columns, self.optimizer, self.combiner = listed(columns), optimizer, combiner
        # In a purely linear model, a named optimizer has the same default rate for any number of columns.
        self.rate = 0.2 if alone else linear_rate(len(self.columns))

    def built(self, features: Any, mode: str, width: int) -> tuple[Any, list[Any], list[Any]]:
        """Return (the logits, the trainable variables, no update operations)."""
        v1 = compat.tensorflow().compat.v1
        with v1.variable_scope("linear"):
            logits = v1.feature_column.linear_model(features, self.columns, units=width, sparse_combiner=self.combiner)
        return logits, v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope="linear/"), []


def _optimizer(part: Any) -> Any:
    """Return the optimizer of a part, a legacy one that works in a graph."""
    tf = compat.tensorflow()
    optimizer = keras_optimizer(part.optimizer, part.rate)
    if isinstance(optimizer, tf.keras.optimizers.experimental.Optimizer):
        with tf.init_scope():
            optimizer = tf.keras.__internal__.optimizers.convert_to_legacy_optimizer(optimizer)
    return optimizer


def _of(head: V2Head, parts: Sequence[Any]) -> Callable[..., ModelFnSpec]:
    """Return the model_fn of a DNN and a linear part, or of the part that has columns."""
    parts = [part for part in parts if part.columns]
    if not parts:
        raise ConfigError("no feature columns", code="argument/missing", hint="give feature columns for a part")

    def model_fn(features: Any, labels: Any, mode: str) -> ModelFnSpec:
        tf = compat.tensorflow()
        built = [part.built(features, mode, head.logits_dimension) for part in parts]

        def train_op(loss: Any) -> Any:
            ops = []
            for number, (part, (_, variables, updates)) in enumerate(zip(parts, built, strict=True)):
                optimizer = _optimizer(part)
                step = tf.compat.v1.train.get_or_create_global_step()
                if not number and getattr(optimizer, "_iterations", None) is not step:  # the first optimizer counts
                    optimizer.iterations = step
                ops += [*optimizer.get_updates(loss, variables), *updates]
            return tf.group(*ops)

        total = built[0][0] if len(built) == 1 else built[0][0] + built[1][0]
        return head.create_estimator_spec(features, mode, total, labels, train_op_fn=train_op)

    return model_fn

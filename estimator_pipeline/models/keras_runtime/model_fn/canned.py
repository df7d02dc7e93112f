"""The canned Estimators of TensorFlow 1, `tf.compat.v1.estimator`, as Keras models of their model_fn.

Arguments, variables, numbers and metric names are those of the Estimators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime.model_fn.heads import V1Head, V1RegressionHead, binary_or_multi_class_head
from estimator_pipeline.models.keras_runtime.model_fn.model import ModelFnModel
from estimator_pipeline.models.keras_runtime.model_fn.settings import ModelFnRunConfig as RunConfig
from estimator_pipeline.models.keras_runtime.model_fn.settings import ModelFnSpec

__all__ = [
    "DNNClassifier", "DNNLinearCombinedClassifier", "DNNLinearCombinedRegressor", "DNNRegressor", "LinearClassifier",
    "LinearRegressor",
]  # fmt: skip

_SUM = "weighted_sum"
_OPTIMIZERS = {
    "Adagrad": "AdagradOptimizer", "Adam": "AdamOptimizer", "Ftrl": "FtrlOptimizer", "RMSProp": "RMSPropOptimizer",
    "SGD": "GradientDescentOptimizer",
}  # fmt: skip


def DNNClassifier(
    hidden_units: Sequence[int], feature_columns: Any, model_dir: str | None = None, n_classes: int = 2,
    weight_column: Any = None, label_vocabulary: Sequence[str] | None = None, optimizer: Any = "Adagrad",
    activation_fn: Any = None, dropout: float | None = None, input_layer_partitioner: Any = None,
    config: RunConfig | None = None, warm_start_from: Any = None, loss_reduction: str = _SUM, batch_norm: bool = False,
) -> Any:  # fmt: skip
    """Build a DNN classifier."""
    head = binary_or_multi_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
    deep = _Deep(feature_columns, hidden_units, activation_fn, dropout, batch_norm)
    return _model(_of(head, deep, optimizer), model_dir, config, warm_start_from)


def DNNRegressor(
    hidden_units: Sequence[int], feature_columns: Any, model_dir: str | None = None, label_dimension: int = 1,
    weight_column: Any = None, optimizer: Any = "Adagrad", activation_fn: Any = None, dropout: float | None = None,
    input_layer_partitioner: Any = None, config: RunConfig | None = None, warm_start_from: Any = None,
    loss_reduction: str = _SUM, batch_norm: bool = False,
) -> Any:  # fmt: skip
    """Build a DNN regressor."""
    head = V1RegressionHead(label_dimension, weight_column, None, loss_reduction)
    deep = _Deep(feature_columns, hidden_units, activation_fn, dropout, batch_norm)
    return _model(_of(head, deep, optimizer), model_dir, config, warm_start_from)


def LinearClassifier(
    feature_columns: Any, model_dir: str | None = None, n_classes: int = 2, weight_column: Any = None,
    label_vocabulary: Sequence[str] | None = None, optimizer: Any = "Ftrl", config: RunConfig | None = None,
    partitioner: Any = None, warm_start_from: Any = None, loss_reduction: str = _SUM, sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a linear classifier: a weight for each category and number."""
    head = binary_or_multi_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
    wide = _Wide(feature_columns, sparse_combiner)
    return _model(_of(head, wide, optimizer), model_dir, config, warm_start_from)


def LinearRegressor(
    feature_columns: Any, model_dir: str | None = None, label_dimension: int = 1, weight_column: Any = None,
    optimizer: Any = "Ftrl", config: RunConfig | None = None, partitioner: Any = None, warm_start_from: Any = None,
    loss_reduction: str = _SUM, sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a linear regressor: a weight for each category and number."""
    head = V1RegressionHead(label_dimension, weight_column, None, loss_reduction)
    wide = _Wide(feature_columns, sparse_combiner)
    return _model(_of(head, wide, optimizer), model_dir, config, warm_start_from)


def DNNLinearCombinedClassifier(
    model_dir: str | None = None, linear_feature_columns: Any = None, linear_optimizer: Any = "Ftrl",
    dnn_feature_columns: Any = None, dnn_optimizer: Any = "Adagrad", dnn_hidden_units: Sequence[int] | None = None,
    dnn_activation_fn: Any = None, dnn_dropout: float | None = None, n_classes: int = 2, weight_column: Any = None,
    label_vocabulary: Sequence[str] | None = None, input_layer_partitioner: Any = None,
    config: RunConfig | None = None, warm_start_from: Any = None, loss_reduction: str = _SUM,
    batch_norm: bool = False, linear_sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a wide and deep classifier: a linear part and a DNN, each with its optimizer."""
    head = binary_or_multi_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
    return _combined(**locals())


def DNNLinearCombinedRegressor(
    model_dir: str | None = None, linear_feature_columns: Any = None, linear_optimizer: Any = "Ftrl",
    dnn_feature_columns: Any = None, dnn_optimizer: Any = "Adagrad", dnn_hidden_units: Sequence[int] | None = None,
    dnn_activation_fn: Any = None, dnn_dropout: float | None = None, label_dimension: int = 1,
    weight_column: Any = None, input_layer_partitioner: Any = None, config: RunConfig | None = None,
    warm_start_from: Any = None, loss_reduction: str = _SUM, batch_norm: bool = False,
    linear_sparse_combiner: str = "sum",
) -> Any:  # fmt: skip
    """Build a wide and deep regressor: a linear part and a DNN, each with its optimizer."""
    head = V1RegressionHead(label_dimension, weight_column, None, loss_reduction)
    return _combined(**locals())


def _model(model_fn: Callable[..., ModelFnSpec], folder: str | None, config: RunConfig | None, warm_start: Any) -> Any:
    model = ModelFnModel(model_fn, folder, config, None, warm_start)
    model.checkpoints.part_of_scope = {"dnn": "t_0", "linear": "part_0"}
    return model


def _combined(
    *, head: V1Head, model_dir: str | None, linear_feature_columns: Any, linear_optimizer: Any,
    dnn_feature_columns: Any, dnn_optimizer: Any, dnn_hidden_units: Sequence[int] | None, dnn_activation_fn: Any,
    dnn_dropout: float | None, config: RunConfig | None, warm_start_from: Any, batch_norm: bool,
    linear_sparse_combiner: str, **of_head: Any,
) -> Any:  # fmt: skip
    deep = _Deep(dnn_feature_columns, dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
    wide = _Wide(linear_feature_columns, linear_sparse_combiner)
    model_fn = _of_both(head, deep, wide, dnn_optimizer, linear_optimizer)
    return ModelFnModel(model_fn, model_dir, config, None, warm_start_from)


def listed(columns: Any) -> list[Any]:
    """Return feature columns as a list, from one column or any iterable, such as a generator."""
    if hasattr(columns, "parse_example_spec"):  # a column is a tuple itself
        return [columns]
    return list(columns or ())


class _Deep:
    """Dense layers on feature columns."""

    scope, rate = "dnn", 0.05

    def __init__(self, columns: Any, units: Any, activation: Any, dropout: float | None, norm: bool) -> None:
        self.columns = listed(columns)
        self.units, self.activation, self.dropout, self.norm = tuple(units or ()), activation, dropout, norm

    def logits(self, features: Any, mode: str, width: int) -> Any:
        tf = compat.tensorflow()
        v1, trains = tf.compat.v1, mode == "train"
        initial = v1.glorot_uniform_initializer()
        activation = self.activation if self.activation is not None else tf.nn.relu
        with v1.variable_scope(self.scope):
            with v1.variable_scope("input_from_feature_columns"):
                net = v1.feature_column.input_layer(features, self.columns)
            for number, size in enumerate(self.units):
                with v1.variable_scope(f"hiddenlayer_{number}") as scope:
                    dense = v1.layers.Dense(size, activation, kernel_initializer=initial, name=scope, _scope=scope)
                    net = dense(net)
                    if self.dropout is not None and trains:
                        net = v1.layers.Dropout(self.dropout)(net, training=True)
                    if self.norm:
                        normal = v1.layers.BatchNormalization(momentum=0.999, name=f"batchnorm_{number}")
                        net = normal(net, training=trains)
                name = f"{self.scope}/hiddenlayer_{number}"
                v1.summary.scalar(f"{name}/fraction_of_zero_values", tf.nn.zero_fraction(net))
                v1.summary.histogram(f"{name}/activation", net)
            with v1.variable_scope("logits") as scope:
                return v1.layers.Dense(width, kernel_initializer=initial, name=scope, _scope=scope)(net)


class _Wide:
    """Linear weights of feature columns."""

    scope = "linear"

    def __init__(self, columns: Any, combiner: str) -> None:
        self.columns = listed(columns)
        self.combiner = combiner

    @property
    def rate(self) -> float:
        return min(0.2, 1 / math.sqrt(len(self.columns)))

    def logits(self, features: Any, mode: str, width: int) -> Any:
        v1 = compat.tensorflow().compat.v1
        with v1.variable_scope(self.scope):
            return v1.feature_column.linear_model(features, self.columns, units=width, sparse_combiner=self.combiner)


def _optimizer(optimizer: Any, rate: float) -> Any:
    """Return an optimizer of TensorFlow 1 from its name, the optimizer, or a function that returns it."""
    train = compat.tensorflow().compat.v1.train
    if isinstance(optimizer, str):
        if optimizer not in _OPTIMIZERS:
            raise ConfigError(
                f"the optimizer {optimizer!r} is not known",
                code="argument/unknown-name",
                found=", ".join(_OPTIMIZERS),
                hint="use one of these names, or give an optimizer",
            )
        return getattr(train, _OPTIMIZERS[optimizer])(learning_rate=rate)
    return optimizer() if callable(optimizer) else optimizer


def _of(head: V1Head, part: Any, optimizer: Any) -> Callable[..., ModelFnSpec]:
    """Return the model_fn of one part."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelFnSpec:
        logits = part.logits(features, mode, head.logits_dimension)
        v1_optimizer = _optimizer(optimizer, 0.2 if optimizer != "Ftrl" and part.scope == "linear" else part.rate)
        with compat.tensorflow().compat.v1.name_scope(f"{part.scope}/"):  # the scope of the optimizer's variables
            return head.create_estimator_spec(features, mode, logits, labels, v1_optimizer)

    return model_fn


def _of_both(head: V1Head, deep: _Deep, wide: _Wide, dnn: Any, linear: Any) -> Callable[..., ModelFnSpec]:
    """Return the model_fn of a DNN and a linear part, or of the part that has columns."""
    if not deep.columns and not wide.columns:
        raise ConfigError(
            "neither linear_feature_columns nor dnn_feature_columns", code="argument/missing", hint="give one of them"
        )

    def model_fn(features: Any, labels: Any, mode: str) -> ModelFnSpec:
        v1 = compat.tensorflow().compat.v1
        parts: list[Any] = [part for part in (deep, wide) if part.columns]
        logits = [part.logits(features, mode, head.logits_dimension) for part in parts]
        rates = {"dnn": 0.001, "linear": min(0.005, 1 / math.sqrt(max(len(wide.columns), 1)))}
        optimizers = {"dnn": dnn, "linear": linear}

        def train_op(loss: Any) -> Any:
            ops = [
                _optimizer(optimizers[part.scope], rates[part.scope]).minimize(
                    loss, var_list=v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope=part.scope)
                )
                for part in parts
            ]
            with v1.control_dependencies(ops):
                return v1.assign_add(v1.train.get_global_step(), 1)

        total = logits[0] if len(logits) == 1 else logits[0] + logits[1]
        return head.create_estimator_spec(features, mode, total, labels, train_op_fn=train_op)

    return model_fn

"""`tf.contrib.estimator`: heads and wrappers of Estimators, based on the estimator package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow_estimator.python.estimator.canned import head as _head

from estimator_pipeline.utils.logger import logger

__all__ = [
    "DNNEstimator",
    "DNNLinearCombinedEstimator",
    "LinearEstimator",
    "TowerOptimizer",
    "binary_classification_head",
    "clip_gradients_by_norm",
    "forward_features",
    "logistic_regression_head",
    "multi_class_head",
    "poisson_regression_head",
    "regression_head",
    "replicate_model_fn",
]

_v1: Any = tf.compat.v1
DNNEstimator = _v1.estimator.DNNEstimator
LinearEstimator = _v1.estimator.LinearEstimator
DNNLinearCombinedEstimator = _v1.estimator.DNNLinearCombinedEstimator
_MEAN = _v1.losses.Reduction.SUM_OVER_BATCH_SIZE


def multi_class_head(
    n_classes: int,
    weight_column: Any = None,
    label_vocabulary: Any = None,
    loss_reduction: str = _MEAN,
    loss_fn: Any = None,
    name: str | None = None,
) -> Any:
    """Return a head for more than two classes: softmax cross entropy."""
    return _head._multi_class_head_with_softmax_cross_entropy_loss(
        n_classes, weight_column, label_vocabulary, loss_reduction, loss_fn, name
    )


def binary_classification_head(
    weight_column: Any = None,
    thresholds: Any = None,
    label_vocabulary: Any = None,
    loss_reduction: str = _MEAN,
    loss_fn: Any = None,
    name: str | None = None,
) -> Any:
    """Return a head for two classes: sigmoid cross entropy."""
    return _head._binary_logistic_head_with_sigmoid_cross_entropy_loss(
        weight_column, thresholds, label_vocabulary, loss_reduction, loss_fn, name
    )


def regression_head(
    weight_column: Any = None,
    label_dimension: int = 1,
    loss_reduction: str = _MEAN,
    loss_fn: Any = None,
    inverse_link_fn: Any = None,
    name: str | None = None,
) -> Any:
    """Return a head for regression: mean squared error."""
    return _head._regression_head(weight_column, label_dimension, loss_reduction, loss_fn, inverse_link_fn, name)


def poisson_regression_head(
    weight_column: Any = None,
    label_dimension: int = 1,
    loss_reduction: str = _MEAN,
    compute_full_loss: bool = True,
    name: str | None = None,
) -> Any:
    """Return a head for regression of counts: Poisson loss."""

    def loss_fn(labels: Any, logits: Any) -> Any:
        return tf.nn.log_poisson_loss(labels, logits, compute_full_loss=compute_full_loss)

    return regression_head(weight_column, label_dimension, loss_reduction, loss_fn, tf.exp, name)


def logistic_regression_head(weight_column: Any = None, loss_reduction: str = _MEAN, name: str | None = None) -> Any:
    """Return a head for regression of probabilities in [0, 1]: sigmoid cross entropy."""

    def loss_fn(labels: Any, logits: Any) -> Any:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    return regression_head(weight_column, 1, loss_reduction, loss_fn, tf.sigmoid, name)


class TowerOptimizer(_v1.train.Optimizer):
    """Wraps an optimizer without changing it, for a model_fn of `replicate_model_fn`.

    Args:
        optimizer_or_optimizer_fn: The optimizer, or a function that creates it.
    """

    def __init__(self, optimizer_or_optimizer_fn: Any) -> None:
        optimizer = optimizer_or_optimizer_fn
        if callable(optimizer) and not isinstance(optimizer, _v1.train.Optimizer):
            optimizer = optimizer()
        self._optimizer = optimizer
        super().__init__(False, f"{type(self).__name__}{type(self._optimizer).__name__}")

    def compute_gradients(self, *args: Any, **options: Any) -> Any:
        return self._optimizer.compute_gradients(*args, **options)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        return self._optimizer.apply_gradients(self._changed(grads_and_vars), global_step, name)

    def _changed(self, gradients: Any) -> Any:
        return gradients

    def get_slot(self, *args: Any) -> Any:
        return self._optimizer.get_slot(*args)

    def get_slot_names(self) -> Any:
        return self._optimizer.get_slot_names()

    def variables(self) -> Any:
        return self._optimizer.variables()


class _ClippedOptimizer(TowerOptimizer):
    def __init__(self, optimizer: Any, clip_norm: float) -> None:
        super().__init__(optimizer)
        self._clip_norm = clip_norm

    def _changed(self, gradients: Any) -> Any:
        return [
            (gradient if gradient is None else tf.clip_by_norm(gradient, self._clip_norm), variable)
            for gradient, variable in gradients
        ]


def clip_gradients_by_norm(optimizer: Any, clip_norm: float) -> Any:
    """Return an optimizer that clips each gradient to a norm."""
    return _ClippedOptimizer(optimizer, clip_norm)


def replicate_model_fn(model_fn: Any, loss_reduction: str = _v1.losses.Reduction.SUM, devices: Any = None) -> Any:
    """Return the model_fn unchanged, which trains on one device.

    For several GPUs of one machine use its replacement, `tf.contrib.distribute.MirroredStrategy`, in the RunConfig.
    """
    if len(devices or tf.config.list_physical_devices("GPU")) > 1:
        logger.warning(
            "replicate_model_fn trains on one device here: "
            "RunConfig(train_distribute=tf.distribute.MirroredStrategy()) uses all GPUs"
        )
    return model_fn


def forward_features(estimator: Any, keys: Iterable[str] | str | None = None, sparse_default_values: Any = None) -> Any:
    """Return a copy of an Estimator whose predictions include features.

    Args:
        estimator: A tf.estimator Estimator.
        keys: The features; all by default.
        sparse_default_values: Name -> default value of a sparse feature.

    Raises:
        KeyError: There is no such feature.
        ValueError: A prediction has the name of a feature.
    """
    wanted = [keys] if isinstance(keys, str) else None if keys is None else list(keys)
    defaults = sparse_default_values or {}

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        # Copied before the model function, which may change them.
        original = dict(features)
        spec = estimator._call_model_fn(features, labels, mode, config)
        if mode != tf.estimator.ModeKeys.PREDICT:
            return spec
        predictions = dict(spec.predictions)
        for key in original if wanted is None else wanted:
            if key in predictions:
                raise ValueError(f"Cannot forward feature key ({key}): it is a key of the predictions")
            value = original[key]
            if isinstance(value, tf.SparseTensor):
                value = tf.sparse.to_dense(value, default_value=defaults.get(key))
            predictions[key] = value
        outputs = dict(spec.export_outputs or {})
        for name, output in outputs.items():
            if isinstance(output, tf.estimator.export.PredictOutput):
                more = {key: value for key, value in predictions.items() if key not in spec.predictions}
                outputs[name] = tf.estimator.export.PredictOutput({**output.outputs, **more})
        return spec._replace(predictions=predictions, export_outputs=outputs)

    return _v1.estimator.Estimator(model_fn, model_dir=estimator.model_dir, config=estimator.config)

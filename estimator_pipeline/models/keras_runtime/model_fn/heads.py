"""Heads of TensorFlow 1, which build the spec of a model_fn. Losses are sums over the batch by default.

Numbers and the names of metrics and predictions are those of the canned Estimators of `tf.compat.v1.estimator`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime.model_fn.settings import (
    ClassificationOutput,
    ModelFnSpec,
    PredictOutput,
    RegressionOutput,
)

__all__ = [
    "V1BinaryClassHead", "V1Head", "V1MultiClassHead", "V1RegressionHead", "binary_classification_head",
    "binary_or_multi_class_head", "logistic_loss", "logistic_regression_head", "multi_class_head", "poisson_loss",
    "poisson_regression_head", "regression_head",
]  # fmt: skip

_MEAN = "weighted_sum_over_batch_size"


class V1Head(ABC):
    """Base class of the TensorFlow 1 heads.

    Args:
        weight_column: The feature or numeric column with the sample weights.
        label_vocabulary: The class names in order, where labels are text.
        loss_reduction: A value of `tf.compat.v1.losses.Reduction`.
        loss_fn: A function of labels, logits and, if it has the parameter, features that returns the loss of each
            example.
        name: The suffix of metric names.

    Attributes:
        logits_dimension: The number of logits of an example.
    """

    logits_dimension = 1

    def __init__(
        self, weight_column: Any = None, label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = "weighted_sum", loss_fn: Callable[..., Any] | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        self.weight_column, self.vocabulary = weight_column, label_vocabulary
        self.reduction, self.loss_fn, self.name = loss_reduction, loss_fn, name

    def create_estimator_spec(
        self, features: Any, mode: str, logits: Any, labels: Any = None, optimizer: Any = None,
        train_op_fn: Callable[[Any], Any] | None = None, regularization_losses: Sequence[Any] | None = None,
    ) -> ModelFnSpec:  # fmt: skip
        """Return the spec of a model_fn for a mode.

        Args:
            features: A dict of tensors.
            mode: "train", "eval" or "infer".
            logits: [batch, logits_dimension].
            labels: [batch] or [batch, label dimension].
            optimizer: The optimizer that minimizes the loss.
            train_op_fn: Returns the train op for the loss, instead of an optimizer.
            regularization_losses: Losses to add to the loss.

        Raises:
            ConfigError: There is neither an optimizer nor a train_op_fn for training.
        """
        with compat.tensorflow().compat.v1.name_scope(self.name or "head"):  # the scope of the optimizer's variables
            return self._spec(features, mode, logits, labels, optimizer, train_op_fn, regularization_losses)

    def _spec(
        self, features: Any, mode: str, logits: Any, labels: Any, optimizer: Any, train_op_fn: Any,
        regularization_losses: Sequence[Any] | None,
    ) -> ModelFnSpec:  # fmt: skip
        v1 = compat.tensorflow().compat.v1
        predictions = self.predictions(logits)
        if mode == "infer":
            return ModelFnSpec(mode, predictions, export_outputs=self.outputs(predictions))
        labels = self._shaped(labels, logits)
        labels = self._ids(labels)
        unreduced, weights = self._unreduced(labels, logits, features), self._weights(features)
        loss = v1.losses.compute_weighted_loss(unreduced, weights=weights, reduction=self.reduction)
        added = v1.add_n(list(regularization_losses)) if regularization_losses else None
        total = loss if added is None else loss + added
        if mode == "eval":
            metrics = {"average_loss": v1.metrics.mean(unreduced, weights=weights)}
            metrics |= self.metrics(labels, predictions, weights)
            if added is not None:
                metrics["regularization_loss"] = v1.metrics.mean(added)
            named = {f"{key}/{self.name}" if self.name else key: metric for key, metric in metrics.items()}
            return ModelFnSpec(mode, predictions, total, eval_metric_ops=named)
        step = v1.train.get_global_step()
        if optimizer is not None:
            train_op = optimizer.minimize(total, global_step=step)
        elif train_op_fn is not None:
            train_op = train_op_fn(total)
        else:
            raise ConfigError("the head has no optimizer for training", code="argument/missing", hint="give optimizer=")
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        return ModelFnSpec(mode, predictions, total, v1.group(train_op, *updates))

    @abstractmethod
    def predictions(self, logits: Any) -> dict[str, Any]:
        """Return the predictions by name."""

    @abstractmethod
    def outputs(self, predictions: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs of a SavedModel by signature key."""

    @abstractmethod
    def losses(self, labels: Any, logits: Any) -> Any:
        """Return the loss of each example, [batch, 1] or [batch, label dimension]."""

    @abstractmethod
    def metrics(self, labels: Any, predictions: dict[str, Any], weights: Any) -> dict[str, Any]:
        """Return the metrics of an evaluation, without the mean loss."""

    def _ids(self, labels: Any) -> Any:
        """Return the labels in the form that the loss takes."""
        return labels

    def _unreduced(self, labels: Any, logits: Any, features: Any) -> Any:
        if self.loss_fn is None:
            return self.losses(labels, logits)
        extra = {"features": features} if "features" in inspect.signature(self.loss_fn).parameters else {}
        return self.loss_fn(labels=labels, logits=logits, **extra)

    def _shaped(self, labels: Any, logits: Any) -> Any:
        tf = compat.tensorflow()
        labels = tf.convert_to_tensor(labels)
        return labels[..., tf.newaxis] if labels.shape.rank == logits.shape.rank - 1 else labels

    def _weights(self, features: Any) -> Any:
        tf = compat.tensorflow()
        if self.weight_column is None:
            return 1.0
        name = self.weight_column if isinstance(self.weight_column, str) else self.weight_column.key
        weights = tf.cast(features[name], tf.float32)
        normalizer = getattr(self.weight_column, "normalizer_fn", None)
        weights = normalizer(weights) if normalizer is not None else weights
        return weights[:, tf.newaxis] if weights.shape.rank == 1 else weights

    def _looked_up(self, labels: Any) -> Any:
        if self.vocabulary is None:
            return labels
        tf = compat.tensorflow()
        keys = tf.constant(list(self.vocabulary))
        values = tf.range(len(self.vocabulary), dtype=tf.int64)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)
        return table.lookup(labels)

    def _classes(self, ids: Any, count: int) -> dict[str, Any]:
        """Return the ids and names of the predicted class and of all classes."""
        tf = compat.tensorflow()
        names = [str(number) for number in range(count)] if self.vocabulary is None else list(self.vocabulary)
        every = tf.shape(ids)[0]
        return {
            "class_ids": ids,
            "classes": tf.gather(tf.constant(names), ids),
            "all_class_ids": tf.tile(tf.range(count, dtype=tf.int32)[tf.newaxis], [every, 1]),
            "all_classes": tf.tile(tf.constant(names)[tf.newaxis], [every, 1]),
        }


def _scores(predictions: dict[str, Any]) -> ClassificationOutput:
    return ClassificationOutput(predictions["probabilities"], predictions["all_classes"])


class V1BinaryClassHead(V1Head):
    """Binary head with one logit."""

    def __init__(self, *arguments: Any, thresholds: Sequence[float] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.thresholds = tuple(thresholds or ())

    def predictions(self, logits: Any) -> dict[str, Any]:
        tf = compat.tensorflow()
        both = tf.concat([tf.zeros_like(logits), logits], axis=-1)
        predictions = {"logits": logits, "logistic": tf.sigmoid(logits), "probabilities": tf.nn.softmax(both)}
        return predictions | self._classes(tf.argmax(both, axis=-1)[:, tf.newaxis], 2)

    def outputs(self, predictions: dict[str, Any]) -> dict[str, Any]:
        scores = _scores(predictions)
        regression = RegressionOutput(predictions["logistic"])
        return {"serving_default": scores, "classification": scores, "regression": regression,
                "predict": PredictOutput(predictions)}  # fmt: skip

    def _ids(self, labels: Any) -> Any:
        tf = compat.tensorflow()
        return tf.cast(self._looked_up(labels), tf.float32)

    def losses(self, labels: Any, logits: Any) -> Any:
        return compat.tensorflow().nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def metrics(self, labels: Any, predictions: dict[str, Any], weights: Any) -> dict[str, Any]:
        tf = compat.tensorflow()
        metrics = tf.compat.v1.metrics
        ids, logistic = predictions["class_ids"], predictions["logistic"]
        weights = weights * tf.ones_like(logistic)
        mean = metrics.mean(labels, weights=weights)
        baseline = (tf.maximum(mean[0], 1 - mean[0]), tf.maximum(mean[1], 1 - mean[1]))
        by_name = {
            "accuracy": metrics.accuracy(labels, ids, weights),
            "precision": metrics.precision(labels, ids, weights),
            "recall": metrics.recall(labels, ids, weights),
            "prediction/mean": metrics.mean(logistic, weights=weights),
            "label/mean": mean,
            "accuracy_baseline": baseline,
            "auc": metrics.auc(labels, logistic, weights),
            "auc_precision_recall": metrics.auc(labels, logistic, weights, curve="PR"),
        }
        for threshold in self.thresholds:
            above = tf.cast(logistic > threshold, tf.float32)
            by_name[f"accuracy/positive_threshold_{threshold:g}"] = metrics.accuracy(labels, above, weights)
            for kind, metric in (
                ("precision", metrics.precision_at_thresholds),
                ("recall", metrics.recall_at_thresholds),
            ):
                value, update = metric(labels, logistic, [threshold], weights)
                by_name[f"{kind}/positive_threshold_{threshold:g}"] = (tf.squeeze(value), tf.squeeze(update))
        return by_name


class V1MultiClassHead(V1Head):
    """Multi-class head with a logit for each class.

    Args:
        n_classes: The number of classes.
    """

    def __init__(self, n_classes: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logits_dimension = n_classes

    def predictions(self, logits: Any) -> dict[str, Any]:
        tf = compat.tensorflow()
        predictions = {"logits": logits, "probabilities": tf.nn.softmax(logits)}
        return predictions | self._classes(tf.argmax(logits, axis=-1)[:, tf.newaxis], self.logits_dimension)

    def outputs(self, predictions: dict[str, Any]) -> dict[str, Any]:
        scores = _scores(predictions)
        return {"serving_default": scores, "classification": scores, "predict": PredictOutput(predictions)}

    def _ids(self, labels: Any) -> Any:
        return self._looked_up(labels)

    def losses(self, labels: Any, logits: Any) -> Any:
        tf = compat.tensorflow()
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.squeeze(labels, -1), logits=logits)
        return losses[:, tf.newaxis]

    def metrics(self, labels: Any, predictions: dict[str, Any], weights: Any) -> dict[str, Any]:
        tf = compat.tensorflow()
        ids = predictions["class_ids"]
        return {"accuracy": tf.compat.v1.metrics.accuracy(labels, ids, weights * tf.ones_like(ids, tf.float32))}


class V1RegressionHead(V1Head):
    """Regression head.

    Args:
        label_dimension: The number of label values of an example.
        inverse_link_fn: Converts logits to predictions; None: the predictions are the logits.
    """

    def __init__(
        self, label_dimension: int = 1, *arguments: Any, inverse_link_fn: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*arguments, **options)
        self.logits_dimension, self.inverse_link_fn = label_dimension, inverse_link_fn

    def predictions(self, logits: Any) -> dict[str, Any]:
        if self.inverse_link_fn is None:
            return {"predictions": logits}
        return {"predictions": self.inverse_link_fn(logits), "logits": logits}

    def outputs(self, predictions: dict[str, Any]) -> dict[str, Any]:
        regression = RegressionOutput(predictions["predictions"])
        return {"serving_default": regression, "regression": regression, "predict": PredictOutput(predictions)}

    def _ids(self, labels: Any) -> Any:
        tf = compat.tensorflow()
        return tf.cast(labels, tf.float32)

    def losses(self, labels: Any, logits: Any) -> Any:
        return compat.tensorflow().math.squared_difference(labels, logits)

    def metrics(self, labels: Any, predictions: dict[str, Any], weights: Any) -> dict[str, Any]:
        tf = compat.tensorflow()
        metrics, values = tf.compat.v1.metrics, predictions["predictions"]
        weights = weights * tf.ones_like(values)
        return {
            "prediction/mean": metrics.mean(values, weights=weights),
            "label/mean": metrics.mean(labels, weights=weights),
        }


# The heads of tf.contrib.estimator


def binary_or_multi_class_head(
    n_classes: int, weight_column: Any, label_vocabulary: Sequence[str] | None, loss_reduction: str, loss_fn: Any = None
) -> V1Head:  # fmt: skip
    """Return the classification head of TensorFlow 1's canned Estimators, which programs use by its private name."""
    if n_classes == 2:
        return V1BinaryClassHead(weight_column, label_vocabulary, loss_reduction, loss_fn)
    return V1MultiClassHead(n_classes, weight_column, label_vocabulary, loss_reduction, loss_fn)


def binary_classification_head(
    weight_column: Any = None, thresholds: Sequence[float] | None = None,
    label_vocabulary: Sequence[str] | None = None, loss_reduction: str = _MEAN,
    loss_fn: Callable[..., Any] | None = None, name: str | None = None,
) -> V1Head:  # fmt: skip
    """Return a binary head. See `V1Head`."""
    return V1BinaryClassHead(weight_column, label_vocabulary, loss_reduction, loss_fn, name, thresholds=thresholds)


def multi_class_head(
    n_classes: int, weight_column: Any = None, label_vocabulary: Sequence[str] | None = None,
    loss_reduction: str = _MEAN, loss_fn: Callable[..., Any] | None = None, name: str | None = None,
) -> V1Head:  # fmt: skip
    """Return a head for more than two classes. See `V1Head`."""
    return V1MultiClassHead(n_classes, weight_column, label_vocabulary, loss_reduction, loss_fn, name)


def regression_head(
    weight_column: Any = None, label_dimension: int = 1, loss_reduction: str = _MEAN,
    loss_fn: Callable[..., Any] | None = None, inverse_link_fn: Callable[[Any], Any] | None = None,
    name: str | None = None,
) -> V1Head:  # fmt: skip
    """Return a regression head. See `V1RegressionHead`."""
    return V1RegressionHead(
        label_dimension, weight_column, None, loss_reduction, loss_fn, name, inverse_link_fn=inverse_link_fn
    )


def poisson_regression_head(
    weight_column: Any = None, label_dimension: int = 1, loss_reduction: str = _MEAN, compute_full_loss: bool = True,
    name: str | None = None,
) -> V1Head:  # fmt: skip
    """Return a head for counts with the Poisson loss; see `tf.nn.log_poisson_loss` for `compute_full_loss`."""
    inverse = compat.tensorflow().exp
    loss_fn = poisson_loss(compute_full_loss)
    return regression_head(weight_column, label_dimension, loss_reduction, loss_fn, inverse, name)


def logistic_regression_head(weight_column: Any = None, loss_reduction: str = _MEAN, name: str | None = None) -> V1Head:
    """Return a head for numbers in [0, 1] with sigmoid cross entropy."""
    return regression_head(weight_column, 1, loss_reduction, logistic_loss, compat.tensorflow().sigmoid, name)


def poisson_loss(full: bool) -> Callable[..., Any]:
    """Return the Poisson loss function, with `full` including the term that does not depend on the logits."""

    def loss_fn(labels: Any, logits: Any) -> Any:
        return compat.tensorflow().nn.log_poisson_loss(labels, logits, compute_full_loss=full)

    return loss_fn


def logistic_loss(labels: Any, logits: Any) -> Any:
    """Return the sigmoid cross entropy of labels in [0, 1]."""
    return compat.tensorflow().nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

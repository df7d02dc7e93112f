"""The heads of `tf.estimator` for Keras: loss, metrics and predictions of a `tf.keras.Model`.

    head = keras_heads.BinaryClassHead(thresholds=[0.3])
    loss = head.loss(labels, logits, features)
    head.update(metrics, labels, logits, features)      # metrics = head.metrics(), kept by the model
    values = head.further(model.get_metrics_result())
    predictions = head.predictions(logits)

Arguments, arithmetic and names are those of TensorFlow 2's heads: docs/reference/migrate-equals.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime.feature_columns import Column

__all__ = ["BinaryClassHead", "MultiClassHead", "MultiHead", "RegressionHead"]

_REDUCTIONS = ("sum_over_batch_size", "sum")


class _Head:
    """The common part of the single-output heads.

    Attributes:
        width: The number of logits for an example.
        name: The suffix of metric names, "accuracy/name"; None: no suffix.
    """

    def __init__(self, width: int, weight_column: Any, reduction: Any, name: str | None) -> None:
        self.width, self.name = width, name
        self.reduction = str(getattr(reduction, "value", reduction)).lower()
        self.weight_column = weight_column
        if self.reduction not in _REDUCTIONS:
            raise ConfigError(
                f"loss_reduction {reduction!r}", code="argument/unknown-name", found=", ".join(_REDUCTIONS)
            )

    def key(self, name: str) -> str:
        """Return the name of a metric."""
        return f"{name}/{self.name}" if self.name else name

    def weights(self, features: Any, losses: Any) -> Any:
        """Return the sample weights, [B, 1]."""
        tf = compat.tensorflow()
        if self.weight_column is None:
            return tf.ones_like(losses[:, :1])
        if isinstance(self.weight_column, Column):
            return self.weight_column.encoded(features)
        return tf.reshape(tf.cast(features[self.weight_column], tf.float32), [-1, 1])

    def losses(self, labels: Any, logits: Any) -> Any:
        """Return the loss of each example and output value, [B, width] or [B, 1]."""
        raise NotImplementedError

    def loss(self, labels: Any, logits: Any, features: Any = None, regularization: Sequence[Any] | None = None) -> Any:
        """Return the training loss of a batch.

        Args:
            labels, logits: Of the batch.
            features: Of the batch, where they contain the sample weights.
            regularization: Losses of the layers to add.
        """
        tf = compat.tensorflow()
        losses = self.losses(labels, logits)
        total = tf.reduce_sum(losses * self.weights(features, losses))
        loss = total if self.reduction == "sum" else total / tf.cast(tf.size(losses), tf.float32)
        return loss + tf.add_n(list(regularization)) if regularization else loss

    def metrics(self, *, regularized: bool = False) -> dict[str, Any]:
        """Create the head's Keras metrics, by name, for an attribute of the model.

        Args:
            regularized: Whether the layers have losses.
        """
        names = ("average_loss", "regularization_loss") if regularized else ("average_loss",)
        mean = compat.tensorflow().keras.metrics.Mean
        return {self.key(name): mean(name=self.key(name)) for name in names}

    def update(
        self, metrics: Mapping[str, Any], labels: Any, logits: Any, features: Any = None,
        regularization: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        """Update the metrics with a batch."""
        tf = compat.tensorflow()
        losses = self.losses(labels, logits)
        weights = self.weights(features, losses)
        metrics[self.key("average_loss")].update_state(losses, sample_weight=weights)
        if regularization:
            metrics[self.key("regularization_loss")].update_state(tf.add_n(list(regularization)))
        self.update_predicted(metrics, labels, logits, weights)

    def update_predicted(self, metrics: Mapping[str, Any], labels: Any, logits: Any, weights: Any) -> None:
        """Update all metrics except those of losses with a batch."""
        raise NotImplementedError

    def further(self, values: dict[str, Any]) -> dict[str, Any]:
        """Add the metrics that are computed from other metrics' values."""
        return values


class RegressionHead(_Head):
    """Regression head with the squared error.

    Args:
        label_dimension: The number of label values of an example.
        weight_column: The feature or numeric column with the sample weights.
        loss_reduction: "sum_over_batch_size" or "sum".
        name: The name of the head.
    """

    def __init__(
        self, label_dimension: int = 1, weight_column: Any = None, loss_reduction: Any = "sum_over_batch_size",
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(label_dimension, weight_column, loss_reduction, name)

    def losses(self, labels: Any, logits: Any) -> Any:
        tf = compat.tensorflow()
        return tf.math.squared_difference(logits, self.labels(labels))

    def labels(self, labels: Any) -> Any:
        """Return the labels as numbers, [B, width]."""
        tf = compat.tensorflow()
        return tf.reshape(tf.cast(labels, tf.float32), [-1, self.width])

    def metrics(self, *, regularized: bool = False) -> dict[str, Any]:
        mean = compat.tensorflow().keras.metrics.Mean
        names = [self.key(name) for name in ("label/mean", "prediction/mean")]
        return super().metrics(regularized=regularized) | {name: mean(name=name) for name in names}

    def update_predicted(self, metrics: Mapping[str, Any], labels: Any, logits: Any, weights: Any) -> None:
        for name, value in {"label/mean": self.labels(labels), "prediction/mean": logits}.items():
            metrics[self.key(name)].update_state(value, sample_weight=weights)

    def predictions(self, logits: Any) -> dict[str, Any]:
        """Return the predictions of a batch."""
        return {"predictions": logits}

    def outputs(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        """Return, for each signature, a function from predictions to its outputs; the first is the default."""
        return {"regression": lambda predictions: {"outputs": predictions["predictions"]}}


class _Classes(_Head):
    def __init__(
        self, classes: int, width: int, weight_column: Any, words: Sequence[str] | None, reduction: Any,
        name: str | None,
    ) -> None:  # fmt: skip
        super().__init__(width, weight_column, reduction, name)
        self.classes, self.words = classes, list(words) if words is not None else None
        layers = compat.tensorflow().keras.layers
        self.lookup = layers.StringLookup(vocabulary=self.words, num_oov_indices=0) if self.words else None

    def labels(self, labels: Any) -> Any:
        """Return the labels as class ids, [B, 1]."""
        tf = compat.tensorflow()
        labels = tf.reshape(labels, [-1, 1])
        return tf.cast(self.lookup(labels) if self.lookup is not None else labels, tf.int64)

    def metrics(self, *, regularized: bool = False) -> dict[str, Any]:
        name = self.key("accuracy")
        accuracy = compat.tensorflow().keras.metrics.Accuracy(name=name)
        return super().metrics(regularized=regularized) | {name: accuracy}

    def update_predicted(self, metrics: Mapping[str, Any], labels: Any, logits: Any, weights: Any) -> None:
        predicted = self.predictions(logits)["class_ids"]
        metrics[self.key("accuracy")].update_state(self.labels(labels), predicted, sample_weight=weights)

    def predictions(self, logits: Any) -> dict[str, Any]:
        """Return the predictions of a batch."""
        tf = compat.tensorflow()
        both = tf.concat([tf.zeros_like(logits), logits], axis=-1) if self.width == 1 else logits
        numbers = tf.argmax(both, axis=-1)[:, tf.newaxis]
        predictions = {"logits": logits, "probabilities": tf.nn.softmax(both), "class_ids": numbers}
        if self.width == 1:
            predictions["logistic"] = tf.sigmoid(logits)
        names = tf.constant(self.words or [str(number) for number in range(self.classes)])
        predictions["classes"] = tf.gather(names, numbers)
        every = tf.tile(tf.range(self.classes)[tf.newaxis], [tf.shape(logits)[0], 1])
        return {**predictions, "all_class_ids": every, "all_classes": tf.gather(names, every)}

    def outputs(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        """Return, for each signature, a function from predictions to its outputs; the first is the default."""
        by_signature = {
            "classification": lambda values: {"classes": values["all_classes"], "scores": values["probabilities"]}
        }
        if self.width == 1:
            by_signature["regression"] = lambda values: {"outputs": values["logistic"]}
        return by_signature


class MultiClassHead(_Classes):
    """Multi-class head with softmax cross entropy.

    Args:
        n_classes: The number of classes.
        weight_column: The feature or numeric column with the sample weights.
        label_vocabulary: The class names, where labels are text.
        loss_reduction: "sum_over_batch_size" or "sum".
        name: The name of the head.
    """

    def __init__(
        self, n_classes: int, weight_column: Any = None, label_vocabulary: Sequence[str] | None = None,
        loss_reduction: Any = "sum_over_batch_size", name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(n_classes, n_classes, weight_column, label_vocabulary, loss_reduction, name)

    def losses(self, labels: Any, logits: Any) -> Any:
        tf = compat.tensorflow()
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.labels(labels)[:, 0], logits=logits)
        return each[:, tf.newaxis]


class BinaryClassHead(_Classes):
    """Binary head with sigmoid cross entropy.

    Args:
        weight_column: The feature or numeric column with the sample weights.
        thresholds: Additional thresholds for accuracy, precision and recall.
        label_vocabulary: The names of the two classes, where labels are text.
        loss_reduction: "sum_over_batch_size" or "sum".
        name: The name of the head.
    """

    def __init__(
        self, weight_column: Any = None, thresholds: Sequence[float] | None = None,
        label_vocabulary: Sequence[str] | None = None, loss_reduction: Any = "sum_over_batch_size",
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(2, 1, weight_column, label_vocabulary, loss_reduction, name)
        self.thresholds = tuple(thresholds or ())

    def losses(self, labels: Any, logits: Any) -> Any:
        tf = compat.tensorflow()
        return tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(self.labels(labels), tf.float32), logits)

    def metrics(self, *, regularized: bool = False) -> dict[str, Any]:
        kinds = compat.tensorflow().keras.metrics
        makers: dict[str, Callable[..., Any]] = {
            "label/mean": kinds.Mean, "prediction/mean": kinds.Mean, "precision": kinds.Precision,
            "recall": kinds.Recall, "auc": kinds.AUC,
            "auc_precision_recall": lambda name: kinds.AUC(name=name, curve="PR"),
        }  # fmt: skip
        metrics = super().metrics(regularized=regularized)
        metrics |= {self.key(name): make(name=self.key(name)) for name, make in makers.items()}
        for threshold in self.thresholds:
            accuracy, precision, recall = self._at(threshold)
            metrics[accuracy] = kinds.BinaryAccuracy(name=accuracy, threshold=threshold)
            metrics[precision] = kinds.Precision(name=precision, thresholds=threshold)
            metrics[recall] = kinds.Recall(name=recall, thresholds=threshold)
        return metrics

    def _at(self, threshold: float) -> list[str]:
        kinds = ("accuracy", "precision", "recall")
        return [self.key(f"{kind}/positive_threshold_{threshold:g}") for kind in kinds]

    def update_predicted(self, metrics: Mapping[str, Any], labels: Any, logits: Any, weights: Any) -> None:
        super().update_predicted(metrics, labels, logits, weights)
        tf = compat.tensorflow()
        numbers, predicted = self.labels(labels), self.predictions(logits)
        classes, share = tf.cast(predicted["class_ids"], tf.float32), predicted["logistic"]
        arguments = {
            "label/mean": (numbers,), "prediction/mean": (share,), "precision": (numbers, classes),
            "recall": (numbers, classes), "auc": (numbers, share), "auc_precision_recall": (numbers, share),
        }  # fmt: skip
        for name, values in arguments.items():
            metrics[self.key(name)].update_state(*values, sample_weight=weights)
        for threshold in self.thresholds:
            for name in self._at(threshold):
                metrics[name].update_state(numbers, share, sample_weight=weights)

    def further(self, values: dict[str, Any]) -> dict[str, Any]:
        tf = compat.tensorflow()
        if self.key("label/mean") in values:
            mean = values[self.key("label/mean")]
            values[self.key("accuracy_baseline")] = tf.maximum(mean, 1 - mean)
        return values


class MultiHead:
    """Several heads over one network: logits and labels are dicts by head name, the loss is the sum of the losses.

    Args:
        heads: Heads, each with a name.
        head_weights: The weight of each head's loss.
    """

    def __init__(self, heads: Sequence[Any], head_weights: Sequence[float] | None = None) -> None:
        self.heads, self.weights = list(heads), list(head_weights or [])
        names = [head.name for head in self.heads]
        if None in names or len(set(names)) < len(names):
            raise ConfigError(
                "the heads of a MultiHead need distinct names",
                code="argument/missing",
                found=f"names: {names}",
            )
        if self.weights and len(self.weights) != len(names):
            raise ConfigError(f"{len(self.weights)} weights for {len(names)} heads", code="argument/bad-value")

    def _split(self, logits: Any) -> Mapping[str, Any]:
        """Return the logits of each head."""
        if isinstance(logits, Mapping):
            return logits
        tf = compat.tensorflow()
        parts = tf.split(logits, [head.width for head in self.heads], axis=-1)
        return {head.name: part for head, part in zip(self.heads, parts, strict=True)}

    def loss(self, labels: Any, logits: Any, features: Any = None, regularization: Sequence[Any] | None = None) -> Any:
        """Return the weighted sum of the heads' losses plus the layers' losses."""
        tf = compat.tensorflow()
        parts = self._split(logits)
        losses = [head.loss(labels[head.name], parts[head.name], features) for head in self.heads]
        if self.weights:
            losses = [loss * weight for loss, weight in zip(losses, self.weights, strict=True)]
        return tf.add_n([*losses, *(regularization or ())])

    def metrics(self, *, regularized: bool = False) -> dict[str, Any]:
        """Create the metrics of all heads, and a metric of each head's loss."""
        mean = compat.tensorflow().keras.metrics.Mean
        names = [f"loss/{head.name}" for head in self.heads] + (["regularization_loss"] if regularized else [])
        metrics = {name: mean(name=name) for name in names}
        for head in self.heads:
            metrics |= head.metrics()
        return metrics

    def update(
        self, metrics: Mapping[str, Any], labels: Any, logits: Any, features: Any = None,
        regularization: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        """Update the metrics with a batch."""
        tf = compat.tensorflow()
        parts = self._split(logits)
        for head in self.heads:
            arguments = (labels[head.name], parts[head.name], features)
            metrics[f"loss/{head.name}"].update_state(head.loss(*arguments))
            head.update(metrics, *arguments)
        if regularization:
            metrics["regularization_loss"].update_state(tf.add_n(list(regularization)))

    def further(self, values: dict[str, Any]) -> dict[str, Any]:
        """Add the metrics that are computed from other metrics' values."""
        for head in self.heads:
            values = head.further(values)
        return values

    def predictions(self, logits: Any) -> dict[tuple[str, str], Any]:
        """Return the predictions of a batch by (head name, prediction name)."""
        parts = self._split(logits)
        return {(head.name, key): value for head in self.heads
                for key, value in head.predictions(parts[head.name]).items()}  # fmt: skip

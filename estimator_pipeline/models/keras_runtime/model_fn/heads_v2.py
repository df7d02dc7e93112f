"""Heads of TensorFlow 2, such as `tf.estimator.BinaryClassHead`. Losses are means over the batch by default.

Numbers and the names of metrics and predictions are those of TensorFlow. Metrics and optimizers are Keras's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime import heads as keras_heads
from estimator_pipeline.models.keras_runtime.model_fn.heads import (
    V1BinaryClassHead,
    V1Head,
    V1MultiClassHead,
    V1RegressionHead,
    logistic_loss,
    poisson_loss,
)
from estimator_pipeline.models.keras_runtime.model_fn.settings import ClassificationOutput, ModelFnSpec, PredictOutput

__all__ = [
    "LogisticRegressionHead", "PoissonRegressionHead", "V2BinaryClassHead", "V2Head", "V2MultiClassHead",
    "V2MultiHead", "V2MultiLabelHead", "V2RegressionHead",
]  # fmt: skip

_MEAN = "sum_over_batch_size"
_REDUCTIONS = (_MEAN, "sum")


class V2Head(V1Head):
    """Base class of the TensorFlow 2 heads.

    Args:
        weight_column: The feature or numeric column with the sample weights.
        label_vocabulary: The class names in order, where labels are text.
        loss_reduction: "sum_over_batch_size" or "sum", or a value of `tf.keras.losses.Reduction`.
        loss_fn: A function of labels, logits and, if it has the parameter, features that returns the loss of each
            example.
        name: The suffix of metric names.

    Raises:
        ConfigError: The loss_reduction is unknown.
    """

    def __init__(
        self, weight_column: Any = None, label_vocabulary: Sequence[str] | None = None, loss_reduction: Any = _MEAN,
        loss_fn: Callable[..., Any] | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        reduction = str(getattr(loss_reduction, "value", loss_reduction)).lower()
        V1Head.__init__(self, weight_column, label_vocabulary, reduction, loss_fn, name)
        if reduction not in _REDUCTIONS:
            raise ConfigError(
                f"loss_reduction {loss_reduction!r}", code="argument/unknown-name", found=", ".join(_REDUCTIONS)
            )

    @property
    def loss_reduction(self) -> str:
        """The reduction, "sum_over_batch_size" or "sum"."""
        return str(self.reduction)

    def loss(
        self, labels: Any, logits: Any, features: Any = None, mode: str | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Any:  # fmt: skip
        """Return the training loss, a scalar."""
        tf = compat.tensorflow()
        labels = self._ids(self._shaped(labels, logits))
        unreduced = self._unreduced(labels, logits, features)
        loss = tf.reduce_sum(unreduced * self._weights(features))
        if self.reduction == _MEAN:
            loss = tf.math.divide_no_nan(loss, tf.cast(tf.size(unreduced), tf.float32))
        return loss if regularization_losses is None else loss + tf.add_n(list(regularization_losses))

    def create_estimator_spec(  # type: ignore[override]
        self, features: Any, mode: str, logits: Any, labels: Any = None, optimizer: Any = None,
        trainable_variables: Sequence[Any] | None = None, train_op_fn: Callable[[Any], Any] | None = None,
        update_ops: Sequence[Any] | None = None, regularization_losses: Sequence[Any] | None = None,
    ) -> ModelFnSpec:  # fmt: skip
        """Return the spec of a model_fn for a mode.

        Args:
            features: A dict of tensors.
            mode: "train", "eval" or "infer".
            logits: [batch, logits_dimension].
            labels: [batch] or [batch, label dimension].
            optimizer: The Keras optimizer that minimizes the loss.
            trainable_variables: The variables that the optimizer updates.
            train_op_fn: Returns the train op for the loss, instead of an optimizer.
            update_ops: Operations to run with each step.
            regularization_losses: Losses to add to the loss.

        Raises:
            ConfigError: There is neither an optimizer nor a train_op_fn for training, or an optimizer without
                variables.
        """
        tf = compat.tensorflow()
        with tf.compat.v1.name_scope(self.name or "head"):
            predictions = self.predictions(logits)
            if mode == "infer":
                return ModelFnSpec(mode, predictions, export_outputs=self.outputs(predictions))
            total = self.loss(labels, logits, features, mode, regularization_losses)
            if mode == "eval":
                metrics = self.evaluation(features, logits, labels, regularization_losses)
                return ModelFnSpec(mode, predictions, total, eval_metric_ops=metrics)
            train_op = _train_op(total, optimizer, trainable_variables, train_op_fn, update_ops)
        return ModelFnSpec(mode, predictions, total, train_op)

    def evaluation(
        self, features: Any, logits: Any, labels: Any, regularization_losses: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """Return the metrics of an evaluation by name, updated with the batch."""
        tf = compat.tensorflow()
        labels = self._ids(self._shaped(labels, logits))
        unreduced = self._unreduced(labels, logits, features)
        weights = self._weights(features) * tf.ones_like(unreduced[:, :1])
        metrics = self.keras_metrics(labels, logits, weights, regularized=regularization_losses is not None)
        metrics["average_loss"].update_state(unreduced, sample_weight=weights)
        if regularization_losses is not None:
            metrics["regularization_loss"].update_state(tf.add_n(list(regularization_losses)))
        return {f"{key}/{self.name}" if self.name else key: metric for key, metric in metrics.items()}

    @abstractmethod
    def keras_metrics(self, labels: Any, logits: Any, weights: Any, *, regularized: bool) -> dict[str, Any]:
        """Return the Keras metrics, updated with the batch except for those of losses."""

    def metrics(self, labels: Any, predictions: dict[str, Any], weights: Any) -> dict[str, Any]:
        logits = predictions["logits"] if "logits" in predictions else predictions["predictions"]
        return self.keras_metrics(labels, logits, weights, regularized=False)


def _train_op(
    loss: Any, optimizer: Any, variables: Sequence[Any] | None, train_op_fn: Any, updates: Sequence[Any] | None
) -> Any:
    """Return the train op, in the name scope of these heads' optimizers."""
    tf = compat.tensorflow()
    with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope("training"):
        if optimizer is not None:
            if variables is None:
                raise ConfigError(
                    "the head has an optimizer, but no trainable_variables",
                    code="argument/missing",
                    hint="give trainable_variables=",
                )
            train_op = optimizer.get_updates(loss, list(variables))[0]
        elif train_op_fn is not None:
            train_op = train_op_fn(loss)
        else:
            raise ConfigError("the head has no optimizer for training", code="argument/missing", hint="give optimizer=")
        return tf.group(train_op, *updates) if updates is not None else train_op


def _updated_metrics(head: Any, labels: Any, logits: Any, weights: Any, regularized: bool) -> dict[str, Any]:
    """Return the metrics of a head of `keras_runtime.heads`, updated except for those of losses."""
    metrics: dict[str, Any] = head.metrics(regularized=regularized)
    head.update_predicted(metrics, labels, logits, weights)
    return metrics


class V2BinaryClassHead(V2Head, V1BinaryClassHead):
    """Binary head with one logit. See `V2Head`.

    Args:
        thresholds: Additional thresholds for accuracy, precision and recall.
    """

    def __init__(
        self, weight_column: Any = None, thresholds: Sequence[float] | None = None,
        label_vocabulary: Sequence[str] | None = None, loss_reduction: Any = _MEAN,
        loss_fn: Callable[..., Any] | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        V2Head.__init__(self, weight_column, label_vocabulary, loss_reduction, loss_fn, name)
        self.thresholds = tuple(thresholds or ())

    def keras_metrics(self, labels: Any, logits: Any, weights: Any, *, regularized: bool) -> dict[str, Any]:
        tf = compat.tensorflow()
        metrics = _updated_metrics(
            keras_heads.BinaryClassHead(None, self.thresholds), labels, logits, weights, regularized
        )
        mean = metrics["label/mean"]
        larger = tf.math.maximum(mean.total, mean.count - mean.total)
        return metrics | {"accuracy_baseline": (tf.math.divide_no_nan(larger, mean.count), tf.no_op())}


class V2MultiClassHead(V2Head, V1MultiClassHead):
    """Multi-class head with a logit for each class. See `V2Head`.

    Args:
        n_classes: The number of classes.
    """

    def __init__(
        self, n_classes: int, weight_column: Any = None, label_vocabulary: Sequence[str] | None = None,
        loss_reduction: Any = _MEAN, loss_fn: Callable[..., Any] | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        V2Head.__init__(self, weight_column, label_vocabulary, loss_reduction, loss_fn, name)
        self.logits_dimension = n_classes

    def keras_metrics(self, labels: Any, logits: Any, weights: Any, *, regularized: bool) -> dict[str, Any]:
        return _updated_metrics(keras_heads.MultiClassHead(self.logits_dimension), labels, logits, weights, regularized)


class V2RegressionHead(V2Head, V1RegressionHead):
    """Regression head. See `V2Head`.

    Args:
        label_dimension: The number of label values of an example.
        inverse_link_fn: Converts logits to predictions; None: the predictions are the logits.
    """

    def __init__(
        self, label_dimension: int = 1, weight_column: Any = None, loss_reduction: Any = _MEAN,
        loss_fn: Callable[..., Any] | None = None, inverse_link_fn: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        V2Head.__init__(self, weight_column, None, loss_reduction, loss_fn, name)
        self.logits_dimension, self.inverse_link_fn = label_dimension, inverse_link_fn

    def keras_metrics(self, labels: Any, logits: Any, weights: Any, *, regularized: bool) -> dict[str, Any]:
        values = self.predictions(logits)["predictions"]
        return _updated_metrics(keras_heads.RegressionHead(self.logits_dimension), labels, values, weights, regularized)


def PoissonRegressionHead(
    label_dimension: int = 1, weight_column: Any = None, loss_reduction: Any = _MEAN, compute_full_loss: bool = True,
    name: str | None = None,
) -> V2RegressionHead:  # fmt: skip
    """Return a head for counts with the Poisson loss; see `tf.nn.log_poisson_loss` for `compute_full_loss`."""
    inverse = compat.tensorflow().math.exp
    loss_fn = poisson_loss(compute_full_loss)
    return V2RegressionHead(label_dimension, weight_column, loss_reduction, loss_fn, inverse, name)


def LogisticRegressionHead(
    weight_column: Any = None, loss_reduction: Any = _MEAN, name: str | None = None
) -> V2RegressionHead:
    """Return a head for numbers in [0, 1] with sigmoid cross entropy."""
    inverse = compat.tensorflow().math.sigmoid
    return V2RegressionHead(1, weight_column, loss_reduction, logistic_loss, inverse, name)


class V2MultiLabelHead(V2Head):
    """Multi-label head: labels are 0 or 1 for each class, or a sparse tensor of classes.

    See `V2Head`.

    Args:
        n_classes: The number of classes.
        thresholds: Thresholds for accuracy, precision and recall.
        classes_for_class_based_metrics: Numbers or names of classes with separate metrics.
    """

    def __init__(
        self, n_classes: int, weight_column: Any = None, thresholds: Sequence[float] | None = None,
        label_vocabulary: Sequence[str] | None = None, loss_reduction: Any = _MEAN,
        loss_fn: Callable[..., Any] | None = None, classes_for_class_based_metrics: Sequence[Any] | None = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(weight_column, label_vocabulary, loss_reduction, loss_fn, name)
        self.logits_dimension, self.thresholds = n_classes, tuple(thresholds or ())
        words = list(label_vocabulary or ())
        self.metric_classes = [
            words.index(name) if isinstance(name, str) else name for name in classes_for_class_based_metrics or ()
        ]

    def predictions(self, logits: Any) -> dict[str, Any]:
        tf = compat.tensorflow()
        none = tf.zeros_like(logits[:, :1], tf.int64)
        names = self._classes(none, self.logits_dimension)["all_classes"]
        return {"logits": logits, "probabilities": tf.sigmoid(logits), "classes": names}

    def outputs(self, predictions: dict[str, Any]) -> dict[str, Any]:
        scores = ClassificationOutput(predictions["probabilities"], predictions["classes"])
        return {"serving_default": scores, "classification": scores, "predict": PredictOutput(predictions)}

    def _shaped(self, labels: Any, logits: Any) -> Any:
        sparse = isinstance(labels, compat.tensorflow().SparseTensor)
        return labels if sparse else super()._shaped(labels, logits)

    def _ids(self, labels: Any) -> Any:
        tf = compat.tensorflow()
        if isinstance(labels, tf.SparseTensor):
            numbers = self._looked_up(labels.values) if labels.dtype == tf.string else labels.values
            labels = tf.sparse.to_indicator(labels.with_values(numbers), self.logits_dimension)
        return tf.cast(labels, tf.int64)

    def losses(self, labels: Any, logits: Any) -> Any:
        tf = compat.tensorflow()
        each = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(labels, logits.dtype), logits=logits)
        return tf.reduce_mean(each, axis=-1, keepdims=True)

    def keras_metrics(self, labels: Any, logits: Any, weights: Any, *, regularized: bool) -> dict[str, Any]:
        tf = compat.tensorflow()
        kinds, shares = tf.keras.metrics, tf.sigmoid(logits)
        metrics = {"average_loss": kinds.Mean()} | ({"regularization_loss": kinds.Mean()} if regularized else {})

        def add(name: str, metric: Any, *values: Any) -> None:
            metric.update_state(*values, sample_weight=weights)
            metrics[name] = metric

        add("auc", kinds.AUC(), labels, shares)
        add("auc_precision_recall", kinds.AUC(curve="PR"), labels, shares)
        for threshold in self.thresholds:
            at = f"positive_threshold_{threshold:g}"
            add(f"accuracy/{at}", kinds.BinaryAccuracy(threshold=threshold), labels, shares)
            add(f"precision/{at}", kinds.Precision(thresholds=threshold), labels, shares)
            add(f"recall/{at}", kinds.Recall(thresholds=threshold), labels, shares)
        for place in self.metric_classes:
            name = self.vocabulary[place] if self.vocabulary else f"class{place}"
            class_labels, share = labels[:, place : place + 1], shares[:, place : place + 1]
            add(f"probability_mean/{name}", kinds.Mean(), share)
            add(f"auc/{name}", kinds.AUC(), class_labels, share)
            add(f"auc_precision_recall/{name}", kinds.AUC(curve="PR"), class_labels, share)
        return metrics


class V2MultiHead(V2Head):
    """Several heads over one network: labels are a dict by head name, logits a dict or concatenated.

    Args:
        heads: Heads, each with a name.
        head_weights: The weight of each head's loss.

    Raises:
        ConfigError: A head has no name.
    """

    def __init__(self, heads: Sequence[V2Head], head_weights: Sequence[float] | None = None) -> None:
        names = [head.name for head in heads]
        if None in names:
            raise ConfigError(
                "the heads of a MultiHead need names",
                code="argument/missing",
                found=f"names: {names}",
                hint="give name=",
            )
        super().__init__(None, None, heads[0].loss_reduction, None, "_".join(map(str, names)))
        self.heads, self.head_weights = list(heads), list(head_weights or [1.0] * len(names))
        self.logits_dimension = sum(head.logits_dimension for head in heads)

    def create_estimator_spec(self, *arguments: Any, **options: Any) -> ModelFnSpec:
        v1 = compat.tensorflow().compat.v1
        with v1.name_scope(None):
            for _ in self.heads:  # in TensorFlow, each head uses one scope name before the optimizer's scope
                v1.get_default_graph().unique_name("training")
        return super().create_estimator_spec(*arguments, **options)

    def _parts(self, logits: Any) -> list[tuple[V2Head, Any]]:
        """Return the heads with their logits."""
        if isinstance(logits, Mapping):
            return [(head, logits[head.name]) for head in self.heads]
        sizes = [head.logits_dimension for head in self.heads]
        return list(zip(self.heads, compat.tensorflow().split(logits, sizes, axis=-1), strict=True))

    def loss(
        self, labels: Any, logits: Any, features: Any = None, mode: str | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Any:  # fmt: skip
        losses = [head.loss(labels[head.name], part, features, mode) for head, part in self._parts(logits)]
        losses = [loss * weight for loss, weight in zip(losses, self.head_weights, strict=True)]
        added = compat.tensorflow().add_n
        return added(losses) if regularization_losses is None else added(losses) + added(list(regularization_losses))

    def losses(self, labels: Any, logits: Any) -> Any:
        raise NotImplementedError

    def predictions(self, logits: Any) -> dict[Any, Any]:
        return {
            (head.name, key): value
            for head, part in self._parts(logits)
            for key, value in head.predictions(part).items()
        }

    def outputs(self, predictions: dict[Any, Any]) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        for head in self.heads:
            by_key = head.outputs({key: value for (name, key), value in predictions.items() if name == head.name})
            outputs.setdefault("serving_default", by_key["serving_default"])
            outputs |= {
                str(head.name) if key == "serving_default" else f"{head.name}/{key}": output
                for key, output in by_key.items()
            }
        return outputs | {"predict": PredictOutput({"/".join(key): value for key, value in predictions.items()})}

    def evaluation(
        self, features: Any, logits: Any, labels: Any, regularization_losses: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        tf = compat.tensorflow()
        metrics: dict[str, Any] = {}
        for head, part in self._parts(logits):
            metrics[f"loss/{head.name}"] = tf.keras.metrics.Mean()
            metrics[f"loss/{head.name}"].update_state(head.loss(labels[head.name], part, features))
            metrics |= head.evaluation(features, part, labels[head.name])
        if regularization_losses is not None:
            metric = metrics[f"regularization_loss/{self.name}"] = tf.keras.metrics.Mean()
            metric.update_state(tf.add_n(list(regularization_losses)))
        return metrics

    def keras_metrics(self, labels: Any, logits: Any, weights: Any, *, regularized: bool) -> dict[str, Any]:
        raise NotImplementedError

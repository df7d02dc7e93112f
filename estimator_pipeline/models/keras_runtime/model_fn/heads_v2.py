"""Heads of TensorFlow 2, `tf.estimator.BinaryClassHead` and its like: losses are means over the batch by default.

Numbers, names of metrics and of predictions are theirs. Metrics are Keras's, optimizers as well.
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
    """What follows the logits.

    Args:
        weight_column: the feature, or the numeric column, of the weights of examples.
        label_vocabulary: the labels as texts, in the order of the classes.
        loss_reduction: "sum_over_batch_size" or "sum", or of `tf.keras.losses.Reduction`.
        loss_fn: of labels, logits and, if it has the parameter, features: the loss of each example.
        name: stands behind the names of metrics.

    Raises:
        ConfigError: another loss_reduction.
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
        """ "sum_over_batch_size" or "sum"."""
        return str(self.reduction)

    def loss(
        self, labels: Any, logits: Any, features: Any = None, mode: str | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Any:  # fmt: skip
        """Return the loss that is trained, a scalar."""
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
        """Return what a model_fn gives for a mode.

        Args:
            features: a dict of tensors.
            mode: "train", "eval" or "infer".
            logits: of shape [batch, logits_dimension].
            labels: of shape [batch] or [batch, dimension of labels].
            optimizer: of Keras, that minimises the loss.
            trainable_variables: that it changes.
            train_op_fn: makes the operation of a step of the loss, in place of an optimizer.
            update_ops: run with each step.
            regularization_losses: are added to the loss.

        Raises:
            ConfigError: neither an optimizer nor a train_op_fn to train by, or an optimizer without variables.
        """
        tf = compat.tensorflow()
        with tf.compat.v1.name_scope(self.name or "head"):
            predictions = self.predictions(logits)
            if mode == "infer":
                return ModelFnSpec(mode, predictions, export_outputs=self.outputs(predictions))
            total = self.loss(labels, logits, features, mode, regularization_losses)
            if mode == "eval":
                found = self.evaluation(features, logits, labels, regularization_losses)
                return ModelFnSpec(mode, predictions, total, eval_metric_ops=found)
            train_op = _train_op(total, optimizer, trainable_variables, train_op_fn, update_ops)
        return ModelFnSpec(mode, predictions, total, train_op)

    def evaluation(
        self, features: Any, logits: Any, labels: Any, regularization_losses: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """Return the metrics of an evaluation by their names, told of the batch."""
        tf = compat.tensorflow()
        labels = self._ids(self._shaped(labels, logits))
        unreduced = self._unreduced(labels, logits, features)
        weights = self._weights(features) * tf.ones_like(unreduced[:, :1])
        found = self.keras_metrics(labels, logits, weights, regularized=regularization_losses is not None)
        found["average_loss"].update_state(unreduced, sample_weight=weights)
        if regularization_losses is not None:
            found["regularization_loss"].update_state(tf.add_n(list(regularization_losses)))
        return {f"{key}/{self.name}" if self.name else key: one for key, one in found.items()}

    @abstractmethod
    def keras_metrics(self, labels: Any, logits: Any, weights: Any, *, regularized: bool) -> dict[str, Any]:
        """The metrics of Keras; those of losses are still to be told."""

    def metrics(self, labels: Any, predictions: dict[str, Any], weights: Any) -> dict[str, Any]:
        logits = predictions["logits"] if "logits" in predictions else predictions["predictions"]
        return self.keras_metrics(labels, logits, weights, regularized=False)


def _train_op(
    loss: Any, optimizer: Any, variables: Sequence[Any] | None, train_op_fn: Any, updates: Sequence[Any] | None
) -> Any:
    """Return the operation of a step, in the scope that optimizers of such heads have."""
    tf = compat.tensorflow()
    with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope("training"):
        if optimizer is not None:
            if variables is None:
                raise ConfigError(
                    "a head has an optimizer, and no trainable_variables",
                    code="argument/missing",
                    hint="give trainable_variables=",
                )
            train_op = optimizer.get_updates(loss, list(variables))[0]
        elif train_op_fn is not None:
            train_op = train_op_fn(loss)
        else:
            raise ConfigError("a head has no optimizer to train by", code="argument/missing", hint="give optimizer=")
        return tf.group(train_op, *updates) if updates is not None else train_op


def _told(head: Any, labels: Any, logits: Any, weights: Any, regularized: bool) -> dict[str, Any]:
    """Return the metrics of a head for Keras layers, told of all but losses."""
    found: dict[str, Any] = head.metrics(regularized=regularized)
    head.tell(found, labels, logits, weights)
    return found


class V2BinaryClassHead(V2Head, V1BinaryClassHead):
    """Two classes by one logit. See `V2Head`.

    Args:
        thresholds: accuracy, precision and recall are told at each of these as well.
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
        found = _told(keras_heads.BinaryClassHead(None, self.thresholds), labels, logits, weights, regularized)
        mean = found["label/mean"]
        larger = tf.math.maximum(mean.total, mean.count - mean.total)
        return found | {"accuracy_baseline": (tf.math.divide_no_nan(larger, mean.count), tf.no_op())}


class V2MultiClassHead(V2Head, V1MultiClassHead):
    """Several classes, a logit for each. See `V2Head`.

    Args:
        n_classes: how many.
    """

    def __init__(
        self, n_classes: int, weight_column: Any = None, label_vocabulary: Sequence[str] | None = None,
        loss_reduction: Any = _MEAN, loss_fn: Callable[..., Any] | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        V2Head.__init__(self, weight_column, label_vocabulary, loss_reduction, loss_fn, name)
        self.logits_dimension = n_classes

    def keras_metrics(self, labels: Any, logits: Any, weights: Any, *, regularized: bool) -> dict[str, Any]:
        return _told(keras_heads.MultiClassHead(self.logits_dimension), labels, logits, weights, regularized)


class V2RegressionHead(V2Head, V1RegressionHead):
    """Numbers. See `V2Head`.

    Args:
        label_dimension: how many an example has.
        inverse_link_fn: makes the predictions of the logits; None: they are the logits.
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
        return _told(keras_heads.RegressionHead(self.logits_dimension), labels, values, weights, regularized)


def PoissonRegressionHead(
    label_dimension: int = 1, weight_column: Any = None, loss_reduction: Any = _MEAN, compute_full_loss: bool = True,
    name: str | None = None,
) -> V2RegressionHead:  # fmt: skip
    """Return the head of counts, with the loss of Poisson's distribution; `compute_full_loss` is that of the loss."""
    inverse = compat.tensorflow().math.exp
    loss_fn = poisson_loss(compute_full_loss)
    return V2RegressionHead(label_dimension, weight_column, loss_reduction, loss_fn, inverse, name)


def LogisticRegressionHead(
    weight_column: Any = None, loss_reduction: Any = _MEAN, name: str | None = None
) -> V2RegressionHead:
    """Return the head of numbers in [0, 1], with the cross entropy of the sigmoid."""
    inverse = compat.tensorflow().math.sigmoid
    return V2RegressionHead(1, weight_column, loss_reduction, logistic_loss, inverse, name)


class V2MultiLabelHead(V2Head):
    """Several classes, of which an example has any number; labels are 0 or 1 for each, or a sparse tensor of classes.

    See `V2Head`.

    Args:
        n_classes: how many.
        thresholds: accuracy, precision and recall are told at each of these.
        classes_for_class_based_metrics: numbers or names of classes that have metrics of their own.
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
        self.told = [words.index(one) if isinstance(one, str) else one for one in classes_for_class_based_metrics or ()]

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
        found = {"average_loss": kinds.Mean()} | ({"regularization_loss": kinds.Mean()} if regularized else {})

        def tell(name: str, metric: Any, *values: Any) -> None:
            metric.update_state(*values, sample_weight=weights)
            found[name] = metric

        tell("auc", kinds.AUC(), labels, shares)
        tell("auc_precision_recall", kinds.AUC(curve="PR"), labels, shares)
        for one in self.thresholds:
            at = f"positive_threshold_{one:g}"
            tell(f"accuracy/{at}", kinds.BinaryAccuracy(threshold=one), labels, shares)
            tell(f"precision/{at}", kinds.Precision(thresholds=one), labels, shares)
            tell(f"recall/{at}", kinds.Recall(thresholds=one), labels, shares)
        for place in self.told:
            name = self.vocabulary[place] if self.vocabulary else f"class{place}"
            own, share = labels[:, place : place + 1], shares[:, place : place + 1]
            tell(f"probability_mean/{name}", kinds.Mean(), share)
            tell(f"auc/{name}", kinds.AUC(), own, share)
            tell(f"auc_precision_recall/{name}", kinds.AUC(curve="PR"), own, share)
        return found


class V2MultiHead(V2Head):
    """Several heads over one network: labels are a dict by their names, logits as well or side by side.

    Args:
        heads: each with a name.
        head_weights: what each one's loss counts.

    Raises:
        ConfigError: a head without a name.
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
            for _ in self.heads:  # each one took a scope before that of the optimizer's variables
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
        losses = [head.loss(labels[head.name], own, features, mode) for head, own in self._parts(logits)]
        losses = [loss * weight for loss, weight in zip(losses, self.head_weights, strict=True)]
        added = compat.tensorflow().add_n
        return added(losses) if regularization_losses is None else added(losses) + added(list(regularization_losses))

    def losses(self, labels: Any, logits: Any) -> Any:
        raise NotImplementedError

    def predictions(self, logits: Any) -> dict[Any, Any]:
        return {
            (head.name, key): one for head, own in self._parts(logits) for key, one in head.predictions(own).items()
        }

    def outputs(self, predictions: dict[Any, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for head in self.heads:
            own = head.outputs({key: one for (name, key), one in predictions.items() if name == head.name})
            found.setdefault("serving_default", own["serving_default"])
            found |= {
                str(head.name) if key == "serving_default" else f"{head.name}/{key}": one for key, one in own.items()
            }
        return found | {"predict": PredictOutput({"/".join(key): one for key, one in predictions.items()})}

    def evaluation(
        self, features: Any, logits: Any, labels: Any, regularization_losses: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        tf = compat.tensorflow()
        found: dict[str, Any] = {}
        for head, own in self._parts(logits):
            found[f"loss/{head.name}"] = tf.keras.metrics.Mean()
            found[f"loss/{head.name}"].update_state(head.loss(labels[head.name], own, features))
            found |= head.evaluation(features, own, labels[head.name])
        if regularization_losses is not None:
            metric = found[f"regularization_loss/{self.name}"] = tf.keras.metrics.Mean()
            metric.update_state(tf.add_n(list(regularization_losses)))
        return found

    def keras_metrics(self, labels: Any, logits: Any, weights: Any, *, regularized: bool) -> dict[str, Any]:
        raise NotImplementedError

"""Metrics by name, for the heads that have them: one row of `_ROWS` a metric, the same on every engine.

Metrics are Keras classes of (labels, logits). The Estimator engine computes the oldest of them with
`tf.compat.v1.metrics` (`Head.metrics` in `estimator_pipeline.models.heads`), and all others with the class.

Recall, precision and F1 of a class are weighted means over the examples, as in
`sklearn.metrics.precision_recall_fscore_support(zero_division=0)`. A class without examples has 0.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = [
    "METRICS",
    "MetricValue",
    "class_share",
    "custom_classes",
    "is_known",
    "make_metric",
    "metrics_of",
    "names_of",
    "of_rank",
]

_LABELS, _VECTORS = ("multi_class",), ("one_hot",)
_CLASSES = (*_LABELS, *_VECTORS)
_YES_OR_NO = ("binary", "multi_label")
_REGRESSION = ("regression",)
_PER_CLASS, _VALUE = "_per_class", "_X"


class _Row(NamedTuple):
    """A metric of some heads.

    Attributes:
        name: The name; with `_per_class` at its end it is a metric for each class, with `_X` X is a number.
        heads: The heads that have it.
        made_of: The name of the class in `custom_classes` or `tf.keras.metrics`.
        arguments: Arguments of the class.
        takes: Further arguments: `kind` (of the head), `size` (the number of classes, or of values of a label),
            `number` (of the class, from 0), or the name of the argument that X is.
    """

    name: str
    heads: tuple[str, ...]
    made_of: str
    arguments: Mapping[str, Any] = {}
    takes: tuple[str, ...] = ()


# The first row of a head is its default metric.
_ROWS = (
    _Row("accuracy", _LABELS, "SparseCategoricalAccuracy"),
    _Row("accuracy", _VECTORS, "CategoricalAccuracy"),
    _Row("accuracy", _YES_OR_NO, "BinaryAccuracy", {"threshold": 0.0}),
    _Row("top_5_accuracy", _LABELS, "SparseTopKCategoricalAccuracy", {"k": 5}),
    _Row("top_5_accuracy", _VECTORS, "TopKCategoricalAccuracy", {"k": 5}),
    _Row("precision", _YES_OR_NO, "PrecisionOfLogits"),
    _Row("recall", _YES_OR_NO, "RecallOfLogits"),
    _Row("f1", ("binary",), "ClassShare", {"share": "f1", "number": 1}, ("kind",)),
    _Row("f1", ("multi_label",), "ClassShare", {"share": "f1"}, ("kind",)),
    _Row("f1", _CLASSES, "MacroF1", {}, ("kind", "size")),
    _Row("auc", _YES_OR_NO, "AUC", {"num_thresholds": 200, "from_logits": True}),
    _Row("auc_precision_recall", _YES_OR_NO, "AUC", {"num_thresholds": 200, "curve": "PR", "from_logits": True}),
    _Row("precision_at_recall_X", _YES_OR_NO, "PrecisionAtRecallOfLogits", {}, ("recall",)),
    _Row("recall_at_precision_X", _YES_OR_NO, "RecallAtPrecisionOfLogits", {}, ("precision",)),
    *(
        _Row(f"{share}{_PER_CLASS}", (*_CLASSES, *_YES_OR_NO), "ClassShare", {"share": share}, ("kind", "number"))
        for share in ("precision", "recall", "f1")
    ),
    _Row("mean_squared_error", _REGRESSION, "MeanSquaredError"),
    _Row("root_mean_squared_error", _REGRESSION, "RootMeanSquaredError"),
    _Row("rmse", _REGRESSION, "RootMeanSquaredError"),
    _Row("mean_absolute_error", _REGRESSION, "MeanAbsoluteError"),
    _Row("r2", _REGRESSION, "R2", {}, ("size",)),
    _Row("label_mean", _REGRESSION, "LabelMean"),
    _Row("prediction_mean", _REGRESSION, "PredictionMean"),
)
METRICS: dict[str, tuple[str, ...]] = {
    kind: tuple(row.name for row in _ROWS if kind in row.heads) for kind in (*_CLASSES, *_YES_OR_NO, *_REGRESSION)
}
"""The metrics of each head, as messages name them."""


class MetricValue(NamedTuple):
    """One reported value of a metric.

    Attributes:
        name: The reported name.
        made_of: The name of the class in `custom_classes` or `tf.keras.metrics`.
        arguments: Arguments of the class.
    """

    name: str
    made_of: str
    arguments: Mapping[str, Any]


def is_known(kind: str | None, name: str) -> bool:
    """Return whether the head has a metric of this name, such as `precision_at_recall_0.9`."""
    return _find(kind, name) is not None


def names_of(kind: str, name: str, *, size: int | None, vocabulary: Sequence[str] = ()) -> list[str]:
    """Return the names that a metric of a head reports: its own, or one for each class; see `metrics_of`."""
    if not name.endswith(_PER_CLASS):
        return [name]
    # As in the canned heads: recall/cat, and recall/class0 without a vocabulary.
    classes = vocabulary or [f"class{number}" for number in range(_checked_size(kind, name, size, vocabulary))]
    return [f"{name.removesuffix(_PER_CLASS)}/{title}" for title in classes]


def metrics_of(kind: str, name: str, *, size: int | None, vocabulary: Sequence[str] = ()) -> list[MetricValue]:
    """Return the values that a metric of a head reports: one, or one for each class.

    Args:
        kind: The head.
        name: A known name.
        size: The number of logits of an example; None: unknown.
        vocabulary: The class names, in order.

    Raises:
        ConfigError: The metric requires the number of classes, which is unknown.
    """
    known = _find(kind, name)
    assert known is not None, f"{name} was checked with is_known"
    row, value = known
    arguments = {**row.arguments, **({"kind": kind} if "kind" in row.takes else {})}
    if value is not None:
        arguments[row.takes[-1]] = value
    if "size" in row.takes:
        arguments["size"] = _checked_size(kind, name, size, vocabulary)
    per_class = "number" in row.takes
    return [
        MetricValue(reported, row.made_of, {**arguments, **({"number": number} if per_class else {})})
        for number, reported in enumerate(names_of(kind, name, size=size, vocabulary=vocabulary))
    ]


def _checked_size(kind: str, name: str, size: int | None, vocabulary: Sequence[str]) -> int:
    size = 2 if kind == "binary" else size or len(vocabulary) or None
    if size is None:
        raise ConfigError(
            f"the metric {name!r} requires the size of the model's output, which is unknown before the model is called",
            code="argument/conflict",
            hint="give label_vocabulary, the class names in order; or build a functional or Sequential model",
        )
    return size


def make_metric(metric: MetricValue, **options: Any) -> Any:
    """Return the Keras metric, with options such as its `name`."""
    kind = custom_classes().get(metric.made_of) or getattr(compat.tensorflow().keras.metrics, metric.made_of)
    return kind(**metric.arguments, **options)


def class_share(
    labels: Any, logits: Any, weights: Any, *, share: str, kind: str, number: int | None = None
) -> tuple[Any, Any]:
    """Return a batch's precision, recall or F1 of a class, and its weight in their mean: scalars, float32.

    Args:
        labels: The labels of the batch.
        logits: The logits of the batch.
        weights: The weight of each example; None: all are 1.
        share: "precision", "recall" or "f1".
        kind: A head with classes.
        number: The number of the class; None for `multi_label`: all pairs of example and class.
    """
    tf = compat.tensorflow()
    if kind == "multi_label":
        actual, predicted = tf.cast(labels, tf.bool), logits > 0
        if number is not None:
            actual, predicted = actual[..., number], predicted[..., number]
    else:
        # Not `==`, which compares objects in an Estimator's graph.
        actual, predicted = (tf.equal(ids, number) for ids in _class_ids(tf, kind, labels, logits))
    actual, predicted = tf.cast(actual, tf.float32), tf.cast(predicted, tf.float32)
    # A mean of "is both", over the examples that are the one or the other; for F1 over both.
    counted = {"recall": actual, "precision": predicted, "f1": actual + predicted}[share]
    counted *= _broadcast(tf, weights, counted)
    total = tf.reduce_sum(counted)
    return tf.math.divide_no_nan(tf.reduce_sum(counted * actual * predicted), total), total


def of_rank(weights: Any, rank: int | None) -> Any:
    """Reshape weights [B] to broadcast over the values of an example; None is returned unchanged."""
    if weights is None or rank in (None, 1):
        return weights
    return compat.tensorflow().reshape(weights, [-1] + [1] * (rank - 1))


def _find(kind: str | None, name: str) -> tuple[_Row, float | None] | None:
    """Return the row of a name and its number X, if it has one."""
    for row in _ROWS:
        if kind not in row.heads:
            continue
        if row.name == name:
            return None if name.endswith(_VALUE) else (row, None)
        stem = row.name.removesuffix(_VALUE)
        number = re.fullmatch(rf"{stem}_(0?\.\d+|1(?:\.0*)?)", name) if stem != row.name else None
        if number is not None and float(number[1]) > 0:
            return row, float(number[1])
    return None


@functools.cache
def custom_classes() -> Mapping[str, Any]:
    """Return the registered metrics of (labels, logits) that Keras lacks, by the name of their class."""
    tf = compat.tensorflow()
    base, keras = tf.keras.metrics.Metric, tf.keras.metrics
    register = tf.keras.utils.register_keras_serializable(package="estimator_pipeline")

    def of_logits(base: Any, convert: Any) -> Any:
        class OfLogits(base):
            def update_state(self, y_true, y_pred, sample_weight=None):
                # Nothing is returned: in an Estimator's graph this is a tf.function, which cannot return operations.
                super().update_state(y_true, convert(y_pred), sample_weight)

        OfLogits.__name__ = OfLogits.__qualname__ = f"{base.__name__}OfLogits"
        return OfLogits

    def mean_of(title: str, function: Any) -> Any:
        base: Any = keras.MeanMetricWrapper

        class MeanOf(base):
            def __init__(self, name=title, dtype=None):
                super().__init__(function, name=name, dtype=dtype)

        MeanOf.__name__ = MeanOf.__qualname__ = title
        return MeanOf

    class ClassShare(keras.Mean):  # type: ignore[misc, name-defined]
        """Precision, recall or F1 of a class; for multi_label without `number`, of all pairs of example and class."""

        def __init__(self, share, kind, number=None, name=None, dtype=None):
            super().__init__(name=name, dtype=dtype)
            self.share, self.kind, self.number = share, kind, number

        def update_state(self, y_true, y_pred, sample_weight=None):
            about = {"share": self.share, "kind": self.kind, "number": self.number}
            super().update_state(*class_share(y_true, y_pred, sample_weight, **about))

        def get_config(self):
            return {**super().get_config(), "share": self.share, "kind": self.kind, "number": self.number}

    class Sums(base):  # type: ignore[misc, valid-type]
        """Sums of vectors over the examples."""

        def __init__(self, sums, size, name=None, dtype=None):
            super().__init__(name=name, dtype=dtype)
            self.size = size
            # With its dtype, which Keras 3 does not take from the metric.
            zeros = {"shape": (size,), "initializer": "zeros", "dtype": self.dtype}
            self._sums = [self.add_weight(name=name_of_sum, **zeros) for name_of_sum in sums]

        def reset_state(self):
            for variable in self._sums:
                variable.assign(tf.zeros([self.size], variable.dtype))

        def get_config(self):
            return {**super().get_config(), "size": self.size}

    class MacroF1(Sums):
        """The mean of the classes' F1."""

        def __init__(self, kind, size, name=None, dtype=None):
            super().__init__(("both", "either"), size, name=name, dtype=dtype)
            self.kind = kind

        def update_state(self, y_true, y_pred, sample_weight=None):
            ids = _class_ids(tf, self.kind, y_true, y_pred)
            actual, predicted = (tf.reshape(tf.one_hot(number, self.size), [-1, self.size]) for number in ids)
            weights = tf.reshape(_broadcast(tf, sample_weight, ids[0]), [-1, 1])
            self._sums[0].assign_add(tf.reduce_sum(2 * actual * predicted * weights, axis=0))
            self._sums[1].assign_add(tf.reduce_sum((actual + predicted) * weights, axis=0))

        def result(self):
            both, either = (tf.convert_to_tensor(variable) for variable in self._sums)
            return tf.reduce_mean(tf.math.divide_no_nan(both, either))

        def get_config(self):
            return {**super().get_config(), "kind": self.kind}

    class R2(Sums):
        """The coefficient of determination, a mean over the values of a label.

        The sums are float64: the difference of squares would cancel in float32.
        """

        def __init__(self, size, name=None, dtype=None):
            super().__init__(("weights", "labels", "squares", "errors"), size, name=name, dtype="float64")

        def update_state(self, y_true, y_pred, sample_weight=None):
            predictions = tf.cast(y_pred, tf.float64)
            labels = tf.reshape(tf.cast(y_true, tf.float64), tf.shape(predictions))
            weights = tf.cast(_broadcast(tf, sample_weight, y_pred), tf.float64)
            terms = (tf.ones_like(labels), labels, labels**2, (labels - predictions) ** 2)
            for variable, values in zip(self._sums, terms, strict=True):
                variable.assign_add(tf.reduce_sum(tf.reshape(weights * values, [-1, self.size]), axis=0))

        def result(self):
            count, total, squares, errors = (tf.convert_to_tensor(variable) for variable in self._sums)
            variance = squares - tf.math.divide_no_nan(total**2, count)
            constant = tf.cast(tf.equal(errors, 0), tf.float64)  # as in sklearn.metrics.r2_score
            return tf.cast(tf.reduce_mean(tf.where(variance > 0, 1 - errors / variance, constant)), tf.float32)

    classes = [
        *(of_logits(kind, lambda logits: tf.cast(logits > 0, tf.float32)) for kind in (keras.Precision, keras.Recall)),
        *(of_logits(kind, tf.sigmoid) for kind in (keras.PrecisionAtRecall, keras.RecallAtPrecision)),
        mean_of("LabelMean", lambda labels, predictions: labels),
        mean_of("PredictionMean", lambda labels, predictions: predictions),
        mean_of("HuberLoss", tf.keras.losses.huber),
        ClassShare,
        MacroF1,
        R2,
    ]
    return {metric.__name__: register(metric) for metric in classes}


def _class_ids(tf: Any, kind: str, labels: Any, logits: Any) -> tuple[Any, Any]:
    """Return the numbers of the actual and of the predicted class of each example, int64."""
    if kind == "binary":
        ids = tf.cast(tf.reshape(labels, tf.shape(logits)), tf.bool), logits > 0
        actual, predicted = (tf.squeeze(tf.cast(id_, tf.int64), axis=-1) for id_ in ids)
        return actual, predicted
    predicted = tf.argmax(logits, axis=-1, output_type=tf.int64)
    if kind == "one_hot":
        return tf.argmax(labels, axis=-1, output_type=tf.int64), predicted
    # Keras adds an axis to labels [B].
    return tf.cast(tf.reshape(labels, tf.shape(predicted)), tf.int64), predicted


def _broadcast(tf: Any, weights: Any, values: Any) -> Any:
    """Return the weights [B] or [B, 1] of examples in the shape of values [B, ...], float32; None: ones."""
    ones = tf.ones_like(values, tf.float32)
    return ones if weights is None else ones * of_rank(tf.cast(tf.reshape(weights, [-1]), tf.float32), ones.shape.rank)

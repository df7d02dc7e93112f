"""Heads: the loss of each example, the predictions, the metrics and the signatures for a model's logits.

================= ============================== =======================================================================
head              loss names                     labels -> logits (shapes; B: batch, K: classes)
================= ============================== =======================================================================
`multi_class`     sparse_categorical_crossentropy  int [B] or [B, 1] -> float [B, K]
`one_hot`         categorical_crossentropy         float [B, K] -> float [B, K]
`binary`          binary_crossentropy              0 or 1 of any number type [B] or [B, 1] -> float [B, 1]
`multi_label`     binary_crossentropy              0 or 1 of any number type [B, K] -> float [B, K]: each class is
                                                   present or absent, independently of the others
`regression`      mean_squared_error,              float [B] or [B, D] -> float [B, D]
                  mean_absolute_error, huber
================= ============================== =======================================================================

A loss that fits two heads selects the first, unless the head is named. With a vocabulary, classes have names: labels of
`multi_class` and `binary` may then be text, string [B] or [B, 1].

Predictions have the names of the canned Estimators' heads, so clients of a served model need not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models import label_checks
from estimator_pipeline.models.metrics import class_share, make_metric, metrics_of, of_rank

HEADS = ("multi_class", "one_hot", "binary", "multi_label", "regression")
HEAD_OF_LOSS = {
    "sparse_categorical_crossentropy": "multi_class",
    "categorical_crossentropy": "one_hot",
    "binary_crossentropy": "binary",
    "mean_squared_error": "regression",
    "mse": "regression",
    "mean_absolute_error": "regression",
    "mae": "regression",
    "huber": "regression",
}
# Further heads that a loss fits, if they are named explicitly.
_ALSO = {"binary_crossentropy": ("multi_label",)}
# Heads with classes; and those whose labels are class numbers or names.
SMOOTHED = ("multi_class", "one_hot", "binary", "multi_label")
NUMBERED = ("multi_class", "binary")
SIGNATURES = ("predict", "classify", "regress")


def head_of(loss: Any, head: str | None) -> str | None:
    """Return the head of a loss name; for a custom loss function the explicit head, if any.

    Raises:
        ConfigError: The loss or head is unknown, or they contradict each other.
    """
    if head is not None and head not in HEADS:
        raise ConfigError(
            f"the head {head!r} is not known", code="argument/unknown-name", found=f"allowed: {', '.join(HEADS)}"
        )
    if not isinstance(loss, str):
        return head
    if loss not in HEAD_OF_LOSS:
        raise ConfigError(
            f"the loss {loss!r} is not known",
            code="argument/unknown-name",
            found=f"allowed: {', '.join(HEAD_OF_LOSS)}",
            hint="use one of these, or give a function loss(labels, logits) -> loss of each example",
        )
    fitting = (HEAD_OF_LOSS[loss], *_ALSO.get(loss, ()))
    if head is not None and head not in fitting:
        losses = [name for name, kind in HEAD_OF_LOSS.items() if head in (kind, *_ALSO.get(name, ()))]
        raise ConfigError(
            f"the loss {loss!r} belongs to the head {' or '.join(map(repr, fitting))}, not to {head!r}",
            code="argument/conflict",
            hint=f"leave the head out, or use one of its losses: {', '.join(losses)}",
        )
    return head or fitting[0]


@dataclass(frozen=True)
class Head:
    """A head. With `kind` None (custom loss function, no explicit head) it returns only logits.

    Attributes:
        kind: One of `HEADS`.
        loss: A name, or a function.
        label_smoothing: The share of each label that is spread evenly over all classes (over 0 and 1 for binary
            labels). C. Szegedy et al., "Rethinking the Inception Architecture" (2016), section 7.
        label_vocabulary: The class names, in order; empty: classes are numbers.

    Raises:
        ConfigError: A share or a name is invalid, or the loss has no classes.
    """

    kind: str | None
    loss: str | Callable[[Any, Any], Any]
    label_smoothing: float = 0.0
    label_vocabulary: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "label_vocabulary", _checked_names(self.label_vocabulary, self.kind))
        if not self.label_smoothing:
            return
        if not 0.0 < self.label_smoothing < 1.0:
            raise ConfigError(
                f"label_smoothing is {self.label_smoothing!r}",
                code="argument/bad-value",
                hint="give a share: 0 or more, below 1",
            )
        if not isinstance(self.loss, str) or self.kind not in SMOOTHED:
            loss = f"the loss {self.loss!r}" if isinstance(self.loss, str) else "a custom loss function"
            raise ConfigError(
                f"label_smoothing is {self.label_smoothing:g}, and {loss} has no classes to smooth",
                code="argument/conflict",
                found=f"losses with classes: {', '.join(n for n, kind in HEAD_OF_LOSS.items() if kind in SMOOTHED)}",
                hint="leave label_smoothing out, or use one of these",
            )

    def numbering(self) -> Callable[[Any], Any]:
        """Return a function that converts class names in labels to class numbers, int64.

        Labels that are not text are unchanged. Call this method in the graph that calls the function, or before the
        dataset's `map`: it may create a lookup table.
        """
        tf = compat.tensorflow()
        names = tf.constant(list(self.label_vocabulary) or [""])
        table = None
        if self.label_vocabulary and self.kind in NUMBERED:
            numbers = tf.range(len(self.label_vocabulary), dtype=tf.int64)
            table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(names, numbers), -1)

        def numbered(labels: Any) -> Any:
            if isinstance(labels, Mapping) or getattr(labels, "dtype", None) != tf.string:
                return labels
            if table is None and not isinstance(self.loss, str):
                return labels  # A custom loss function may handle text.
            if table is None:
                raise ConfigError(
                    f"the labels are text, and the loss {self.loss!r} takes numbers",
                    code="model/labels-mismatch",
                    found=f"heads whose labels may be names: {', '.join(NUMBERED)}",
                    hint="give label_vocabulary, the class names in order"
                    if self.kind in NUMBERED
                    else "give numbers, or use one of these heads with label_vocabulary",
                )
            class_numbers = table.lookup(labels)
            unknown = tf.boolean_mask(labels, class_numbers < 0)
            message = [label_checks.UNKNOWN_NAME, unknown, "known:", names]
            with tf.control_dependencies([tf.debugging.Assert(tf.equal(tf.size(unknown), 0), message, summarize=5)]):
                return tf.identity(class_numbers)

        return numbered

    @property
    def has_binary_labels(self) -> bool:
        """Whether labels must be from 0 to 1; a custom loss function may take others."""
        return self.kind in ("binary", "multi_label") and isinstance(self.loss, str)

    def per_example_loss(self, labels: Any, logits: Any) -> Any:
        """Return the loss of each example, float32 [B].

        Raises:
            ConfigError: The shapes of labels and logits do not fit, or the loss function reduces the batch.
        """
        tf = compat.tensorflow()
        if not isinstance(self.loss, str):
            values = tf.convert_to_tensor(self.loss(labels, logits))
            if values.shape.rank == 0:
                raise ConfigError(
                    "the loss function returned one number for the batch",
                    code="model/bad-function",
                    hint="return the loss of each example ([batch]); the pipeline computes the mean and scales it over "
                    "replicas (a tf.keras.losses.Loss: reduction=tf.keras.losses.Reduction.NONE)",
                )
            values = tf.cast(values, tf.float32)
            return tf.reduce_mean(tf.reshape(values, [tf.shape(values)[0], -1]), axis=1)
        self._check(logits)
        labels = self._fit(labels, logits)
        logits = tf.cast(logits, tf.float32)
        if self.label_smoothing:
            if self.kind == "multi_class":
                labels = tf.one_hot(labels, tf.shape(logits)[-1])
            classes = 2.0 if self.kind in ("binary", "multi_label") else tf.cast(tf.shape(logits)[-1], tf.float32)
            labels = labels * (1.0 - self.label_smoothing) + self.label_smoothing / classes
        if self.kind == "multi_class" and not self.label_smoothing:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        if self.kind in ("multi_class", "one_hot"):
            return tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        if self.kind in ("binary", "multi_label"):
            each = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        elif self.loss in ("mean_absolute_error", "mae"):
            each = tf.abs(logits - labels)
        elif self.loss == "huber":
            # Huber, "Robust Estimation of a Location Parameter" (1964), with delta 1, as Keras has it.
            error = tf.abs(logits - labels)
            each = tf.where(error <= 1.0, 0.5 * error * error, error - 0.5)
        else:
            each = tf.math.squared_difference(logits, labels)
        return tf.reduce_mean(each, axis=-1)

    def _check(self, logits: Any) -> None:
        """Reject logits with a shape that the head would misread."""
        if self.kind is None or logits.shape.rank is None:
            return
        last = logits.shape[-1] if logits.shape.rank else None
        wrong = None
        if logits.shape.rank < 2:
            wrong = "a batch axis and an axis for the values of an example: end the model with Dense, without squeeze"
        elif self.kind == "binary" and last not in (1, None):
            wrong = (
                "one logit for each example: Dense(1); or use sparse_categorical_crossentropy for several classes, or "
                "head multi_label where an example can have several classes at once"
            )
        elif self.kind in ("multi_class", "one_hot") and last == 1:
            wrong = "a logit for each class: Dense(K) with K of 2 or more; or use binary_crossentropy"
        if wrong:
            raise ConfigError(
                f"logits of the shape {logits.shape} do not fit the head {self.kind!r}",
                code="model/labels-mismatch",
                hint=f"give {wrong}",
            )
        self.check_units(last)

    def check_units(self, units: int | None) -> None:
        """Check the size of the vocabulary against the model's number of classes.

        Args:
            units: The size of the model's last axis; None: unknown.

        Raises:
            ConfigError: The numbers differ.
        """
        names = len(self.label_vocabulary)
        classes = 2 if self.kind == "binary" else units
        if names and classes not in (names, None):
            raise ConfigError(
                f"label_vocabulary has {names} names, and the model has {classes} classes",
                code="model/labels-mismatch",
                hint="give one name for each class, in order",
            )

    def _fit(self, labels: Any, logits: Any) -> Any:
        """Return labels with the rank and dtype that the head's loss needs."""
        tf = compat.tensorflow()
        labels = tf.convert_to_tensor(labels)
        if self.kind == "multi_class":
            if labels.shape.rank == logits.shape.rank:
                labels = tf.squeeze(labels, axis=-1)
            return tf.cast(labels, tf.int64)
        if labels.shape.rank is not None and labels.shape.rank == logits.shape.rank - 1:
            labels = tf.expand_dims(labels, axis=-1)
        labels = tf.cast(labels, tf.float32)
        try:
            logits.shape.assert_is_compatible_with(labels.shape)
        except ValueError as error:
            raise ConfigError(
                f"labels {labels.shape} and logits {logits.shape} do not fit the loss {self.loss!r}",
                code="model/labels-mismatch",
                hint="give the model's last layer as many units as a label has values",
            ) from error
        return labels

    def predictions(self, logits: Any) -> dict[str, Any]:
        tf = compat.tensorflow()
        logits = tf.cast(logits, tf.float32)
        self._check(logits)
        if self.kind is None:
            return {"logits": logits}
        if self.kind == "regression":
            return {"predictions": logits}
        if self.kind == "multi_label":
            # As in the canned head: the names of all classes, with their probabilities.
            probabilities = tf.nn.sigmoid(logits)
            return {"logits": logits, "probabilities": probabilities, "classes": self._class_names(tf, probabilities)}
        if self.kind == "binary":
            logistic = tf.nn.sigmoid(logits)
            class_ids = tf.cast(logits > 0, tf.int64)
            probabilities = tf.concat([1.0 - logistic, logistic], axis=-1)
            extra = {"logistic": logistic}
        else:
            probabilities = tf.nn.softmax(logits)
            class_ids = tf.expand_dims(tf.argmax(logits, axis=-1, output_type=tf.int64), axis=-1)
            extra = {}
        return {
            "logits": logits,
            **extra,
            "probabilities": probabilities,
            "class_ids": class_ids,
            "classes": self._names_of(tf, class_ids),
        }

    def export_outputs(self, predictions: Mapping[str, Any], signatures: Sequence[str]) -> dict[str, Any]:
        """Return the export output of each signature key; `serving_default` has all predictions."""
        tf = compat.tensorflow()
        export = tf.estimator.export
        outputs = {"serving_default": export.PredictOutput(dict(predictions))}
        if "predict" in signatures:
            outputs["predict"] = export.PredictOutput(dict(predictions))
        if "classify" in signatures and "probabilities" in predictions:
            probabilities = predictions["probabilities"]
            outputs["classification"] = export.ClassificationOutput(
                scores=probabilities, classes=self._class_names(tf, probabilities)
            )
        if "regress" in signatures:
            value = predictions.get("predictions", predictions.get("logistic"))
            if value is not None:
                outputs["regression"] = export.RegressionOutput(value)
        return outputs

    def signature_outputs(self, signatures: Sequence[str]) -> dict[str, Callable[[Any], dict[str, Any]]]:
        """Return, for each signature key, a function from the logits to its outputs by name.

        For SavedModels that an Estimator does not write; the keys and outputs are those of `export_outputs`.
        """
        tf = compat.tensorflow()

        def classification(logits: Any) -> dict[str, Any]:
            scores = self.predictions(logits)["probabilities"]
            return {"scores": scores, "classes": self._class_names(tf, scores)}

        def regression(logits: Any) -> dict[str, Any]:
            values = self.predictions(logits)
            return {"outputs": values["predictions"] if "predictions" in values else values["logistic"]}

        outputs: dict[str, Callable[[Any], dict[str, Any]]] = {"serving_default": self.predictions}
        if "predict" in signatures:
            outputs["predict"] = self.predictions
        if "classify" in signatures and self.kind in ("multi_class", "one_hot", "binary", "multi_label"):
            outputs["classification"] = classification
        if "regress" in signatures and self.kind in ("regression", "binary"):
            outputs["regression"] = regression
        return outputs

    def _names_of(self, tf: Any, numbers: Any) -> Any:
        """Return the class names for class numbers: from the vocabulary, or "0", "1", etc."""
        if not self.label_vocabulary:
            return tf.strings.as_string(numbers)
        return tf.gather(tf.constant(list(self.label_vocabulary)), numbers)

    def _class_names(self, tf: Any, scores: Any) -> Any:
        """Return the names of all classes for each example, in the order of the scores."""
        names = self._names_of(tf, tf.range(tf.shape(scores)[-1]))
        return tf.tile(tf.expand_dims(names, 0), [tf.shape(scores)[0], 1])

    def metrics(self, name: str, labels: Any, predictions: Mapping[str, Any], weights: Any = None) -> dict[str, Any]:
        """Return the streaming values of a metric by reported name, over all examples on all replicas.

        Args:
            name: A known name; see `estimator_pipeline.models.metrics`.
            labels: The labels of the batch.
            predictions: The result of `predictions`.
            weights: The weight of each example, float32 [B]; None: all are 1.

        Returns:
            Reported name -> (value, update) or a Keras metric.

        Raises:
            ConfigError: The metric requires the number of classes, which is unknown.
        """
        oldest = self._oldest_metric(name, labels, predictions, weights)
        if oldest is not None:
            return {name: oldest}
        assert self.kind is not None, "a head without a kind has no metrics"
        logits = predictions["predictions" if self.kind == "regression" else "logits"]
        size = logits.shape[-1] if logits.shape.rank else None
        labels, weights = self._fit(labels, logits), of_rank(weights, logits.shape.rank)
        values = {}
        for metric in metrics_of(self.kind, name, size=size, vocabulary=self.label_vocabulary):
            if metric.made_of == "ClassShare":  # For many classes, Keras metrics would take seconds to build.
                share = class_share(labels, logits, weights, **metric.arguments)
                values[metric.name] = compat.tensorflow().compat.v1.metrics.mean(*share)
                continue
            values[metric.name] = make_metric(metric)
            values[metric.name].update_state(labels, logits, weights)
        return values

    def _oldest_metric(self, name: str, labels: Any, predictions: Mapping[str, Any], weights: Any) -> Any:
        """Return (value, update) of a metric that was always one of `tf.compat.v1.metrics`; None for all others."""
        tf = compat.tensorflow()
        metrics = tf.compat.v1.metrics
        if self.kind == "regression":
            values = predictions["predictions"]
            fitted = self._fit(labels, values)
            weights = of_rank(weights, values.shape.rank)
            if name == "label_mean":
                return metrics.mean(fitted, weights)
            if name == "prediction_mean":
                return metrics.mean(values, weights)
            if name in ("mean_squared_error", "root_mean_squared_error", "mean_absolute_error"):
                return getattr(metrics, name)(fitted, values, weights)
            return None
        if name not in ("accuracy", "top_5_accuracy", "precision", "recall", "auc"):
            return None
        logits = predictions["logits"]
        fitted = self._fit(labels, logits)
        if self.kind == "multi_label":
            # Over all classes of all examples; each pair counts once.
            weights = of_rank(weights, logits.shape.rank)
            if name == "auc":
                return metrics.auc(fitted, predictions["probabilities"], weights)
            return getattr(metrics, name)(fitted, tf.cast(logits > 0, tf.float32), weights)
        ids = tf.squeeze(predictions["class_ids"], axis=-1)
        if self.kind == "one_hot":
            fitted = tf.argmax(fitted, axis=-1)
        elif self.kind == "binary":
            fitted = tf.squeeze(fitted, axis=-1)
        if name == "top_5_accuracy":
            return metrics.mean(tf.cast(tf.math.in_top_k(tf.cast(fitted, tf.int32), logits, 5), tf.float32), weights)
        if name == "auc":
            return metrics.auc(fitted, tf.squeeze(predictions["logistic"], axis=-1), weights)
        return getattr(metrics, name)(fitted, ids, weights)


def _checked_names(value: Any, kind: str | None) -> tuple[str, ...]:
    """Check and return a label vocabulary."""
    names = () if isinstance(value, str) or not isinstance(value, Sequence) else tuple(value)
    if not names and not value and not isinstance(value, str):
        return ()
    if len(names) < 2 or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ConfigError(
            f"label_vocabulary is {value!r}",
            code="argument/bad-value",
            hint="give a list of two or more distinct class names",
        )
    if kind not in SMOOTHED:
        target = "a custom loss function without a head" if kind is None else f"the head {kind!r}"
        raise ConfigError(
            f"label_vocabulary is set, and with {target} there are no classes to name",
            code="argument/conflict",
            found=f"heads with classes: {', '.join(SMOOTHED)}",
            hint="leave it out, or use one of these heads",
        )
    return names

"""Metrics of the user in a job file: "my.py:f1", a class of a Keras metric, or a function that returns one.

    class F1(tf.keras.metrics.F1Score): ...        # metrics: ["my.py:F1"]

    def f1():                                      # metrics: ["my.py:f1"]
        return tf.keras.metrics.F1Score(average="macro")

A metric of each engine is updated with the same arguments, as that of a Keras model which ends with softmax or sigmoid:

=========================== ============================================ ===========================================
head                        labels                                       predictions
=========================== ============================================ ===========================================
`multi_class`               int64 [B]                                    probabilities, float32 [B, K]
`one_hot`                   float32 [B, K]                               probabilities, float32 [B, K]
`binary`                    float32 [B, 1]                               probability of class 1, float32 [B, 1]
`multi_label`               float32 [B, K]                               probabilities, float32 [B, K]
`regression`                float32 [B, D]                               float32 [B, D]
none (a custom loss)        as in the data                               logits
=========================== ============================================ ===========================================

The third argument is the weight of each example, float32 [B], or None.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.user_code import call_function, describe_type, load_function, own_code

__all__ = ["UserMetric", "wrapper_class"]


@dataclass(frozen=True)
class UserMetric:
    """A metric of the user.

    Attributes:
        reference: "FILE.py:NAME" or "package.module:NAME".
        field: The field of the job file, for messages.
    """

    reference: str
    field: str

    @property
    def name(self) -> str:
        """The reported name: that of the function or class."""
        return self.reference.rpartition(":")[2].rpartition(".")[2]

    def build(self, kind: str | None) -> Any:
        """Return a Keras metric of labels and logits, for `compile`."""
        return wrapper_class()(self._make(), kind, self.reference, self.field, name=self.name)

    def updated(self, kind: str | None, labels: Any, logits: Any, weights: Any) -> Any:
        """Return the Keras metric with an update by a batch, for an Estimator's graph.

        Args:
            kind: The head; None: a custom loss without a head.
            labels: The labels of the batch.
            logits: The logits of the batch.
            weights: The weight of each example; None: all are 1.
        """
        metric = self.build(kind)
        if not metric.metric.variables:
            # Some of Keras's, such as F1Score, create their variables in the first update: here, not in a tf.function,
            # which would add them to those of the checkpoint.
            metric.metric.update_state(*_arguments(kind, labels, logits, weights))
        metric.update_state(labels, logits, weights)
        return metric

    def _make(self) -> Any:
        function = load_function(self.reference, field=self.field)
        metric = call_function(function, reference=self.reference, field=self.field)
        if not isinstance(metric, compat.tensorflow().keras.metrics.Metric):
            raise ConfigError(
                f"{self.field}: {self.reference} did not return a metric",
                code="model/bad-function",
                found=f"{describe_type(metric)} of {type(metric).__module__}",
                hint="return a tf.keras.metrics.Metric, or name a class of one",
            )
        return metric


@functools.cache
def wrapper_class() -> Any:
    """Return the registered Keras class that updates a metric with the predictions of a head.

    In an Estimator's graph its `update_state` is a tf.function, which runs all updates of the metric. Keras would run
    only the last one of some, such as F1Score.
    """
    keras = compat.tensorflow().keras

    @keras.utils.register_keras_serializable(package="estimator_pipeline")
    class OfPredictions(keras.metrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self, metric, kind, reference, field, name=None, dtype=None):
            super().__init__(name=name, dtype=dtype)
            self.metric, self.kind, self.reference, self.field = metric, kind, reference, field

        def update_state(self, y_true, y_pred, sample_weight=None):
            arguments = _arguments(self.kind, y_true, y_pred, sample_weight)
            with own_code(f"{self.field}: {self.reference}"):
                self.metric.update_state(*arguments)

        def result(self):
            return self.metric.result()

        def reset_state(self):
            self.metric.reset_state()

        def get_config(self):
            metric = keras.metrics.serialize(self.metric)
            arguments = {"metric": metric, "kind": self.kind, "reference": self.reference, "field": self.field}
            return {**super().get_config(), **arguments}

        @classmethod
        def from_config(cls, config):
            return cls(**{**config, "metric": keras.metrics.deserialize(config["metric"])})

    return OfPredictions


def _arguments(kind: str | None, labels: Any, logits: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Return labels, predictions and weights of a batch in the same shapes on every engine; Keras adds axes."""
    tf = compat.tensorflow()
    weights = None if weights is None else tf.reshape(tf.cast(weights, tf.float32), [-1])
    if kind is None:
        return labels, logits, weights
    if kind == "multi_class":
        labels = tf.cast(tf.reshape(labels, tf.shape(logits)[:-1]), tf.int64)
    else:
        labels = tf.ensure_shape(tf.reshape(tf.cast(labels, tf.float32), tf.shape(logits)), logits.shape)
    if kind in ("multi_class", "one_hot"):
        return labels, tf.nn.softmax(logits), weights
    return labels, logits if kind == "regression" else tf.sigmoid(logits), weights

"""Metrics of V1 -> metrics of Keras: `tf.metrics.accuracy(y, argmax(logits, 1))` -> `SparseCategoricalAccuracy`.

A metric of the labels and of the model's only output is a metric of `compile`; any other is updated by the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from estimator_pipeline.migrate.convert.names import Refused, names_read
from estimator_pipeline.migrate.convert.rule import TENSORS, Call, rule

__all__ = ["METRICS", "Metric", "metric"]

_PAIR = ("labels", "predictions", "weights")
_BOOLEAN = "tf.cast({0}, tf.bool), tf.cast({1}, tf.bool)"
_BY_NAME = ("precision", "recall", "true_positives", "true_negatives", "false_positives", "false_negatives")
_ERRORS = ("mean_squared_error", "mean_absolute_error")  # whose means of Keras are first those of the last axis
_OF_CLASSES = ("labels", "predictions", "num_classes", "weights")
# Function of tf.compat.v1.metrics -> (Keras class, parameters, template of the arguments of update_state).
_METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "accuracy": ("Accuracy", _PAIR, "{0}, {1}"),
    "mean": ("BatchMean", ("values", "weights"), "{0}"),
    **{name: (name.title().replace("_", ""), _PAIR, _BOOLEAN) for name in _BY_NAME},
    "mean_per_class_accuracy": ("MeanPerClassAccuracy", _OF_CLASSES, "{0}, {1}"),
    "mean_iou": ("MeanIoU", _OF_CLASSES, "{0}, {1}"),
    "auc": ("AUC", (*_PAIR, "num_thresholds"), "{0}, {1}"),
    "root_mean_squared_error": ("RootMeanSquaredError", _PAIR, "{0}, {1}"),
    **{name: (name.title().replace("_", ""), _PAIR, "as_rows({0}), as_rows({1})") for name in _ERRORS},
}
METRICS = frozenset(f"tf.compat.v1.metrics.{name}" for name in _METRICS)
"""Metrics of V1 with a rule."""
_OWN = frozenset({"MeanPerClassAccuracy", "BatchMean"})  # of training_helpers.py
_ARGMAX = ("tf.argmax", "tf.compat.v1.argmax", "tf.math.argmax")


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        keras: the text that makes the metric of Keras.
        values: the user's expressions that it is updated with.
        update: template of the arguments of `update_state`, by position of `values`.
        stock: whether `keras` may be a metric of `compile`, if the values are the labels and the output.
        of_rows: whether the values have to be rows: Keras takes the mean of a vector, and rejects weights of another
            rank.
    """

    keras: str
    values: tuple[cst.BaseExpression, ...]
    update: str
    stock: bool
    of_rows: bool


def metric(call: Call, key: str) -> Metric:
    """Return the Keras metric of a V1 metric.

    Raises:
        Refused: it has other options.
    """
    keras, parameters, update = _METRICS[call.name.rpartition(".")[2]]
    required = [parameter for parameter in parameters if parameter not in ("weights", "num_thresholds")]
    args = call.args(*parameters, "metrics_collections", "updates_collections", "name", required=required)
    for parameter in ("metrics_collections", "updates_collections"):
        if parameter in args and not call.is_constant(args[parameter], "None"):
            raise call.refuse(parameter, args[parameter])
    options = call.options({name: args[name] for name in ("num_thresholds", "num_classes") if name in args})
    values = [args[name] for name in required if name != "num_classes"]
    weighted = "weights" in args and not call.is_constant(args["weights"], "None")
    if weighted and (keras == "MeanIoU" or _is_number(call, args["weights"])):
        # Keras 3 rounds the weights of MeanIoU, and counts a batch once where its weight is one number.
        raise call.refuse("weights", args["weights"])
    if weighted:
        if len(values) == 2 and "as_rows" not in update:
            update = update.replace("{0}", "as_rows({0})").replace("{1}", "as_rows({1})")
        update = f"{update}, sample_weight={{{len(values)}}}"
        values.append(args["weights"])
    of_rows, stock = "as_rows(" in update, not weighted and keras.endswith("Error")
    call.needs.update({keras} & _OWN)
    home = "" if keras in _OWN else f"{call.tf}.keras.metrics."
    text = f"{home}{keras}({', '.join([*options, f'name={key!r}'])})"
    return Metric(text, tuple(values), update.replace("tf.", f"{call.tf}."), stock, of_rows)


def _is_number(call: Call, node: cst.BaseExpression) -> bool:
    """Return whether a value is computed of numbers and params alone."""
    return not names_read(call.names.value(node)) - {"params", "float", call.tf}


def argument_of_argmax(call: Call) -> cst.BaseExpression | None:
    """Return x of `tf.argmax(x, 1)` over the last axis of a matrix, else None."""
    if call.name not in _ARGMAX:
        return None
    args = call.args("input", "axis", "name", "dimension", "output_type")
    axis = args.get("axis", args.get("dimension"))
    return args.get("input") if call.is_constant(axis, "1", "-1") else None


@rule(*METRICS, at=(TENSORS,))
def used_as_a_value(call: Call) -> str:
    raise Refused(f"{call.name} outside of eval_metric_ops", call.node)

"""Checks of labels that a loss would silently misread, with a one-line error in the step that reads them.

For example, the binary cross entropy of the labels 1 and 2 is a finite number that decreases without bound.
"""

from __future__ import annotations

import re
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import InputError

__all__ = ["UNKNOWN_NAME", "explained", "zero_or_one"]

UNKNOWN_NAME = "a label is not one of label_vocabulary:"
_OUTSIDE = "labels outside of 0 to 1, smallest and largest:"
# TensorFlow's messages: an Assert prints each value in brackets; the last is for a class number beyond the logits.
_RANGE = re.compile(rf"{_OUTSIDE}\]\s*\[([^\]]*)\]\s*\[([^\]]*)\]\s*\[output\]\s*\[([^\]]*)\]")
_NAMES = re.compile(rf"{UNKNOWN_NAME}\]\s*\[(.*?)\]\s*\[known:\]\s*\[(.*?)\]", re.DOTALL)
_CLASS = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")


def zero_or_one(labels: Any, weights: Any, *, output: str = "") -> Any:
    """Return the labels with a check that each example of nonzero weight has labels from 0 to 1.

    Args:
        labels: Numbers of any dtype, [B, ...].
        weights: The weight of each example, float32 [B]; None: all are 1. A label of weight 0 may have any value.
        output: The name of the output, where the model has several.

    Returns:
        The same labels. If the check fails, reading them raises an error of TensorFlow that `explained` parses.
    """
    tf = compat.tensorflow()
    numbers = tf.cast(labels, tf.float32)
    if weights is not None:
        counts = tf.reshape(weights, tf.concat([tf.shape(weights), tf.ones([tf.rank(numbers) - 1], tf.int32)], 0))
        numbers = tf.where(tf.not_equal(counts, 0.0), numbers, tf.zeros_like(numbers))
    least, most = tf.reduce_min(numbers), tf.reduce_max(numbers)
    # The raw operation: tf.debugging.Assert would wrap it in a conditional. NaN fails `>= 0` as well.
    fits = tf.logical_and(least >= 0.0, most <= 1.0)
    with tf.control_dependencies([tf.raw_ops.Assert(condition=fits, data=[_OUTSIDE, least, most, "output", output])]):
        return tf.identity(labels)


def explained(error: BaseException) -> InputError | None:
    """Return the one-line error for labels that do not fit the model; None for any other error.

    Args:
        error: The exception of training or evaluation.
    """
    if not isinstance(error, compat.tensorflow().errors.InvalidArgumentError):
        return None
    text = str(getattr(error, "message", error))
    if match := _RANGE.search(text):
        least, most, output = match.groups()
        return InputError(
            f"the labels {f'of the output {output} ' if output else ''}do not fit binary_crossentropy, which takes 0 "
            "and 1",
            code="model/labels-mismatch",
            found=f"a batch whose smallest label is {float(least):g} and whose largest is {float(most):g}",
            hint="write the labels as 0 and 1; or use sparse_categorical_crossentropy with a logit for each class, or "
            "a regression loss such as mean_squared_error",
        )
    if match := _NAMES.search(text):
        return InputError(
            "a label is not one of label_vocabulary",
            code="model/labels-mismatch",
            found=f"{match[1]}; known: {match[2]}",
            hint="add the name to label_vocabulary, or remove such records",
        )
    if match := _CLASS.search(text):
        label, classes = match.groups()
        return InputError(
            f"a label is {label}, and the model has {classes} classes, 0 to {int(classes) - 1}",
            code="model/labels-mismatch",
            hint="number the classes from 0, or give the model a logit for each",
        )
    return None

"""Labels that a loss would take for something else: refused in the step that reads them, and told in one line.

A binary cross entropy of the labels 1 and 2 is a number too, and gets smaller for ever.
"""

from __future__ import annotations

import re
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import InputError

__all__ = ["UNKNOWN_NAME", "explained", "zero_or_one"]

UNKNOWN_NAME = "a label is not one of label_vocabulary:"
_OUTSIDE = "labels outside of 0 to 1, smallest and largest:"
# What TensorFlow says: of an Assert's values each is in brackets; of a class's number that the logits do not have.
_RANGE = re.compile(rf"{_OUTSIDE}\]\s*\[([^\]]*)\]\s*\[([^\]]*)\]\s*\[output\]\s*\[([^\]]*)\]")
_NAMES = re.compile(rf"{UNKNOWN_NAME}\]\s*\[(.*?)\]\s*\[known:\]\s*\[(.*?)\]", re.DOTALL)
_CLASS = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")


def zero_or_one(labels: Any, weights: Any, *, output: str = "") -> Any:
    """Return the labels, of which none may be outside of 0 to 1 where its record counts.

    Args:
        labels: numbers of any type, [B, ...].
        weights: what each record counts for, float32 [B]; None: all the same. A label that is not known may have any
            value where it counts nothing.
        output: of the model, where that has several.

    Returns:
        The same labels. Whoever reads them gets an error of TensorFlow that `explained` knows.
    """
    tf = compat.tensorflow()
    numbers = tf.cast(labels, tf.float32)
    if weights is not None:
        counts = tf.reshape(weights, tf.concat([tf.shape(weights), tf.ones([tf.rank(numbers) - 1], tf.int32)], 0))
        numbers = tf.where(tf.not_equal(counts, 0.0), numbers, tf.zeros_like(numbers))
    least, most = tf.reduce_min(numbers), tf.reduce_max(numbers)
    # The operation itself: tf.debugging.Assert would make a conditional of it. Not a number is not above 0 either.
    fits = tf.logical_and(least >= 0.0, most <= 1.0)
    with tf.control_dependencies([tf.raw_ops.Assert(condition=fits, data=[_OUTSIDE, least, most, "output", output])]):
        return tf.identity(labels)


def explained(error: BaseException) -> InputError | None:
    """Return the error of labels that do not fit, as one message; None for any other.

    Args:
        error: what training or evaluation raised.
    """
    if not isinstance(error, compat.tensorflow().errors.InvalidArgumentError):
        return None
    text = str(getattr(error, "message", error))
    if found := _RANGE.search(text):
        least, most, output = found.groups()
        return InputError(
            f"the labels {f'of the output {output} ' if output else ''}do not fit binary_crossentropy, which takes 0 "
            "and 1",
            code="model/labels-mismatch",
            found=f"a batch whose smallest label is {float(least):g} and whose largest is {float(most):g}",
            hint="write the labels as 0 and 1; or take sparse_categorical_crossentropy with a logit for each class, or "
            "a loss of numbers such as mean_squared_error",
        )
    if found := _NAMES.search(text):
        return InputError(
            "a label is not one of label_vocabulary",
            code="model/labels-mismatch",
            found=f"{found[1]}; known: {found[2]}",
            hint="add the name to label_vocabulary, or leave such records out",
        )
    if found := _CLASS.search(text):
        label, classes = found.groups()
        return InputError(
            f"a label is {label}, and the model tells {classes} classes apart, 0 to {int(classes) - 1}",
            code="model/labels-mismatch",
            hint="number the classes from 0, or give the model a logit for each",
        )
    return None

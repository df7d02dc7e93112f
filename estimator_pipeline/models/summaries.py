"""Scalars for TensorBoard that do not depend on what was going on around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat

__all__ = ["write_scalars"]


def write_scalars(writer: Any, values: Mapping[str, Any], *, step: int) -> None:
    """Write a scalar for each entry but `global_step`, and sees to it that they are in the file.

    Whoever calls this may stand in a `fit` whose TensorBoard callback records only every so many steps
    (`update_freq`): TensorFlow keeps that condition by thread, for every writer, and an evaluation at another step
    would be lost without a word.

    Args:
        writer: of `tf.summary.create_file_writer`.
        values: numbers by the names of their tags.
        step: of the entries.
    """
    tf = compat.tensorflow()
    with writer.as_default(step=step), tf.summary.record_if(True):
        for name, value in values.items():
            if name != "global_step":
                tf.summary.scalar(name, value)
    writer.flush()

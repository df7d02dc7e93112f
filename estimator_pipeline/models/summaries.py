"""TensorBoard scalars that are written whatever `record_if` condition a callback has set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat

__all__ = ["write_scalars"]


def write_scalars(writer: Any, values: Mapping[str, Any], *, step: int) -> None:
    """Write a scalar for each entry except `global_step`, and flush the writer.

    The caller may be inside a `fit` whose TensorBoard callback records only every N steps (`update_freq`). TensorFlow
    keeps that condition per thread, for every writer, so an evaluation at a different step would silently be dropped.

    Args:
        writer: A writer of `tf.summary.create_file_writer`.
        values: Numbers by their tags.
        step: The step of the entries.
    """
    tf = compat.tensorflow()
    with writer.as_default(step=step), tf.summary.record_if(True):
        for name, value in values.items():
            if name != "global_step":
                tf.summary.scalar(name, value)
    writer.flush()

"""Evaluation input functions with an equal number of batches for each replica of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.data_end.even_batches import UNEVEN, even_batches
from estimator_pipeline.inputs.input_fn import InputFn
from estimator_pipeline.inputs.wrapping import wrap_input_fn

__all__ = ["UNEVEN", "in_even_batches"]


def in_even_batches(input_fn: Callable[..., Any], replicas: int) -> Callable[..., Any]:
    """Return an input function whose dataset has an equal number of batches per replica.

    Args:
        input_fn: Input function of an evaluation in one process. Those of this package are unchanged, and so are those
            that return no dataset.
        replicas: Number of replicas of this process.
    """
    if replicas < 2 or isinstance(input_fn, InputFn):
        return input_fn

    def evened(input_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        data = input_fn(*args, **kwargs)
        tf: Any = compat.tensorflow()
        return even_batches(data, replicas) if isinstance(data, tf.data.Dataset | tf.compat.v1.data.Dataset) else data

    return wrap_input_fn(input_fn, evened)

"""Input functions of an evaluation on several replicas of one process, whose batches can be dealt out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.data_end.even_batches import UNEVEN, even_batches
from estimator_pipeline.inputs.input_fn import InputFn

__all__ = ["UNEVEN", "in_even_batches"]


def in_even_batches(input_fn: Callable[..., Any], replicas: int) -> Callable[..., Any]:
    """An input function whose dataset has whole rounds; what gives no dataset stays as it is.

    Args:
        input_fn: of an evaluation in one process. Those of this package have whole rounds.
        replicas: of this process.
    """
    if replicas < 2 or isinstance(input_fn, InputFn):
        return input_fn

    def outer(*args: Any, **kwargs: Any) -> Any:
        found = input_fn(*args, **kwargs)
        tf: Any = compat.tensorflow()
        return (
            even_batches(found, replicas) if isinstance(found, tf.data.Dataset | tf.compat.v1.data.Dataset) else found
        )

    # TensorFlow looks at the names of its parameters.
    outer.__signature__ = inspect.signature(input_fn)  # type: ignore[attr-defined]
    outer.__name__ = getattr(input_fn, "__name__", "input_fn")
    return outer

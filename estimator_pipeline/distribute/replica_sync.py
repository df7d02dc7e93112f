"""What each replica has of its own is the mean of all replicas while a Keras 2 model is evaluated.

Under a strategy each replica moves statistics of its own (BatchNormalization's). A checkpoint, an export and an
Estimator's evaluation have their mean; but `evaluate`, and the validation of `fit`, let each replica read its own, so
that their metrics are those of a model that is saved nowhere, and depend on which replica reads which record. Within
:func:`alike` all read the mean. Afterwards each has its own again, to the last bit: training is not touched by it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from estimator_pipeline import compat

__all__ = ["alike", "begin", "end"]

# (a replica's variable, its own value) of each.
Own = list[tuple[Any, Any]]


@contextlib.contextmanager
def alike(model: Any) -> Iterator[None]:
    """In the block all replicas of a Keras 2 model have the mean of what each has of its own.

    All workers must enter it: the mean is that of all of them.
    """
    own = begin(model)
    try:
        yield
    finally:
        end(own)


def begin(model: Any) -> Own:
    """The same in two halves, for callbacks: gives what :func:`end` takes."""
    tf = compat.tensorflow()
    own: Own = []
    for variable in _of_replicas(tf, model):
        parts = variable.values
        own += [(part, tf.identity(part)) for part in parts]
        # Read outside of the replicas, it is the mean.
        mean = tf.identity(tf.convert_to_tensor(variable))
        for part in parts:
            part.assign(mean)
    return own


def end(own: Own) -> None:
    """Gives each replica its own again."""
    for part, value in own:
        part.assign(value)


def _of_replicas(tf: Any, model: Any) -> list[Any]:
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return []
    return [
        variable
        for variable in model.weights
        if isinstance(variable, tf.distribute.DistributedValues)
        and getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
        and getattr(variable, "aggregation", None) == tf.VariableAggregation.MEAN
    ]

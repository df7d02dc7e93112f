"""Replica-local variables set to their mean while a Keras 2 model is evaluated.

Under a strategy each replica updates its local BatchNormalization statistics. A checkpoint, an export and an
Estimator's evaluation use the mean over replicas. Keras's `evaluate`, and the validation of `fit`, read the local
values: their metrics depend on which replica reads which record, and belong to a model that is saved nowhere. Within
`alike` all replicas read the mean. Afterwards the local values are restored bit for bit, so training is
unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from estimator_pipeline import compat

__all__ = ["alike", "begin", "end"]

# (variable of a replica, its local value) of each.
LocalValues = list[tuple[Any, Any]]


@contextlib.contextmanager
def alike(model: Any) -> Iterator[None]:
    """Set replica-local variables of a Keras 2 model to their mean within the block.

    All workers must enter the block: the mean is over the replicas of all workers.
    """
    local_values = begin(model)
    try:
        yield
    finally:
        end(local_values)


def begin(model: Any) -> LocalValues:
    """Set the mean, for callbacks, and return the local values for `end`."""
    tf = compat.tensorflow()
    local_values: LocalValues = []
    for variable in _of_replicas(tf, model):
        parts = variable.values
        local_values += [(part, tf.identity(part)) for part in parts]
        # Outside of a replica context, reading the variable returns the mean.
        mean = tf.identity(tf.convert_to_tensor(variable))
        for part in parts:
            part.assign(mean)
    return local_values


def end(local_values: LocalValues) -> None:
    """Restore the local values of each replica."""
    for part, value in local_values:
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

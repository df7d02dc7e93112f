"""Exponential moving averages of a Keras model's weights, as in `tf.compat.v1.train.ExponentialMovingAverage`.

    self.averages = keras_averages.Averages(self.trainable_variables, 0.99, by_step=True)
    keras_averages.update(self.averages, self.optimizer.iterations)     # after each step
    with keras_averages.in_place(self.averages):                        # evaluates the averages
        ...

The optimizers of Keras 2 have `use_ema`, but only with a constant decay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from estimator_pipeline import compat

__all__ = ["Averages", "in_place", "update"]


def Averages(variables: Sequence[Any], decay: float, *, by_step: bool = False) -> Any:
    """Create averages of variables, initialized with their values, in a `tf.Module` that checkpoints include.

    Args:
        variables: The variables of a built model; they must not be replaced later.
        decay: The share of the average that is kept in a step.
        by_step: Whether the decay is min(decay, (1 + step) / (10 + step)), which is lower in early steps.
    """
    tf = compat.tensorflow()

    class _Averages(tf.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(name="averages")
            self.of, self.decay, self.by_step = tuple(variables), decay, by_step
            # The averages are the same on all replicas, because the weights are.
            self.kept = tuple(
                tf.Variable(
                    variable, name=f"{variable.name.partition(':')[0]}/ExponentialMovingAverage", trainable=False,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
                for variable in variables
            )  # fmt: skip

    return _Averages()


def update(averages: Any, step: Any) -> None:
    """Move each average towards its variable's value.

    Args:
        averages: From `Averages`; None for a model without averages.
        step: The number of steps, including this one.
    """
    if averages is None:
        return
    tf = compat.tensorflow()
    decay = tf.constant(averages.decay, tf.float32)
    if averages.by_step:
        count = tf.cast(step, tf.float32)
        decay = tf.minimum(decay, (1.0 + count) / (10.0 + count))
    for kept, variable in zip(averages.kept, averages.of, strict=True):
        kept.assign_sub((kept - variable) * (1.0 - decay))


@contextlib.contextmanager
def in_place(averages: Any) -> Iterator[None]:
    """Replace the variables' values by the averages within the block.

    Args:
        averages: From `Averages`; any other value has no effect.
    """
    if not hasattr(averages, "kept"):
        yield
        return
    values = [variable.numpy() for variable in averages.of]
    try:
        for kept, variable in zip(averages.kept, averages.of, strict=True):
            variable.assign(kept)
        yield
    finally:
        for value, variable in zip(values, averages.of, strict=True):
            variable.assign(value)

"""Averages of a Keras model's weights over its training, as `tf.compat.v1.train.ExponentialMovingAverage` keeps them.

    self.averages = keras_averages.Averages(self.trainable_variables, 0.99, by_step=True)
    keras_averages.update(self.averages, self.optimizer.iterations)     # after each step
    with keras_averages.in_place(self.averages):                        # evaluates the averages
        ...

Keras 2's own optimizers have `use_ema`, with a decay that never changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from estimator_pipeline import compat

__all__ = ["Averages", "in_place", "update"]


def Averages(variables: Sequence[Any], decay: float, *, by_step: bool = False) -> Any:
    """The averages of some variables, which start at their values: a `tf.Module`, kept in the model's checkpoints.

    Args:
        variables: of a model that was made; they have to be the same ones later.
        decay: the share of an average that a step leaves.
        by_step: whether early steps leave less: (1 + step) / (10 + step), where that is smaller.
    """
    tf = compat.tensorflow()

    class _Averages(tf.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(name="averages")
            self.of, self.decay, self.by_step = tuple(variables), decay, by_step
            # All replicas keep the same: their weights are.
            self.kept = tuple(
                tf.Variable(
                    one, name=f"{one.name.partition(':')[0]}/ExponentialMovingAverage", trainable=False,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
                for one in variables
            )  # fmt: skip

    return _Averages()


def update(averages: Any, step: Any) -> None:
    """Move each average towards its variable's value.

    Args:
        averages: of `Averages`; None for a model without.
        step: how many steps there were, this one included.
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
    """Yield the averages as the variables' values; afterwards they have their own again.

    Args:
        averages: of `Averages`; anything else changes nothing.
    """
    if not hasattr(averages, "kept"):
        yield
        return
    own = [variable.numpy() for variable in averages.of]
    try:
        for kept, variable in zip(averages.kept, averages.of, strict=True):
            variable.assign(kept)
        yield
    finally:
        for value, variable in zip(own, averages.of, strict=True):
            variable.assign(value)

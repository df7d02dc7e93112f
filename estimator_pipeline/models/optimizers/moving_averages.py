"""Exponential moving averages (EMA) of the trainable weights, used by evaluation, prediction and export.

After each update of the variables `average -= (average - variable) * (1 - momentum)`, as in
`tf.train.ExponentialMovingAverage(momentum)`. See B. Polyak and A. Juditsky, "Acceleration of Stochastic Approximation
by Averaging" (1992). In all engines:

* The initial value of an average is that of its variable, whether random or from a warm start.
* Evaluation, prediction and exports use the averages instead of the weights, also in the file `model.keras`. The
  checkpoint contains both. The average has the variable's name with the suffix `ExponentialMovingAverage`.
* Only trainable weights have averages; BatchNorm's moving statistics already are averages.
* With gradient accumulation, averages are updated with each update of the variables. If float16 skips a step, they do
  not change.
* With parameter servers, each worker updates the averages after its own update of the variables.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.saving.renamed_saver import renamed_saver

__all__ = [
    "AVERAGE", "BEGIN", "averaged_weights", "averages", "averaging", "averaging_of_keras_3", "begin_with", "exchange",
    "keeps", "move", "restored", "take",
]  # fmt: skip

# The name of an average: after its variable's in an Estimator, and as a slot's in Keras.
AVERAGE = "ExponentialMovingAverage"
# The collection of an Estimator's graph with the operations that set averages to their variables' values.
BEGIN = "estimator_pipeline/begin_averages"


# -- in an Estimator's graph -------------------------------------------------------------------------------------------


def begin_with(variables: Sequence[Any]) -> tuple[list[Any], Callable[[Any, Any], None]]:
    """Create the averages of variables in the current graph.

    Args:
        variables: The trainable variables.

    Returns:
        The averages, in the same order; and the `init_fn` of a `tf.compat.v1.train.Scaffold`, which sets them to their
        variables' values after initialization and warm start.
    """
    tf = compat.tensorflow()
    averages = [
        tf.compat.v1.get_variable(
            f"{_plain_name(variable)}/{AVERAGE}",
            shape=variable.shape,
            dtype=variable.dtype.base_dtype,
            initializer=tf.zeros_initializer(),
            trainable=False,
            use_resource=True,
        )
        for variable in variables
    ]
    begun = _updated(averages, variables, lambda average, variable: average.assign(variable.read_value()))
    for operation in begun:
        tf.compat.v1.add_to_collection(BEGIN, operation)
    return averages, lambda scaffold, session: session.run(begun)


def move(
    averages: Sequence[Any], variables: Sequence[Any], *, momentum: float, changed: Any = None, after: Any
) -> list[Any]:
    """Return the operations that move averages towards their variables.

    Args:
        averages: The averages of `begin_with`.
        variables: Their variables.
        momentum: The share of an average that is kept.
        changed: Whether the variables were updated, a scalar bool; None: they were.
        after: The operation that updates the variables.
    """
    tf = compat.tensorflow()
    share: Any = 1.0 - momentum
    if changed is not None:
        share = tf.where(changed, tf.constant(share, tf.float32), 0.0)
    with tf.control_dependencies([after]):
        return _updated(averages, variables, lambda average, variable: _moved(tf, average, variable, share))


def restored(variables: Sequence[Any]) -> Any:
    """Return a `tf.compat.v1.train.Saver` of the current graph that restores averages into their variables.

    Args:
        variables: The trainable variables.
    """
    return renamed_saver({f"{_plain_name(variable)}/{AVERAGE}": variable for variable in variables})


def _updated(averages: Sequence[Any], variables: Sequence[Any], function: Callable[[Any, Any], Any]) -> list[Any]:
    """Return the operations of `function(average, variable)` for each pair, on all replicas."""
    tf = compat.tensorflow()

    def update(strategy: Any) -> list[Any]:
        pairs = zip(averages, variables, strict=True)
        return [strategy.extended.update(average, function, args=(variable,)) for average, variable in pairs]

    done = tf.distribute.get_replica_context().merge_call(update)
    return [operation for operation in tf.nest.flatten(done) if operation is not None]


def _moved(tf: Any, average: Any, variable: Any, share: Any) -> Any:
    there = average.read_value()
    return average.assign_sub((there - tf.cast(variable.read_value(), there.dtype)) * tf.cast(share, there.dtype))


def _plain_name(variable: Any) -> str:
    return str(variable.name).partition(":")[0]


# -- in Keras ----------------------------------------------------------------------------------------------------------


@functools.cache
def averaging(kind: Any) -> Any:
    """Return a subclass of a legacy Keras optimizer that keeps averages, registered for saving.

    Args:
        kind: The optimizer's class.

    Returns:
        The subclass, with the additional argument `average_momentum`.
    """
    tf = compat.tensorflow()

    class Averaging(kind):
        def __init__(self, *args, average_momentum, **kwargs):
            super().__init__(*args, **kwargs)
            self.average_momentum = average_momentum

        def _create_slots(self, var_list):
            super()._create_slots(var_list)
            for variable in var_list:
                self.add_slot(variable, AVERAGE, _value_of(variable))

        @property
        def has_averages(self):
            return AVERAGE in self.get_slot_names()

        def average_of(self, variable):
            return self.get_slot(variable, AVERAGE)

        def _resource_apply_dense(self, grad, var, apply_state=None):
            return self._moved(var, super()._resource_apply_dense(grad, var, apply_state))

        def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices, **kwargs):
            done = super()._resource_apply_sparse_duplicate_indices(grad, handle, indices, **kwargs)
            return self._moved(handle, done)

        def _moved(self, variable, done):
            with tf.control_dependencies([] if done is None else [done]):
                return _moved(tf, self.average_of(variable), variable, 1.0 - self.average_momentum)

        def get_config(self):
            return {**super().get_config(), "average_momentum": self.average_momentum}

    _named_after(Averaging, kind)
    return tf.keras.utils.register_keras_serializable(package="estimator_pipeline")(Averaging)


def _value_of(variable: Any) -> Callable[..., Any]:
    return lambda shape, dtype=None: compat.tensorflow().cast(variable.read_value(), dtype or variable.dtype)


@functools.cache
def averaging_of_keras_3(kind: Any) -> Any:
    """Return a subclass of a Keras 3 optimizer that keeps averages, registered for saving.

    Not Keras 3's `use_ema`: it starts with the weights after the first step, and also moves in skipped steps.

    Args:
        kind: The optimizer's class.

    Returns:
        The subclass, with the additional argument `average_momentum`.
    """
    tf = compat.tensorflow()

    class Averaging(kind):
        def __init__(self, *args, average_momentum, **kwargs):
            super().__init__(*args, **kwargs)
            self.average_momentum = average_momentum

        def build(self, variables):
            if self.built:
                return
            super().build(variables)
            self._averages = self.add_optimizer_variables(variables, AVERAGE)
            for average, variable in zip(self._averages, variables, strict=True):
                average.assign(variable)

        @property
        def has_averages(self):
            return self.built

        def average_of(self, variable):
            return self._averages[self._get_variable_index(variable)]

        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient, variable, learning_rate)
            average = self.average_of(variable)
            share = tf.cast(1.0 - self.average_momentum, average.dtype)
            self.assign_sub(average, (tf.convert_to_tensor(average) - tf.convert_to_tensor(variable)) * share)

        def get_config(self):
            return {**super().get_config(), "average_momentum": self.average_momentum}

    _named_after(Averaging, kind)
    return tf.keras.utils.register_keras_serializable(package="estimator_pipeline")(Averaging)


def _named_after(averaging: Any, kind: Any) -> None:
    averaging.__name__ = averaging.__qualname__ = f"{kind.__name__}Averaging"
    averaging.__signature__ = inspect.signature(kind)  # for callers that inspect its arguments


def keeps(model: Any) -> bool:
    """Return whether the optimizer of a compiled model keeps averages."""
    return hasattr(_optimizer(model), "average_of")


def _optimizer(model: Any) -> Any:
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


def averages(model: Any) -> list[tuple[Any, Any]]:
    """Return the trainable variables of a compiled model, each with its average.

    The list is empty if the optimizer keeps no averages, or has not created them yet: the first step or
    `estimator_pipeline.models.optimizers.keras2.create_slots` creates them.
    """
    optimizer = _optimizer(model)
    if not keeps(model) or not optimizer.has_averages:
        return []
    return [(variable, optimizer.average_of(variable)) for variable in model.trainable_variables]


def take(model: Any) -> None:
    """Set a compiled model's weights permanently to their averages."""
    for variable, average in averages(model):
        variable.assign(average)


@contextlib.contextmanager
def averaged_weights(model: Any) -> Iterator[None]:
    """Replace the weights of a compiled model by their averages within the block, to evaluate, predict or export.

    Within the block, the averages hold the weights, so no third copy is needed. Both are restored after the block.

    Args:
        model: A model whose optimizer has `ema_momentum` and its averages; any other model is unchanged.
    """
    exchange(model)
    try:
        yield
    finally:
        exchange(model)


def exchange(model: Any) -> None:
    """Swap the weights of a compiled model with their averages. All workers must call it."""
    tf = compat.tensorflow()
    for variable, average in averages(model):
        value = tf.identity(tf.convert_to_tensor(variable))
        variable.assign(average)
        average.assign(value)

"""Exponential moving averages of the weights: what is trained goes its way, and what is evaluated and exported is calm.

After each change of the variables `average -= (average - variable) * (1 - momentum)`, as
`tf.train.ExponentialMovingAverage(momentum)` does it. See B. Polyak and A. Juditsky, "Acceleration of Stochastic
Approximation by Averaging" (1992). In all engines:

* An average begins with what its variable begins with, be it drawn or taken from another training.
* Evaluation, prediction and exports have the averages in the place of the weights, the file `model.keras` too. What
  training goes on from, the checkpoint, has both: the average as a variable named after its own, with the ending
  `ExponentialMovingAverage`.
* Weights that are trained have one; what layers update by themselves, as BatchNorm's statistics, is an average already.
* Where gradients are added up, averages move with each change, and where float16 leaves a step out, they do not move.
* Under parameter servers each worker moves them after its own change, as all else there.
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
# The collection of an Estimator's graph with the operations that give averages their variables' values.
BEGIN = "estimator_pipeline/begin_averages"


# -- in an Estimator's graph -------------------------------------------------------------------------------------------


def begin_with(variables: Sequence[Any]) -> tuple[list[Any], Callable[[Any, Any], None]]:
    """Return the averages of some variables, made in the graph.

    Args:
        variables: that are trained.

    Returns:
        The averages, in the same order; and the `init_fn` of a `tf.compat.v1.train.Scaffold`, which gives them their
        variables' values when all variables have been initialized, warm-started ones too.
    """
    tf = compat.tensorflow()
    made = [
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
    begun = _updated(made, variables, lambda average, variable: average.assign(variable.read_value()))
    for one in begun:
        tf.compat.v1.add_to_collection(BEGIN, one)
    return made, lambda scaffold, session: session.run(begun)


def move(
    averages: Sequence[Any], variables: Sequence[Any], *, momentum: float, changed: Any = None, after: Any
) -> list[Any]:
    """Operations that move averages towards their variables.

    Args:
        averages: from `begin_with`.
        variables: theirs.
        momentum: the share of an average that stays.
        changed: a scalar bool: whether there was a change; None: there was.
        after: the operation that changes the variables.
    """
    tf = compat.tensorflow()
    share: Any = 1.0 - momentum
    if changed is not None:
        share = tf.where(changed, tf.constant(share, tf.float32), 0.0)
    with tf.control_dependencies([after]):
        return _updated(averages, variables, lambda average, variable: _moved(tf, average, variable, share))


def restored(variables: Sequence[Any]) -> Any:
    """A `tf.compat.v1.train.Saver` of the current graph that restores the averages of variables in their places.

    Args:
        variables: that are trained.
    """
    return renamed_saver({f"{_plain_name(variable)}/{AVERAGE}": variable for variable in variables})


def _updated(averages: Sequence[Any], variables: Sequence[Any], function: Callable[[Any, Any], Any]) -> list[Any]:
    """Return what `function(average, variable)` gives for each pair, on all replicas."""
    tf = compat.tensorflow()

    def update(strategy: Any) -> list[Any]:
        pairs = zip(averages, variables, strict=True)
        return [strategy.extended.update(one, function, args=(other,)) for one, other in pairs]

    done = tf.distribute.get_replica_context().merge_call(update)
    return [one for one in tf.nest.flatten(done) if one is not None]


def _moved(tf: Any, average: Any, variable: Any, share: Any) -> Any:
    there = average.read_value()
    return average.assign_sub((there - tf.cast(variable.read_value(), there.dtype)) * tf.cast(share, there.dtype))


def _plain_name(variable: Any) -> str:
    return str(variable.name).partition(":")[0]


# -- in Keras ----------------------------------------------------------------------------------------------------------


@functools.cache
def averaging(kind: Any) -> Any:
    """Return a class of `tf.keras.optimizers.legacy`, or of ours over it, that keeps averages; it can be saved.

    Args:
        kind: the optimizer's class.

    Returns:
        Its subclass; it takes `average_momentum` as well.
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
    """Return a class of Keras 3, or of ours over it, that keeps averages; it can be saved.

    Keras 3's own `use_ema` begins with what the first step has come to, and moves where no step was made.

    Args:
        kind: the optimizer's class.

    Returns:
        Its subclass; it takes `average_momentum` as well.
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
    averaging.__signature__ = inspect.signature(kind)  # for who looks which arguments it takes


def keeps(model: Any) -> bool:
    """Whether the optimizer of a compiled model keeps averages."""
    return hasattr(_optimizer(model), "average_of")


def _optimizer(model: Any) -> Any:
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


def averages(model: Any) -> list[tuple[Any, Any]]:
    """Return the trained variables of a compiled model, each with its average.

    None where its optimizer keeps none, or has none yet: they come with the first step, or with
    `estimator_pipeline.models.optimizers.keras2.create_slots`.
    """
    optimizer = _optimizer(model)
    if not keeps(model) or not optimizer.has_averages:
        return []
    return [(variable, optimizer.average_of(variable)) for variable in model.trainable_variables]


def take(model: Any) -> None:
    """Give a compiled model's weights the values of their averages, for good."""
    for variable, average in averages(model):
        variable.assign(average)


@contextlib.contextmanager
def averaged_weights(model: Any) -> Iterator[None]:
    """In the block the weights of a compiled model are their averages: evaluate it, predict with it, export it.

    The averages are what the weights are meanwhile, so that no third copy is needed; afterwards all is as before.

    Args:
        model: whose optimizer has `ema_momentum`, and has made a step; any other is left as it is.
    """
    exchange(model)
    try:
        yield
    finally:
        exchange(model)


def exchange(model: Any) -> None:
    """Exchanges the weights of a compiled model with their averages. All workers must call it."""
    tf = compat.tensorflow()
    for variable, average in averages(model):
        value = tf.identity(tf.convert_to_tensor(variable))
        variable.assign(average)
        average.assign(value)

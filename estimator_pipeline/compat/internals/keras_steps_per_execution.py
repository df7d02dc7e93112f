"""How many steps a compiled Keras 2 model makes for each call of its train function, changed while it trains.

Keras's own train function sums every metric over all replicas after each step, also where a call makes many and nobody
sees the sums: between workers that is two collectives a metric and step. The one here sums them at a call's end.

Private use: `Model._steps_per_execution`, the variable that the train function's loop reads, `Model._train_counter` and
`Model._cluster_coordinator`; the same in Keras 2.15 and in tf_keras to 2.21. `compile(steps_per_execution=)` can only
fix the number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from estimator_pipeline import compat


def prepare(model: Any) -> None:
    """Has the train function be made with the loop; before the first `fit`."""
    set_steps(model, 2)
    if _keeps_results(model):
        function = _train_function(model)
        model.make_train_function = lambda force=False: function
        model.train_function = model.train_tf_function = function


def set_steps(model: Any, steps: int) -> None:
    """The next call makes so many steps."""
    model._steps_per_execution.assign(steps)


def trace_in(model: Any, block: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Has the train function be called, and so traced, in a block; before `fit`."""
    make = model.make_train_function

    def make_train_function(force: bool = False) -> Any:
        function = make(force)

        def called(iterator: Any) -> Any:
            with block():
                return function(iterator)

        return called

    model.make_train_function = make_train_function


def why_not(model: Any, *, random_by_step: bool) -> str:
    """Why several steps in a call may not be the same as single ones, or "".

    Args:
        model: compiled.
        random_by_step: whether layers draw as :mod:`~estimator_pipeline.compat.internals.stateless_random` has it.
    """
    if model.run_eagerly:
        return "the model runs eagerly"
    for layer in model.submodules:
        if hasattr(layer, "_random_generator") and not random_by_step:
            return f"the layer {layer.name} draws random numbers from a stream of its own"
    return ""


def _keeps_results(model: Any) -> bool:
    """Whether a step gives the metrics' results and nothing else, as Keras's own methods do."""
    base = compat.tensorflow().keras.Model
    own = ("train_step", "compute_metrics", "get_metrics_result", "make_train_function")
    if any(getattr(type(model), name) is not getattr(base, name) for name in own):
        return False
    return not (model.run_eagerly or model.jit_compile or model._cluster_coordinator)


def _train_function(model: Any) -> Any:
    tf: Any = compat.tensorflow()
    strategy = model.distribute_strategy

    def step(data: Any) -> None:
        model.train_step(data)
        with tf.control_dependencies(tf.nest.flatten(data, expand_composites=True)):
            model._train_counter.assign_add(1)

    @tf.function(reduce_retracing=True)
    def train_function(iterator):  # type: ignore[no-untyped-def]
        # Around all replicas, not within each: they take turns while the function is traced.
        with _without_results(model):
            for _ in tf.range(model._steps_per_execution):
                strategy.run(step, args=(next(iterator),))
        return model.get_metrics_result()

    return train_function


@contextlib.contextmanager
def _without_results(model: Any) -> Iterator[None]:
    model.get_metrics_result = dict
    try:
        yield
    finally:
        del model.get_metrics_result

"""Steps per execution of a compiled Keras 2 model, changed while it trains.

Keras's train function sums every metric over all replicas after each step, even if a call has many steps and the sums
are not used: on several workers these are two collectives per metric and step. The function here sums them at the end
of a call.

Private use: `Model._steps_per_execution`, the variable that the train function's loop reads, `Model._train_counter` and
`Model._cluster_coordinator`; unchanged from Keras 2.15 to tf_keras 2.21. `compile(steps_per_execution=)` sets only a
constant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from estimator_pipeline import compat


def prepare(model: Any) -> None:
    """Let the model create its train function with the loop; call it before the first `fit`."""
    set_steps(model, 2)
    if _keeps_results(model):
        function = _train_function(model)
        model.make_train_function = lambda force=False: function
        model.train_function = model.train_tf_function = function


def set_steps(model: Any, steps: int) -> None:
    """Set the number of steps of the next call."""
    model._steps_per_execution.assign(steps)


def trace_in(model: Any, block: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Call, and thus trace, the train function in a context; call this before `fit`."""
    make = model.make_train_function

    def make_train_function(force: bool = False) -> Any:
        function = make(force)

        def called(iterator: Any) -> Any:
            with block():
                return function(iterator)

        return called

    model.make_train_function = make_train_function


def why_not(model: Any, *, random_by_step: bool) -> str:
    """Return why several steps per call may differ from single steps, or "".

    Args:
        model: A compiled model.
        random_by_step: Whether layers use the random numbers of `stateless_random`.
    """
    if model.run_eagerly:
        return "the model runs eagerly"
    for layer in model.submodules:
        if hasattr(layer, "_random_generator") and not random_by_step:
            return f"the layer {layer.name} draws random numbers from a stateful generator"
    return ""


def _keeps_results(model: Any) -> bool:
    """Whether a step returns only the results of the metrics, like Keras's methods."""
    base = compat.tensorflow().keras.Model
    methods = ("train_step", "compute_metrics", "get_metrics_result", "make_train_function")
    if any(getattr(type(model), name) is not getattr(base, name) for name in methods):
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
        # Outside of the replica functions: the replicas take turns while the function is traced.
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

"""Multi-step execution in the Keras engines: several train steps per call of the compiled function.

Keras takes a fixed `steps_per_execution`, and callbacks see only multiples of it. Here a callback sets the number of
steps before each execution, so that every step that is logged, summarized or saved is the last of an execution
(`step_schedule`), as with single steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.core.multi_step import MultiStepExecution
from estimator_pipeline.engines.core.step_schedule import StepInterval
from estimator_pipeline.engines.keras_common.callbacks import counting_callback
from estimator_pipeline.inputs.wrapping import wrap_input_fn
from estimator_pipeline.utils.logger import logger

__all__ = ["executions_callback", "noting_endless", "wanted_by"]

_OF_STEPS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def wanted_by(callbacks: Sequence[Any], start: int) -> tuple[list[StepInterval], str]:
    """Return the steps at which callbacks must be called.

    A callback for batches can define them in a method `wanted_steps(start)`, as a session hook does: pairs (period,
    origin). A callback without this method may need every step.

    Args:
        callbacks: Keras callbacks.
        start: The global step at which training starts.

    Returns:
        These steps, and the reason why each execution must have a single step, or "".
    """
    base = compat.tensorflow().keras.callbacks.Callback
    ends: list[StepInterval] = []
    for callback in callbacks:
        if all(getattr(type(callback), name, None) is getattr(base, name) for name in _OF_STEPS):
            continue
        wanted = getattr(callback, "wanted_steps", None)
        if wanted is None:
            return [], f"the callback {type(callback).__name__} may want to see every step"
        ends += [StepInterval(period, origin) for period, origin in wanted(start)]
    return ends, ""


def noting_endless(input_fn: Callable[..., Any], note: Callable[[bool], None]) -> Callable[..., Any]:
    """Return the input function; it calls `note` with whether its dataset is infinite."""
    tf: Any = compat.tensorflow()

    def noted(input_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        dataset = input_fn(*args, **kwargs)
        note(tf.executing_eagerly() and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY)
        return dataset

    return wrap_input_fn(input_fn, noted)


def executions_callback(
    multi_step: MultiStepExecution,
    *,
    start_step: int,
    ends: Sequence[StepInterval],
    reason: str,
    set_steps: Callable[[Any, int], None],
) -> Any:
    """Return the callback that sets the number of steps of each execution; must be the first callback.

    Args:
        multi_step: The requested number of steps, and how workers agree.
        start_step: The global step at which training starts.
        ends: Steps that must be the last of their execution.
        reason: Why every execution has a single step, or "".
        set_steps: `set_steps(model, steps)`, called before each execution.

    Returns:
        A `tf.keras.callbacks.Callback` with the attributes `coming`, the number of steps of the next execution, and
        `executions`, the number of executions so far.
    """
    base: Any = counting_callback()

    class Executions(base):
        def __init__(self) -> None:
            super().__init__()
            self.step, self.coming, self.executions = start_step, 1, 0
            self._pace = multi_step.pace(ends, reason, call="execution")

        @property
        def single(self) -> bool:
            """Whether every execution has one step, regardless of the requested number."""
            return self._pace.single

        def on_epoch_begin(self, epoch, logs=None):
            self._set_steps()

        def on_train_batch_begin(self, batch, logs=None):
            super().on_train_batch_begin(batch, logs)
            self._begun = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            steps = self.steps_done(batch)
            self.step, self.executions = self.step + steps, self.executions + 1
            self.coming = self._pace.call_ended(steps, time.perf_counter() - self._begun, step=self.step)
            self._set_steps()

        def on_test_begin(self, logs=None):
            # Evaluation data is finite.
            set_steps(self.model, 1)

        def on_train_end(self, logs=None):
            if not self.single:
                logger.info("%d steps in %d executions", self.step - start_step, self.executions)

        def _set_steps(self) -> None:
            if not self.single:
                set_steps(self.model, self.coming)

    return Executions()

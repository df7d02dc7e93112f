"""Multi-step execution in the Keras engines: several train steps per call of the compiled function.

Keras takes a fixed `steps_per_execution`, and callbacks see only multiples of it. Here a callback sets the number of
steps before each execution, so that every step that is logged, summarized or saved is the last of an execution
(`core/multi_step.py`), as with single steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.core.multi_step import MultiStepExecution, StepInterval
from estimator_pipeline.engines.keras_common.callbacks import counting_callback
from estimator_pipeline.utils.logger import logger

__all__ = ["executions_callback", "wanted_by"]

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


def executions_callback(execution: MultiStepExecution, *, start_step: int, set_steps: Callable[[int], None]) -> Any:
    """Return the callback that sets the number of steps of each execution; must be the first callback.

    Args:
        execution: The lengths of the executions, on which the workers have agreed.
        start_step: The global step at which training starts.
        set_steps: Sets the number of steps of the next execution.

    Returns:
        A `tf.keras.callbacks.Callback` with the attribute `coming`, the number of steps of the next execution.
    """
    base: Any = counting_callback(start_step)

    class Executions(base):
        def __init__(self) -> None:
            super().__init__()
            self.coming, self._executions = 1, 0

        def on_epoch_begin(self, epoch, logs=None):
            self._set_steps()

        def on_train_batch_begin(self, batch, logs=None):
            super().on_train_batch_begin(batch, logs)
            self._begun = time.perf_counter()

        def steps_ended(self, steps, logs):
            self._executions += 1
            self.coming = execution.call_ended(steps, time.perf_counter() - self._begun, step=self.step)
            self._set_steps()

        def on_test_begin(self, logs=None):
            # Evaluation data is finite.
            set_steps(1)

        def on_train_end(self, logs=None):
            if not execution.single:
                logger.info("%d steps in %d executions", self.step - start_step, self._executions)

        def _set_steps(self) -> None:
            if not execution.single:
                set_steps(self.coming)

    return Executions()

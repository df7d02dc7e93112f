"""Several train steps for each call of a Keras engine's compiled function: `steps_per_execution`.

Keras is told a fixed number, and callbacks see each step that is a multiple of it. Here a callback says before each
execution how many steps it makes, so that every step that is logged, summarised or saved ends one
(:mod:`~estimator_pipeline.engines.lifecycle.step_schedule`), as with single steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.estimator.multi_step import MultiStepExecution
from estimator_pipeline.engines.keras.callbacks import counting_callback
from estimator_pipeline.engines.lifecycle.step_schedule import StepInterval
from estimator_pipeline.utils.logger import logger

__all__ = ["executions_callback", "noting_endless", "wanted_by"]

_OF_STEPS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def wanted_by(callbacks: Sequence[Any], start: int) -> tuple[list[StepInterval], str]:
    """The steps that callbacks want to see.

    A callback that is called for batches says which in a method `wanted_steps(start)`, as a session hook does: pairs
    (period, origin). One that has none may want them all.

    Args:
        callbacks: of Keras.
        start: the global step at which training begins.

    Returns:
        These steps, and why it is one step for each execution instead; "": it need not be.
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
    """The input function; `note` is told whether its dataset has no end, so that no execution meets one."""
    tf: Any = compat.tensorflow()

    def noted(*args: Any, **kwargs: Any) -> Any:
        found = input_fn(*args, **kwargs)
        note(tf.executing_eagerly() and int(found.cardinality()) == tf.data.INFINITE_CARDINALITY)
        return found

    if hasattr(input_fn, "rebatched"):
        noted.rebatched = input_fn.rebatched  # type: ignore[attr-defined]
    return noted


def executions_callback(
    multi_step: MultiStepExecution,
    *,
    start_step: int,
    ends: Sequence[StepInterval],
    reason: str,
    tell: Callable[[Any, int], None],
) -> Any:
    """Says how many steps each execution makes; to be the first callback.

    Args:
        multi_step: what was asked for, and how workers agree.
        start_step: the global step at which training begins.
        ends: steps that must end their execution.
        reason: why it is one step in any case, or "".
        tell: `tell(model, steps)`, before each execution.

    Returns:
        A `tf.keras.callbacks.Callback` with the attributes `coming`, the steps of the next execution, and
        `executions`, how many there were.
    """
    base: Any = counting_callback()

    class Executions(base):
        def __init__(self) -> None:
            super().__init__()
            self.step, self.coming, self.executions = start_step, 1, 0
            self._pace = multi_step.pace(ends, reason, call="execution")

        @property
        def single(self) -> bool:
            """Whether each execution is of one step, whatever was asked for."""
            return self._pace.single

        def on_epoch_begin(self, epoch, logs=None):
            self._tell()

        def on_train_batch_begin(self, batch, logs=None):
            super().on_train_batch_begin(batch, logs)
            self._begun = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            made = self.made(batch)
            self.step, self.executions = self.step + made, self.executions + 1
            self.coming = self._pace.call_ended(made, time.perf_counter() - self._begun, step=self.step)
            self._tell()

        def on_test_begin(self, logs=None):
            # Its data have an end.
            tell(self.model, 1)

        def on_train_end(self, logs=None):
            if not self.single:
                logger.info("%d steps in %d executions", self.step - start_step, self.executions)

        def _tell(self) -> None:
            if not self.single:
                tell(self.model, self.coming)

    return Executions()

"""An evaluation with steps=None and infinite data is rejected before its first batch.

`EvalSpec(steps=None)` and `Estimator.evaluate` read until the data ends. With infinitely repeated data the job hangs
silently (tensorflow/models#5587). Data whose `cardinality()` is infinite is rejected, unless an unknown hook may end
the evaluation. For other data an evaluation with steps=None logs its progress as a warning after a minute, and again
after twice the time.

Private use: `Estimator._call_input_fn`, which creates every dataset of an Estimator, and
`Estimator._convert_eval_steps_to_hooks`, which creates the hook that ends every evaluation.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any

from estimator_pipeline.compat.internals import session_hooks
from estimator_pipeline.errors import InputError
from estimator_pipeline.utils.logger import logger

NAME = "endless-evaluation"
WHAT = (
    "an evaluation with steps=None and infinite data is rejected, and a long one logs its progress; before, it ran "
    "forever and silently"
)

FIRST_WARNING_SECS = 60.0
# Graph collection of an evaluation: whether its data is infinite, bool [].
_ENDLESS = "estimator_pipeline_endless_evaluation"
# Packages whose hooks, as Estimator adds them, do not end an evaluation.
_KNOWN = ("tensorflow", "tensorflow_estimator", "estimator_pipeline")


def apply() -> None:
    import tensorflow as tf
    from tensorflow_estimator.python.estimator import estimator as module

    call, convert = module.Estimator._call_input_fn, module.Estimator._convert_eval_steps_to_hooks

    @functools.wraps(call)
    def call_input_fn(self: Any, input_fn: Any, mode: Any, input_context: Any = None) -> Any:
        data = call(self, input_fn, mode, input_context)
        if mode == tf.estimator.ModeKeys.EVAL and isinstance(data, tf.data.Dataset) and not tf.executing_eagerly():
            endless = tf.equal(data.cardinality(), tf.data.INFINITE_CARDINALITY)
            tf.compat.v1.add_to_collection(_ENDLESS, endless)
        return data

    @functools.wraps(convert)
    def convert_eval_steps_to_hooks(self: Any, steps: int | None) -> Any:
        hooks = convert(self, steps)
        return [*hooks, _to_the_end_hook()] if steps is None else hooks

    module.Estimator._call_input_fn = call_input_fn
    module.Estimator._convert_eval_steps_to_hooks = convert_eval_steps_to_hooks
    session_hooks.see_hooks()


def _to_the_end_hook() -> Any:
    import tensorflow as tf

    class ToTheEnd(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self._others_may_end_it = False
            self._batches = 0

        def sees_hooks(self, hooks: list[Any]) -> None:
            self._others_may_end_it = any(type(hook).__module__.partition(".")[0] not in _KNOWN for hook in hooks)

        def _set_evals_completed_tensor(self, tensor: Any) -> None:
            """Do nothing; the hook that counts an evaluation's steps has this method."""

        def begin(self) -> None:
            self._endless = tf.compat.v1.get_collection(_ENDLESS)
            self._begun = time.monotonic()
            self._due = FIRST_WARNING_SECS

        def after_create_session(self, session: Any, coord: Any) -> None:
            with contextlib.suppress(tf.errors.OpError):
                if any(session.run(self._endless)) and not self._others_may_end_it:
                    raise InputError(
                        "the evaluation reads its data to the end (steps=None), and the data is infinite",
                        code="data/endless",
                        found="a dataset that repeats infinitely",
                        hint="remove repeat() from the evaluation's input_fn, or set EvalSpec(steps=...) (eval.steps "
                        "in a job file)",
                    )

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self._batches += 1
            seconds = time.monotonic() - self._begun
            if seconds >= self._due:
                self._due *= 2
                logger.warning(
                    "the evaluation has read %d batches in %.0f s, and continues to the end of its data (steps=None)",
                    *(self._batches, seconds),
                )

    return ToTheEnd()

"""An evaluation that reads its data to the end, where these have none, is refused before its first batch.

`EvalSpec(steps=None)` and `Estimator.evaluate` read to the end. Data that are repeated for ever have none, and the job
stands still without a line (tensorflow/models#5587). What TensorFlow takes for endless (`cardinality()`) is refused,
unless a hook that is not known here may end the evaluation. Of other data nobody can tell: an evaluation to the end
warns after a minute, and after twice the time again, how far it is.

Private use: `Estimator._call_input_fn`, which every dataset of an Estimator comes by, and
`Estimator._convert_eval_steps_to_hooks`, which is asked for the end of every evaluation.
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
    "an evaluation with steps=None whose data have no end is refused, and one that takes long says how far it is; it "
    "went on for ever without a line"
)

FIRST_TOLD_SECS = 60.0
# Of the graph of an evaluation: whether its data have no end, bool [].
_ENDLESS = "estimator_pipeline_endless_evaluation"
# Packages whose hooks are known not to end an evaluation, as far as an Estimator has them there by itself.
_KNOWN = ("tensorflow", "tensorflow_estimator", "estimator_pipeline")


def apply() -> None:
    import tensorflow as tf
    from tensorflow_estimator.python.estimator import estimator as module

    call, convert = module.Estimator._call_input_fn, module.Estimator._convert_eval_steps_to_hooks

    @functools.wraps(call)
    def call_input_fn(self: Any, input_fn: Any, mode: Any, input_context: Any = None) -> Any:
        found = call(self, input_fn, mode, input_context)
        if mode == tf.estimator.ModeKeys.EVAL and isinstance(found, tf.data.Dataset) and not tf.executing_eagerly():
            endless = tf.equal(found.cardinality(), tf.data.INFINITE_CARDINALITY)
            tf.compat.v1.add_to_collection(_ENDLESS, endless)
        return found

    @functools.wraps(convert)
    def convert_eval_steps_to_hooks(self: Any, steps: int | None) -> Any:
        found = convert(self, steps)
        return [*found, _to_the_end_hook()] if steps is None else found

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
            """As the hook that counts an evaluation's steps has it."""

        def begin(self) -> None:
            self._endless = tf.compat.v1.get_collection(_ENDLESS)
            self._begun = time.monotonic()
            self._due = FIRST_TOLD_SECS

        def after_create_session(self, session: Any, coord: Any) -> None:
            with contextlib.suppress(tf.errors.OpError):
                if any(session.run(self._endless)) and not self._others_may_end_it:
                    raise InputError(
                        "the evaluation reads its data to the end (steps=None), and they have none",
                        code="data/endless",
                        found="a dataset that is repeated for ever",
                        hint="leave repeat() out of the evaluation's input_fn, or set EvalSpec(steps=...) (eval.steps "
                        "in a job file)",
                    )

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self._batches += 1
            seconds = time.monotonic() - self._begun
            if seconds >= self._due:
                self._due *= 2
                logger.warning(
                    "the evaluation has read %d batches in %.0f s, and reads its data to the end (steps=None)",
                    *(self._batches, seconds),
                )

    return ToTheEnd()

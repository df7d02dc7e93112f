"""Early stopping that stops every task of a cluster, and at the same step in synchronous training.

The bugs of `tf.estimator.experimental.make_early_stopping_hook` and of the `stop_if_*` hooks built on it
(tensorflow#40443):

** with any strategy, `run_every_secs` (60 by default) is rejected;
* under MultiWorkerMirroredStrategy each worker decides separately whether a check is due, from a global step that is
  being written at the same time. Sometimes workers disagree, and wait for each other forever. Each worker also decides
  separately from event files that change meanwhile;
* the stop flag is a variable of the model: the final checkpoint has it, so that a resumed run stops immediately, and a
  checkpoint from before the hook was added cannot be restored.

Here only the chief decides, and the model has no extra variable:

============================== ==================================================================================
training                       how the other tasks get the decision
============================== ==================================================================================
one process                    not needed
MultiWorkerMirroredStrategy    every N steps, counted exactly, the chief publishes its decision and the others wait
                               for it: all stop after the same step
parameter servers              a flag on the first parameter server, which is read with each step
============================== ==================================================================================

Private use: the module of the estimator package that makes the hooks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.patches import replacing

NAME = "early-stopping"
WHAT = (
    "early-stopping hooks stop every task of a cluster, at the same step in synchronous training; "
    "run_every_secs works with a strategy; no variable is added to the model"
)

# Steps between decisions if the program sets seconds: all tasks count steps in the same way.
AGREE_EVERY_STEPS = 10
DECISION_SECS = 1800.0
_MARK = "estimator_pipeline/early_stopping"


def apply() -> None:
    from tensorflow_estimator.python.estimator import early_stopping as module

    original = module.make_early_stopping_hook

    @functools.wraps(original)
    def make_early_stopping_hook(
        estimator: Any,
        should_stop_fn: Callable[[], bool],
        run_every_secs: float | None = 60,
        run_every_steps: int | None = None,
    ) -> Any:
        # The argument checks of the original, with its messages.
        _check_arguments(original, estimator, should_stop_fn, run_every_secs, run_every_steps)
        return stop_together_hook(
            estimator, should_stop_fn, run_every_secs=run_every_secs, run_every_steps=run_every_steps
        )

    replacing.everywhere(original, make_early_stopping_hook)


def _strategy(estimator: Any) -> Any:
    return getattr(getattr(estimator, "config", None), "train_distribute", None)


def _check_arguments(
    original: Callable[..., Any], estimator: Any, should_stop_fn: Any, secs: float | None, steps: int | None
) -> None:
    if _strategy(estimator) is not None and secs is not None and steps is None:
        # The original rejects this, but it works here: run only its other checks.
        secs, steps = None, AGREE_EVERY_STEPS
    original(estimator, should_stop_fn, run_every_secs=secs, run_every_steps=steps)


def stop_together_hook(
    estimator: Any, should_stop_fn: Callable[[], bool], *, run_every_secs: float | None, run_every_steps: int | None
) -> Any:
    """Return the hook; it detects the kind of training when a session begins, as the coordinator decides it."""
    import tensorflow as tf

    class StopTogetherHook(tf.compat.v1.train.SessionRunHook):
        """Stops training when the chief decides so."""

        def __init__(self) -> None:
            self._timer = tf.compat.v1.train.SecondOrStepTimer(every_secs=run_every_secs, every_steps=run_every_steps)
            self._session_number = 0

        def begin(self):
            self._session_number += 1
            self._chief, workers, ps = _where(estimator)
            self._together = workers > 1 and ps == 0 and coordination.available()
            self._step = tf.compat.v1.train.get_global_step()
            self._mark = None
            if ps > 0:
                with tf.device("/job:ps/task:0/device:CPU:0"):
                    handle = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=_MARK, container="")
                    self._mark = tf.raw_ops.VarIsInitializedOp(resource=handle)
                    self._set = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(True))
                    self._clear = tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)

        def after_create_session(self, session, coord):
            self._count = int(session.run(self._step))
            if self._mark is not None and self._chief:
                # Parameter servers may still run after a training that was stopped.
                session.run(self._clear)

        def before_run(self, run_context):
            wanted = {} if self._together else {"step": self._step}
            if self._mark is not None and not self._chief:
                wanted["mark"] = self._mark
            return tf.compat.v1.train.SessionRunArgs(wanted)

        def after_run(self, run_context, run_values):
            self._count += 1
            if self._together:
                stop = self._agreed()
            elif self._chief:
                stop = self._due(int(run_values.results["step"])) and bool(should_stop_fn())
            else:
                stop = bool(run_values.results.get("mark", False))
            if not stop:
                return
            # TensorFlow's logger, whose level these programs configure.
            tf.compat.v1.logging.info("Early stopping at global step %d", self._count)
            if self._mark is not None and self._chief:
                run_context.session.run(self._set)
            run_context.request_stop()

        def _due(self, step):
            if not self._timer.should_trigger_for_step(step):
                return False
            self._timer.update_last_triggered_step(step)
            return True

        def _agreed(self):
            """Return the chief's decision after this step, the same on every worker."""
            every = run_every_steps or AGREE_EVERY_STEPS
            if self._count % every != 0:
                return False
            key = f"early stopping/{self._session_number}/"
            if not self._chief:
                decision = coordination.receive(
                    f"{key}{self._count}", timeout=DECISION_SECS, description="the chief's decision on early stopping"
                )
                return decision == "stop"
            stop = self._due(self._count) and bool(should_stop_fn())
            coordination.publish(f"{key}{self._count}", "stop" if stop else "continue")
            if self._count > 2 * every:
                # All have read it, since they have finished a step together.
                coordination.forget(f"{key}{self._count - 2 * every}")
            return stop

    return StopTogetherHook()


def _where(estimator: Any) -> tuple[bool, int, int]:
    """Return (is this the chief, number of training tasks, number of parameter servers)."""
    from estimator_pipeline.compat.internals import distribute_coordinator as coordinator

    task = coordinator.training_task(estimator.config)
    if task is None:
        return True, 1, 0
    jobs, _, is_chief = task
    return is_chief, sum(len(jobs.get(job, ())) for job in ("chief", "master", "worker")), len(jobs.get("ps", ()))

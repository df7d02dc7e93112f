"""Early stopping that stops every task of a cluster, at the same step where training is synchronous.

The faults of `tf.estimator.experimental.make_early_stopping_hook` and of the `stop_if_*` hooks built on it
(tensorflow#40443):

* with any strategy, `run_every_secs` (60 by default) is refused;
* under MultiWorkerMirroredStrategy each worker finds out for itself whether a step is due for a look, from a global
  step that is read while it is being written: now and then they disagree, and wait for each other for ever. Each also
  decides for itself from event files that change meanwhile;
* the wish to stop is a variable of the model: the final checkpoint keeps it, so that a resumed run stops at once; and
  a checkpoint from before the hook was there cannot be restored.

Here the chief alone decides, and nothing is kept in the model:

============================== ==================================================================================
training                       how the others hear of it
============================== ==================================================================================
one process                    there are none
MultiWorkerMirroredStrategy    every N steps, counted exactly, the chief publishes its decision and the others wait
                               for it: all stop after the same step
parameter servers              a mark on the first parameter server, looked at with each step
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
    "early-stopping hooks stop every task of a cluster, at the same step where training is synchronous; "
    "run_every_secs works with a strategy; no variable is added to the model"
)

# How often the chief's decision is asked for where the program gives seconds: a number of steps that all can count.
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
        # The original's own refusals, with its own words.
        _refuse_as_ever(original, estimator, should_stop_fn, run_every_secs, run_every_steps)
        return stop_together_hook(
            estimator, should_stop_fn, run_every_secs=run_every_secs, run_every_steps=run_every_steps
        )

    replacing.everywhere(original, make_early_stopping_hook)


def _strategy(estimator: Any) -> Any:
    return getattr(getattr(estimator, "config", None), "train_distribute", None)


def _refuse_as_ever(
    original: Callable[..., Any], estimator: Any, should_stop_fn: Any, secs: float | None, steps: int | None
) -> None:
    if _strategy(estimator) is not None and secs is not None and steps is None:
        # Refused by the original, and fine here: only the rest of its checks is wanted.
        secs, steps = None, AGREE_EVERY_STEPS
    original(estimator, should_stop_fn, run_every_secs=secs, run_every_steps=steps)


def stop_together_hook(
    estimator: Any, should_stop_fn: Callable[[], bool], *, run_every_secs: float | None, run_every_steps: int | None
) -> Any:
    """The hook; what kind of training it is in it finds out when a session begins, for the coordinator decides that."""
    import tensorflow as tf

    class StopTogetherHook(tf.compat.v1.train.SessionRunHook):
        """Stops training when the chief finds that it should."""

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
                # Parameter servers may outlive a training that was stopped.
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
            # TensorFlow's own logger, which these programs set to what they want to see.
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
            """The chief's decision after this step, the same on every worker."""
            every = run_every_steps or AGREE_EVERY_STEPS
            if self._count % every != 0:
                return False
            key = f"early stopping/{self._session_number}/"
            if not self._chief:
                said = coordination.receive(
                    f"{key}{self._count}", timeout=DECISION_SECS, what="the chief's word on early stopping"
                )
                return said == "stop"
            stop = self._due(self._count) and bool(should_stop_fn())
            coordination.publish(f"{key}{self._count}", "stop" if stop else "go on")
            if self._count > 2 * every:
                # All have read it: they have finished a step together since.
                coordination.forget(f"{key}{self._count - 2 * every}")
            return stop

    return StopTogetherHook()


def _where(estimator: Any) -> tuple[bool, int, int]:
    """(is this the chief, number of training tasks, number of parameter servers) of the training that begins."""
    from estimator_pipeline.compat.internals import distribute_coordinator as coordinator

    task = coordinator.training_task(estimator.config)
    if task is None:
        return True, 1, 0
    jobs, _, is_chief = task
    return is_chief, sum(len(jobs.get(job, ())) for job in ("chief", "master", "worker")), len(jobs.get("ps", ()))

"""The last checkpoint with parameter servers: the chief writes it after all other training tasks have left training.

Each task trains asynchronously, and only the chief saves. If the chief's data ends first, later steps of the other
tasks would not be saved. The chief therefore keeps its session open, saves when a checkpoint is due, and ends when the
last worker has left training. If training ends for a different reason (`max_steps`, a hook), the other tasks finish
their current step, for which the chief waits at most a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import Task
from estimator_pipeline.compat.internals import session_hooks
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.core.stopping import shutdown
from estimator_pipeline.utils.logger import logger

__all__ = ["last_steps_hook"]

# For the step that a task is in when training ends for all.
_STEP_SECS = 60.0
_LOOK_SECS = 1.0


def last_steps_hook(
    rendezvous: Rendezvous,
    tasks: Iterable[Task],
    *,
    timeout: float,
    asked: Callable[[], bool],
    stop_others: Callable[[], object],
    on_wait: Callable[[], None],
) -> Any:
    """Return a hook with which the chief waits for the other tasks' last steps before the last checkpoint.

    Args:
        rendezvous: Rendezvous of the run.
        tasks: The other training tasks.
        timeout: Seconds without a step of any task after which the wait ends.
        asked: Returns whether this task was asked to stop.
        stop_others: Waits until the other tasks have stopped, after a stop request. If the request has ended training,
            it was called before.
        on_wait: Called when the wait starts.
    """
    tf: Any = compat.tensorflow()
    v1 = tf.compat.v1.train
    session_hooks.see_hooks()

    class LastSteps(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self._in_run = self._together = False
            self._saving: list[Any] = []

        def sees_hooks(self, hooks):
            # This hook runs before the hook that saves. Subclasses with a different after_run may need other values.
            saver = v1.CheckpointSaverHook
            self._saving = [hook for hook in hooks if getattr(type(hook), "after_run", None) is saver.after_run]
            # The token queue of a SyncReplicasOptimizer closes with the chief's session, which ends the other tasks.
            self._together = any(type(hook).__name__ == "_SyncReplicasOptimizerHook" for hook in hooks)

        def begin(self):
            self._global_step = v1.get_global_step()

        def before_run(self, run_context):
            self._in_run = True

        def after_run(self, run_context, run_values):
            self._in_run = False

        def end(self, session):
            if self._together:
                return
            if asked():
                if self._in_run:
                    stop_others()
                return
            on_wait()
            # A run without an after_run ran out of data.
            if self._in_run:
                logger.info("the chief's data have ended: it writes the last checkpoint when the workers have left")
            self._session, self._since, self._step = session, time.monotonic(), -1
            self._next, self._over = 0.0, False
            shutdown.wait_until_trained(rendezvous, tasks, given_up=self._given_up)

        def _given_up(self):
            if self._over:
                return True
            if asked():
                stop_others()
                self._over = True
            elif (now := time.monotonic()) >= self._next:
                self._next = now + _LOOK_SECS
                self._over = self._looked(now)
            return self._over

        def _looked(self, now):
            step = int(self._session.run(self._global_step))
            if self._in_run and step != self._step:
                self._since, self._step = now, step
                if self._saves(step):
                    return True
            limit = timeout if self._in_run else min(timeout, _STEP_SECS)
            if now - self._since > limit:
                logger.warning("not all workers have left training: the chief has waited %.0f s for them", limit)
                return True
            return False

        def _saves(self, step):
            """Save if a checkpoint is due, and return whether a listener requested a stop."""
            context = v1.SessionRunContext(v1.SessionRunArgs(None), self._session)
            for hook in self._saving:
                hook.after_run(context, v1.SessionRunValues(results=step, options=None, run_metadata=None))
            return context.stop_requested

    return LastSteps()

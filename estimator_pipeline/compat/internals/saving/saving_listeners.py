"""`CheckpointSaverListener`s under MultiWorkerMirroredStrategy, where Estimator refuses them.

On that path the hook that saves is made by TensorFlow's monitored session, and not by the Estimator, whose
`_train_with_estimator_spec_distributed` raises a ValueError where it is given listeners; TensorFlow 2.15's
`train_and_evaluate` passed none on. Here that hook is given them when the session is made.

Saving is a collective, so every worker has such a hook, and saves after the same steps. The chief's alone calls the
listeners. Where one of them asks for the end of training (a true value of `after_save`), the chief says so to the other
workers, which hear it after the same checkpoint.

Private use: `CheckpointSaverHook._listeners`, the same from 2.15 to 2.21.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.internals import session_hooks
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.logger import logger

__all__ = ["are_refused", "listeners_hook"]

_STRATEGIES = ("CollectiveAllReduceStrategy", "CollectiveAllReduceStrategyV1", "MultiWorkerMirroredStrategy")
_HEAR_SECS = 60.0
_STOP, _GO_ON = "stop", "go on"
# A process may train several times, all tasks as often: what is said in each has a name of its own.
_trainings = itertools.count(1)


def are_refused(strategy: Any) -> bool:
    """Whether an Estimator that trains with this strategy in a cluster takes no listeners."""
    return type(strategy).__name__ in _STRATEGIES


def listeners_hook(listeners: Sequence[Any], *, is_chief: bool) -> Any:
    """A session hook by which the hook that saves checkpoints calls these listeners.

    Args:
        listeners: the `saving_listeners` of the training, on all workers as many. They are called on the chief.
        is_chief: whether this task is the chief.

    Returns:
        A hook for the training's session. Without one that saves it raises a ConfigError when the session is made.
    """
    import tensorflow as tf

    session_hooks.see_hooks()
    training = next(_trainings)

    class Together(tf.compat.v1.train.CheckpointSaverListener):
        """Of the chief: calls the program's listeners, and says whether one of them wants training to end."""

        said: str | None = None

        def begin(self):
            for listener in listeners:
                listener.begin()

        def before_save(self, session, global_step_value):
            for listener in listeners:
                listener.before_save(session, global_step_value)

        def after_save(self, session, global_step_value):
            stop = False
            for listener in listeners:
                stop = bool(listener.after_save(session, global_step_value)) or stop
            if coordination.available():
                if self.said is not None:
                    coordination.forget(self.said)  # all have made steps since
                self.said = _key(training, global_step_value)
                coordination.publish(self.said, _STOP if stop else _GO_ON)
            elif stop:
                logger.warning(
                    "a CheckpointSaverListener asked for the end of training at step %d. Training goes on: without "
                    "eager mode the workers have no way to stop together.",
                    global_step_value,
                )
                stop = False
            return stop

        def end(self, session, global_step_value):
            for listener in listeners:
                listener.end(session, global_step_value)

    class Following(tf.compat.v1.train.CheckpointSaverListener):
        """Of another worker: hears what the chief says after the same checkpoint."""

        def after_save(self, session, global_step_value):
            said = None
            # A chief that has gone away ends this task elsewhere; one whose listeners take long is waited for.
            while coordination.available() and said is None:
                said = coordination.wait_for(_key(training, global_step_value), _HEAR_SECS)
            return said == _STOP

    class ListenersHook(tf.compat.v1.train.SessionRunHook):
        def sees_hooks(self, hooks):
            saving = [hook for hook in hooks if isinstance(hook, tf.compat.v1.train.CheckpointSaverHook)]
            if not saving:
                raise ConfigError(
                    "saving_listeners were given, and no checkpoints are saved",
                    code="argument/conflict",
                    hint="set save_checkpoints_steps in RunConfig, or leave the listeners out",
                )
            saving[0]._listeners.append(Together() if is_chief else Following())

    return ListenersHook()


def _key(training: int, step: int) -> str:
    return f"saving listeners/{training}/{int(step)}"

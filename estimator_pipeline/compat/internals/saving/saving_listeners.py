"""`CheckpointSaverListener`s under MultiWorkerMirroredStrategy, where Estimator rejects them.

There TensorFlow's monitored session creates the hook that saves, not the Estimator, whose
`_train_with_estimator_spec_distributed` raises a ValueError for listeners; TensorFlow 2.15's `train_and_evaluate` did
not pass them. Here the listeners are added to that hook when the session is created.

Saving is a collective, so every worker has such a hook and saves after the same steps. Only the chief calls the
listeners. If one of them requests the end of training (a true value of `after_save`), the chief publishes it, and the
other workers read it after the same checkpoint.

Private use: `CheckpointSaverHook._listeners`, unchanged from 2.15 to 2.21.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.internals import session_hooks
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.logger import logger

__all__ = ["are_rejected", "listeners_hook"]

_STRATEGIES = ("CollectiveAllReduceStrategy", "CollectiveAllReduceStrategyV1", "MultiWorkerMirroredStrategy")
_HEAR_SECS = 60.0
_STOP, _CONTINUE = "stop", "continue"
# A process may train several times, and all tasks equally often: each training has separate keys.
_trainings = itertools.count(1)


def are_rejected(strategy: Any) -> bool:
    """Whether an Estimator that trains with this strategy in a cluster rejects listeners."""
    return type(strategy).__name__ in _STRATEGIES


def listeners_hook(listeners: Sequence[Any], *, is_chief: bool) -> Any:
    """Return a session hook that adds these listeners to the hook that saves checkpoints.

    Args:
        listeners: The `saving_listeners` of the training, equally many on all workers. The chief calls them.
        is_chief: Whether this task is the chief.

    Returns:
        A hook for the training's session. It raises a ConfigError if no hook of the session saves checkpoints.
    """
    import tensorflow as tf

    session_hooks.see_hooks()
    training = next(_trainings)

    class Together(tf.compat.v1.train.CheckpointSaverListener):
        """On the chief: calls the program's listeners, and publishes whether training should stop."""

        last_key: str | None = None

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
                if self.last_key is not None:
                    coordination.forget(self.last_key)  # all workers have run steps since
                self.last_key = _key(training, global_step_value)
                coordination.publish(self.last_key, _STOP if stop else _CONTINUE)
            elif stop:
                logger.warning(
                    "a CheckpointSaverListener requested the end of training at step %d. Training continues: without "
                    "eager mode the workers cannot stop together.",
                    global_step_value,
                )
                stop = False
            return stop

        def end(self, session, global_step_value):
            for listener in listeners:
                listener.end(session, global_step_value)

    class Following(tf.compat.v1.train.CheckpointSaverListener):
        """On other workers: reads the chief's decision after the same checkpoint."""

        def after_save(self, session, global_step_value):
            decision = None
            # The chief's listeners may take long. The loss of the chief is detected elsewhere.
            while coordination.available() and decision is None:
                decision = coordination.wait_for(_key(training, global_step_value), _HEAR_SECS)
            return decision == _STOP

    class ListenersHook(tf.compat.v1.train.SessionRunHook):
        def sees_hooks(self, hooks):
            saving = [hook for hook in hooks if isinstance(hook, tf.compat.v1.train.CheckpointSaverHook)]
            if not saving:
                raise ConfigError(
                    "there are saving_listeners, but no checkpoints are saved",
                    code="argument/conflict",
                    hint="set save_checkpoints_steps in RunConfig, or remove the listeners",
                )
            saving[0]._listeners.append(Together() if is_chief else Following())

    return ListenersHook()


def _key(training: int, step: int) -> str:
    return f"saving listeners/{training}/{int(step)}"

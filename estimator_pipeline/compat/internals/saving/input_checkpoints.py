"""`tf.data.experimental.CheckpointInputPipelineHook`, which TensorFlow 2.16 removed together with tf.estimator.

A session hook that saves the positions of the iterators of an Estimator's training with each checkpoint of the model,
and restores them when training resumes. Reimplemented with the file format of TensorFlow 2.15 (`input.ckpt-STEP`, or
`input_worker_1.ckpt-STEP` for a task, named by `checkpoint_input...`); each version reads the other's files.

Private use, on 2.16 to 2.21: the collection of a graph's iterators and their saveable (`iterator_ops`), with which
`tf.data.experimental.make_saveable_from_iterator` is implemented, for iterators of which only the resource is known;
and private methods of `CheckpointSaverHook`, which saves.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

__all__ = ["bind"]

NAME = "CheckpointInputPipelineHook"
_HOMES = ("tensorflow.python.data.experimental", "tensorflow.python.data.experimental.ops.iterator_ops")


def bind() -> bool:
    """Set the hook where TensorFlow had it; return False if it exists."""
    import tensorflow as tf

    public: dict[str, Any] = {
        "tensorflow.data.experimental": tf.data.experimental,
        "tensorflow.compat.v1.data.experimental": tf.compat.v1.data.experimental,
        "tensorflow.compat.v2.data.experimental": tf.compat.v2.data.experimental,
    }
    modules = [*map(importlib.import_module, _HOMES), *public.values()]
    missing = [module for module in modules if not hasattr(module, NAME)]
    for module in missing:
        setattr(module, NAME, _hook())
    if missing:
        for name, module in public.items():
            # An import by this name would otherwise create a second module from TensorFlow's file.
            setattr(sys.modules.setdefault(name, module), NAME, _hook())
    return bool(missing)


@functools.cache
def _hook() -> Any:
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import iterator_ops as policies
    from tensorflow.python.data.ops import iterator_ops

    v1: Any = tf.compat.v1

    class Saver(v1.train.Saver):
        """A saver with a separate state file, not that of the model."""

        def __init__(self, saveables: list[Any], latest_filename: str) -> None:
            super().__init__(saveables, sharded=True)
            self._latest_filename = latest_filename

        def save(self, sess, save_path, global_step=None, latest_filename=None, *args, **kwargs):
            latest_filename = latest_filename or self._latest_filename
            return super().save(sess, save_path, global_step, latest_filename, *args, **kwargs)

    class CheckpointInputPipelineHook(v1.train.SessionRunHook):
        """Saves the state of a training's iterators at each checkpoint, and restores the last one.

        Args:
            estimator: The `tf.estimator.Estimator` that trains.
            external_state_policy: How to handle a dataset whose elements depend on state outside of the iterators,
                such as a stateful random operation: "fail" (None), "warn" or "ignore".

        Raises:
            ValueError: There is no such policy.
        """

        def __init__(self, estimator: Any, external_state_policy: str | None = None) -> None:
            self._policy = policies._convert_external_state_policy_to_enum(external_state_policy or "fail")
            config = estimator._config
            name = "input"
            if config.num_worker_replicas > 1:
                name += f"_{config.task_type}_{config.task_id}"
            self._latest_filename = f"checkpoint_{name}"
            # Not a subclass: an Estimator would treat this hook as the one that saves the model.
            self._saving = v1.train.CheckpointSaverHook(
                estimator.model_dir,
                save_secs=config.save_checkpoints_secs,
                save_steps=config.save_checkpoints_steps,
                checkpoint_basename=f"{name}.ckpt",
            )
            self._is_first_run = True

        def begin(self):
            iterators = v1.get_collection(iterator_ops.GLOBAL_ITERATORS)
            saveables = [
                iterator_ops._IteratorSaveable(iterator, iterator.name, external_state_policy=self._policy)
                for iterator in iterators
            ]
            self._saving._saver = Saver(saveables, self._latest_filename)
            self._saving.begin()

        def after_create_session(self, session, coord):
            # The hook that initializes the iterators may follow this one, so they are restored before the first step.
            self._is_first_run = True

        def before_run(self, run_context):
            if self._is_first_run:
                self._restore_or_save(run_context.session)
                self._is_first_run = False
            return self._saving.before_run(run_context)

        def _restore_or_save(self, session: Any) -> None:
            latest = tf.train.latest_checkpoint(self._saving._checkpoint_dir, self._latest_filename)
            if latest:
                self._saving._saver.restore(session, latest)
                return
            step = session.run(self._saving._global_step_tensor)
            self._saving._save(session, step)
            self._saving._timer.update_last_triggered_step(step)

        def after_run(self, run_context, run_values):
            self._saving.after_run(run_context, run_values)

        def end(self, session):
            self._saving.end(session)

    return CheckpointInputPipelineHook

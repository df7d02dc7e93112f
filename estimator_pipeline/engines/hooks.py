"""Session hooks of the Estimator engine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.launch.progress import ProgressWriter


def progress_hook(progress: ProgressWriter, *, interval_secs: float = 1.0) -> Any:
    """A hook that counts this task's own steps and tells the launcher how far it is.

    The loss and the global step are fetched once in `interval_secs`, not at every step: a fetch costs a copy.

    Returns:
        A `tf.estimator.SessionRunHook` with the attributes `steps` (steps run by this task), `loss` (last one
        seen) and `data_ended` (whether the input came to its end).
    """
    tf: Any = compat.install()

    class ProgressHook(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self.steps = 0
            self.loss: float | None = None
            self.data_ended = False
            self._in_run = False
            self._due = 0.0
            self._mark: tuple[float, int] | None = None

        def begin(self) -> None:
            losses = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
            self._fetches = {"step": tf.compat.v1.train.get_global_step()}
            if losses:
                # The estimator adds the reported loss last.
                self._fetches["loss"] = losses[-1]

        def before_run(self, run_context):
            self._in_run = True
            if time.monotonic() >= self._due:
                return tf.compat.v1.train.SessionRunArgs(self._fetches)
            return None

        def after_run(self, run_context, run_values):
            self._in_run = False
            self.steps += 1
            if run_values.results is None:
                return
            now = time.monotonic()
            self._due = now + interval_secs
            values = run_values.results
            self.loss = float(values["loss"]) if "loss" in values else None
            rate = None
            if self._mark is not None and now > self._mark[0]:
                rate = (self.steps - self._mark[1]) / (now - self._mark[0])
            self._mark = (now, self.steps)
            progress.emit("step", step=int(values["step"]), loss=self.loss, steps_per_sec=rate, steps=self.steps)

        def end(self, session):
            # A run that was begun and has no end ran out of data: the session swallows that error itself.
            self.data_ended = self._in_run
            step = int(session.run(self._fetches["step"])) if not self._in_run else None
            if step is not None:
                progress.emit("step", step=step, loss=self.loss, steps=self.steps)

    return ProgressHook()


def checkpoint_hook(on_checkpoint: Callable[[str], None], *, model_dir: str, every_steps: int | None) -> Any:
    """A hook that calls `on_checkpoint(path)` after each new checkpoint of this process, training standing still.

    Works where a `CheckpointSaverListener` is refused (multi_worker_mirrored). The step-0 checkpoint of an untrained
    model, and those that were there before, are passed over.

    Args:
        on_checkpoint: called between two steps.
        model_dir: where checkpoints are looked for.
        every_steps: how often there is one; None: looked for once a second.
    """
    tf: Any = compat.install()

    class CheckpointHook(tf.compat.v1.train.SessionRunHook):
        def begin(self) -> None:
            self._global_step = tf.compat.v1.train.get_global_step()
            self._seen = tf.train.latest_checkpoint(model_dir)
            self._runs = 0
            self._next = time.monotonic() + 1.0

        def after_create_session(self, session, coord):
            self._start = int(session.run(self._global_step))

        def after_run(self, run_context, run_values):
            del run_context, run_values
            self._runs += 1
            if not self._due():
                return
            latest = tf.train.latest_checkpoint(model_dir)
            if latest is None or latest == self._seen:
                return
            self._seen = latest
            if checkpoint_step(latest) > self._start:
                on_checkpoint(latest)

        def _due(self) -> bool:
            if every_steps is not None:
                # The checkpoint of step n is written at the end of that step, after this hook: seen one step late.
                return self._runs > 1 and (self._runs - 1) % every_steps == 0
            if time.monotonic() < self._next:
                return False
            self._next = time.monotonic() + 1.0
            return True

    return CheckpointHook()


def checkpoint_step(path: str) -> int:
    """`model.ckpt-200` -> 200. -1 for a path without a step, which Estimator never writes."""
    match = re.search(r"-(\d+)$", path)
    return int(match[1]) if match else -1

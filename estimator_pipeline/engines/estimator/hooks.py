"""Session hooks of the Estimator engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.data_end import own_work
from estimator_pipeline.engines.lifecycle.divergence import diverged
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.engines.recording.pace import WorkerPace
from estimator_pipeline.progress.progress_file import ProgressWriter


def progress_hook(progress: ProgressWriter, *, interval_secs: float = 1.0, pace: WorkerPace | None = None) -> Any:
    """A hook that counts this task's own steps and tells the launcher how far it is.

    The loss and the global step are fetched once in `interval_secs`, not at every step: a fetch costs a copy.

    Args:
        progress: the launcher's file.
        interval_secs: see above.
        pace: told of the steps in which something is fetched; where several workers train together.

    Returns:
        A `tf.estimator.SessionRunHook` with the attributes `steps` (steps run by this task), `global_step` (about
        where it is: exact where no other task counts it on), `loss` (last one seen) and `data_ended` (whether the
        input came to its end).
    """
    tf: Any = compat.tensorflow()

    class ProgressHook(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self.steps = 0
            self.loss: float | None = None
            self.data_ended = False
            self._in_run = self._told_end = False
            self._due = 0.0
            self._mark: tuple[float, int] | None = None
            self._start, self._read = (0, 0), 0

        @property
        def global_step(self) -> int:
            # A step that is fetched beside the training may be the one before; of other tasks it knows all the same.
            step, steps = self._start
            return max(step + self.steps - steps, self._read)

        def begin(self) -> None:
            losses = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
            self._fetches = {"step": tf.compat.v1.train.get_global_step()}
            if losses:
                # The estimator adds the reported loss last.
                self._fetches["loss"] = losses[-1]
            self._marks = {} if pace is None else own_work.marks(tf.compat.v1.get_default_graph())

        def after_create_session(self, session, coord):
            self._start = (int(session.run(self._fetches["step"])), self.steps)

        def before_run(self, run_context):
            self._in_run = True
            if time.monotonic() >= self._due:
                self._began = time.time()
                return tf.compat.v1.train.SessionRunArgs({**self._fetches, **self._marks})
            return None

        def after_run(self, run_context, run_values):
            self._in_run = False
            self.steps += 1
            if run_values.results is None:
                return
            now = time.monotonic()
            self._due = now + interval_secs
            values, ended = run_values.results, time.time()
            self._read = int(values["step"])
            self.loss = float(values["loss"]) if "loss" in values else None
            rate = None
            if self._mark is not None and now > self._mark[0]:
                rate = (self.steps - self._mark[1]) / (now - self._mark[0])
            self._mark = (now, self.steps)
            if pace is not None and "ready" in values and rate:
                marks = {name: float(values[name]) for name in self._marks}
                pace.step_made(self.global_step, 1 / rate, began=self._began, ended=ended, **marks)
            progress.emit("step", step=self.global_step, loss=self.loss, steps_per_sec=rate, steps=self.steps)

        def steps_passed(self, count: int) -> None:
            self.steps += count

        def data_ends(self) -> None:
            self._told_end = True

        def end(self, session):
            # A run that was begun and has no end ran out of data: the session swallows that error itself.
            self.data_ended = self._in_run or self._told_end
            step = int(session.run(self._fetches["step"])) if not self._in_run else None
            if step is not None:
                progress.emit("step", step=step, loss=self.loss, steps=self.steps)

    return ProgressHook()


def stop_hook(after_steps: Callable[[int, int], bool], on_session: Callable[[], None]) -> Any:
    """A hook that stops training after the step for which `after_steps()` says so, with the final checkpoint.

    Args:
        after_steps: called after each call of steps with their number, and that of the next call's.
        on_session: called when the session stands.
    """
    tf: Any = compat.tensorflow()

    class StopHook(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self._passed, self._coming = 0, 1

        def after_create_session(self, session, coord):
            on_session()

        def steps_passed(self, count: int) -> None:
            self._passed += count

        def steps_coming(self, count: int) -> None:
            self._coming = count

        def after_run(self, run_context, run_values):
            made, self._passed = self._passed + 1, 0
            if after_steps(made, self._coming):
                run_context.request_stop()

    return StopHook()


def checkpoint_hook(on_checkpoint: Callable[[str], None], *, model_dir: str, every_steps: int | None) -> Any:
    """A hook that calls `on_checkpoint(path)` after each new checkpoint of this process, training standing still.

    Works where a `CheckpointSaverListener` is refused (multi_worker_mirrored). The step-0 checkpoint of an untrained
    model, and those that were there before, are passed over.

    Args:
        on_checkpoint: called between two steps.
        model_dir: where checkpoints are looked for.
        every_steps: how often there is one; None: looked for once a second.
    """
    tf: Any = compat.tensorflow()

    class CheckpointHook(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self._start: int | None = None  # none where there was nothing left to train

        def begin(self) -> None:
            self._global_step = tf.compat.v1.train.get_global_step()
            self._seen = tf.train.latest_checkpoint(model_dir)
            self._runs = 0
            self._next = time.monotonic() + 1.0

        def after_create_session(self, session, coord):
            self._start = int(session.run(self._global_step))

        def steps_passed(self, count: int) -> None:
            self._runs += count

        def wanted_steps(self, start: int) -> list[tuple[int, int]]:
            return [] if every_steps is None else [(every_steps, start + every_steps + 1)]

        def after_run(self, run_context, run_values):
            del run_context, run_values
            self._runs += 1
            if self._due():
                self.look()

        def look(self) -> None:
            """Calls `on_checkpoint` if there is a new one; after training it finds the final one."""
            if self._start is None:
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


def finite_hook(*, every_steps: int | None) -> Any:
    """A hook that ends training before a checkpoint is written whose variables are no finite numbers.

    A step may have a finite loss and leave NaN behind: its gradient was the first that is no number. Here the trainable
    variables are looked at when a checkpoint is due; which for a hook that comes before the one that saves is at the
    end of the same step.

    Args:
        every_steps: how often a checkpoint is due; None: only when training ends.
    """
    tf: Any = compat.tensorflow()

    class FiniteHook(tf.compat.v1.train.SessionRunHook):
        def begin(self) -> None:
            self._check = _FiniteCheck(tf)
            self._step = tf.compat.v1.train.get_global_step()
            self._runs = 0

        def steps_passed(self, count: int) -> None:
            self._runs += count

        def wanted_steps(self, start: int) -> list[tuple[int, int]]:
            return [] if every_steps is None else [(every_steps, start + every_steps)]

        def after_run(self, run_context, run_values):
            self._runs += 1
            if every_steps is not None and self._runs % every_steps == 0:
                self.end(run_context.session)

        def end(self, session):
            self._check(session, int(session.run(self._step)))

    return FiniteHook()


def finite_listener() -> Any:
    """The same as :func:`finite_hook` for a `CheckpointSaverHook`, where one takes listeners."""
    tf: Any = compat.tensorflow()

    class FiniteListener(tf.compat.v1.train.CheckpointSaverListener):
        def begin(self) -> None:
            self._check = _FiniteCheck(tf)

        def before_save(self, session, global_step_value):
            self._check(session, int(global_step_value))

    return FiniteListener()


class _FiniteCheck:
    """Whether the trainable variables of a graph are finite, asked of a session."""

    def __init__(self, tf: Any) -> None:
        found = [v for v in tf.compat.v1.trainable_variables() if v.dtype.is_floating]
        self._names = [variable.op.name for variable in found]
        self._finite = [tf.reduce_all(tf.math.is_finite(variable)) for variable in found]

    def __call__(self, session: Any, step: int) -> None:
        for name, finite in zip(self._names, session.run(self._finite), strict=True):
            if not finite:
                raise diverged(f"after step {step} the variable {name} is no finite number")

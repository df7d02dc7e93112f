"""Session hooks of the Estimator engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import session_hooks
from estimator_pipeline.compat.internals.data_end import own_work
from estimator_pipeline.engines.core.context import CheckpointEvent, TaskContext
from estimator_pipeline.engines.core.failures import diverged
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.engines.recording.pace import WorkerPace

# Seconds between two fetches of loss and global step: a fetch costs a copy.
_FETCH_SECS = 1.0


def progress_hook(context: TaskContext, after_steps: Callable[[int, int], bool]) -> Any:
    """Return a hook that counts this task's steps, reports progress to the launcher, and stops training.

    Attributes: `steps` (steps run by this task), `global_step` (exact unless other tasks increment it too),
    `data_ended` (whether the input ended), `has_ended` (whether the session's hooks are in their `end`, or after it).

    Args:
        context: This task.
        after_steps: Called after each session call with its number of steps and that of the next call. Training ends
            with the final checkpoint when it returns True.
    """
    tf: Any = compat.tensorflow()
    progress = context.progress
    # The timing of the steps with a fetch, if several workers train together.
    pace = WorkerPace(progress, task=str(context.task)) if context.trains_together else None

    class ProgressHook(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self.steps = self._counted = 0
            self.data_ended = self.has_ended = False
            self._loss: float | None = None
            self._loss_step = -1
            self._in_run = self._end_reported = False
            self._due, self._coming = 0.0, 1
            self._mark: tuple[float, int] | None = None
            self._start, self._read = (0, 0), 0

        @property
        def global_step(self) -> int:
            # A fetched step may be one behind this task's own count, but includes the steps of other tasks.
            step, steps = self._start
            return max(step + self.steps - steps, self._read)

        def begin(self) -> None:
            losses = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
            self._fetches = {"step": tf.compat.v1.train.get_global_step()}
            if losses:
                # The estimator adds the reported loss last.
                self._fetches["loss"] = losses[-1]
            self._marks = {} if pace is None else own_work.marks(tf.compat.v1.get_default_graph())
            context.enter_stage(
                f"restoring the checkpoint of step {context.start_step}"
                if context.start_step
                else "initializing the variables"
            )

        def after_create_session(self, session, coord):
            self._start = (int(session.run(self._fetches["step"])), self.steps)
            context.preemption.rearm()

        def before_run(self, run_context):
            self._in_run = True
            # The loss of the last step is reported with it.
            if time.monotonic() >= self._due or self.global_step + 1 == context.max_steps:
                self._began = time.time()
                return tf.compat.v1.train.SessionRunArgs({**self._fetches, **self._marks})
            return None

        def after_run(self, run_context, run_values):
            self._in_run = False
            self.steps += 1
            if run_values.results is not None:
                self._report(run_values.results)
            steps, self._counted = self.steps - self._counted, self.steps
            if after_steps(steps, self._coming):
                run_context.request_stop()

        def _report(self, values):
            now, ended = time.monotonic(), time.time()
            self._due = now + _FETCH_SECS
            self._read = int(values["step"])
            self._loss = float(values["loss"]) if "loss" in values else None
            self._loss_step = self.global_step
            rate = None
            if self._mark is not None and now > self._mark[0]:
                rate = (self.steps - self._mark[1]) / (now - self._mark[0])
            self._mark = (now, self.steps)
            if pace is not None and "ready" in values and rate:
                marks = {name: float(values[name]) for name in self._marks}
                pace.step_made(self.global_step, 1 / rate, began=self._began, ended=ended, **marks)
            progress.emit("step", step=self.global_step, loss=self._loss, steps_per_sec=rate, steps=self.steps)

        def steps_passed(self, count: int) -> None:
            self.steps += count

        def steps_coming(self, count: int) -> None:
            self._coming = count

        def data_ends(self) -> None:
            self._end_reported = True

        def end(self, session):
            self.has_ended = True
            # A run without an after_run ran out of data: the session handles that error.
            self.data_ended = self._in_run or self._end_reported
            if not self._in_run:
                step = int(session.run(self._fetches["step"]))
                progress.emit("step", step=step, loss=self._loss if step == self._loss_step else None, steps=self.steps)

    return ProgressHook()


def checkpoint_hook(
    on_checkpoint: Callable[[CheckpointEvent], None], *, model_dir: str, every_steps: int | None
) -> Any:
    """Return a hook that calls `on_checkpoint(event)` after each new checkpoint of this process, between two steps.

    It works where a `CheckpointSaverListener` is rejected (multi_worker_mirrored). The checkpoint of step 0 and
    existing ones are skipped. It looks once per second, or after each checkpoint if they are `every_steps` apart.
    """
    tf: Any = compat.tensorflow()

    class CheckpointHook(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self._start: int | None = None  # None if there was nothing left to train

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
            self._runs += 1
            if every_steps is not None:
                # The checkpoint of step n is written at the end of that step, after this hook: detected a step later.
                due = self._runs > 1 and (self._runs - 1) % every_steps == 0
            elif due := time.monotonic() >= self._next:
                self._next = time.monotonic() + 1.0
            if due:
                self.poll()

        def poll(self, *, last: bool = False) -> None:
            """Call `on_checkpoint` if there is a new checkpoint; after training, with `last`, the final one."""
            latest = tf.train.latest_checkpoint(model_dir)
            if self._start is None or latest is None or latest == self._seen:
                return
            self._seen = latest
            step = checkpoint_step(latest)
            if step > self._start:
                on_checkpoint(CheckpointEvent(path=latest, step=step, last=last))

    return CheckpointHook()


def local_loss_hook(estimator: Any) -> Any:
    """Return a hook that knows this worker's own loss of the step that tf.estimator ends because of a NaN loss.

    The loss that tf.estimator checks is summed over the workers. The losses before the sum are fetched in the same
    call, a few microseconds: a later call would have the next batch. The attribute `loss` is the mean of this worker's
    replicas; None if it is not known, as in a call of several steps.

    Args:
        estimator: The Estimator, bound to this task, which will train with the hook.
    """
    tf: Any = compat.tensorflow()
    losses: list[Any] = []
    session_hooks.notify_replicas(estimator, lambda inputs, spec: losses.append(spec.loss))

    class LocalLossHook(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self.loss: float | None = None

        def before_run(self, run_context):
            return tf.compat.v1.train.SessionRunArgs(losses)

        def after_run(self, run_context, run_values):
            self.loss = sum(map(float, run_values.results)) / len(losses)

        def steps_passed(self, count: int) -> None:
            self.loss = None

    return LocalLossHook()


def finite_hook(check: Callable[[int], None], *, every_steps: int | None) -> Any:
    """Return a hook that stops training before a checkpoint with NaN or infinite variables is written.

    A step may have a finite loss and still produce NaN, if its gradient is the first that is not finite. The trainable
    variables are checked when a checkpoint is due, after `check(step)`. Placed before the hook that saves, this is at
    the end of the same step. `every_steps` None: only at the end of training.
    """
    tf: Any = compat.tensorflow()

    class FiniteHook(tf.compat.v1.train.SessionRunHook):
        def begin(self) -> None:
            self._check = _FiniteCheck(check)
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


def finite_listener(check: Callable[[int], None]) -> Any:
    """Return a listener with the checks of `finite_hook`, for a `CheckpointSaverHook` that accepts listeners."""
    tf: Any = compat.tensorflow()

    class FiniteListener(tf.compat.v1.train.CheckpointSaverListener):
        def begin(self) -> None:
            self._check = _FiniteCheck(check)

        def before_save(self, session, global_step_value):
            self._check(session, int(global_step_value))

    return FiniteListener()


class _FiniteCheck:
    """Runs a check, and checks in a session that the trainable variables of the current graph are finite."""

    def __init__(self, check: Callable[[int], None]) -> None:
        tf = compat.tensorflow()
        variables = [v for v in tf.compat.v1.trainable_variables() if v.dtype.is_floating]
        self._names = [variable.op.name for variable in variables]
        self._finite = [tf.reduce_all(tf.math.is_finite(variable)) for variable in variables]
        self._check = check

    def __call__(self, session: Any, step: int) -> None:
        self._check(step)
        for name, finite in zip(self._names, session.run(self._finite), strict=True):
            if not finite:
                raise diverged(f"after step {step} the variable {name} is not finite", step=step)

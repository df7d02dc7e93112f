"""Multi-step execution in an Estimator: several train steps per session call (`steps_per_execution`).

A session call costs about as much as a step of a small model. Steps that no hook needs to see therefore run in a loop
in the graph (`estimator_pipeline.compat.internals.graph_step_loop`), in one call before the call with hooks. The
steps that hooks see are computed (`step_schedule`), and workers agree on
them before the first step. Results are bit-identical to those of single steps. If that is not certain, each call runs
one step, and the log has the reason.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.internals import graph_step_loop as step_loop
from estimator_pipeline.compat.internals import session_hooks
from estimator_pipeline.engines.lifecycle.step_schedule import AUTO, CallLengthTuner, CallSchedule, StepInterval
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.sections.training import check_steps
from estimator_pipeline.utils.logger import logger

__all__ = ["MultiStepExecution", "MultiStepProgress", "checked_steps"]

# Tasks reach the first step within the time of a session's creation.
_AGREE_SECS = 600.0
_KEY = "steps_per_execution"
_CALL = "session call"


def checked_steps(value: Any) -> int | str:
    """Return the checked value of `steps_per_execution`.

    Raises:
        ConfigError: It is neither "auto" nor a number of 1 or more.
    """
    if not check_steps(value):
        raise ConfigError(
            f"steps_per_execution is {value!r}",
            code="argument/bad-value",
            found="allowed: auto, or a number of steps from 1 on",
        )
    return value  # type: ignore[no-any-return]


class MultiStepExecution:
    """Multi-step execution of one training of one task.

    Args:
        steps: Maximum steps per call, or "auto".
        tf_config: Cluster and task of this process.

    Attributes:
        reason: Why every call has one step, regardless of the training, or "".
    """

    def __init__(self, steps: int | str, *, tf_config: TFConfig) -> None:
        self.steps = steps
        cluster = tf_config.cluster
        self._task, self._chief = str(tf_config.task), str(cluster.chief if cluster else tf_config.task)
        self._tasks = [str(task) for task in cluster.training_tasks] if cluster else []
        self.reason = ""
        if cluster is not None and cluster.num_ps > 0:
            self.reason = "workers with parameter servers step on their own"
        elif len(self._tasks) > 1 and not coordination.available():
            self.reason = "workers cannot agree on it without TensorFlow's coordination service"

    def attach(self, estimator: Any) -> list[Any]:
        """Return the hooks that an Estimator, bound to this task, needs for it."""
        if self.steps == 1:
            return []
        if self.reason:
            _log_single(self.reason, _CALL)
            return []
        session_hooks.see_hooks()
        hook = _multi_step_hook(self)
        session_hooks.notify_train_op(estimator, hook.takes)
        return [hook]

    def pace(self, ends: Iterable[StepInterval] = (), reason: str = "", *, call: str) -> MultiStepProgress:
        """Agree with the other workers on the lengths of calls; must be called by all of them.

        Args:
            ends: Steps that must be the last of their call.
            reason: Why every call has one step, or "".
            call: The name of a call in log messages.
        """
        most = 1 if self.steps == AUTO else int(self.steps)
        local = CallSchedule(tuple(ends), most, reason or self.reason)
        schedule = CallSchedule.of_all(self._exchange("schedule", local.to_json()).values())
        return MultiStepProgress(schedule, CallLengthTuner(self.decided) if self.steps == AUTO else None, call=call)

    def decided(self, name: str, value: int) -> int:
        """Return the chief's value, which applies to all workers."""
        return int(self._exchange(name, str(value))[self._chief])

    def _exchange(self, name: str, value: str) -> dict[str, str]:
        if len(self._tasks) <= 1:
            return {self._chief: value}
        values = coordination.exchange(f"{_KEY}/{name}", value, task=self._task, tasks=self._tasks, timeout=_AGREE_SECS)
        assert values is not None
        return values


class MultiStepProgress:
    """The lengths of the calls of a training, with log messages.

    Args:
        schedule: The schedule that all workers agreed on.
        tuner: Finds the length by timing calls; None if it is fixed.
        call: The name of a call in log messages.
    """

    def __init__(self, schedule: CallSchedule, tuner: CallLengthTuner | None, *, call: str) -> None:
        self._schedule, self._tuner, self._call = schedule, tuner, call
        if schedule.reason:
            _log_single(schedule.reason, call)

    @property
    def single(self) -> bool:
        """Whether every call has one step, regardless of the requested number."""
        return bool(self._schedule.reason)

    def call_ended(self, steps: int, seconds: float, *, step: int) -> int:
        """Add the timing of a call that ended with `step`, and return the number of steps of the next call."""
        tuner = self._tuner
        if tuner is not None and not tuner.done and not self.single:
            tuner.call_ended(steps, seconds)
            self._schedule = dataclasses.replace(self._schedule, most=tuner.most)
            if tuner.done:
                logger.info("Up to %d steps for each %s", tuner.most, self._call)
        return self._schedule.length(step)

    def becomes_single(self, reason: str) -> None:
        """Run one step per call from now on."""
        self._schedule = CallSchedule(reason=reason)
        _log_single(reason, self._call)


def _log_single(reason: str, call: str) -> None:
    logger.info("One step for each %s: %s", call, reason)


def _multi_step_hook(multi_step: MultiStepExecution) -> Any:
    tf: Any = compat.tensorflow()
    v1 = tf.compat.v1
    base: Any = v1.train.SessionRunHook

    class SeveralStepsHook(base):
        """The first of all hooks: its session calls in before_run are not visible to the other hooks.

        Attributes:
            step: The global step.
        """

        def __init__(self) -> None:
            self.step = 0
            self._hooks: list[Any] = []
            self._train_op: Any = None
            self._loss: Any = None
            self._loop: Any = None
            self._end: Any = None
            self._pace: Any = None
            self._coming, self._steps_of_call, self._checked = 1, 0, False
            self._steps = self._calls = 0

        def takes(self, train_op: Any, loss: Any) -> None:
            self._train_op, self._loss = train_op, loss

        def sees_hooks(self, hooks: list[Any]) -> None:
            self._hooks = hooks
            # The hook that detects the end of data on one of several workers.
            self._end = next((hook for hook in hooks if hasattr(hook, "following")), None)

        def begin(self) -> None:
            self._global_step = v1.train.get_global_step()
            self._why_not = step_loop.why_not(self._train_op, self._loss) or ""
            self._loop = None
            if not self._why_not:
                self._loop = step_loop.StepLoop(self._train_op, self._loss, self._global_step)

        def after_create_session(self, session, coord):
            self.step = int(session.run(self._global_step))
            self._coming, self._steps_of_call, self._checked = 1, 0, False
            ends, reason = self._ends()
            self._pace = multi_step.pace(ends, reason, call=_CALL)
            self._announce_steps()

        def _ends(self) -> tuple[list[StepInterval], str]:
            """Return the steps that hooks must see, or why these may be all steps."""
            ends: list[StepInterval] = []
            if self._why_not:
                return ends, self._why_not
            for hook in self._hooks:
                wanted = session_hooks.wanted_by(hook, start=self.step, loss=self._loss)
                if wanted is None:
                    return ends, f"the hook {type(hook).__name__} may want to see every step"
                ends += [StepInterval(period, origin) for period, origin in wanted]
            return ends, ""

        def before_run(self, run_context):
            self._begun, self._steps_of_call = time.perf_counter(), 1
            if self._coming > 1:
                self._run_ahead(run_context.session, self._coming - 1)

        def _run_ahead(self, session: Any, count: int) -> None:
            before = self.step
            try:
                steps, is_nan, step = self._loop.run(session, count)
            except tf.errors.OutOfRangeError:
                self._pass(int(session.run(self._global_step)) - before)
                for hook in self._hooks:
                    # For the hook, a step was in progress.
                    getattr(hook, "data_ends", lambda: None)()
                raise
            self._pass(steps)
            if is_nan:
                v1.logging.error("Model diverged with loss = NaN.")
                raise tf.estimator.NanLossDuringTrainingError
            self._check_step(step)

        def _pass(self, count: int) -> None:
            self.step += count
            self._steps_of_call += count
            for hook in self._hooks:
                session_hooks.pass_steps(hook, count, self.step)

        def after_run(self, run_context, run_values):
            self.step += 1
            self._steps, self._calls = self._steps + self._steps_of_call, self._calls + 1 + (self._steps_of_call > 1)
            if self._end is not None and self._end.watching and not self._pace.single:
                # The loop does not check which workers have a batch. All workers take this branch.
                self._pace.becomes_single("the data of one worker may end before the others'")
            if not self._checked and not self._pace.single:
                self._checked = True
                self._check_step(int(run_context.session.run(self._global_step)))
            self._coming = self._pace.call_ended(self._steps_of_call, time.perf_counter() - self._begun, step=self.step)
            self._announce_steps()

        def end(self, session):
            if not self._pace.single:
                logger.info("%d steps in %d session calls", self._steps, self._calls)

        def _check_step(self, step: int) -> None:
            """Check that each step adds 1 to the global step, which the schedule assumes; the same on all workers."""
            if step != self.step and not self._pace.single:
                self._pace.becomes_single(f"the global step is {step} after step {self.step}")
                self.step = step

        def _announce_steps(self) -> None:
            for hook in self._hooks:
                announce: Callable[[int], None] | None = getattr(hook, "steps_coming", None)
                if announce is not None:
                    announce(self._coming)

    return SeveralStepsHook()

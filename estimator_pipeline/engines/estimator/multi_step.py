"""Several train steps for each session call of an Estimator: `steps_per_execution`.

A session call costs about as much as the step of a small model. So the steps that nobody wants to see are made by a
loop in the graph (:mod:`estimator_pipeline.compat.internals.graph_step_loop`), in one call ahead of the one that hooks
are called for. Which steps somebody wants to see is arithmetic
(:mod:`~estimator_pipeline.engines.lifecycle.step_schedule`), agreed upon between workers before the first step. The
numbers are those of single steps, to the bit; where that is not certain it is one step a call, and the log says why.
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

# Tasks reach the first step within a session's creation of each other.
_AGREE_SECS = 600.0
_KEY = "steps_per_execution"
_CALL = "session call"


def checked_steps(value: Any) -> int | str:
    """The value of `steps_per_execution`.

    Raises:
        ConfigError: it is neither "auto" nor a number from 1 on.
    """
    if not check_steps(value):
        raise ConfigError(
            f"steps_per_execution is {value!r}",
            code="argument/bad-value",
            found="allowed: auto, or a number of steps from 1 on",
        )
    return value  # type: ignore[no-any-return]


class MultiStepExecution:
    """Several steps a call, for one training of one task.

    Args:
        steps: at most, or "auto".
        tf_config: which task this is.

    Attributes:
        reason: why it is one step a call whatever the training, or "".
    """

    def __init__(self, steps: int | str, *, tf_config: TFConfig) -> None:
        self.steps = steps
        cluster = tf_config.cluster
        self._own, self._chief = str(tf_config.task), str(cluster.chief if cluster else tf_config.task)
        self._tasks = [str(task) for task in cluster.training_tasks] if cluster else []
        self.reason = ""
        if cluster is not None and cluster.num_ps > 0:
            self.reason = "workers with parameter servers step on their own"
        elif len(self._tasks) > 1 and not coordination.available():
            self.reason = "workers cannot agree on it without TensorFlow's coordination service"

    def attach(self, estimator: Any) -> list[Any]:
        """The hooks that an Estimator, bound to this task, needs for it."""
        if self.steps == 1:
            return []
        if self.reason:
            _tell_single(self.reason, _CALL)
            return []
        session_hooks.see_hooks()
        hook = _multi_step_hook(self)
        session_hooks.tell_train_op(estimator, hook.takes)
        return [hook]

    def pace(self, ends: Iterable[StepInterval] = (), reason: str = "", *, call: str) -> MultiStepProgress:
        """How long calls are; agreed upon with the other workers, so to be asked for by all of them.

        Args:
            ends: steps that must end their call.
            reason: why it is one step in any case, or "".
            call: what the log calls a call.
        """
        most = 1 if self.steps == AUTO else int(self.steps)
        own = CallSchedule(tuple(ends), most, reason or self.reason)
        schedule = CallSchedule.of_all(self._exchange("schedule", own.to_json()).values())
        return MultiStepProgress(schedule, CallLengthTuner(self.decided) if self.steps == AUTO else None, call=call)

    def decided(self, name: str, own: int) -> int:
        """What the chief has measured stands for all workers."""
        return int(self._exchange(name, str(own))[self._chief])

    def _exchange(self, name: str, value: str) -> dict[str, str]:
        if len(self._tasks) <= 1:
            return {self._chief: value}
        found = coordination.exchange(f"{_KEY}/{name}", value, own=self._own, tasks=self._tasks, timeout=_AGREE_SECS)
        assert found is not None
        return found


class MultiStepProgress:
    """How long the calls of a training are, and what the log hears of it.

    Args:
        schedule: all workers' own.
        finder: finds the length by timing calls; None where it is given.
        call: what the log calls a call.
    """

    def __init__(self, schedule: CallSchedule, finder: CallLengthTuner | None, *, call: str) -> None:
        self._schedule, self._finder, self._call = schedule, finder, call
        if schedule.reason:
            _tell_single(schedule.reason, call)

    @property
    def single(self) -> bool:
        """Whether each call is of one step, whatever was asked for."""
        return bool(self._schedule.reason)

    def call_ended(self, made: int, seconds: float, *, step: int) -> int:
        """A call of so many steps took so long and ended with `step`: how many steps the next one makes."""
        finder = self._finder
        if finder is not None and not finder.found and not self.single:
            finder.call_ended(made, seconds)
            self._schedule = dataclasses.replace(self._schedule, most=finder.most)
            if finder.found:
                logger.info("Up to %d steps for each %s", finder.most, self._call)
        return self._schedule.length(step)

    def becomes_single(self, reason: str) -> None:
        """From now on it is one step a call."""
        self._schedule = CallSchedule(reason=reason)
        _tell_single(reason, self._call)


def _tell_single(reason: str, call: str) -> None:
    logger.info("One step for each %s: %s", call, reason)


def _multi_step_hook(multi_step: MultiStepExecution) -> Any:
    tf: Any = compat.tensorflow()
    v1 = tf.compat.v1
    base: Any = v1.train.SessionRunHook

    class SeveralStepsHook(base):
        """Comes before all other hooks: what it does before a call, the others do not see as a call.

        Attributes:
            step: the global step.
        """

        def __init__(self) -> None:
            self.step = 0
            self._hooks: list[Any] = []
            self._train_op: Any = None
            self._loss: Any = None
            self._loop: Any = None
            self._end: Any = None
            self._pace: Any = None
            self._coming, self._made, self._checked = 1, 0, False
            self._steps = self._calls = 0

        def takes(self, train_op: Any, loss: Any) -> None:
            self._train_op, self._loss = train_op, loss

        def sees_hooks(self, hooks: list[Any]) -> None:
            self._hooks = hooks
            # The hook that sees data end on one of several workers.
            self._end = next((hook for hook in hooks if hasattr(hook, "following")), None)

        def begin(self) -> None:
            self._global_step = v1.train.get_global_step()
            self._why_not = step_loop.why_not(self._train_op, self._loss) or ""
            self._loop = None
            if not self._why_not:
                self._loop = step_loop.StepLoop(self._train_op, self._loss, self._global_step)

        def after_create_session(self, session, coord):
            self.step = int(session.run(self._global_step))
            self._coming, self._made, self._checked = 1, 0, False
            ends, reason = self._ends()
            self._pace = multi_step.pace(ends, reason, call=_CALL)
            self._tell_coming()

        def _ends(self) -> tuple[list[StepInterval], str]:
            """The steps that hooks want to see, or why they may be all."""
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
            self._begun, self._made = time.perf_counter(), 1
            if self._coming > 1:
                self._run_ahead(run_context.session, self._coming - 1)

        def _run_ahead(self, session: Any, count: int) -> None:
            before = self.step
            try:
                made, is_nan, step = self._loop.run(session, count)
            except tf.errors.OutOfRangeError:
                self._pass(int(session.run(self._global_step)) - before)
                for hook in self._hooks:
                    # It was in the middle of a step, as far as the hook knows.
                    getattr(hook, "data_ends", lambda: None)()
                raise
            self._pass(made)
            if is_nan:
                v1.logging.error("Model diverged with loss = NaN.")
                raise tf.estimator.NanLossDuringTrainingError
            self._check_step(step)

        def _pass(self, count: int) -> None:
            self.step += count
            self._made += count
            for hook in self._hooks:
                session_hooks.pass_steps(hook, count, self.step)

        def after_run(self, run_context, run_values):
            self.step += 1
            self._steps, self._calls = self._steps + self._made, self._calls + 1 + (self._made > 1)
            if self._end is not None and self._end.watching and not self._pace.single:
                # The loop does not ask who has a batch. The same is seen on all workers.
                self._pace.becomes_single("the data of one worker may end before the others'")
            if not self._checked and not self._pace.single:
                self._checked = True
                self._check_step(int(run_context.session.run(self._global_step)))
            self._coming = self._pace.call_ended(self._made, time.perf_counter() - self._begun, step=self.step)
            self._tell_coming()

        def end(self, session):
            if not self._pace.single:
                logger.info("%d steps in %d session calls", self._steps, self._calls)

        def _check_step(self, step: int) -> None:
            """The arithmetic holds where each step adds 1 to the global step; the same is seen on all workers."""
            if step != self.step and not self._pace.single:
                self._pace.becomes_single(f"the global step is {step} after step {self.step}")
                self.step = step

        def _tell_coming(self) -> None:
            for hook in self._hooks:
                tell: Callable[[int], None] | None = getattr(hook, "steps_coming", None)
                if tell is not None:
                    tell(self._coming)

    return SeveralStepsHook()

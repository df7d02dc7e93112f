"""Multi-step execution: several train steps per session call or per call of a compiled function.

Workers agree on the lengths of the calls before the first step, and on each change (`step_schedule`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.engines.core.step_schedule import AUTO, CallLengthTuner, CallSchedule, StepInterval
from estimator_pipeline.utils.logger import logger

__all__ = ["MultiStepExecution", "MultiStepProgress", "log_single"]

# Tasks reach the first step within the time of a session's creation.
_AGREE_SECS = 600.0
_KEY = "steps_per_execution"


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
            log_single(schedule.reason, call)

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
        log_single(reason, self._call)


def log_single(reason: str, call: str) -> None:
    """Log why each call runs one step."""
    logger.info("One step for each %s: %s", call, reason)

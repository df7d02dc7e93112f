"""Multi-step execution: several train steps per session call or per call of a compiled function.

Hooks see a call of several steps once, at its last step. A call therefore ends with each step that must be visible: a
step that is logged, summarized or saved, and the last one. Otherwise it is as long as the maximum allows. Workers agree
on the visible steps and the maximum before the first step, and on each change. From these each worker computes the same
lengths, without communication.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable
from typing import NamedTuple

from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.utils.logger import logger

__all__ = ["MOST", "CallLengthTuner", "CallSchedule", "MultiStepExecution", "StepInterval"]

_AUTO = "auto"
# Maximum steps of a call with `auto`.
MOST = 256
# Target duration of a call with `auto`: a signal waits for the end of the call, and the overhead of a call (about a
# millisecond) is small in comparison.
CALL_SECS = 0.05
# Single-step calls to skip (they start threads and fill buffers), and to time.
_WARM, _SINGLE = 4, 8
# Multi-step calls to time; the first one builds its executor. Visible steps may limit all of them to one step.
_TRIALS, _TRIAL_STEPS = 4, 16
# Maximum ratio of the time per step in a multi-step call to that in single-step calls.
_WORTH = 0.95
# Single-step calls before the next trial if multi-step calls were not faster: a short load of the machine must not
# decide for hours.
_PAUSES = (50, 500)
# Tasks reach the first step within the time of a session's creation.
_AGREE_SECS = 600.0


class StepInterval(NamedTuple):
    """The visible steps `origin`, `origin + period`, and so on; period 0: only `origin`."""

    period: int
    origin: int

    def after(self, step: int) -> float:
        """Return the first visible step after a step; infinity without one."""
        if step < self.origin:
            return self.origin
        if not self.period:
            return math.inf
        return self.origin + ((step - self.origin) // self.period + 1) * self.period


@dataclasses.dataclass(frozen=True)
class CallSchedule:
    """The lengths of calls.

    Attributes:
        ends: Steps that must be the last of a call.
        most: Maximum steps of a call.
        reason: Why every call has one step regardless of `most`, or "".
    """

    ends: tuple[StepInterval, ...] = ()
    most: int = 1
    reason: str = ""

    def length(self, step: int) -> int:
        """Return the number of steps of the call that starts after the global step `step`."""
        if self.reason or self.most == 1:
            return 1
        border = min((every.after(step) for every in self.ends), default=math.inf)
        return int(min(self.most, border - step))

    def to_json(self) -> str:
        """Return the schedule as text, for the other workers."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_all(cls, schedules: Iterable[str]) -> CallSchedule:
        """Return the common schedule from each worker's `to_json`: all ends, and the smallest maximum."""
        documents = [json.loads(text) for text in schedules]
        ends = sorted({StepInterval(*pair) for document in documents for pair in document["ends"]})
        reason = next((document["reason"] for document in documents if document["reason"]), "")
        return cls(tuple(ends), min(document["most"] for document in documents), reason)


class CallLengthTuner:
    """Finds the length of calls by timing the first ones.

    Single-step calls are timed, then multi-step calls. The chosen length is the one with which a call takes about
    `CALL_SECS`, or 1 if multi-step calls are not faster, which is tried again two times. Decisions are taken after the
    same calls on every worker.

    Args:
        decide: Called with (name of the decision, choice of this task); returns the choice of all tasks.

    Attributes:
        most: Maximum steps of the next call.
        done: Whether `most` is final.
    """

    def __init__(self, decide: Callable[[str, int], int] = lambda name, value: value) -> None:
        self._decide = decide
        self._calls: list[tuple[int, float]] = []
        self._idle = _WARM
        self._single = 0.0
        self._tries = 0
        self.most = 1
        self.done = False

    def call_ended(self, steps: int, seconds: float) -> None:
        """Add the timing of a call."""
        if self.done:
            return
        if self._idle:
            self._idle -= 1
            return
        self._calls.append((steps, seconds))
        if len(self._calls) == _SINGLE:
            self._single = statistics.median(seconds for _, seconds in self._calls)
            self.most = self._agreed("trial", trial_steps(self._single))
            self.done = self.most == 1
        elif len(self._calls) == _SINGLE + _TRIALS:
            trials = [seconds / steps for steps, seconds in self._calls[-_TRIALS:] if steps > 1]
            self.most = self._agreed("most", most_steps(self._single, trials, self.most))
            self.done = self.most > 1 or self._tries == len(_PAUSES)
            if not self.done:
                self._idle, self._calls = _PAUSES[self._tries], []
                self._tries += 1

    def _agreed(self, name: str, value: int) -> int:
        return self._decide(f"{name}-{self._tries + 1}" if self._tries else name, value)


def trial_steps(single: float) -> int:
    """Return the number of steps of trial calls, from the seconds of a single-step call."""
    return max(1, min(_TRIAL_STEPS, int(2 * CALL_SECS / max(single, 1e-6))))


def most_steps(single: float, trials: list[float], tried: int) -> int:
    """Return the number of steps of a call from the seconds of a single-step call and the trials' seconds per step."""
    if not trials:
        # Every step was visible. If that changes, calls may be as long as the trial calls would have been.
        return tried
    step = min(trials)
    if step > _WORTH * single:
        return 1
    wanted = CALL_SECS / max(step, 1e-6)
    return max(tried, min(MOST, 2 ** round(math.log2(max(wanted, 1.0)))))


class MultiStepExecution:
    """The lengths of the calls of one training of one task, with log messages.

    Args:
        steps: Maximum steps per call, or "auto".
        tf_config: Cluster and task of this process.
        call: The name of a call in log messages.

    Attributes:
        reason: Why every call has one step, regardless of the training, or "".
    """

    def __init__(self, steps: int | str, *, tf_config: TFConfig, call: str) -> None:
        self.steps, self._call = steps, call
        cluster = tf_config.cluster
        self._task, self._chief = str(tf_config.task), str(cluster.chief if cluster else tf_config.task)
        self._tasks = [str(task) for task in cluster.training_tasks] if cluster else []
        self.reason = ""
        if cluster is not None and cluster.num_ps > 0:
            self.reason = "workers with parameter servers step on their own"
        elif len(self._tasks) > 1 and not coordination.available():
            self.reason = "workers cannot agree on it without TensorFlow's coordination service"

    def begin(self, ends: Iterable[StepInterval] = (), reason: str = "") -> None:
        """Agree with the other workers on the lengths of calls; must be called by all of them.

        Args:
            ends: Steps that must be the last of their call.
            reason: Why every call has one step, or "".
        """
        most = 1 if self.steps == _AUTO else int(self.steps)
        local = CallSchedule(tuple(ends), most, reason or self.reason)
        self._schedule = CallSchedule.of_all(self._exchange("schedule", local.to_json()).values())
        self._tuner = CallLengthTuner(self._decided)
        if self.single:
            self.becomes_single(self._schedule.reason)

    @property
    def single(self) -> bool:
        """Whether every call has one step, regardless of the requested number."""
        return bool(self._schedule.reason)

    def call_ended(self, steps: int, seconds: float, *, step: int) -> int:
        """Add the timing of a call that ended with `step`, and return the number of steps of the next call."""
        tuner = self._tuner
        if self.steps == _AUTO and not tuner.done and not self.single:
            tuner.call_ended(steps, seconds)
            self._schedule = dataclasses.replace(self._schedule, most=tuner.most)
            if tuner.done:
                logger.info(
                    "Up to %d steps for each %s; results are those of single steps (steps_per_execution: auto)",
                    *(tuner.most, self._call),
                )
        return self._schedule.length(step)

    def becomes_single(self, reason: str) -> None:
        """Run one step per call from now on, and log why."""
        self._schedule = CallSchedule(reason=reason)
        logger.info("One step for each %s: %s", self._call, reason)

    def _decided(self, name: str, value: int) -> int:
        """Return the chief's value, which applies to all workers."""
        return int(self._exchange(name, str(value))[self._chief])

    def _exchange(self, name: str, value: str) -> dict[str, str]:
        if len(self._tasks) <= 1:
            return {self._chief: value}
        key = f"steps_per_execution/{name}"
        values = coordination.exchange(key, value, task=self._task, tasks=self._tasks, timeout=_AGREE_SECS)
        assert values is not None
        return values

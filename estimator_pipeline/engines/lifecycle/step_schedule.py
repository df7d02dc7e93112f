"""How many train steps one session call makes: arithmetic alone, so that every worker comes to the same numbers.

A call of `r` steps is seen by hooks once, at its last step. So a call ends with each step that somebody wants to see:
a step that is logged, summarised, saved, the last one. Between them it is as long as `most` allows.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable

__all__ = ["AUTO", "MOST", "CallLengthTuner", "CallSchedule", "StepInterval"]

AUTO = "auto"
# No call of `auto` is longer.
MOST = 256
# What a call of `auto` should take: a signal waits for the end of the call, and what a call costs besides its steps
# (about a millisecond) is small beside it.
CALL_SECS = 0.05
# Single calls that are timed, after the first ones, which start threads and fill buffers.
_WARM, _SINGLE = 4, 8
# Calls of several steps that are timed; the first one builds its executor. Borders may cut all of them to one step.
_TRIALS, _TRIAL_STEPS = 4, 16
# By how much steps in one call must be faster than in calls of their own.
_WORTH = 0.95
# Single calls before it is tried again where several steps were no faster: what else the machine did in those tenths of
# a second need not decide for hours.
_PAUSES = (50, 500)


@dataclasses.dataclass(frozen=True, order=True)
class StepInterval:
    """The steps `origin`, `origin + period`, and so on that somebody wants to see; period 0: `origin` alone."""

    period: int
    origin: int

    def after(self, step: int) -> float:
        """The first of them after a step; infinity: there is none."""
        if step < self.origin:
            return self.origin
        if not self.period:
            return math.inf
        return self.origin + ((step - self.origin) // self.period + 1) * self.period


@dataclasses.dataclass(frozen=True)
class CallSchedule:
    """Where calls end.

    Attributes:
        ends: the steps with which a call ends in any case.
        most: steps of a call at most.
        reason: why it is one step a call, if it is so whatever `most` was asked for; else "".
    """

    ends: tuple[StepInterval, ...] = ()
    most: int = 1
    reason: str = ""

    def length(self, step: int) -> int:
        """Steps of the call that begins after the global step `step`."""
        if self.reason or self.most == 1:
            return 1
        border = min((every.after(step) for every in self.ends), default=math.inf)
        return int(min(self.most, border - step))

    def to_json(self) -> str:
        """As text, for the other workers."""
        return json.dumps({"ends": [[e.period, e.origin] for e in self.ends], "most": self.most, "reason": self.reason})

    @classmethod
    def of_all(cls, told: Iterable[str]) -> CallSchedule:
        """What suits all workers, from each one's :meth:`to_json`: every border of any, one step a call if one says."""
        documents = [json.loads(text) for text in told]
        ends = sorted({StepInterval(*pair) for document in documents for pair in document["ends"]})
        reasons = [document["reason"] for document in documents if document["reason"]]
        most = min(document["most"] for document in documents)
        return cls(tuple(ends), most, reasons[0] if reasons else "")


class CallLengthTuner:
    """Finds how long calls should be, from what the first ones take.

    Single calls are timed, then calls of some steps; then the length is chosen with which a call takes about
    `CALL_SECS`, or 1 where several steps in a call are no faster, which is tried again two times. Decisions fall after
    the same calls on every worker.

    Args:
        decide: called with (name of the decision, what this task would choose); gives what all of them take.
    """

    def __init__(self, decide: Callable[[str, int], int] = lambda name, own: own) -> None:
        self._decide = decide
        self._calls: list[tuple[int, float]] = []
        self._idle = _WARM
        self._single = 0.0
        self._tries = 0
        self._found: int | None = None
        self.most = 1

    @property
    def found(self) -> bool:
        """Whether `most` is what it stays."""
        return self._found is not None

    def call_ended(self, steps: int, seconds: float) -> None:
        """A call of so many steps took so long."""
        if self.found:
            return
        if self._idle:
            self._idle -= 1
            return
        self._calls.append((steps, seconds))
        if len(self._calls) == _SINGLE:
            self._single = statistics.median(seconds for _, seconds in self._calls)
            self.most = self._agreed("trial", trial_steps(self._single))
            if self.most == 1:
                self._found = 1
        elif len(self._calls) == _SINGLE + _TRIALS:
            trials = [seconds / steps for steps, seconds in self._calls[-_TRIALS:] if steps > 1]
            self.most = self._agreed("most", most_steps(self._single, trials, self.most))
            if self.most > 1 or self._tries == len(_PAUSES):
                self._found = self.most
            else:
                self._idle, self._calls = _PAUSES[self._tries], []
                self._tries += 1

    def _agreed(self, name: str, own: int) -> int:
        return self._decide(f"{name}-{self._tries + 1}" if self._tries else name, own)


def trial_steps(single: float) -> int:
    """Steps of the calls that are tried.

    Args:
        single: seconds of a call of one step.
    """
    return max(1, min(_TRIAL_STEPS, int(2 * CALL_SECS / max(single, 1e-6))))


def most_steps(single: float, trials: list[float], tried: int) -> int:
    """Steps of a call, by what was measured.

    Args:
        single: seconds of a call of one step.
        trials: seconds of a step in each of the calls that were tried, those of several steps.
        tried: how many steps these were allowed.
    """
    if not trials:
        # Every step is wanted by somebody; should that end, calls may be as long as those that were to be tried.
        return tried
    step = min(trials)
    if step > _WORTH * single:
        return 1
    wanted = CALL_SECS / max(step, 1e-6)
    return max(tried, min(MOST, 2 ** round(math.log2(max(wanted, 1.0)))))

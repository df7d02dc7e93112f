"""The number of train steps per session call, computed without communication: the same on every worker.

Hooks see a call of several steps once, at its last step. A call therefore ends with each step that must be visible: a
step that is logged, summarized or saved, and the last one. Otherwise it is as long as `most` allows.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable

__all__ = ["AUTO", "MOST", "CallLengthTuner", "CallSchedule", "StepInterval"]

AUTO = "auto"
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


@dataclasses.dataclass(frozen=True, order=True)
class StepInterval:
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
        return json.dumps({"ends": [[e.period, e.origin] for e in self.ends], "most": self.most, "reason": self.reason})

    @classmethod
    def of_all(cls, schedules: Iterable[str]) -> CallSchedule:
        """Return the common schedule from each worker's `to_json`: all ends, and the smallest maximum."""
        documents = [json.loads(text) for text in schedules]
        ends = sorted({StepInterval(*pair) for document in documents for pair in document["ends"]})
        reasons = [document["reason"] for document in documents if document["reason"]]
        most = min(document["most"] for document in documents)
        return cls(tuple(ends), most, reasons[0] if reasons else "")


class CallLengthTuner:
    """Finds the length of calls by timing the first ones.

    Single-step calls are timed, then multi-step calls. The chosen length is the one with which a call takes about
    `CALL_SECS`, or 1 if multi-step calls are not faster, which is tried again two times. Decisions are taken after the
    same calls on every worker.

    Args:
        decide: Called with (name of the decision, choice of this task); returns the choice of all tasks.
    """

    def __init__(self, decide: Callable[[str, int], int] = lambda name, value: value) -> None:
        self._decide = decide
        self._calls: list[tuple[int, float]] = []
        self._idle = _WARM
        self._single = 0.0
        self._tries = 0
        self._final: int | None = None
        self.most = 1

    @property
    def done(self) -> bool:
        """Whether `most` is final."""
        return self._final is not None

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
            if self.most == 1:
                self._final = 1
        elif len(self._calls) == _SINGLE + _TRIALS:
            trials = [seconds / steps for steps, seconds in self._calls[-_TRIALS:] if steps > 1]
            self.most = self._agreed("most", most_steps(self._single, trials, self.most))
            if self.most > 1 or self._tries == len(_PAUSES):
                self._final = self.most
            else:
                self._idle, self._calls = _PAUSES[self._tries], []
                self._tries += 1

    def _agreed(self, name: str, value: int) -> int:
        return self._decide(f"{name}-{self._tries + 1}" if self._tries else name, value)


def trial_steps(single: float) -> int:
    """Return the number of steps of trial calls.

    Args:
        single: Seconds of a single-step call.
    """
    return max(1, min(_TRIAL_STEPS, int(2 * CALL_SECS / max(single, 1e-6))))


def most_steps(single: float, trials: list[float], tried: int) -> int:
    """Return the number of steps of a call from the measurements.

    Args:
        single: Seconds of a single-step call.
        trials: Seconds per step of each multi-step trial call.
        tried: Maximum steps of the trial calls.
    """
    if not trials:
        # Every step was visible. If that changes, calls may be as long as the trial calls would have been.
        return tried
    step = min(trials)
    if step > _WORTH * single:
        return 1
    wanted = CALL_SECS / max(step, 1e-6)
    return max(tried, min(MOST, 2 ** round(math.log2(max(wanted, 1.0)))))

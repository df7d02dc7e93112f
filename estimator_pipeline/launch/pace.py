"""Detection of stragglers: workers for which the others wait in each step.

Each worker reports how long it waits in a step after it has computed its gradients; the straggler waits least. An event
`pace` has medians over the steps of the last one or two seconds:

    task                                the worker
    step, steps                         the global step, and the number of steps that the medians cover
    step_ms, wait_ms, input_ms          see `Pace`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Pace", "Paces", "Straggler", "straggler"]

# The share of a step, and the milliseconds, above which a wait is reported.
_SHARE = 0.25
_LEAST_MS = 1.0
# Consecutive detections of the same worker before it is reported: any worker may be slow for a while.
_TIMES = 2


@dataclass(frozen=True)
class Pace:
    """Times that one worker reported for its last steps, in milliseconds.

    Attributes:
        step: The global step at the report.
        steps: The number of steps that the report covers.
        step_ms: The duration of a step.
        wait_ms: The time from the end of the worker's computation to the end of the step.
        input_ms: The time that a step waits for its batch.
    """

    step: int
    steps: int
    step_ms: float
    wait_ms: float
    input_ms: float


@dataclass(frozen=True)
class Straggler:
    """A worker for which the others wait.

    Attributes:
        task: Its name.
        wait_ms: The time that they wait for it in each step, on average, in milliseconds.
        step_ms: The duration of a step.
        input_ms: The time that it waits for its batch.
    """

    task: str
    wait_ms: float
    step_ms: float
    input_ms: float

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document; `share` is the part of a step spent waiting."""
        numbers = {"wait_ms": self.wait_ms, "step_ms": self.step_ms, "input_ms": self.input_ms}
        numbers["share"] = self.wait_ms / self.step_ms
        return {"task": self.task, **{name: round(value, 3) for name, value in numbers.items()}}

    def text(self) -> str:
        """Format it in one line."""
        its = f" (it waits {self.input_ms:.0f} ms for its input)" if self.input_ms > self.wait_ms / 2 else ""
        wait, step = f"{self.wait_ms:.0f} ms", f"{self.step_ms:.0f} ms"
        return f"{self.task} is slow: the others wait {wait} of each step's {step} for it{its}"


def straggler(paces: Mapping[str, Pace]) -> Straggler | None:
    """Return the worker for which the others wait, if the wait is long enough.

    `paces` are the reports of all workers for the same steps, by task name.
    """
    if len(paces) < 2:
        return None
    task, slowest = min(paces.items(), key=lambda item: item[1].wait_ms)
    others = [pace for name, pace in paces.items() if name != task]
    wait = sum(pace.wait_ms for pace in others) / len(others) - slowest.wait_ms
    step = max(pace.step_ms for pace in paces.values())
    if wait < max(_LEAST_MS, _SHARE * step):
        return None
    return Straggler(task, wait, max(step, wait), slowest.input_ms)


class Paces:
    """Comparison of the latest reports of all workers of a job.

    Attributes:
        slow: The current straggler, if any.
    """

    def __init__(self) -> None:
        self.slow: Straggler | None = None
        self._paces: dict[str, Pace] = {}
        self._last, self._times = "", 0
        self._named: set[str] = set()

    def update(self, event: Mapping[str, Any]) -> Straggler | None:
        """Record an event `pace`; return the straggler if it is reported for the first time.

        An event without numbers is ignored.
        """
        try:
            numbers = [float(event[name]) for name in ("step_ms", "wait_ms", "input_ms")]
            self._paces[str(event["task"])] = Pace(int(event["step"]), int(event["steps"]), *numbers)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        at = [pace.step for pace in self._paces.values()]
        if len(at) < 2 or max(at) - min(at) > max(pace.steps for pace in self._paces.values()) / 2:
            return None  # other workers have not reported these steps yet
        slow = straggler(self._paces)
        task = "" if slow is None else slow.task
        self._times = self._times + 1 if task == self._last else 1
        self._last = task
        self.slow = slow if self._times >= _TIMES else None
        if self.slow is None or task in self._named:
            return None
        self._named.add(task)
        return self.slow

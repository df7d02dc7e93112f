"""Who is waited for: the slow one of several workers whose steps all take the same time.

Each tells how long it waits in a step, from when its own part is done: the one for which the others wait has nobody to
wait for. An event `pace` has the medians of some steps, of the last second or two each:

    task                                whose they are
    step, steps                         the global step by then, and over how many steps that is
    step_ms, wait_ms, input_ms          see :class:`Pace`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Pace", "Paces", "Straggler", "straggler"]

# A share of each step that is worth a word, and the milliseconds below which it is none.
_SHARE = 0.25
_LEAST_MS = 1.0
# So often in a row the same one is found: a neighbour on the machine makes any of them slow for a while.
_TIMES = 2


@dataclass(frozen=True)
class Pace:
    """What one worker told of its last steps; the times are in milliseconds.

    Attributes:
        step: The global step by then.
        steps: Over how many steps that is.
        step_ms: How long a step takes.
        wait_ms: From when its own part of a step was done to the step's end.
        input_ms: How long a step waits for its batch.
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
        wait_ms: How long they wait for it in each step, on average.
        step_ms: How long a step takes.
        input_ms: How long it waits for its own batch.
    """

    task: str
    wait_ms: float
    step_ms: float
    input_ms: float

    def document(self) -> dict[str, Any]:
        """As a JSON document, with `share`: how much of each step the others wait for it."""
        numbers = {"wait_ms": self.wait_ms, "step_ms": self.step_ms, "input_ms": self.input_ms}
        numbers["share"] = self.wait_ms / self.step_ms
        return {"task": self.task, **{name: round(value, 3) for name, value in numbers.items()}}

    def text(self) -> str:
        """In one line."""
        its = f" (it waits {self.input_ms:.0f} ms for its input)" if self.input_ms > self.wait_ms / 2 else ""
        wait, step = f"{self.wait_ms:.0f} ms", f"{self.step_ms:.0f} ms"
        return f"{self.task} is slow: the others wait {wait} of each step's {step} for it{its}"


def straggler(paces: Mapping[str, Pace]) -> Straggler | None:
    """The one for which the others wait; None where nobody is, or too little.

    Args:
        paces: What each worker told of the same steps, by its name.
    """
    if len(paces) < 2:
        return None
    task, own = min(paces.items(), key=lambda one: one[1].wait_ms)
    others = [pace for name, pace in paces.items() if name != task]
    wait = sum(pace.wait_ms for pace in others) / len(others) - own.wait_ms
    step = max(pace.step_ms for pace in paces.values())
    if wait < max(_LEAST_MS, _SHARE * step):
        return None
    return Straggler(task, wait, max(step, wait), own.input_ms)


class Paces:
    """What all workers of a job tell, held against each other as it comes.

    Attributes:
        slow: The one that is slow by now, if one is.
    """

    def __init__(self) -> None:
        self.slow: Straggler | None = None
        self._paces: dict[str, Pace] = {}
        self._last, self._times = "", 0
        self._named: set[str] = set()

    def told(self, event: Mapping[str, Any]) -> Straggler | None:
        """Takes an event `pace`; one that has no numbers is left out.

        Returns:
            Who is slow, where that has just shown for the first time.
        """
        try:
            numbers = [float(event[name]) for name in ("step_ms", "wait_ms", "input_ms")]
            self._paces[str(event["task"])] = Pace(int(event["step"]), int(event["steps"]), *numbers)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        at = [pace.step for pace in self._paces.values()]
        if len(at) < 2 or max(at) - min(at) > max(pace.steps for pace in self._paces.values()) / 2:
            return None  # the others have yet to tell of these steps
        found = straggler(self._paces)
        task = "" if found is None else found.task
        self._times = self._times + 1 if task == self._last else 1
        self._last = task
        self.slow = found if self._times >= _TIMES else None
        if self.slow is None or task in self._named:
            return None
        self._named.add(task)
        return self.slow

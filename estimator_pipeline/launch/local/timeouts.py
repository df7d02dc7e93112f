"""Timeouts after which a running task counts as hung.

Times are arguments, so that tests need not wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["TaskMonitor", "TaskTimeout", "TaskTimeouts"]

# Events of a task that trains; events after its training; its last events.
_PROGRESS = ("start", "step", "evaluating", "evaluation", "checkpoint", "export", "trained", "result")
_TRAINED = ("trained", "result", "end")
_LAST_EVENTS = ("result", "end")
# The missing event -> the predicate to the task's name.
_TEXTS = {
    "heartbeat": "sent no heartbeat for {}",
    "first heartbeat": "reported nothing and sent no heartbeat in {} since it was started",
    "end": "had reported its end, and did not exit within {}",
    "first step": "did not reach its first step in {}",
    "evaluation": "evaluated no batch for {}",
    "step": "made no step for {}",
}
HEARTBEAT_TIMEOUT = 60.0
"""Default seconds without a heartbeat in a supervised job; 0 on the command line disables the timeout."""
# A process of this package exits within this time after its last event, unless it was suspended or hangs.
_END_SECS = 60.0
# Time for the first heartbeat of this package's tasks: loading TensorFlow from a shared disk may be slow for all tasks.
_FIRST_BEAT_SECS = 600.0
# The first step is traced and compiled, and waits for the other tasks and for data. Its timeout is this multiple of
# the timeout of a step, and at least half an hour.
_FIRST_STEP_TIMES = 5.0
_FIRST_STEP_SECS = 1800.0


@dataclass(frozen=True)
class TaskTimeouts:
    """Timeouts of a task; None disables one.

    Attributes:
        step: Seconds without a step, an evaluation, a checkpoint or an export while a task trains; without a batch
            while an evaluator of the Estimator engine evaluates.
        start: Seconds from its start to its first step; None: see `first_step`; 0: no timeout.
        heartbeat: Seconds without a heartbeat, for any task that has sent one. A task of this package that has reported
            nothing has ten minutes for the first heartbeat.
    """

    step: float | None = None
    start: float | None = None
    heartbeat: float | None = None

    def __bool__(self) -> bool:
        return any((self.step, self.start, self.heartbeat))

    @property
    def first_step(self) -> float | None:
        """Seconds without an event before the first step, if `start` is not set: 5 * `step`, at least half an hour."""
        if self.start is not None or not self.step:
            return None
        return max(_FIRST_STEP_TIMES * self.step, _FIRST_STEP_SECS)

    @property
    def early(self) -> TaskTimeouts:
        """Half of each timeout: the time to check whether tasks can write their events."""
        timeouts = (self.step, self.start, self.heartbeat)
        return TaskTimeouts(*(None if seconds is None else seconds / 2 for seconds in timeouts))

    @property
    def longest(self) -> float | None:
        """The longer of `step` and `start`, for programs that report no events."""
        return max((limit for limit in (self.start, self.step) if limit), default=None)


@dataclass(frozen=True)
class TaskTimeout:
    """A timeout that a task exceeded.

    Attributes:
        kind: The missing event, of `_TEXTS`.
        seconds: How long it has been missing.
        process: Of a command that started several processes, the one concerned, "HOST-PROCESS"; else "".
    """

    kind: str
    seconds: float
    process: str = ""

    def text(self) -> str:
        """Format the timeout as the predicate to a task's name."""
        host, _, number = self.process.rpartition("-")
        where = f": process {number} on {host}" if self.process else ""
        return f"{_TEXTS[self.kind].format(f'{self.seconds:.1f} s')}{where}"


class TaskMonitor:
    """Times of a task's events, heartbeats and output.

    Args:
        trains: Whether it is a training task. For the others the heartbeat counts, since an evaluator waits for
            checkpoints, and a parameter server for workers; and during an evaluation its batches.
        foreign: Whether it runs a user program, which may report no events.
        now: The time of its start, in seconds since any start.
    """

    def __init__(self, *, trains: bool, foreign: bool, now: float) -> None:
        self.trains = trains
        self.foreign = foreign
        self.started = now
        self._last_event = now
        self._beat: float | None = None
        self._process = ""
        self._has_events = False
        self._stepped = False
        self._evaluates = False
        self._trained = False
        self._leaves = False
        self._grew = False
        # When events, and heartbeats, could last not be written.
        self._unwritable = self._beat_unwritable = -math.inf

    def is_untracked(self, now: float, allowed: TaskTimeouts) -> bool:
        """Return whether it is a user program that shows no progress in time."""
        limit = allowed.longest
        late = limit is not None and now - self.started > limit
        return late and self.trains and self.foreign and not (self._has_events or self._grew)

    def event(self, kind: str, now: float) -> None:
        """Record an event of the task."""
        if kind == "heartbeat":
            self.beat(now)
            return
        if kind in _PROGRESS:
            self._has_events, self._last_event = True, now
        if kind == "start":
            # A program may train more than once.
            self._trained = self._leaves = False
        if kind != "warning":
            self._evaluates = kind == "evaluating"
        self._stepped = self._stepped or kind in ("step", "evaluation", "checkpoint")
        self._trained = self._trained or kind in _TRAINED
        self._leaves = self._leaves or kind in _LAST_EVENTS

    def beat(self, now: float) -> None:
        """Record a heartbeat."""
        self._beat = now

    def record_heartbeats(self, latest: Mapping[str, float]) -> None:
        """Record the last heartbeat of each process of a command; the oldest counts."""
        self._process, self._beat = min(latest.items(), key=lambda item: item[1], default=("", None))

    def grew(self, now: float) -> None:
        """Record a change of the log: progress of a program that reports no events."""
        self._grew = True
        if not self._has_events:
            self._last_event = now

    def unwritable(self, now: float, *, heartbeats: bool) -> None:
        """Record that events cannot be written now, so that timeouts count from now.

        On a full disk heartbeats can: a touch needs no space.
        """
        self._unwritable = now
        if heartbeats:
            self._beat_unwritable = now

    def discount(self, seconds: float, now: float) -> None:
        """Discount a time in which nothing was polled, such as a suspended machine."""
        self.started = min(now, self.started + seconds)
        self._last_event = min(now, self._last_event + seconds)
        if self._beat is not None:
            self._beat = min(now, self._beat + seconds)

    def timed_out(self, now: float, allowed: TaskTimeouts) -> TaskTimeout | None:
        """Return the timeout that is exceeded, or None."""
        if self._leaves and not self.foreign and self._beat is not None and allowed.heartbeat is not None:
            # It sends heartbeats until the interpreter shuts down, which takes little time.
            waited = now - max(self._beat, self._beat_unwritable)
            return self._too_long("end", waited, max(_END_SECS, allowed.heartbeat))
        beat = self.since_heartbeat(now)
        if allowed.heartbeat is not None and beat is not None and beat > allowed.heartbeat:
            return TaskTimeout("heartbeat", beat, self._process)
        if allowed.heartbeat is not None and self._beat is None and not self.foreign and not self._has_events:
            waited = now - max(self.started, self._unwritable)
            timeout = self._too_long("first heartbeat", waited, max(_FIRST_BEAT_SECS, allowed.heartbeat))
            if timeout is not None:
                return timeout
        if self._evaluates and (self._trained or not self.trains):
            return self._too_long("evaluation", now - max(self._last_event, self._unwritable), allowed.step)
        if not self.trains or self._trained:
            return None
        if self._grew and not self._has_events:
            # Only its log grows, which does not distinguish the start from the steps.
            return self._too_long("step", now - max(self._last_event, self._unwritable), allowed.longest)
        if self._stepped:
            return self._too_long("step", now - max(self._last_event, self._unwritable), allowed.step)
        if self.foreign and not self._has_events:
            return None
        timeout = self._too_long("first step", now - max(self.started, self._unwritable), allowed.start)
        # Without an explicit `start`, each event resets the timeout, such as the one before it waits for other tasks.
        quiet = now - max(self.started, self._last_event, self._unwritable)
        return timeout or self._too_long("first step", quiet, allowed.first_step)

    @staticmethod
    def _too_long(kind: str, waited: float, limit: float | None) -> TaskTimeout | None:
        return TaskTimeout(kind, waited) if limit and waited > limit else None

    def since_heartbeat(self, now: float) -> float | None:
        """Return the seconds since its last heartbeat; None if no heartbeat is expected."""
        return None if self._beat is None or self._leaves else now - max(self._beat, self._beat_unwritable)

"""When a task that has not ended counts as hung: which silence is allowed, and whose silence it was.

A clock is handed in as plain numbers, so that all of it can be tested without waiting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["TaskMonitor", "TaskTimeout", "TaskTimeouts"]

# What a training task says while it trains; and what it says when it no longer does.
_NEWS = ("start", "step", "evaluation", "checkpoint", "export", "trained", "result")
_TRAINED = ("trained", "result", "end")
_LAST_WORDS = ("result", "end")
HEARTBEAT_TIMEOUT = 60.0
"""Seconds without a heartbeat in a supervised job, where nothing is said; on the command line 0 asks for none."""
# A process of ours has ended so many seconds after its last word, unless it was stopped or cannot end.
_END_SECS = 60.0
# One of ours has sent its first heartbeat so many seconds after its start, however long a shared disk takes to give
# TensorFlow to all tasks at once; what stops before that would be waited for for ever.
_FIRST_BEAT_SECS = 600.0
# A first step is traced and compiled, and waits for the others and for the data: so many times another step's deadline,
# and no less than half an hour.
_FIRST_STEP_TIMES = 5.0
_FIRST_STEP_SECS = 1800.0


@dataclass(frozen=True)
class TaskTimeouts:
    """How long a task may be silent; None: for ever.

    Attributes:
        step: Seconds without a step, an evaluation, a checkpoint or an export, while a task trains.
        start: Seconds from its start to its first step; None: see :attr:`first_step`; 0: for ever.
        heartbeat: Seconds without a heartbeat, of any task that has sent one. One of ours that has told nothing at all
            has ten minutes for the first.
    """

    step: float | None = None
    start: float | None = None
    heartbeat: float | None = None

    def __bool__(self) -> bool:
        return any((self.step, self.start, self.heartbeat))

    @property
    def first_step(self) -> float | None:
        """Seconds without a word that a task may take until its first step, where `start` does not say it.

        Five times `step`, and half an hour at least: a task that hangs in its start is noticed, if late.
        """
        if self.start is not None or not self.step:
            return None
        return max(_FIRST_STEP_TIMES * self.step, _FIRST_STEP_SECS)

    @property
    def early(self) -> TaskTimeouts:
        """Half of each: when it is time to look whether a task can tell anything at all."""
        step, start, beat = (None if one is None else one / 2 for one in (self.step, self.start, self.heartbeat))
        return TaskTimeouts(step, start, beat)

    @property
    def longest(self) -> float | None:
        """The longest that was given for a step: for a program that does not tell a start from a step."""
        return max((limit for limit in (self.start, self.step) if limit), default=None)


@dataclass(frozen=True)
class TaskTimeout:
    """A silence that was too long.

    Attributes:
        what: What was not heard: "heartbeat", "first heartbeat", "first step", "step" or "end".
        seconds: For how long.
        who: Which of several processes that a command has started, "HOST-PROCESS"; "" where it is one.
    """

    what: str
    seconds: float
    who: str = ""

    def text(self) -> str:
        """In words, after a task's name."""
        if self.what == "heartbeat":
            host, _, number = self.who.rpartition("-")
            return f"sent no heartbeat for {self.seconds:.1f} s" + (f": process {number} on {host}" if self.who else "")
        if self.what == "first heartbeat":
            return f"told nothing and sent no heartbeat in {self.seconds:.1f} s since it was started"
        if self.what == "end":
            return f"had told its last word, and did not end within {self.seconds:.1f} s"
        if self.what == "first step":
            return f"came to no first step in {self.seconds:.1f} s"
        return f"made no step for {self.seconds:.1f} s"


class TaskMonitor:
    """What one task has said, and when.

    Args:
        trains: Whether it is a training task. Of the others only the heartbeat is asked for: an evaluator waits for
            checkpoints, and a parameter server for workers.
        foreign: Whether it runs somebody else's program, which may have nothing to say.
        now: The time of its start, in seconds from anywhere.
    """

    def __init__(self, *, trains: bool, foreign: bool, now: float) -> None:
        self.trains = trains
        self.foreign = foreign
        self.started = now
        self._spoke = now
        self._beat: float | None = None
        self._who = ""
        self._tells = False
        self._stepped = False
        self._trained = False
        self._leaves = False
        self._grew = False
        # When its words were last lost for want of room, and its heartbeats as well.
        self._unheard = self._beat_unheard = -math.inf

    def mute(self, now: float, allowed: TaskTimeouts) -> bool:
        """Whether it should have told something by now, and is of a kind that may tell nothing."""
        limit = allowed.longest
        late = limit is not None and now - self.started > limit
        return late and self.trains and self.foreign and not (self._tells or self._grew)

    def event(self, kind: str, now: float) -> None:
        """It told an event."""
        if kind == "heartbeat":
            self.beat(now)
            return
        if kind in _NEWS:
            self._tells, self._spoke = True, now
        if kind == "start":
            # A program may train more than once.
            self._trained = self._leaves = False
        self._stepped = self._stepped or kind in ("step", "evaluation", "checkpoint")
        self._trained = self._trained or kind in _TRAINED
        self._leaves = self._leaves or kind in _LAST_WORDS

    def beat(self, now: float) -> None:
        """It sent a heartbeat."""
        self._beat = now

    def beats(self, latest: Mapping[str, float]) -> None:
        """When each of several tasks behind it has sent its last heartbeat; the one that is silent longest counts."""
        self._who, self._beat = min(latest.items(), key=lambda one: one[1], default=("", None))

    def grew(self, now: float) -> None:
        """Its log, or what is watched besides, has changed. That counts for a program that tells nothing else."""
        self._grew = True
        if not self._tells:
            self._spoke = now

    def unheard(self, now: float, *, heartbeats: bool) -> None:
        """What it tells cannot be written at this moment: its silence counts from now on.

        Args:
            now: This moment.
            heartbeats: Whether they cannot be sent either. A full disk leaves them, for a touch takes no room.
        """
        self._unheard = now
        if heartbeats:
            self._beat_unheard = now

    def excuse(self, seconds: float, now: float) -> None:
        """Nobody has listened for so long, as when the whole machine stood still: that is no silence of the task."""
        self.started = min(now, self.started + seconds)
        self._spoke = min(now, self._spoke + seconds)
        if self._beat is not None:
            self._beat = min(now, self._beat + seconds)

    def timed_out(self, now: float, allowed: TaskTimeouts) -> TaskTimeout | None:
        """The silence that is too long, or None."""
        if self._leaves and not self.foreign and self._beat is not None and allowed.heartbeat is not None:
            # Its heart beats until the interpreter ends, after which little is left to do.
            waited = now - max(self._beat, self._beat_unheard)
            return self._too_long("end", waited, max(_END_SECS, allowed.heartbeat))
        beat = self.quiet(now)
        if allowed.heartbeat is not None and beat is not None and beat > allowed.heartbeat:
            return TaskTimeout("heartbeat", beat, self._who)
        if allowed.heartbeat is not None and self._beat is None and not self.foreign and not self._tells:
            waited = now - max(self.started, self._unheard)
            found = self._too_long("first heartbeat", waited, max(_FIRST_BEAT_SECS, allowed.heartbeat))
            if found is not None:
                return found
        if not self.trains or self._trained:
            return None
        if self._grew and not self._tells:
            # Its log is all there is, which does not tell a start from a step.
            return self._too_long("step", now - max(self._spoke, self._unheard), allowed.longest)
        if self._stepped:
            return self._too_long("step", now - max(self._spoke, self._unheard), allowed.step)
        if self.foreign and not self._tells:
            return None
        found = self._too_long("first step", now - max(self.started, self._unheard), allowed.start)
        # Which deadline a start needs nobody has said: so each word of it counts, as one before it waits for others.
        quiet = now - max(self.started, self._spoke, self._unheard)
        return found or self._too_long("first step", quiet, allowed.first_step)

    @staticmethod
    def _too_long(what: str, waited: float, limit: float | None) -> TaskTimeout | None:
        return TaskTimeout(what, waited) if limit and waited > limit else None

    def quiet(self, now: float) -> float | None:
        """Seconds since its last heartbeat; None where none is to be expected."""
        return None if self._beat is None or self._leaves else now - max(self._beat, self._beat_unheard)

"""Whether a job that has ended is worth another attempt, when, and why: a decision, made without a process.

| how the attempt ended | what follows |
| --- | --- |
| done, interrupted by a person or a scheduler, out of time | nothing |
| bad input (exit code 2), a program that cannot be run (126, 127) | nothing: it would come again |
| preempted (exit code 75), and not by us | the next attempt at once; not counted while there is progress |
| diverged (exit code 3, a loss that is no number) | once more; not again before a later checkpoint and a later step |
| anything else: a crash, a signal, a task that hangs | the next attempt after a pause, up to `max_restarts` in a row |

A task that leaves with exit code 0 before its end has failed as by a crash.

"In a row" means without progress in between. Progress is a checkpoint of a later step than any attempt had before:
that is what the next attempt goes on from. Where nobody tells of checkpoints, a later step takes their place.

The pause doubles with each restart in a row: `backoff`, 2 * `backoff`, 4 * `backoff`, ..., `longest_pause` at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from estimator_pipeline.launch.exit_codes import BAD_INPUT, NOT_RUNNABLE

__all__ = ["AttemptEnd", "Decision", "Policy", "RestartLimits"]


@dataclass(frozen=True)
class RestartLimits:
    """How much is tried.

    Attributes:
        max_restarts: Restarts in a row without progress.
        backoff: Seconds before the first of them.
        longest_pause: Seconds that no pause is longer than, unless `backoff` is.
        max_preemptions: Preemptions in a row without progress.
        early_failures: How often the same failure may come before any attempt has made a step.
    """

    max_restarts: int = 0
    backoff: float = 1.0
    longest_pause: float = 300.0
    max_preemptions: int = 20
    early_failures: int = 3

    def pause(self, restarts: int) -> float:
        """Seconds before a restart.

        Args:
            restarts: Which one it is in the row, from 1.
        """
        # Bounded in the exponent as well: 2.0 ** 2000 is no number.
        return min(self.backoff * 2.0 ** min(restarts - 1, 60), max(self.backoff, self.longest_pause))


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended, and how far it came.

    Attributes:
        reason: As in `LaunchOutcome`: "done", "failed", "hung", "diverged", "preempted", "interrupted", "timeout".
        task: The task that was the reason, if there is one.
        exit_code: Its exit code, as subprocess gives it.
        step: The last step that a training task told.
        checkpoint: The step of the last checkpoint that was told.
        from_step: The step that it went on from: a checkpoint of an attempt before, which may not have told it.
        began: Whether it made a step; None for a program that told nothing by which that could be seen.
    """

    reason: str
    task: str | None = None
    exit_code: int | None = None
    step: int | None = None
    checkpoint: int | None = None
    began: bool | None = False
    from_step: int | None = None


@dataclass(frozen=True)
class Decision:
    """What to do now.

    Attributes:
        restart: Whether there is another attempt.
        after: In how many seconds.
        why: In words, for people.
        counted: Which restart in a row without progress it is; 0 where it is not counted.
    """

    restart: bool
    why: str
    after: float = 0.0
    counted: int = 0


@dataclass
class Policy:
    """The decisions of one job, an attempt after the other.

    Args:
        limits: How much is tried.
    """

    limits: RestartLimits
    _restarts: int = field(default=0, init=False)
    _preemptions: int = field(default=0, init=False)
    _checkpoint: int | None = field(default=None, init=False)
    _step: int | None = field(default=None, init=False)
    _began: bool = field(default=False, init=False)
    _early: list[tuple[str, str | None, int | None]] = field(default_factory=list, init=False)
    _diverged: bool = field(default=False, init=False)
    _diverged_at: int | None = field(default=None, init=False)

    def decide(self, end: AttemptEnd) -> Decision:
        """What follows on an attempt that has ended like this."""
        if end.reason in ("done", "interrupted", "timeout"):
            return Decision(
                False, {"done": "the job is done", "timeout": "time has run out"}.get(end.reason, end.reason)
            )
        late = self._told_late(end)
        progress = self._progress(end)
        if progress or late:
            self._restarts = self._preemptions = 0
        self._began = self._began or end.began is not False
        if end.exit_code == BAD_INPUT and end.reason == "failed":
            return Decision(False, "bad input (exit code 2) comes again with every attempt")
        if end.exit_code in NOT_RUNNABLE and end.reason == "failed":
            return Decision(False, f"the program cannot be run (exit code {end.exit_code})")
        if self.limits.max_restarts < 1:
            return Decision(False, "no restarts were asked for")
        if end.reason == "preempted":
            return self._preempted()
        if end.reason == "diverged":
            again = self._diverges_again(end.step, progress)
            if again is not None:
                return Decision(False, again)
        if self._fails_early(end):
            return Decision(False, f"it fails before its first step each time ({len(self._early)} times the same way)")
        return self._counted()

    def _told_late(self, end: AttemptEnd) -> bool:
        """Whether this attempt shows by its start that the one before had made progress."""
        known = self._checkpoint or 0
        if not end.from_step or end.from_step <= known:
            return False
        self._checkpoint = end.from_step
        return True

    def _progress(self, end: AttemptEnd) -> bool:
        """Whether the next attempt goes on from a later place than this one did; remembers the place."""
        if end.checkpoint is not None:
            later = self._checkpoint is None or end.checkpoint > self._checkpoint
            self._checkpoint = max(end.checkpoint, self._checkpoint or 0)
        elif self._checkpoint is None and end.step is not None:
            later = self._step is None or end.step > self._step
        else:
            later = False
        if end.step is not None:
            self._step = max(end.step, self._step or 0)
        return later

    def _preempted(self) -> Decision:
        self._preemptions += 1
        if self._preemptions > self.limits.max_preemptions:
            return Decision(False, f"preempted {self._preemptions} times without progress")
        # The machine may be about to go: an attempt that comes to nothing is not repeated at full speed.
        pause = 0.0 if self._preemptions == 1 else self.limits.pause(self._preemptions - 1)
        return Decision(True, "preempted; not counted as a failure", pause)

    def _diverges_again(self, step: int | None, progress: bool) -> str | None:
        """Why a second try came to nothing; None where it was the first, or came further."""
        before, first = self._diverged_at, not self._diverged
        self._diverged, self._diverged_at = True, step
        later = step is not None and before is not None and step > before
        # The step alone does not say it: it is that at which the loss was read, which may be some steps late.
        if first or (later and progress):
            return None
        at = "" if step is None else f" at step {step}"
        return f"training diverges again{at}: the same steps come to the same numbers"

    def _fails_early(self, end: AttemptEnd) -> bool:
        if self._began:
            return False
        failure = (end.reason, end.task, end.exit_code)
        self._early = [*(one for one in self._early if one == failure), failure]
        return len(self._early) >= self.limits.early_failures

    def _counted(self) -> Decision:
        allowed = self.limits.max_restarts
        if self._restarts >= allowed:
            times = "restart" if allowed == 1 else "restarts"
            return Decision(False, f"{allowed} {times} in a row without a later checkpoint")
        self._restarts += 1
        return Decision(
            True,
            f"restart {self._restarts} of {allowed} without a later checkpoint",
            self.limits.pause(self._restarts),
            self._restarts,
        )

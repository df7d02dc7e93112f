"""Restart policy: whether and when a job that has ended is restarted.

| end of the attempt | restart |
| --- | --- |
| done, interrupted by a user or a scheduler, timeout | no |
| bad input (exit code 2), a program that cannot be run (126, 127) | no: it would fail again |
| `srun` has no allocation: Slurm has requeued or ended the job | no |
| preempted (exit code 75), and not by the launcher | at once; not counted while there is progress |
| diverged (exit code 3, a NaN loss) | once; then only after a later checkpoint and a later step |
| anything else: a crash, a signal, a hung task | after a pause, up to `max_restarts` in a row |

A task that exits with code 0 before its end counts as a crash.

"In a row" means without progress in between. Progress is a checkpoint of a later step than in all attempts before,
since the next attempt resumes from there. If no checkpoints are reported, a later step counts.

The pause doubles with each restart in a row: `backoff`, 2 * `backoff`, 4 * `backoff`, ..., `longest_pause` at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from estimator_pipeline.launch.exit_codes import BAD_INPUT, NOT_RUNNABLE

__all__ = ["AttemptEnd", "Decision", "Policy", "RestartLimits"]


@dataclass(frozen=True)
class RestartLimits:
    """Limits of the restarts of a job.

    Attributes:
        max_restarts: Maximum number of restarts in a row without progress.
        backoff: Seconds before the first of them.
        longest_pause: Maximum pause in seconds, unless `backoff` is longer.
        max_preemptions: Maximum number of preemptions in a row without progress.
        early_failures: Number of equal failures after which the job fails, if no attempt, or never the failed task
            itself, has made a step. What other tasks have saved meanwhile does not count.
    """

    max_restarts: int = 0
    backoff: float = 1.0
    longest_pause: float = 300.0
    max_preemptions: int = 20
    early_failures: int = 3

    def pause(self, restarts: int) -> float:
        """Return the seconds before a restart; `restarts` is its number in the row, from 1."""
        # The exponent is bounded too: 2.0 ** 2000 overflows.
        return min(self.backoff * 2.0 ** min(restarts - 1, 60), max(self.backoff, self.longest_pause))


@dataclass(frozen=True)
class AttemptEnd:
    """The end of an attempt, and its progress.

    Attributes:
        reason: As in `LaunchOutcome`: "done", "failed", "hung", "diverged", "preempted", "interrupted", "timeout".
        task: The task that failed, if any.
        exit_code: Its exit code, as in `subprocess`.
        step: The last step that a training task reported.
        checkpoint: The step of the last reported checkpoint.
        from_step: The step that it resumed from: a checkpoint of an earlier attempt, which may not have reported it.
        began: Whether it made a step; None for a program that reports no steps.
        worked: Whether the failed task itself made a step, or an evaluation; None if unknown.
        has_allocation: Whether the job still has the allocation in which srun would start its tasks.
    """

    reason: str
    task: str | None = None
    exit_code: int | None = None
    step: int | None = None
    checkpoint: int | None = None
    began: bool | None = False
    from_step: int | None = None
    worked: bool | None = None
    has_allocation: bool = True


@dataclass(frozen=True)
class Decision:
    """The decision about a restart.

    Attributes:
        restart: Whether to restart.
        after: The pause in seconds.
        why: The reason as text.
        counted: The number of the restart in a row without progress; 0 if it is not counted.
    """

    restart: bool
    why: str
    after: float = 0.0
    counted: int = 0


@dataclass
class Policy:
    """State of the restarts of one job."""

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
        """Decide about a restart after an attempt."""
        if end.reason in ("done", "interrupted", "timeout"):
            return Decision(
                False, {"done": "the job is done", "timeout": "time has run out"}.get(end.reason, end.reason)
            )
        late = self._shows_earlier_progress(end)
        progress = self._progress(end)
        if progress or late:
            self._restarts = self._preemptions = 0
        self._began = self._began or end.began is not False
        if end.exit_code == BAD_INPUT and end.reason == "failed":
            return Decision(False, "bad input (exit code 2) would fail again")
        if end.exit_code in NOT_RUNNABLE and end.reason == "failed":
            return Decision(False, f"the program cannot be run (exit code {end.exit_code})")
        if not end.has_allocation:
            return Decision(False, "Slurm has requeued or ended the job")
        if self.limits.max_restarts < 1:
            return Decision(False, "restarts are disabled")
        if end.reason == "preempted":
            return self._preempted()
        if end.reason == "diverged":
            again = self._diverges_again(end.step, progress)
            if again is not None:
                return Decision(False, again)
        if self._fails_early(end):
            return Decision(False, f"the same failure of {end.task} before its first step {len(self._early)} times")
        return self._counted()

    def _shows_earlier_progress(self, end: AttemptEnd) -> bool:
        """Return whether the attempt resumed from a checkpoint that was not reported."""
        known = self._checkpoint or 0
        if not end.from_step or end.from_step <= known:
            return False
        self._checkpoint = end.from_step
        return True

    def _progress(self, end: AttemptEnd) -> bool:
        """Return whether the next attempt will resume later than this one."""
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
        # The machine may be about to shut down: repeated preemptions without progress have growing pauses.
        pause = 0.0 if self._preemptions == 1 else self.limits.pause(self._preemptions - 1)
        return Decision(True, "preempted; not counted as a failure", pause)

    def _diverges_again(self, step: int | None, progress: bool) -> str | None:
        """Return why not to restart after a divergence; None to restart."""
        before, first = self._diverged_at, not self._diverged
        self._diverged, self._diverged_at = True, step
        later = step is not None and before is not None and step > before
        # A later step is not enough: it is the step at which the loss was read, maybe some steps late.
        if first or (later and progress):
            return None
        at = "" if step is None else f" at step {step}"
        return f"training diverged again{at}: a restart would repeat the same steps"

    def _fails_early(self, end: AttemptEnd) -> bool:
        if self._began and end.worked is not False:
            self._early.clear()
            return False
        failure = (end.reason, end.task, end.exit_code)
        self._early = [*(early for early in self._early if early == failure), failure]
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

"""A job that is started again when it fails: attempt after attempt, each a launch of its own with fresh ports.

    outcome = supervise(attempt, limits=Limits(max_restarts=3), log_dir=..., run_id=..., view=...)

An attempt is a whole launch (`local.py`): whatever fails, all tasks of it are ended, and nothing of it is left when
the next one starts. That one goes on from the last checkpoint, as any start in the same model directory does. Whether
there is a next one, `policy.py` decides; what happened stands in `history.py`'s files.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import PipelineError
from estimator_pipeline.launch.history import SUMMARY_FILE, Attempt, History
from estimator_pipeline.launch.local.outcome import Failure, LaunchOutcome
from estimator_pipeline.launch.local.plan import LaunchPlan
from estimator_pipeline.launch.local.processes import Interruptions, interruptions
from estimator_pipeline.launch.local.view import SilentView, View
from estimator_pipeline.launch.supervisor.restart_policy import AttemptEnd, Policy, RestartLimits
from estimator_pipeline.progress.progress_file import CHECKPOINT_VARIABLE, TaskState

__all__ = ["ATTEMPT_VARIABLE", "AttemptRunner", "attempt_run_id", "supervise"]

ATTEMPT_VARIABLE = "ESTIMATOR_PIPELINE_ATTEMPT"
_POLL = 0.1

AttemptRunner = Callable[[int, str, Path, float | None, View, Mapping[str, str]], LaunchOutcome]
"""`run(number, run_id, log_dir, timeout, view, environ)`: one attempt, from fresh ports to the last process's end.
`environ` is what its processes are told of the attempts before."""


def attempt_run_id(run_id: str, number: int) -> str:
    """The run id of an attempt: the launch's own for the first, and "ID-r1", "ID-r2", ... for those after it.

    A fresh one each time, so that no task takes what an attempt before has left for its own.
    """
    return run_id if number == 1 else f"{run_id}-r{number - 1}"


def supervise(
    run: AttemptRunner,
    *,
    run_id: str,
    log_dir: Path,
    limits: RestartLimits,
    timeout: float | None = None,
    view: View | None = None,
) -> LaunchOutcome:
    """Run a job, and run it again as long as that makes sense.

    On the main thread SIGINT, SIGTERM and SIGHUP end it at any time, the pauses between attempts included.

    Args:
        run: Runs one attempt.
        run_id: Of the first attempt, see :func:`attempt_run_id`.
        log_dir: Where the history is written; attempt N has its logs in `attempt-N` there.
        limits: How much is tried.
        timeout: Seconds for all attempts together; None for any time.
        view: Who shows what happens; None for nobody.

    Returns:
        The last attempt's outcome, with all attempts in it, and the seconds of all of them.

    Raises:
        Exception: What `run` raises, such as a PipelineError where no ports can be had or no logs be written. The
            history tells of it first.
    """
    shown = view or SilentView()
    policy, history = Policy(limits), History(log_dir)
    began = time.monotonic()
    attempts: list[Attempt] = []
    noticed: float | None = None
    seen: _Seen | None = None
    newest = ""
    with shown, interruptions() as signals:
        try:
            while True:
                number = len(attempts) + 1
                left = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
                own, folder = attempt_run_id(run_id, number), log_dir / f"attempt-{number}"
                history.tell("attempt_started", attempt=number, run_id=own, log_dir=folder)
                seen = _Seen(shown, history, number, noticed)
                told = {ATTEMPT_VARIABLE: str(number)} | ({CHECKPOINT_VARIABLE: newest} if newest else {})
                outcome = run(number, own, folder, left, seen, told)
                newest = seen.newest or newest
                attempt = seen.attempt(outcome, folder)
                _tell_end(history, attempts, attempt)
                noticed = seen.noticed or time.monotonic()
                decision = policy.decide(seen.end(outcome))
                asked = outcome.signal or next(iter(signals.received), None)
                if not decision.restart or asked is not None:
                    why = decision.why if asked is None else f"asked to end by {signal.Signals(asked).name}"
                    break
                checkpoint = seen.checkpoint_of(attempts)
                history.tell(
                    "restart_in",
                    attempt=number,
                    seconds=decision.after,
                    checkpoint=checkpoint,
                    why=decision.why,
                )
                place = "" if checkpoint is None else f", from the checkpoint of step {checkpoint}"
                shown.note(f"attempt {number}: {attempt.why}; {decision.why}: again in {decision.after:g} s{place}")
                stopped = _pause(decision.after, signals, None if timeout is None else began + timeout)
                if stopped is not None:
                    why = stopped
                    outcome = _stopped(outcome, signals)
                    break
        except BaseException as error:
            # Whoever reads the history is to know that nobody goes on.
            outcome = _broken_off(error, run_id, log_dir, time.monotonic() - began)
            if seen is not None and len(attempts) < seen.number:
                own, folder = attempt_run_id(run_id, seen.number), log_dir / f"attempt-{seen.number}"
                ended = replace(outcome, run_id=own, seconds=time.monotonic() - seen.started)
                _tell_end(history, attempts, seen.attempt(ended, folder))
            if attempts:
                _conclude(history, shown, replace(outcome, attempts=tuple(attempts)), outcome.gave_up)
            raise
        outcome = replace(
            outcome,
            seconds=time.monotonic() - began,
            log_dir=log_dir,
            attempts=tuple(attempts),
            gave_up="" if outcome.ok else why,
        )
        _conclude(history, shown, outcome, why)
        if not outcome.ok:
            shown.note(f"no further attempt: {why}")
        shown.finish(outcome)
    return outcome


def _tell_end(history: History, attempts: list[Attempt], attempt: Attempt) -> None:
    """An attempt has ended."""
    attempts.append(attempt)
    history.tell(
        "attempt_ended",
        attempt=attempt.number,
        reason=attempt.reason,
        seconds=round(attempt.seconds, 3),
        step=attempt.step,
        checkpoint=attempt.checkpoint,
    )


def _broken_off(error: BaseException, run_id: str, log_dir: Path, seconds: float) -> LaunchOutcome:
    """The outcome where an error of the supervisor's own ends it, or a person who does not wait."""
    interrupted = isinstance(error, KeyboardInterrupt)
    return LaunchOutcome(
        reason="interrupted" if interrupted else "failed",
        exit_code=128 + signal.SIGINT if interrupted else error.exit_code if isinstance(error, PipelineError) else 1,
        seconds=seconds,
        run_id=run_id,
        log_dir=log_dir,
        tasks=(),
        gave_up="asked to end by SIGINT" if interrupted else " ".join(f"{type(error).__name__}: {error}".split()),
    )


def _pause(seconds: float, signals: Interruptions, deadline: float | None) -> str | None:
    """Wait; gives back why there shall be no further attempt, if something came up."""
    until = time.monotonic() + seconds
    while True:
        now = time.monotonic()
        if signals.received:
            return f"asked to end by {signal.Signals(signals.received[0]).name}"
        if signals.passed_on:
            return f"asked to end by {signal.Signals(signals.passed_on[0]).name}"
        if deadline is not None and now >= deadline:
            return "time has run out"
        if now >= until:
            return None
        time.sleep(min(_POLL, until - now))


def _stopped(outcome: LaunchOutcome, signals: Interruptions) -> LaunchOutcome:
    """The outcome where the end came between two attempts."""
    if signals.received:
        number = signals.received[0]
        return replace(outcome, reason="interrupted", exit_code=128 + number, signal=number)
    if signals.passed_on:
        return replace(outcome, signal=signals.passed_on[0])
    return replace(outcome, reason="timeout", exit_code=1)


def _conclude(history: History, shown: View, outcome: LaunchOutcome, why: str) -> None:
    last = len(outcome.attempts)
    seconds = round(outcome.seconds, 3)
    if outcome.reason in ("done", "interrupted", "timeout"):
        history.tell(outcome.reason, attempt=last, attempts=last, seconds=seconds)
    else:
        history.tell("gave_up", attempt=last, attempts=last, seconds=seconds, why=why)
    lost = [one.lost for one in outcome.attempts if one.lost is not None]
    unwritten = history.summarise(
        {
            "run_id": outcome.attempts[0].run_id,
            "reason": outcome.reason,
            "exit_code": outcome.exit_code,
            "why": why,
            "seconds": seconds,
            "seconds_lost": round(sum(lost), 3),
            "restarts": last - 1,
            "attempts": [attempt.document() for attempt in outcome.attempts],
        }
    )
    if unwritten is not None:
        shown.note(f"warning: {history.folder / SUMMARY_FILE} could not be written ({unwritten})")


class _Seen(View):
    """Stands between an attempt and the view: keeps what the history wants to know, and passes everything on.

    The end of an attempt is not passed on, for it is not the end of the launch.
    """

    def __init__(self, inner: View, history: History, number: int, noticed: float | None) -> None:
        self._inner, self._history, self.number = inner, history, number
        self.started = time.monotonic()
        self._before = noticed
        self._states: Sequence[TaskState] = ()
        self._asynchronous = False
        self._why = ""
        self._from_step: int | None = None
        self._lost: float | None = None
        self._began = False
        self._told = False
        self._foreign = False
        self.noticed: float | None = None
        # The path of the last checkpoint that was told.
        self.newest = ""

    # -- what the view is told ----------------------------------------------------------------------------------

    def start(self, plan: LaunchPlan, states: Sequence[TaskState]) -> None:
        self._states, self._foreign = states, plan.foreign
        self._asynchronous = any(state.task.startswith("ps:") for state in states)
        if self.number > 1:
            self._inner.note(f"attempt {self.number}")
        self._inner.start(plan, states)

    def event(self, state: TaskState, event: Mapping[str, Any]) -> None:
        self._told = True
        if event["event"] == "step" and not self._began and state.trains:
            self._began = True
            now = time.monotonic()
            self._lost = None if self._before is None else now - self._before
            if state.step is not None and state.steps is not None and not self._asynchronous:
                self._from_step = max(0, state.step - state.steps)
            self._history.tell(
                "first_step",
                attempt=self.number,
                task=state.task,
                step=state.step,
                from_step=self._from_step,
                lost=None if self._lost is None else round(self._lost, 3),
            )
        if event["event"] == "checkpoint":
            self.newest = str(event.get("path") or "")
        if event["event"] == "straggler":
            self._history.tell("straggler", attempt=self.number, **{k: v for k, v in event.items() if k != "event"})
        self._inner.event(state, event)

    def ended(self, state: TaskState) -> None:
        self._inner.ended(state)

    def failed(self, reason: str, failure: Failure) -> None:
        self.noticed = time.monotonic()
        self._why = failure.head
        self._history.tell(
            reason,
            attempt=self.number,
            task=failure.task,
            exit_code=failure.exit_code,
            what=failure.head,
            error=failure.error,
            step=self.step,
            checkpoint=self.checkpoint,
        )
        self._inner.failed(reason, failure)

    def note(self, text: str) -> None:
        self._inner.note(text)

    def refresh(self) -> None:
        self._inner.refresh()

    def close(self) -> None:
        # A table that stays in place is drawn anew by the next attempt.
        self._inner.close()

    # -- what is known ------------------------------------------------------------------------------------------

    @property
    def step(self) -> int | None:
        """The last step that a training task has told."""
        return max((one.step for one in self._states if one.step is not None and one.trains), default=None)

    @property
    def checkpoint(self) -> int | None:
        """The step of the last checkpoint that was told."""
        return max((one.checkpoint for one in self._states if one.checkpoint is not None), default=None)

    @staticmethod
    def checkpoint_of(attempts: Sequence[Attempt]) -> int | None:
        """The step of the last checkpoint of all attempts, as far as is known."""
        # One that was written just before a failure is not told any more; the next attempt went on from it.
        known = [step for one in attempts for step in (one.checkpoint, one.from_step) if step]
        return max(known, default=None)

    def end(self, outcome: LaunchOutcome) -> AttemptEnd:
        """What the policy needs to know."""
        failure = outcome.failure
        return AttemptEnd(
            outcome.reason,
            task=None if failure is None else failure.task,
            exit_code=None if failure is None else failure.exit_code,
            step=self.step,
            checkpoint=self.checkpoint,
            began=None if self._foreign and not self._told else self._began,
            from_step=self._from_step,
        )

    def attempt(self, outcome: LaunchOutcome, folder: Path) -> Attempt:
        """What the history keeps."""
        return Attempt(
            number=self.number,
            run_id=outcome.run_id,
            log_dir=folder,
            reason=outcome.reason,
            why=self._why_with_place(outcome) or outcome.gave_up or outcome.reason,
            seconds=outcome.seconds,
            from_step=self._from_step,
            step=self.step,
            checkpoint=self.checkpoint,
            lost=self._lost,
        )

    def _why_with_place(self, outcome: LaunchOutcome) -> str:
        where = () if outcome.failure is None else outcome.failure.where
        return f"{self._why}; {where[0]}" if self._why and where else self._why

"""Supervisor that restarts a failed job, each attempt with new ports.

    outcome = supervise(attempt, limits=RestartLimits(max_restarts=3), log_dir=..., run_id=..., view=...)

After a failure all tasks of the attempt (`launch/local`) are stopped before the next attempt starts. That attempt
resumes from the last checkpoint, like any run in the same model directory. `restart_policy.py` decides about restarts;
`history.py` records them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from estimator_pipeline.launch.history import SUMMARY_FILE, Attempt, History
from estimator_pipeline.launch.local.outcome import Failure, LaunchOutcome
from estimator_pipeline.launch.local.plan import LaunchPlan
from estimator_pipeline.launch.local.processes import Interruptions, interruptions
from estimator_pipeline.launch.local.view import ForwardingView, SilentView, View
from estimator_pipeline.launch.supervisor.ranks import NO_ALLOCATION
from estimator_pipeline.launch.supervisor.restart_policy import AttemptEnd, Policy, RestartLimits
from estimator_pipeline.progress.progress_file import CHECKPOINT_VARIABLE, TaskState

__all__ = ["ATTEMPT_VARIABLE", "AttemptRunner", "attempt_run_id", "supervise"]

ATTEMPT_VARIABLE = "ESTIMATOR_PIPELINE_ATTEMPT"
_POLL = 0.1

AttemptRunner = Callable[[int, str, Path, float | None, View, Mapping[str, str]], LaunchOutcome]
"""`run(number, run_id, log_dir, timeout, view, environ)`: runs one attempt until its last process has ended.
`environ` has variables that describe the attempts before."""


def attempt_run_id(run_id: str, number: int) -> str:
    """Return the run id of an attempt: "ID", then "ID-r1", "ID-r2", ...

    It differs for each attempt, so that tasks do not use files of an earlier attempt.
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
    """Run a job, and restart it after failures within the limits.

    On the main thread SIGINT, SIGTERM and SIGHUP stop it at any time, also in the pauses between attempts.

    Args:
        run: Runs one attempt.
        run_id: The run id of the first attempt, see `attempt_run_id`.
        log_dir: The folder of the history; attempt N has its logs in `attempt-N` there.
        limits: The limits of the restarts.
        timeout: Seconds for all attempts together; None for no timeout.
        view: The view that shows progress; None for none.

    Returns:
        The last attempt's outcome, with all attempts and their total seconds.

    Raises:
        Exception: The error of `run`, such as a PipelineError if no ports are free or logs cannot be written. It is
            recorded in the history first.
    """
    shown = view or SilentView()
    policy, history = Policy(limits), History(log_dir)
    began = time.monotonic()
    attempts: list[Attempt] = []
    failed_at: float | None = None
    recorder: _Recorder | None = None
    newest = ""
    with shown, interruptions() as signals:
        try:
            while True:
                number = len(attempts) + 1
                left = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
                attempt_id, folder = attempt_run_id(run_id, number), log_dir / f"attempt-{number}"
                history.append("attempt_started", attempt=number, run_id=attempt_id, log_dir=folder)
                recorder = _Recorder(shown, history, number, failed_at)
                environ = {ATTEMPT_VARIABLE: str(number)} | ({CHECKPOINT_VARIABLE: newest} if newest else {})
                outcome = run(number, attempt_id, folder, left, recorder, environ)
                newest = recorder.newest or newest
                attempt = recorder.attempt(outcome, folder)
                _record_end(history, attempts, attempt)
                failed_at = recorder.failed_at or time.monotonic()
                decision = policy.decide(recorder.end(outcome))
                stop_signal = outcome.signal or next(iter(signals.received), None)
                if not decision.restart or stop_signal is not None:
                    why = decision.why if stop_signal is None else f"stopped by {signal.Signals(stop_signal).name}"
                    break
                checkpoint = recorder.checkpoint_of(attempts)
                history.append(
                    "restart_in",
                    attempt=number,
                    seconds=decision.after,
                    checkpoint=checkpoint,
                    why=decision.why,
                )
                place = "" if checkpoint is None else f", from the checkpoint of step {checkpoint} or a later one"
                shown.note(f"attempt {number}: {attempt.why}; {decision.why}: again in {decision.after:g} s{place}")
                stopped = _pause(decision.after, signals, None if timeout is None else began + timeout)
                if stopped is not None:
                    why = stopped
                    outcome = _stopped(outcome, signals)
                    break
        except BaseException as error:
            # The history must show that the job is not being restarted.
            outcome = LaunchOutcome.of_error(error, run_id, log_dir, time.monotonic() - began)
            if recorder is not None and len(attempts) < recorder.number:
                number = recorder.number
                attempt_id, folder = attempt_run_id(run_id, number), log_dir / f"attempt-{number}"
                ended = replace(outcome, run_id=attempt_id, seconds=time.monotonic() - recorder.started)
                _record_end(history, attempts, recorder.attempt(ended, folder))
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


def _record_end(history: History, attempts: list[Attempt], attempt: Attempt) -> None:
    """Add an attempt to the list and to the history."""
    attempts.append(attempt)
    history.append(
        "attempt_ended",
        attempt=attempt.number,
        reason=attempt.reason,
        seconds=round(attempt.seconds, 3),
        step=attempt.step,
        checkpoint=attempt.checkpoint,
    )


def _pause(seconds: float, signals: Interruptions, deadline: float | None) -> str | None:
    """Wait; return a reason not to restart, such as a signal, if there is a reason."""
    until = time.monotonic() + seconds
    while True:
        now = time.monotonic()
        if signals.received:
            return f"stopped by {signal.Signals(signals.received[0]).name}"
        if signals.forwarded:
            return f"stopped by {signal.Signals(signals.forwarded[0]).name}"
        if deadline is not None and now >= deadline:
            return "time has run out"
        if now >= until:
            return None
        time.sleep(min(_POLL, until - now))


def _stopped(outcome: LaunchOutcome, signals: Interruptions) -> LaunchOutcome:
    """Return the outcome of a stop between two attempts."""
    if signals.received:
        number = signals.received[0]
        return replace(outcome, reason="interrupted", exit_code=128 + number, signal=number)
    if signals.forwarded:
        return replace(outcome, signal=signals.forwarded[0])
    return replace(outcome, reason="timeout", exit_code=1)


def _conclude(history: History, shown: View, outcome: LaunchOutcome, why: str) -> None:
    last = len(outcome.attempts)
    seconds = round(outcome.seconds, 3)
    if outcome.reason in ("done", "interrupted", "timeout"):
        history.append(outcome.reason, attempt=last, attempts=last, seconds=seconds)
    else:
        history.append("gave_up", attempt=last, attempts=last, seconds=seconds, why=why)
    lost = [attempt.lost for attempt in outcome.attempts if attempt.lost is not None]
    error = history.write_summary(
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
    if error is not None:
        shown.note(f"warning: {history.folder / SUMMARY_FILE} could not be written ({error})")


class _Recorder(ForwardingView):
    """View of one attempt that writes the history and forwards to the job's view."""

    def __init__(self, inner: View, history: History, number: int, failed_at: float | None) -> None:
        super().__init__(inner)
        self._history, self.number = history, number
        self.started = time.monotonic()
        self._before = failed_at
        self._states: Sequence[TaskState] = ()
        self._asynchronous = False
        self._why = ""
        self._from_step: int | None = None
        self._lost: float | None = None
        self._began = False
        self._has_events = False
        self._reporting: set[str] = set()  # tasks that report their training themselves
        self._foreign = False
        self.failed_at: float | None = None
        # The path of the last reported checkpoint.
        self.newest = ""

    def start(self, plan: LaunchPlan, states: Sequence[TaskState]) -> None:
        self._states, self._foreign = states, plan.foreign
        self._asynchronous = any(state.task.startswith("ps:") for state in states)
        if self.number > 1:
            self._inner.note(f"attempt {self.number}")
        self._inner.start(plan, states)

    def event(self, state: TaskState, event: Mapping[str, Any]) -> None:
        self._has_events = True
        if event["event"] == "start":
            self._reporting.add(state.task)
        if event["event"] == "step" and not self._began and state.trains:
            self._began = True
            now = time.monotonic()
            self._lost = None if self._before is None else now - self._before
            if state.step is not None and state.steps is not None and not self._asynchronous:
                self._from_step = max(0, state.step - state.steps)
            self._history.append(
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
            self._history.append("straggler", attempt=self.number, **{k: v for k, v in event.items() if k != "event"})
        self._inner.event(state, event)

    def failed(self, reason: str, failure: Failure) -> None:
        self.failed_at = time.monotonic()
        self._why = failure.head
        # No task has failed then: the failure before is the last one.
        if failure.description != NO_ALLOCATION:
            self._history.append(
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

    def finish(self, outcome: LaunchOutcome) -> None:
        """Do nothing: the job may have further attempts."""

    @property
    def step(self) -> int | None:
        """The last step that a training task reported."""
        return max((state.step for state in self._states if state.step is not None and state.trains), default=None)

    @property
    def checkpoint(self) -> int | None:
        """The step of the last reported checkpoint."""
        return max((state.checkpoint for state in self._states if state.checkpoint is not None), default=None)

    @staticmethod
    def checkpoint_of(attempts: Sequence[Attempt]) -> int | None:
        """Return the step of the last known checkpoint of all attempts."""
        # A checkpoint written just before a failure may not be reported; the next attempt resumes from it.
        known = [step for attempt in attempts for step in (attempt.checkpoint, attempt.from_step) if step]
        return max(known, default=None)

    def end(self, outcome: LaunchOutcome) -> AttemptEnd:
        """Return the end of the attempt for the restart policy."""
        failure = outcome.failure
        return AttemptEnd(
            outcome.reason,
            task=None if failure is None else failure.task,
            exit_code=None if failure is None else failure.exit_code,
            step=self.step,
            checkpoint=self.checkpoint,
            began=None if self._foreign and not self._has_events else self._began,
            from_step=self._from_step,
            worked=None if failure is None else self._worked(failure.task),
            has_allocation=failure is None or failure.description != NO_ALLOCATION,
        )

    def _worked(self, task: str) -> bool | None:
        """Return whether a task made a step, or an evaluation; None if it does not report it."""
        for state in self._states:
            if state.task == task and task in self._reporting and not task.startswith("ps:"):
                return state.step is not None or state.evaluation is not None
        return None

    def attempt(self, outcome: LaunchOutcome, folder: Path) -> Attempt:
        """Return the attempt for the history."""
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

"""Supervisor that restarts a failed job, each attempt with new ports.

    outcome = supervise(attempt, limits=RestartLimits(max_restarts=3), log_dir=..., run_id=..., view=...)

After a failure all tasks of the attempt (`launch/local`) are stopped before the next attempt starts. That attempt
resumes from the last checkpoint, like any run in the same model directory. `restart_policy.py` decides about restarts;
`history.py` records them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from estimator_pipeline.cluster.spec import Task
from estimator_pipeline.launch.history import SUMMARY_FILE, Attempt, History, attempts_text
from estimator_pipeline.launch.local.metrics import MetricsView
from estimator_pipeline.launch.local.orphan_guard import RUN_ID_VARIABLE, SUPERVISOR_VARIABLE
from estimator_pipeline.launch.local.outcome import Failure, LaunchOutcome
from estimator_pipeline.launch.local.plan import LaunchPlan, LaunchShape, TaskPlan
from estimator_pipeline.launch.local.processes import Interruptions, interruptions
from estimator_pipeline.launch.local.run import HEARTBEAT_SECS, planned_cluster, run_local
from estimator_pipeline.launch.local.task import size
from estimator_pipeline.launch.local.timeouts import TaskTimeouts
from estimator_pipeline.launch.local.view import ForwardingView, SilentView, View
from estimator_pipeline.launch.supervisor.ranks import NO_ALLOCATION
from estimator_pipeline.launch.supervisor.restart_policy import AttemptEnd, Policy, RestartLimits
from estimator_pipeline.progress.progress_file import (
    CHECKPOINT_VARIABLE,
    HEARTBEAT_FOLDER_VARIABLE,
    HEARTBEAT_VARIABLE,
    PREEMPTED_FILE_VARIABLE,
    PROGRESS_VARIABLE,
    TaskState,
)

__all__ = [
    "ATTEMPT_VARIABLE",
    "AttemptRunner",
    "CommandView",
    "attempt_run_id",
    "plan_command",
    "supervise",
    "supervise_command",
    "supervise_local",
]

# The name of a command in the view and in the summary.
_COMMAND = "command"

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


def supervise_local(
    command: Sequence[str],
    *,
    shape: LaunchShape,
    log_dir: Path,
    run_id: str,
    limits: RestartLimits,
    environ: Mapping[str, str] | None = None,
    files: Mapping[Path, str] | None = None,
    foreign: bool = True,
    hold: bool = True,
    cores: str = "split",
    view: View | None = None,
    grace: float = 5.0,
    timeout: float | None = None,
    linger: float = 120.0,
    timeouts: TaskTimeouts | None = None,
) -> LaunchOutcome:
    """Run a program as every task of a local cluster, with restarts.

    Each attempt has new ports, a new run id, and its logs in `attempt-N` of `log_dir`. The other arguments are those
    of `estimator_pipeline.launch.local.plan.plan_local` and
    `estimator_pipeline.launch.local.run.run_local`.

    Args:
        limits: The limits of the restarts.
        hold: Whether the launcher keeps the ports bound.

    Returns:
        The last attempt's outcome, with all attempts in it.
    """
    base = dict(os.environ if environ is None else environ)

    def attempt(
        number: int, attempt_id: str, folder: Path, left: float | None, shown: View, extra: Mapping[str, str]
    ) -> LaunchOutcome:
        with planned_cluster(
            command,
            shape=shape,
            log_dir=folder,
            run_id=attempt_id,
            environ=base,
            files=files,
            foreign=foreign,
            hold=hold,
            cores=cores,
            heartbeat=HEARTBEAT_SECS,
        ) as plan:
            return run_local(
                plan,
                view=shown,
                environ={**base, **extra},
                grace=grace,
                timeout=left,
                linger=linger,
                timeouts=timeouts,
            )

    return supervise(attempt, run_id=run_id, log_dir=log_dir, limits=limits, timeout=timeout, view=view)


def plan_command(
    command: Sequence[str], *, log_dir: Path, run_id: str, number: int, environ: Mapping[str, str]
) -> LaunchPlan:
    """Return a plan of one process that runs a command, without TF_CONFIG and ports.

    ESTIMATOR_PIPELINE_RUN_ID is derived from the environment's: the tasks of a job on several machines must have the
    same one, each under a separate supervisor. If it is set, each attempt has a new one.
    """
    folder = log_dir.absolute()
    progress = folder / f"{_COMMAND}.progress.jsonl"
    variables = {
        SUPERVISOR_VARIABLE: run_id,
        ATTEMPT_VARIABLE: str(number),
        PROGRESS_VARIABLE: str(progress),
        HEARTBEAT_VARIABLE: f"{HEARTBEAT_SECS:g}",
        # The command may be one task, or an srun that starts all of them.
        HEARTBEAT_FOLDER_VARIABLE: str(folder / "heartbeats"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    if environ.get(PREEMPTED_FILE_VARIABLE):
        variables[PREEMPTED_FILE_VARIABLE] = environ[PREEMPTED_FILE_VARIABLE]
    if environ.get(RUN_ID_VARIABLE):
        variables[RUN_ID_VARIABLE] = attempt_run_id(environ[RUN_ID_VARIABLE], number)
    task = TaskPlan(
        task=Task("worker"),
        command=tuple(command),
        environ=variables,
        cores=(),
        log=folder / f"{_COMMAND}.log",
        progress=progress,
        label=_COMMAND,
    )
    return LaunchPlan(run_id=run_id, tasks=(task,), ports=(), log_dir=folder, foreign=True)


def supervise_command(
    command: Sequence[str],
    *,
    log_dir: Path,
    run_id: str,
    limits: RestartLimits,
    environ: Mapping[str, str] | None = None,
    view: View | None = None,
    grace: float = 30.0,
    timeout: float | None = None,
    timeouts: TaskTimeouts | None = None,
    metrics: Path | None = None,
) -> LaunchOutcome:
    """Run a command as one process with its children, and restart it after failures.

    Args:
        command: The program and its arguments.
        log_dir: The folder of the history; each attempt has its log in `attempt-N` there.
        run_id: The run id of the first attempt.
        limits: The limits of the restarts.
        environ: The environment of the command; None for this process's.
        view: The view that shows progress; None for none.
        grace: Seconds between SIGTERM and SIGKILL.
        timeout: Seconds for all attempts together.
        timeouts: Timeouts after which the command counts as hung.
        metrics: A file for Prometheus, see `estimator_pipeline.launch.local.metrics.MetricsView`; None for
            none.

    Returns:
        The last attempt's outcome. After a signal, the exit code is that of the command if it has one: schedulers need
        to see the 75 of a training that is saved in a checkpoint.
    """
    base = dict(os.environ if environ is None else environ)

    def attempt(
        number: int, attempt_id: str, folder: Path, left: float | None, shown: View, extra: Mapping[str, str]
    ) -> LaunchOutcome:
        plan = plan_command(command, log_dir=folder, run_id=attempt_id, number=number, environ=base)
        if isinstance(view, CommandView):
            view.before(plan)
        outcome = run_local(
            plan,
            view=shown,
            environ={**base, **extra},
            grace=grace,
            timeout=left,
            timeouts=timeouts,
        )
        return _with_command_code(outcome)

    shown = view if metrics is None else MetricsView(view, metrics)
    return supervise(attempt, run_id=run_id, log_dir=log_dir, limits=limits, timeout=timeout, view=shown)


def _with_command_code(outcome: LaunchOutcome) -> LaunchOutcome:
    """Set the command's exit code, if the command failed or handled a signal.

    For a command that started several tasks, it is the code of the task that failed first: srun returns the highest of
    all codes, which may be the 143 of a task that srun itself terminated.
    """
    code = outcome.tasks[0].exit_code
    if outcome.reason == "failed" and outcome.failure is not None and outcome.failure.task != _COMMAND:
        first = outcome.failure.exit_code
        code = code if first is None else first if first >= 0 else 128 - first
    if outcome.reason in ("failed", "interrupted", "preempted") and code is not None and code > 0:
        return replace(outcome, exit_code=code)
    return outcome


class CommandView(View):
    """Output of a supervised command, and messages of the supervisor.

    Args:
        output: The stream for the command's output, byte for byte.
        words: The stream for the supervisor's messages.
    """

    def __init__(self, output: BinaryIO, words: Any = None) -> None:
        self._output = output
        self._words = sys.stderr if words is None else words
        self._log: Path | None = None
        self._offset = 0

    def before(self, plan: LaunchPlan) -> None:
        """Prepare for an attempt, whose output is appended to its log."""
        self.refresh()
        self._log = plan.tasks[0].log
        self._offset = size(self._log)

    def note(self, text: str) -> None:
        self.refresh()
        try:
            print(f"estimator-pipeline: {text}", file=self._words, flush=True)
        except OSError:
            return

    def failed(self, reason: str, failure: Failure) -> None:
        self.refresh()

    def refresh(self) -> None:
        if self._log is None:
            return
        try:
            with open(self._log, "rb") as source:
                source.seek(self._offset)
                fresh = source.read()
            self._offset += len(fresh)
            if fresh:
                self._output.write(fresh)
                self._output.flush()
        except OSError:
            return

    def finish(self, outcome: LaunchOutcome) -> None:
        self.refresh()
        if len(outcome.attempts) > 1:
            for line in attempts_text(outcome.attempts).splitlines():
                self.note(line)

    def close(self) -> None:
        self.refresh()


# Attempts -------------------------------------------------------------------------------------------------------


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
    newest = ""

    def total(outcome: LaunchOutcome, gave_up: str) -> LaunchOutcome:
        seconds = time.monotonic() - began
        return replace(outcome, seconds=seconds, log_dir=log_dir, attempts=tuple(attempts), gave_up=gave_up)

    with shown, interruptions() as signals:
        while True:
            number = len(attempts) + 1
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
            attempt_id, folder = attempt_run_id(run_id, number), log_dir / f"attempt-{number}"
            history.append("attempt_started", attempt=number, run_id=attempt_id, log_dir=folder)
            recorder = _Recorder(shown, history, number, failed_at)
            environ = {ATTEMPT_VARIABLE: str(number)} | ({CHECKPOINT_VARIABLE: newest} if newest else {})
            try:
                outcome = run(number, attempt_id, folder, left, recorder, environ)
            except BaseException as error:
                # The history must show that the job is not being restarted.
                seconds = time.monotonic() - recorder.started
                outcome = LaunchOutcome.of_error(error, attempt_id, folder, seconds)
                attempts.append(recorder.record_end(outcome, folder))
                _conclude(history, shown, total(outcome, outcome.gave_up), outcome.gave_up)
                raise
            newest = recorder.newest or newest
            attempt = recorder.record_end(outcome, folder)
            attempts.append(attempt)
            failed_at = recorder.failed_at or time.monotonic()
            decision = policy.decide(recorder.end(outcome))
            stop_signal = outcome.signal or next(iter(signals.received), None)
            if not decision.restart or stop_signal is not None:
                why = decision.why if stop_signal is None else f"stopped by {signal.Signals(stop_signal).name}"
                break
            checkpoint = recorder.checkpoint_of(attempts)
            history.append(
                "restart_in", attempt=number, seconds=decision.after, checkpoint=checkpoint, why=decision.why
            )
            place = "" if checkpoint is None else f", from the checkpoint of step {checkpoint} or a later one"
            shown.note(f"attempt {number}: {attempt.why}; {decision.why}: again in {decision.after:g} s{place}")
            stopped = _wait(decision.after, outcome, signals, None if timeout is None else began + timeout)
            if stopped is not None:
                outcome, why = stopped
                break
        outcome = total(outcome, "" if outcome.ok else why)
        _conclude(history, shown, outcome, why)
        if not outcome.ok:
            shown.note(f"no further attempt: {why}")
        shown.finish(outcome)
    return outcome


def _wait(
    seconds: float, outcome: LaunchOutcome, signals: Interruptions, deadline: float | None
) -> tuple[LaunchOutcome, str] | None:
    """Wait before a restart; return the outcome of the job and the reason if it is stopped meanwhile."""
    until = time.monotonic() + seconds
    while True:
        now = time.monotonic()
        if signals.received:
            number = signals.received[0]
            stopped = replace(outcome, reason="interrupted", exit_code=128 + number, signal=number)
            return stopped, f"stopped by {signal.Signals(number).name}"
        if signals.forwarded:
            number = signals.forwarded[0]
            return replace(outcome, signal=number), f"stopped by {signal.Signals(number).name}"
        if deadline is not None and now >= deadline:
            return replace(outcome, reason="timeout", exit_code=1), "time has run out"
        if now >= until:
            return None
        time.sleep(min(_POLL, until - now))


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

    def record_end(self, outcome: LaunchOutcome, folder: Path) -> Attempt:
        """Return the attempt, and record its end in the history."""
        attempt = Attempt(
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
        self._history.append(
            "attempt_ended",
            attempt=attempt.number,
            reason=attempt.reason,
            seconds=round(attempt.seconds, 3),
            step=attempt.step,
            checkpoint=attempt.checkpoint,
        )
        return attempt

    def _why_with_place(self, outcome: LaunchOutcome) -> str:
        where = () if outcome.failure is None else outcome.failure.where
        return f"{self._why}; {where[0]}" if self._why and where else self._why

"""Launcher of a cluster of processes on this machine.

    with planned_cluster(command, shape=LaunchShape(workers=2), log_dir=..., run_id=new_run_id(), environ=...) as plan:
        outcome = run_local(plan)

The first task that fails stops the others; so do SIGINT, SIGTERM and SIGHUP. No process outlives the launch: each task
has its own process group, the kernel kills the tasks if the launcher dies (`exec_shim.py`), and a guard kills their
children (`orphan_guard.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator_pipeline.cluster.ports import hold_ports
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.exit_codes import BAD_INPUT, DIVERGED, PREEMPTED
from estimator_pipeline.launch.local import orphan_guard as guard_module
from estimator_pipeline.launch.local.outcome import Failure, LaunchOutcome, TaskEnd, combined_result, last_lines
from estimator_pipeline.launch.local.plan import LaunchPlan, LaunchShape, make_log_folder, plan_local
from estimator_pipeline.launch.local.processes import Guard, Interruptions, end_name, interruptions
from estimator_pipeline.launch.local.task import RunningTask, WriteProbe, changed
from estimator_pipeline.launch.local.timeouts import TaskTimeout, TaskTimeouts
from estimator_pipeline.launch.local.view import SilentView, View
from estimator_pipeline.launch.pace import Paces
from estimator_pipeline.launch.stacks.frames import user_lines
from estimator_pipeline.progress.progress_file import PREEMPTED_FILE_VARIABLE
from estimator_pipeline.utils import durable_files
from estimator_pipeline.utils.text import counted

__all__ = ["HEARTBEAT_SECS", "planned_cluster", "run_local"]

# Interval of the heartbeats, and how many may be missing before a task is reported.
HEARTBEAT_SECS = 2.0
_HEARTBEATS_MISSED = 3

_POLL = 0.1
# If a poll is delayed by more than this, this process was suspended, and the tasks may have been too.
_SUSPENDED_SECS = 1.0
_PS_SHUTDOWN_SECS = 5.0
# Without a chief: after this time in which no training task does anything, the reason is named.
_IDLE_SECS = 10.0
# A task that fails because of a different one may exit long before that one's interpreter does.
_CAUSE_SECS = 15.0
# Preempted tasks have this time to write their common checkpoint and exit.
_PREEMPTED_SECS = 30.0
# An evaluator that a signal kills is started again so many times; the training continues meanwhile.
_EVALUATOR_STARTS = 3
_DIVERGED = ("NaN loss during training", "NanLossDuringTrainingError", "training has diverged")


def run_local(
    plan: LaunchPlan,
    *,
    view: View | None = None,
    environ: Mapping[str, str] | None = None,
    grace: float = 5.0,
    timeout: float | None = None,
    linger: float = 120.0,
    timeouts: TaskTimeouts | None = None,
) -> LaunchOutcome:
    """Start the processes of a plan and wait until all have ended.

    Signals are handled only on the main thread.

    Args:
        plan: The plan. The caller should hold its ports until this returns.
        view: The view that shows progress; None for none.
        environ: The environment to which the plan's variables are added; None for this process's.
        grace: Seconds between SIGTERM and SIGKILL. A task that reports that it writes a checkpoint gets the seconds
            that it reports in addition (60, ESTIMATOR_PIPELINE_PREEMPTION_SECS).
        timeout: Seconds after which the job is stopped; None for never.
        linger: Seconds for ps and evaluator to exit after all training tasks have succeeded. Then the launcher stops a
            ps, and the evaluator of a user program; this package's evaluator has a separate timeout. If only ps
            tasks of a user program are left, they have five seconds, since they usually never exit.
        timeouts: Timeouts after which a task counts as hung; None for none.

    Returns:
        The outcome.

    Raises:
        ConfigError: The log folder cannot be created, or a file of the plan or a log cannot be written.
    """
    try:
        make_log_folder(plan.log_dir)
        for path, text in plan.files.items():
            _write_once(path, text.encode())
        running = [RunningTask(task, foreign=plan.foreign) for task in plan.tasks]
    except OSError as error:
        raise ConfigError(
            f"The logs cannot be written to {plan.log_dir}.",
            code="file/unwritable",
            found=str(error),
            hint="Give a folder that can be written with --log-dir.",
        ) from error
    base = dict(os.environ if environ is None else environ)
    job = _Job(plan, running, view or SilentView(), grace, timeout, linger, timeouts or TaskTimeouts())
    with job.view, interruptions() as signals, Guard(plan.run_id) as watcher:

        def start(task: RunningTask) -> None:
            task.start(base)
            watcher.watch(task.process.pid)

        try:
            for task in running:
                start(task)
            job.watch(signals, start)
        finally:
            job.clean_up()
        outcome = job.outcome()
        job.view.finish(outcome)
    return outcome


@contextlib.contextmanager
def planned_cluster(
    command: Sequence[str], *, shape: LaunchShape, hold: bool = True, **options: Any
) -> Iterator[LaunchPlan]:
    """Yield the plan of a local cluster with ports that are free, and stay reserved until the block ends.

    Args:
        command: See `plan_local`, also for `options`.
        shape: The cluster.
        hold: Whether the launcher keeps the ports bound.
    """
    with hold_ports(shape.ports) as held:
        plan = plan_local(command, shape=shape, ports=held.ports, hold_ports=hold, **options)
        if not hold:
            held.release()
        yield plan


def _write_once(path: Path, content: bytes) -> None:
    """Write a file atomically, unless it has the content already: a restart must not fail on a full disk."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            return
    durable_files.write(path, content)


@dataclass(eq=False)
class _Job:
    """Supervision of the processes of one plan, in a single loop. The first fields are those of `run_local`."""

    plan: LaunchPlan
    running: list[RunningTask]
    view: View
    _grace: float
    _timeout: float | None
    _linger: float
    _timeouts: TaskTimeouts
    _warnings: dict[str, str] = field(default_factory=dict)  # text -> its line
    _paces: Paces = field(default_factory=Paces)
    _started: float = field(default_factory=time.monotonic)
    _trained: float | None = None
    _only_ps: float | None = None
    _reason: str = "done"
    _exit_code: int = 0
    _failed: list[RunningTask] = field(default_factory=list)
    _first_failed: float | None = None
    _failure: Failure | None = None
    _aborted: list[RunningTask] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _signal: int | None = None
    _suspended: bool = False

    def __post_init__(self) -> None:
        self._write_probe = WriteProbe(self.plan.log_dir)
        self._looked = self._started

    @property
    def _ending(self) -> bool:
        return self._reason != "done"

    def watch(self, signals: Interruptions, start: Callable[[RunningTask], None]) -> None:
        """Run until every process has ended; `start` starts the process of a task again."""
        self._start = start
        self.view.start(self.plan, [task.state for task in self.running])
        while True:
            self._handle_signals(signals)
            ended = [task for task in self.running if task.alive and task.process.poll()]
            self._read_events()
            self._record_ends(ended)
            now = time.monotonic()
            self._discount_suspension(now)
            self._resolve_failure(now)
            if not self._ending and self._timeout is not None and now - self._started > self._timeout:
                self._end("timeout", 1, f"the job did not end within {self._timeout:g} s; stopping it")
            if not self._ending and self._timeouts:
                self._check_timeouts(now)
            if not self._ending:
                self._stop_servers(now)
            for task in self.running:
                stopped_at = task.process.stopped_at
                if task.alive and stopped_at is not None and now - stopped_at > (allowed := self._allowed(task)):
                    self._note_once(f"{task.name} did not end within {allowed:g} s; killing it")
                    task.process.kill()
            if not any(task.alive for task in self.running):
                return
            time.sleep(_POLL)

    def _allowed(self, task: RunningTask) -> float:
        """Return the seconds from SIGTERM to SIGKILL; more while it writes a checkpoint."""
        if self._reason in ("interrupted", "preempted") and task.state.preempting is not None:
            return self._grace + task.state.preempting
        return self._grace

    def _handle_signals(self, signals: Interruptions) -> None:
        while signals.forwarded:
            number = self._signal = signals.forwarded.pop(0)
            self._note_once(f"{signal.Signals(number).name}: forwarded to every task")
            for task in self.running:
                if task.alive:
                    task.process.forward(number)
        if not signals.received:
            return
        self._signal = number = signals.received[0]
        if not self._ending:
            self._end("interrupted", 128 + number, f"{signal.Signals(number).name}: stopping every task")
            signals.received.pop(0)
        elif number != signal.SIGINT:
            # Schedulers repeat signals, and the tasks may be writing their last checkpoint.
            signals.received.pop(0)
        else:
            # A second Ctrl-C: do not wait for the grace period.
            for task in self.running:
                if task.alive:
                    task.process.kill()
            signals.received.clear()

    def _read_events(self) -> None:
        for task in self.running:
            for event in task.poll_events():
                self.view.event(task.state, event)
                self._warn(str(event.get("task") or task.state.task), event)
                if event["event"] == "pace":
                    self._compare(task, event)
        self.view.refresh()

    def _warn(self, task: str, event: Mapping[str, Any]) -> None:
        # A warning of all tasks is shown once.
        if event["event"] == "warning" and isinstance(text := event.get("text"), str) and text not in self._warnings:
            self._warnings[text] = f"{task} warns: {text}"
            self.view.note(self._warnings[text])

    def _compare(self, task: RunningTask, event: Mapping[str, Any]) -> None:
        """Report a straggler, once for each worker."""
        slow = self._paces.update(event)
        if slow is not None:
            self._note_once(slow.text())
            self.view.event(task.state, {"event": "straggler", **slow.document()})

    def _record_ends(self, ended: list[RunningTask]) -> None:
        # The task whose log stopped first comes first: the others mostly fail because of it.
        for task in sorted(ended, key=lambda task: changed(task.plan.log)):
            process, state = task.process, task.state
            code = process.exit_code or 0
            state.exit_code, state.seconds = code, process.seconds
            if code == 0:
                state.state = "failed" if self._exited_early(task) else "done"
            elif process.stopped_at is not None and (self._ending or not self._is_optional(task)):
                state.state = "stopped" if self._ending else "released"
            else:
                state.state = "preempted" if code == PREEMPTED else "failed"
            self.view.ended(state)
            if state.state in ("failed", "preempted") and not self._continues_without(task):
                self._failed.append(task)

    def _continues_without(self, task: RunningTask) -> bool:
        """Return whether the job continues without this task, which is started again if that may help."""
        state, code = task.state, task.state.exit_code or 0
        where = user_lines(task.plan.log, offset=task.log_offset) if code == -signal.SIGABRT else ()
        at = f" at {where[0]}" if where else ""
        if not self._is_optional(task) or code in (0, BAD_INPUT, DIVERGED) or state.caused_by is not None:
            return False
        if state.state == "preempted":
            self._note_once(f"{task.name} was stopped from outside the job: training continues without it")
        elif code < 0 and task.starts <= _EVALUATOR_STARTS and not self._ending:
            end = "hung" if task.process.stopped_at is not None else f"was killed ({end_name(code)})"
            self.view.note(f"{task.name} {end}{at}; starting it again")
            self._start(task)
        else:
            error = f": {state.error}" if state.error else ""
            end = "hung" if task.process.stopped_at is not None else f"failed ({end_name(code)})"
            text = f"{task.name} {end}{at}{error}. Without it, the chief evaluates the last checkpoint only"
            self._warnings[text] = text
            self.view.note(text)
            with contextlib.suppress(OSError):
                task.given_up.touch()
        return True

    def _exited_early(self, task: RunningTask) -> bool:
        """Return whether it exited with code 0 before its end without being stopped."""
        if not task.early_exit or task.process.stopped_at is not None or self._signal is not None:
            return False
        error = self._write_probe.check(time.monotonic())
        if error is not None:
            self._note_once(
                f"warning: {self.plan.log_dir} cannot be written to ({error.strerror or error}), so that {task.name} "
                "could not report its end: its exit code 0 counts"
            )
        return error is None

    def _is_optional(self, task: RunningTask) -> bool:
        """Return whether it is this package's evaluator: the chief evaluates at the end."""
        is_ours = not self.plan.foreign or task.reports
        return task.plan.task.type == "evaluator" and is_ours and self._training()

    def _resolve_failure(self, now: float) -> None:
        """Find the task that failed first, and wait for a task reported as the cause."""
        if not self._failed or self._failure is not None:
            return
        if self._first_failed is None:
            self._first_failed = now
        names = {task.name: task for task in self.running}
        refused = next((task for task in self._failed if task.state.refusal is not None), None)
        for task in self._failed:
            cause = names.get(task.state.caused_by or "")
            if refused is None and task.state.echo:
                cause = next((other for other in self.running if other.alive and other.trains), cause)
            if cause is not None and cause.alive and now - self._first_failed < _CAUSE_SECS:
                continue
            if cause in self._failed:
                task = cause
            if task.state.echo and refused is not None:
                task, cause = refused, None
            code = task.process.exit_code or 0
            tail = last_lines(task.plan.log, offset=task.log_offset)
            reason, exit_code = self._why(task, code, tail)
            if reason == "preempted" and now - self._first_failed < _PREEMPTED_SECS and self._training():
                return
            self._failure = task.failure(reason, tail, caused_by=cause)
            if task.early_exit and self._failure.description == task.early_exit:
                self._note_once(self._failure.head)
            if reason == "failed" and self._failure.exit_code == BAD_INPUT:
                exit_code = BAD_INPUT
            self._end(reason, exit_code, "stopping the other tasks")
            self.view.failed(reason, self._failure)
            return

    def _why(self, task: RunningTask, code: int, tail: tuple[str, ...]) -> tuple[str, int]:
        """Return the reason of a failure and the launcher's exit code."""
        ended_as = task.state.ended_as
        if code == BAD_INPUT and ended_as == "failed":
            return "failed", BAD_INPUT  # Its log may also report that the loss was NaN.
        # In a user program, exit code 3 may mean anything.
        diverged = code == DIVERGED and not self.plan.foreign
        if diverged or ended_as == "diverged" or any(mark in line for line in tail for mark in _DIVERGED):
            return "diverged", DIVERGED
        # Where tasks report a preemption by a file, a different code is that of a task that failed and stopped the
        # others.
        by_file = task.plan.environ.get(PREEMPTED_FILE_VARIABLE)
        if code == PREEMPTED or (ended_as == "preempted" and not by_file):
            return "preempted", PREEMPTED
        return "failed", BAD_INPUT if code == BAD_INPUT else 1

    def _training(self) -> bool:
        return any(task.alive and task.trains for task in self.running)

    def _discount_suspension(self, now: float) -> None:
        """Extend the timeouts after the machine was suspended; not twice in a row: it may only be slow."""
        missed = now - self._looked - _POLL
        suspended = missed > _SUSPENDED_SECS
        if suspended and not self._suspended:
            for task in self.running:
                task.discount(missed, now)
                if task.process.stopped_at is not None:
                    task.process.stopped_at = min(now, task.process.stopped_at + missed)
        self._looked, self._suspended = now, suspended

    def _check_timeouts(self, now: float) -> None:
        """Stop the job if a task exceeds a timeout."""
        overdue: list[tuple[RunningTask, TaskTimeout]] = []
        active = [task for task in self.running if task.alive and task.process.stopped_at is None]
        for task in active:
            task.poll_activity(now)
        early = self._timeouts.early
        if any(task.monitor.timed_out(now, early) for task in active):
            self._probe_log_dir(now)
        for task in active:
            timeout = task.monitor.timed_out(now, self._timeouts)
            if timeout is not None:
                overdue.append((task, timeout))
            if task.monitor.is_untracked(now, self._timeouts):
                self._note_once(f"{task.name} reports no steps, and its log does not grow: no timeout for it")
        for task, timeout in [pair for pair in overdue if self._is_optional(pair[0])]:
            overdue.remove((task, timeout))
            self.view.note(f"{task.name} {timeout.text()}; ending it")
            task.process.abort()
        if not overdue:
            return
        task, timeout = max(overdue, key=lambda pair: (self._quiet(pair[0], now), pair[1].seconds))
        quiet = task.monitor.since_heartbeat(now)
        description = timeout.text()
        if timeout.kind != "heartbeat" and self._quiet(task, now):
            description += f" and sent no heartbeat for {quiet:.1f} s"
        others = [other.name for other, _ in overdue if other is not task]
        name = (task.ranks.task_of(timeout.process) if task.ranks is not None else "") or task.name
        self._failure = Failure(
            name, None, task.plan.log, last_lines(task.plan.log, offset=task.log_offset), description
        )
        waiting = f"; also timed out: {', '.join(others)}" if others else ""
        self._aborted = [task]
        if timeout.kind in ("step", "first step"):
            # Also the other tasks that make no step: only the stacks show which one blocks the others.
            early = self._timeouts.early
            self._aborted += [
                other for other in active if other not in self._aborted and other.monitor.timed_out(now, early)
            ]
        for aborted in self._aborted:
            aborted.process.abort()
        self._end("hung", 1, f"{name} {description}{waiting}; stopping every task")
        self.view.failed("hung", self._failure)

    def _probe_log_dir(self, now: float) -> None:
        """Reset the timeouts if tasks cannot write their events."""
        error = self._write_probe.check(now)
        if error is None:
            return
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        for task in self.running:
            task.monitor.unwritable(now, heartbeats=not full)
        missing = "steps" if full else "steps and heartbeats"
        self._note_once(
            f"warning: {self.plan.log_dir} cannot be written to ({error.strerror or error}), so that tasks cannot "
            f"report progress: no timeout for {missing} until it can"
        )

    def _quiet(self, task: RunningTask, now: float) -> bool:
        """Return whether a task's heartbeat is overdue: among tasks that wait for each other, it is the hung one."""
        quiet = task.monitor.since_heartbeat(now)
        return quiet is not None and quiet > _HEARTBEATS_MISSED * HEARTBEAT_SECS

    def _stop_servers(self, now: float) -> None:
        """After the training, stop evaluator and ps tasks that do not exit in time."""
        if self.plan.foreign:
            self._stop_joined(now)
        if any(task.trains and task.state.state not in ("done", "ending", "released") for task in self.running):
            return
        if self._trained is None:
            self._trained = now
        left = [task for task in self.running if task.alive and task.process.stopped_at is None]
        only_ps = all(task.plan.task.type == "ps" for task in left)
        if only_ps and self._only_ps is None:
            self._only_ps = now
        for task in left:
            waited, allowed = now - self._trained, self._linger
            if self.plan.foreign and only_ps and self._only_ps is not None:
                waited, allowed = now - self._only_ps, min(self._linger, _PS_SHUTDOWN_SECS)
            elif task.plan.task.type == "evaluator" and not self.plan.foreign:
                continue
            if waited >= allowed:
                self._note_once(f"training has ended and {task.name} is still running; stopping it")
                task.process.terminate()
                task.state.state = "ending"

    def _stop_joined(self, now: float) -> None:
        """Stop workers that only serve a chief (`tf.distribute.Server.join`), `linger` seconds after it has ended.

        Workers of `tf.distribute.ParameterServerStrategy` do so. They report nothing, and never exit.
        """
        chiefs = [task for task in self.running if task.plan.task.type in ("chief", "master")]
        if not (chiefs or any(task.plan.task.type == "ps" for task in self.running)):
            return
        working = [task for task in self.running if task.trains and task.alive and task.process.stopped_at is None]
        idle = [task for task in working if task.idle_secs(now) >= min(self._linger, _IDLE_SECS) and not task.reports]
        if not chiefs:
            if idle and idle == working:
                self._note_once(
                    "no training task does anything. If they only serve a chief (Server.join), no task coordinates "
                    "them: start the job with --chief"
                )
            return
        if chiefs[0].state.state != "done":
            return
        for task in idle:
            if task.idle_secs(now) >= self._linger:
                self._note_once(f"{chiefs[0].name} is done and {task.name} does nothing; stopping it")
                task.process.terminate()
                task.state.state = "ending"

    def _end(self, reason: str, exit_code: int, note: str) -> None:
        if self._ending:
            return
        self._reason, self._exit_code = reason, exit_code
        if any(task.alive for task in self.running):
            self._note_once(note)
        for task in self.running:
            if task.started:
                task.process.terminate()
            if task.alive:
                task.state.state = "ending"

    def _note_once(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
            self.view.note(text)

    def clean_up(self) -> None:
        """Kill all processes that still run: children of tasks, or tasks after an error."""
        groups = [task.process.pid for task in self.running if task.started]
        left = guard_module.survivors(self.plan.run_id, groups)
        if left and not any(task.alive for task in self.running):
            # Helper processes of a task that has just ended are often about to end too.
            deadline = time.monotonic() + min(self._grace, 2.0)
            guard_module.send(left, signal.SIGTERM)
            while left and time.monotonic() < deadline:
                time.sleep(0.02)
                left = guard_module.survivors(self.plan.run_id, groups)
            if left:
                self._note_once(f"{counted(len(left), 'process')} that the tasks had left running: killed")
        guard_module.kill_all(self.plan.run_id, groups)
        deadline = time.monotonic() + 10.0
        for task in self.running:
            while task.started and not task.process.poll() and time.monotonic() < deadline:
                time.sleep(0.02)
            if task.started:
                task.process.reap()

    def outcome(self) -> LaunchOutcome:
        """Return the outcome."""
        self._read_events()
        if self._failure is not None and self._reason == "hung":
            # The tasks printed their stacks when they were aborted.
            task = self._aborted[0]
            tail = last_lines(task.plan.log, offset=task.log_offset)
            positions = [(task.name, user_lines(task.plan.log, offset=task.log_offset)) for task in self._aborted]
            where = tuple(f"{name} is at {line}" for name, lines in positions for line in lines)
            self._failure = dataclasses.replace(self._failure, tail=tail, where=where)
        # A user program may report its preemption and exit with a different code.
        codes = {PREEMPTED if task.ended_preempted else task.state.exit_code for task in self.running}
        if self._exit_code == 128 + signal.SIGTERM and codes <= {0, PREEMPTED} and PREEMPTED in codes:
            # After SIGTERM (not Ctrl-C), the exit code reports that the job can resume from its checkpoint.
            self._reason, self._exit_code = "preempted", PREEMPTED
        return LaunchOutcome(
            reason=self._reason,
            exit_code=self._exit_code,
            seconds=time.monotonic() - self._started,
            run_id=self.plan.run_id,
            log_dir=self.plan.log_dir,
            tasks=tuple(
                TaskEnd(task.name, state.pid, state.state, state.exit_code, state.seconds, state.step, task.plan.log)
                for task in self.running
                for state in [task.state]
            ),
            failure=self._failure,
            result=combined_result([task.state for task in self.running]),
            notes=tuple(self._notes),
            warnings=tuple(self._warnings.values()),
            signal=self._signal,
        )

"""A cluster of processes on this machine: started, watched to its end, and nothing left behind.

    with hold_ports(shape.ports) as held:
        plan = plan_local(command, shape=shape, ports=held.ports, ...)
        outcome = run_local(plan)

The first task that fails ends the others; so do SIGINT, SIGTERM
and SIGHUP. Whatever happens, no process of the launch is left: each task has its own process group, the
kernel ends the tasks of a launcher that dies (`shim.py`), and a guard ends their children (`guard.py`).
"""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.exit_codes import BAD_INPUT, DIVERGED, PREEMPTED
from estimator_pipeline.launch.local import orphan_guard as guard_module
from estimator_pipeline.launch.local.failure import failure_of
from estimator_pipeline.launch.local.outcome import Failure, LaunchOutcome, TaskEnd, combined_result, last_lines
from estimator_pipeline.launch.local.plan import LaunchPlan
from estimator_pipeline.launch.local.processes import Guard, Interruptions, interruptions
from estimator_pipeline.launch.local.task import RunningTask, WriteProbe, changed
from estimator_pipeline.launch.local.timeouts import TaskTimeout, TaskTimeouts
from estimator_pipeline.launch.local.view import SilentView, View
from estimator_pipeline.launch.pace import Paces
from estimator_pipeline.launch.stacks.frames import own_lines
from estimator_pipeline.progress.progress_file import PREEMPTED_FILE_VARIABLE
from estimator_pipeline.utils.text import counted

__all__ = ["HEARTBEAT_SECS", "run_local"]

# How far apart heartbeats are, and how many may be late before it is told.
HEARTBEAT_SECS = 2.0
_HEARTBEATS_MISSED = 3

_POLL = 0.1
# A look that comes so late: this process did not run, and the tasks may not have either.
_STOOD_STILL_SECS = 1.0
_PS_FAREWELL = 5.0
# A task that fails because of another may have ended long before that one's interpreter has.
_CULPRIT_SECS = 15.0
# Tasks that end together, with a checkpoint, are not disturbed at it.
_PREEMPTED_SECS = 30.0
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
    watch_path: Path | None = None,
) -> LaunchOutcome:
    """Start the processes of a plan and stay with them to their end.

    Signals can be handled on the main thread only; elsewhere they do what they always do.

    Args:
        plan: What to start. Its ports should be held by the caller until this returns.
        view: Who shows what happens; None for nobody.
        environ: The environment that each task's own is added to; None for this process's.
        grace: Seconds between SIGTERM and SIGKILL. A task that stops training with a checkpoint says so, and has the
            seconds that it says besides (60, ESTIMATOR_PIPELINE_PREEMPTION_SECS).
        timeout: Seconds after which the job is ended; None for never.
        linger: Seconds that ps and evaluator have, after all training tasks ended well, to end by themselves.
            After that a ps is ended. So is an evaluator of a foreign program; one of ours has a deadline of
            its own. Where only the ps tasks of a foreign program are left, which serve nobody any more and
            mostly wait for ever, they have five seconds.
        timeouts: How long a task may be silent before it counts as hung; None for any time.
        watch_path: A file or folder whose changes count as news, for programs that tell nothing else.

    Returns:
        How it ended.

    Raises:
        ConfigError: The folder for the logs cannot be made, or a log in it cannot be written.
    """
    try:
        plan.log_dir.mkdir(parents=True, exist_ok=True)
        running = [RunningTask(task, foreign=plan.foreign, watch=watch_path) for task in plan.tasks]
    except OSError as error:
        raise ConfigError(
            f"The logs cannot be written to {plan.log_dir}.",
            code="file/unwritable",
            found=str(error),
            hint="Give a folder that can be written with --log-dir.",
        ) from error
    base = dict(os.environ if environ is None else environ)
    limits = timeouts or TaskTimeouts()
    job = _Job(plan, running, view or SilentView(), grace=grace, timeout=timeout, linger=linger, timeouts=limits)
    with job.view, interruptions() as signals, Guard(plan.run_id) as watcher:
        try:
            for one in running:
                one.start(base)
                watcher.watch(one.process.pid)
            job.watch(signals)
        finally:
            job.leave_nothing()
        outcome = job.outcome()
        job.view.finish(outcome)
    return outcome


class _Job:
    """The watch over the processes of one plan, in a single loop."""

    def __init__(
        self,
        plan: LaunchPlan,
        running: list[RunningTask],
        view: View,
        *,
        grace: float,
        timeout: float | None,
        linger: float,
        timeouts: TaskTimeouts,
    ) -> None:
        self.plan = plan
        self.running = running
        self._warned: set[str] = set()
        self._paces = Paces()
        self._asked: list[RunningTask] = []
        self.view = view
        self._grace = grace
        self._timeout = timeout
        self._linger = linger
        self._timeouts = timeouts
        self._write_probe = WriteProbe(plan.log_dir)
        self._started = time.monotonic()
        self._trained: float | None = None
        self._alone: float | None = None
        self._reason = "done"
        self._exit_code = 0
        self._failed: list[RunningTask] = []
        self._first_failed: float | None = None
        self._failure: Failure | None = None
        self._notes: list[str] = []
        self._signal: int | None = None
        self._looked = self._started
        self._stood_still = False

    @property
    def _ending(self) -> bool:
        return self._reason != "done"

    def watch(self, signals: Interruptions) -> None:
        """Until every process has ended."""
        self.view.start(self.plan, [one.state for one in self.running])
        while True:
            self._obey(signals)
            fresh = [one for one in self.running if one.alive and one.process.look()]
            self._tell_news()
            self._ended(fresh)
            now = time.monotonic()
            self._excuse(now)
            self._settle(now)
            if not self._ending and self._timeout is not None and now - self._started > self._timeout:
                self._end("timeout", 1, f"the job did not end within {self._timeout:g} s; ending it")
            if not self._ending and self._timeouts:
                self._listen(now)
            if not self._ending:
                self._let_go(now)
            for one in self.running:
                asked = one.process.asked_to_end
                if one.alive and asked is not None and now - asked > (allowed := self._allowed(one)):
                    self._note_once(f"{one.name} did not end within {allowed:g} s; killing it")
                    one.process.kill()
            if not any(one.alive for one in self.running):
                return
            time.sleep(_POLL)

    def _allowed(self, one: RunningTask) -> float:
        """Seconds from SIGTERM to SIGKILL: more for a task that has told that it writes its last checkpoint."""
        if self._reason in ("interrupted", "preempted") and one.state.preempting is not None:
            return self._grace + one.state.preempting
        return self._grace

    def _obey(self, signals: Interruptions) -> None:
        while signals.passed_on:
            number = self._signal = signals.passed_on.pop(0)
            self._note_once(f"{signal.Signals(number).name}: passed on to every task")
            for one in self.running:
                if one.alive:
                    one.process.pass_on(number)
        if not signals.received:
            return
        self._signal = number = signals.received[0]
        if not self._ending:
            self._end("interrupted", 128 + number, f"{signal.Signals(number).name}: ending every task")
            signals.received.pop(0)
        elif number != signal.SIGINT:
            # Schedulers repeat themselves, and the tasks may be writing their last checkpoint.
            signals.received.pop(0)
        else:
            # Asked again: the person does not want to wait for the grace.
            for one in self.running:
                if one.alive:
                    one.process.kill()
            signals.received.clear()

    def _tell_news(self) -> None:
        for one in self.running:
            for event in one.news():
                self.view.event(one.state, event)
                self._warn(one.state.task, event)
                if event["event"] == "pace":
                    self._compare(one, event)
        self.view.refresh()

    def _warn(self, task: str, event: Mapping[str, Any]) -> None:
        # What all tasks warn of is told once.
        if event["event"] == "warning" and isinstance(text := event.get("text"), str) and text not in self._warned:
            self._warned.add(text)
            self.view.note(f"{task} warns: {text}")

    def _compare(self, one: RunningTask, event: Mapping[str, Any]) -> None:
        """Says who is slow, once for each that is."""
        found = self._paces.told(event)
        if found is not None:
            self._note_once(found.text())
            self.view.event(one.state, {"event": "straggler", **found.document()})

    def _ended(self, fresh: list[RunningTask]) -> None:
        # Of several that ended since the last look, the one that fell silent first comes first: the others
        # mostly fail because of it.
        for one in sorted(fresh, key=lambda one: changed(one.plan.log)):
            process, state = one.process, one.state
            code = process.exit_code or 0
            state.exit_code, state.seconds = code, process.seconds
            if code == 0:
                state.state = "failed" if self._left_early(one) else "done"
            elif process.asked_to_end is not None:
                state.state = "stopped" if self._ending else "released"
            else:
                state.state = "preempted" if code == PREEMPTED else "failed"
            self.view.ended(state)
            if state.state == "preempted" and self._dispensable(one):
                self._note_once(f"{one.name} was asked to end by somebody else: the training goes on without it")
            elif state.state in ("failed", "preempted"):
                self._failed.append(one)

    def _left_early(self, one: RunningTask) -> bool:
        """Whether it has left before its end with exit code 0, which nobody had asked it to do."""
        if not one.left_early or one.process.asked_to_end is not None or self._signal is not None:
            return False
        error = self._write_probe.lacking(time.monotonic())
        if error is not None:
            self._note_once(
                f"warning: {self.plan.log_dir} cannot be written to ({error.strerror or error}), so that {one.name} "
                "could not tell its end: its exit code 0 counts"
            )
        return error is None

    def _dispensable(self, one: RunningTask) -> bool:
        """Whether the others end the job without it: an evaluator of ours, whose chief makes the final evaluation."""
        return one.plan.task.type == "evaluator" and not self.plan.foreign and self._training()

    def _settle(self, now: float) -> None:
        """Names the task that failed. One that ended because of another is not it, if that other ends in time."""
        if not self._failed or self._failure is not None:
            return
        if self._first_failed is None:
            self._first_failed = now
        names = {one.name: one for one in self.running}
        for one in self._failed:
            culprit = names.get(one.state.caused_by or "")
            if culprit is not None and culprit.alive and now - self._first_failed < _CULPRIT_SECS:
                continue
            if culprit in self._failed:
                one = culprit
            code = one.process.exit_code or 0
            tail = last_lines(one.plan.log, offset=one.log_offset)
            reason, exit_code = self._why(one, code, tail)
            if reason == "preempted" and now - self._first_failed < _PREEMPTED_SECS and self._training():
                return
            self._failure = failure_of(one, reason, tail, caused_by=culprit)
            if one.left_early and self._failure.what == one.left_early:
                self._note_once(self._failure.head)
            if reason == "failed" and self._failure.exit_code == BAD_INPUT:
                exit_code = BAD_INPUT
            self._end(reason, exit_code, "ending the other tasks")
            self.view.failed(reason, self._failure)
            return

    def _why(self, one: RunningTask, code: int, tail: tuple[str, ...]) -> tuple[str, int]:
        """The reason of a failure, and what the launcher exits with."""
        said = one.state.ended_as
        # To somebody else's program the exit code 3 may mean anything.
        means = code == DIVERGED and not self.plan.foreign
        if means or said == "diverged" or any(mark in line for line in tail for mark in _DIVERGED):
            return "diverged", DIVERGED
        # Where tasks say it in a file, another code is of one that was not asked, and brought the others to their end.
        by_file = one.plan.environ.get(PREEMPTED_FILE_VARIABLE)
        if code == PREEMPTED or (said == "preempted" and not by_file):
            return "preempted", PREEMPTED
        return "failed", BAD_INPUT if code == BAD_INPUT else 1

    def _training(self) -> bool:
        return any(one.alive and one.trains for one in self.running)

    def _excuse(self, now: float) -> None:
        """A machine that stood still, tasks and launcher, has silenced them all; once in a row, or it would be slow."""
        missed = now - self._looked - _POLL
        stood_still = missed > _STOOD_STILL_SECS
        if stood_still and not self._stood_still:
            for one in self.running:
                one.excuse(missed, now)
                if one.process.asked_to_end is not None:
                    one.process.asked_to_end = min(now, one.process.asked_to_end + missed)
        self._looked, self._stood_still = now, stood_still

    def _listen(self, now: float) -> None:
        """Ends the job when a task has been silent for too long."""
        silent: list[tuple[RunningTask, TaskTimeout]] = []
        listened = [one for one in self.running if one.alive and one.process.asked_to_end is None]
        for one in listened:
            one.listen(now)
        early = self._timeouts.early
        if any(one.monitor.timed_out(now, early) for one in listened):
            self._look_for_room(now)
        for one in listened:
            found = one.monitor.timed_out(now, self._timeouts)
            if found is not None:
                silent.append((one, found))
            if one.monitor.mute(now, self._timeouts):
                self._note_once(f"{one.name} tells nothing by which a step could be seen: no deadline for it")
        if not silent:
            return
        one, found = max(silent, key=lambda pair: (self._quiet(pair[0], now), pair[1].seconds))
        quiet = one.monitor.quiet(now)
        what = found.text()
        if found.what != "heartbeat" and self._quiet(one, now):
            what += f" and sent no heartbeat for {quiet:.1f} s"
        others = [other.name for other, _ in silent if other is not one]
        name = (one.ranks.task_of(found.who) if one.ranks is not None else "") or one.name
        self._failure = Failure(name, None, one.plan.log, last_lines(one.plan.log, offset=one.log_offset), what)
        waiting = f"; silent too: {', '.join(others)}" if others else ""
        self._asked = [one]
        if found.what in ("step", "first step"):
            # Those that make no step either: one of them holds up the others, and which one only the stacks show.
            early = self._timeouts.early
            self._asked += [
                other for other in listened if other not in self._asked and other.monitor.timed_out(now, early)
            ]
        for asked in self._asked:
            asked.process.ask_where_it_stands()
        self._end("hung", 1, f"{name} {what}{waiting}; ending every task")
        self.view.failed("hung", self._failure)

    def _look_for_room(self, now: float) -> None:
        """A task that cannot write down its steps is not one that makes none."""
        error = self._write_probe.lacking(now)
        if error is None:
            return
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        for one in self.running:
            one.monitor.unheard(now, heartbeats=not full)
        missing = "steps" if full else "steps and heartbeats"
        self._note_once(
            f"warning: {self.plan.log_dir} cannot be written to ({error.strerror or error}), so that nobody can tell "
            f"whether tasks go on: no deadline for {missing} until it can"
        )

    def _quiet(self, one: RunningTask, now: float) -> bool:
        """Whether a task's heartbeat is overdue. Of several that wait for each other, it is the one that hangs."""
        quiet = one.monitor.quiet(now)
        return quiet is not None and quiet > _HEARTBEATS_MISSED * HEARTBEAT_SECS

    def _let_go(self, now: float) -> None:
        """After the training: wait for evaluator and ps, each within its bounds."""
        if any(one.trains and one.state.state != "done" for one in self.running):
            return
        if self._trained is None:
            self._trained = now
        left = [one for one in self.running if one.alive and one.process.asked_to_end is None]
        only_ps = all(one.plan.task.type == "ps" for one in left)
        if only_ps and self._alone is None:
            self._alone = now
        for one in left:
            waited, allowed = now - self._trained, self._linger
            if self.plan.foreign and only_ps and self._alone is not None:
                waited, allowed = now - self._alone, min(self._linger, _PS_FAREWELL)
            elif one.plan.task.type == "evaluator" and not self.plan.foreign:
                continue
            if waited >= allowed:
                self._note_once(f"the training has ended and {one.name} still runs; ending it")
                one.process.ask_to_end()
                one.state.state = "ending"

    def _end(self, reason: str, exit_code: int, note: str) -> None:
        if self._ending:
            return
        self._reason, self._exit_code = reason, exit_code
        if any(one.alive for one in self.running):
            self._note_once(note)
        for one in self.running:
            if one.started:
                one.process.ask_to_end()
            if one.alive:
                one.state.state = "ending"

    def _note_once(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
            self.view.note(text)

    def leave_nothing(self) -> None:
        """End what still runs: children that outlived their task, or all tasks after an error of our own."""
        groups = [one.process.pid for one in self.running if one.started]
        left = guard_module.survivors(self.plan.run_id, groups)
        if left and not any(one.alive for one in self.running):
            # Helper processes of a task that has just ended are often about to end too.
            deadline = time.monotonic() + min(self._grace, 2.0)
            guard_module.send(left, signal.SIGTERM)
            while left and time.monotonic() < deadline:
                time.sleep(0.02)
                left = guard_module.survivors(self.plan.run_id, groups)
            if left:
                self._note_once(f"{counted(len(left), 'process')} that the tasks had left behind: killed")
        guard_module.kill_all(self.plan.run_id, groups)
        deadline = time.monotonic() + 10.0
        for one in self.running:
            while one.started and not one.process.look() and time.monotonic() < deadline:
                time.sleep(0.02)
            if one.started:
                one.process.reap()

    def outcome(self) -> LaunchOutcome:
        """How it all ended."""
        self._tell_news()
        if self._failure is not None and self._reason == "hung":
            # Where it stood, it told at its end.
            one = self._asked[0]
            tail = last_lines(one.plan.log, offset=one.log_offset)
            stands = [(one.name, own_lines(one.plan.log, offset=one.log_offset)) for one in self._asked]
            where = tuple(f"{name} stands at {line}" for name, lines in stands for line in lines)
            self._failure = dataclasses.replace(self._failure, tail=tail, where=where)
        # A program of one's own may end with another code, and tell it all the same.
        codes = {PREEMPTED if one.ended_as_asked else one.state.exit_code for one in self.running}
        if self._exit_code == 128 + signal.SIGTERM and codes <= {0, PREEMPTED} and PREEMPTED in codes:
            # Whoever sent SIGTERM, and no person's Ctrl-C, is told that the job goes on from where it stands.
            self._reason, self._exit_code = "preempted", PREEMPTED
        return LaunchOutcome(
            reason=self._reason,
            exit_code=self._exit_code,
            seconds=time.monotonic() - self._started,
            run_id=self.plan.run_id,
            log_dir=self.plan.log_dir,
            tasks=tuple(
                TaskEnd(
                    task=one.name,
                    pid=one.state.pid,
                    state=one.state.state,
                    exit_code=one.state.exit_code,
                    seconds=one.state.seconds,
                    step=one.state.step,
                    log=one.plan.log,
                )
                for one in self.running
            ),
            failure=self._failure,
            result=combined_result([one.state for one in self.running]),
            notes=tuple(self._notes),
            signal=self._signal,
        )

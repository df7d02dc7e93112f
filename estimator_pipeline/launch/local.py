"""A cluster of processes on this machine: started, watched to its end, and nothing left behind.

    with hold_ports(shape.ports) as held:
        plan = plan_local(command, shape=shape, ports=held.ports, ...)
        outcome = run_local(plan)

:func:`launch_local` is these steps in one. The first task that fails ends the others; so do SIGINT, SIGTERM
and SIGHUP. Whatever happens, no process of the launch is left: each task has its own process group, the
kernel ends the tasks of a launcher that dies (`shim.py`), and a guard ends their children (`guard.py`).
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch import guard as guard_module
from estimator_pipeline.launch.cores import TRAINING_JOBS
from estimator_pipeline.launch.outcome import Failure, Outcome, TaskEnd, combined_result, last_lines
from estimator_pipeline.launch.plan import Plan, Shape, TaskPlan, counted, new_run_id, plan_local
from estimator_pipeline.launch.ports import hold_ports
from estimator_pipeline.launch.processes import Guard, Interruptions, Process, interruptions
from estimator_pipeline.launch.progress import LogReader, ProgressReader, TaskState
from estimator_pipeline.launch.view import SilentView, View

__all__ = ["launch_local", "run_local"]

_POLL = 0.1
_PS_FAREWELL = 5.0


def launch_local(
    command: Sequence[str],
    *,
    shape: Shape,
    log_dir: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    foreign: bool = True,
    cores: str = "split",
    view: View | None = None,
    grace: float = 5.0,
    timeout: float | None = None,
    linger: float = 120.0,
) -> Outcome:
    """Run a program as every task of a local cluster and wait for its end.

    Args:
        command: The program and its arguments; it finds its task in TF_CONFIG.
        shape: The cluster.
        log_dir: The folder for logs; None for a new temporary one.
        environ: The environment that the tasks start from; None for this process's.
        foreign: Whether the program is one that may not know how to end its ps and evaluator tasks.
        cores: "split" or "share", see :func:`plan_local`.
        view: Who shows what happens; None for nobody.
        grace: See :func:`run_local`.
        timeout: See :func:`run_local`.
        linger: See :func:`run_local`.

    Returns:
        How it ended. A task that fails is no exception here: look at `outcome.ok`.
    """
    base = dict(os.environ if environ is None else environ)
    with hold_ports(shape.ports) as held:
        plan = plan_local(
            command,
            shape=shape,
            ports=held.ports,
            log_dir=log_dir or tempfile.mkdtemp(prefix="estimator-pipeline-"),
            run_id=new_run_id(),
            environ=base,
            foreign=foreign,
            cores=cores,
        )
        return run_local(plan, view=view, environ=base, grace=grace, timeout=timeout, linger=linger)


def run_local(
    plan: Plan,
    *,
    view: View | None = None,
    environ: Mapping[str, str] | None = None,
    grace: float = 5.0,
    timeout: float | None = None,
    linger: float = 120.0,
) -> Outcome:
    """Start the processes of a plan and stay with them to their end.

    Signals can be handled on the main thread only; elsewhere they do what they always do.

    Args:
        plan: What to start. Its ports should be held by the caller until this returns.
        view: Who shows what happens; None for nobody.
        environ: The environment that each task's own is added to; None for this process's.
        grace: Seconds between SIGTERM and SIGKILL. A worker under MultiWorkerMirroredStrategy uses them up:
            TensorFlow catches SIGTERM there and trains on, unless the program sets a handler of its own after
            it has made the strategy.
        timeout: Seconds after which the job is ended; None for never.
        linger: Seconds that ps and evaluator have, after all training tasks ended well, to end by themselves.
            After that a ps is ended. So is an evaluator of a foreign program; one of ours has a deadline of
            its own. Where only the ps tasks of a foreign program are left, which serve nobody any more and
            mostly wait for ever, they have five seconds.

    Returns:
        How it ended.

    Raises:
        ConfigError: The folder for the logs cannot be made, or a log in it cannot be written.
    """
    try:
        plan.log_dir.mkdir(parents=True, exist_ok=True)
        running = [_Running(task) for task in plan.tasks]
    except OSError as error:
        raise ConfigError(
            f"The logs cannot be written to {plan.log_dir}.",
            found=str(error),
            mend="Give a folder that can be written with --log-dir.",
        ) from error
    base = dict(os.environ if environ is None else environ)
    job = _Job(plan, running, view or SilentView(), grace=grace, timeout=timeout, linger=linger)
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


class _Running:
    """A task of the plan, its process once started, and what is known of it."""

    def __init__(self, plan: TaskPlan) -> None:
        self.plan = plan
        self.name = str(plan.task)
        self.trains = plan.task.type in TRAINING_JOBS
        self.state = TaskState(self.name)
        # A folder that was used before holds the logs of then; this launch's begin where those end.
        self.log_offset = _size(plan.log)
        self._progress = ProgressReader(plan.progress, offset=_size(plan.progress))
        self._log = LogReader(plan.log, offset=self.log_offset)
        self._tells = False

    def start(self, base: Mapping[str, str]) -> None:
        environ = {**base, **self.plan.environ}
        self.process = Process(self.plan.command, environ=environ, cores=self.plan.cores, log=self.plan.log)
        self.state.pid = self.process.pid
        self.state.state = "running"

    @property
    def started(self) -> bool:
        return self.state.pid is not None

    @property
    def alive(self) -> bool:
        return self.started and self.process.exit_code is None

    def news(self) -> list[dict]:
        """The task's new events, which its state has taken over."""
        events = self._progress.read()
        self._tells = self._tells or bool(events)
        if not self._tells:
            events = self._log.read()
        for event in events:
            self.state.apply(event)
        return events


class _Job:
    """The watch over the processes of one plan, in a single loop."""

    def __init__(
        self,
        plan: Plan,
        running: list[_Running],
        view: View,
        *,
        grace: float,
        timeout: float | None,
        linger: float,
    ) -> None:
        self.plan = plan
        self.running = running
        self.view = view
        self._grace = grace
        self._timeout = timeout
        self._linger = linger
        self._started = time.monotonic()
        self._trained: float | None = None
        self._alone: float | None = None
        self._reason = "done"
        self._exit_code = 0
        self._failure: Failure | None = None
        self._notes: list[str] = []

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
            if not self._ending and self._timeout is not None and now - self._started > self._timeout:
                self._end("timeout", 1, f"the job did not end within {self._timeout:g} s; ending it")
            if not self._ending:
                self._let_go(now)
            for one in self.running:
                asked = one.process.asked_to_end
                if one.alive and asked is not None and now - asked > self._grace:
                    self._note_once(f"{one.name} did not end within {self._grace:g} s; killing it")
                    one.process.kill()
            if not any(one.alive for one in self.running):
                return
            time.sleep(_POLL)

    def _obey(self, signals: Interruptions) -> None:
        if not signals.received:
            return
        number = signals.received[0]
        if self._reason not in ("interrupted", "failed", "timeout"):
            self._end("interrupted", 128 + number, f"{signal.Signals(number).name}: ending every task")
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
        self.view.refresh()

    def _ended(self, fresh: list[_Running]) -> None:
        # Of several that ended since the last look, the one that fell silent first comes first: the others
        # mostly fail because of it.
        for one in sorted(fresh, key=lambda one: _changed(one.plan.log)):
            process, state = one.process, one.state
            code = process.exit_code or 0
            state.exit_code, state.seconds = code, process.seconds
            if code == 0:
                state.state = "done"
            elif process.asked_to_end is not None:
                state.state = "stopped" if self._ending else "released"
            else:
                state.state = "failed"
            self.view.ended(state)
            if state.state == "failed" and self._failure is None:
                self._failure = Failure(
                    one.name, code, one.plan.log, last_lines(one.plan.log, offset=one.log_offset)
                )
                self._end("failed", 2 if code == 2 else 1, "ending the other tasks")

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

    def outcome(self) -> Outcome:
        """How it all ended."""
        self._tell_news()
        return Outcome(
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
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0

"""What is started again: a local cluster on fresh ports, or a command as a whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from estimator_pipeline.cluster.ports import hold_ports
from estimator_pipeline.cluster.spec import Task
from estimator_pipeline.launch.history import attempts_text
from estimator_pipeline.launch.local.metrics import MetricsView
from estimator_pipeline.launch.local.orphan_guard import RUN_ID_VARIABLE, SUPERVISOR_VARIABLE
from estimator_pipeline.launch.local.outcome import Failure, LaunchOutcome
from estimator_pipeline.launch.local.plan import LaunchPlan, LaunchShape, TaskPlan, plan_local
from estimator_pipeline.launch.local.run import HEARTBEAT_SECS, run_local
from estimator_pipeline.launch.local.task import size
from estimator_pipeline.launch.local.timeouts import TaskTimeouts
from estimator_pipeline.launch.local.view import View
from estimator_pipeline.launch.supervisor.restart_policy import RestartLimits
from estimator_pipeline.launch.supervisor.supervisor import ATTEMPT_VARIABLE, attempt_run_id, supervise
from estimator_pipeline.progress.progress_file import (
    HEARTBEAT_FOLDER_VARIABLE,
    HEARTBEAT_VARIABLE,
    PREEMPTED_FILE_VARIABLE,
    PROGRESS_VARIABLE,
)

__all__ = ["CommandView", "plan_command", "supervise_command", "supervise_local"]

# What the view of a command, and its row in the summary, call it.
_COMMAND = "command"


def supervise_local(
    command: Sequence[str],
    *,
    shape: LaunchShape,
    log_dir: Path,
    run_id: str,
    limits: RestartLimits,
    environ: Mapping[str, str] | None = None,
    foreign: bool = True,
    hold: bool = True,
    cores: str = "split",
    view: View | None = None,
    grace: float = 5.0,
    timeout: float | None = None,
    linger: float = 120.0,
    timeouts: TaskTimeouts | None = None,
) -> LaunchOutcome:
    """Run a program as every task of a local cluster, and all of it again where it fails and that makes sense.

    Each attempt has ports and a run id of its own, and its logs in `attempt-N` of `log_dir`. The arguments are those
    of :func:`~estimator_pipeline.launch.local.plan.plan_local` and
    :func:`~estimator_pipeline.launch.local.run.run_local`.

    Args:
        limits: How much is tried.
        hold: Whether the launcher keeps the ports bound.

    Returns:
        The last attempt's outcome, with all attempts in it.
    """
    base = dict(os.environ if environ is None else environ)

    def attempt(
        number: int, own: str, folder: Path, left: float | None, shown: View, told: Mapping[str, str]
    ) -> LaunchOutcome:
        with hold_ports(shape.ports) as held:
            plan = plan_local(
                command,
                shape=shape,
                ports=held.ports,
                log_dir=folder,
                run_id=own,
                environ=base,
                foreign=foreign,
                hold_ports=hold,
                cores=cores,
                heartbeat=HEARTBEAT_SECS,
            )
            if not hold:
                held.release()
            return run_local(
                plan,
                view=shown,
                environ={**base, **told},
                grace=grace,
                timeout=left,
                linger=linger,
                timeouts=timeouts,
            )

    return supervise(attempt, run_id=run_id, log_dir=log_dir, limits=limits, timeout=timeout, view=view)


def plan_command(
    command: Sequence[str], *, log_dir: Path, run_id: str, number: int, environ: Mapping[str, str]
) -> LaunchPlan:
    """A plan of one process that runs a command as it is: all CPUs, no TF_CONFIG, no ports.

    ESTIMATOR_PIPELINE_RUN_ID is left alone, for the tasks of a job on several machines must agree upon it, each under a
    supervisor of its own. Where it is set, a new attempt has a new one.
    """
    folder = log_dir.absolute()
    progress = folder / f"{_COMMAND}.progress.jsonl"
    own = {
        SUPERVISOR_VARIABLE: run_id,
        ATTEMPT_VARIABLE: str(number),
        PROGRESS_VARIABLE: str(progress),
        HEARTBEAT_VARIABLE: f"{HEARTBEAT_SECS:g}",
        # It may be one task, or the line of srun that starts all of them.
        HEARTBEAT_FOLDER_VARIABLE: str(folder / "heartbeats"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    if environ.get(PREEMPTED_FILE_VARIABLE):
        own[PREEMPTED_FILE_VARIABLE] = environ[PREEMPTED_FILE_VARIABLE]
    if environ.get(RUN_ID_VARIABLE):
        own[RUN_ID_VARIABLE] = attempt_run_id(environ[RUN_ID_VARIABLE], number)
    task = TaskPlan(
        task=Task("worker"),
        command=tuple(command),
        environ=own,
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
    watch_path: Path | None = None,
    metrics: Path | None = None,
) -> LaunchOutcome:
    """Run a command as one process with all its children, and again where it fails and that makes sense.

    Args:
        command: The program and its arguments.
        log_dir: For the history; each attempt has its log in `attempt-N` there.
        run_id: Of the first attempt.
        limits: How much is tried.
        environ: The environment of the command; None for this process's.
        view: Who shows what happens; None for nobody.
        grace: Seconds between SIGTERM and SIGKILL.
        timeout: Seconds for all attempts together.
        timeouts: How long it may be silent.
        watch_path: A file or folder whose changes count as news.
        metrics: A file for Prometheus, see :class:`~estimator_pipeline.launch.local.metrics.MetricsView`; None for
            none.

    Returns:
        The last attempt's outcome. Where a signal ended it, the exit code is the command's own if it has one: 75 of a
        training that stands in a checkpoint is what a scheduler wants to know.
    """
    base = dict(os.environ if environ is None else environ)

    def attempt(
        number: int, own: str, folder: Path, left: float | None, shown: View, told: Mapping[str, str]
    ) -> LaunchOutcome:
        plan = plan_command(command, log_dir=folder, run_id=own, number=number, environ=base)
        if isinstance(view, CommandView):
            view.before(plan)
        outcome = run_local(
            plan,
            view=shown,
            environ={**base, **told},
            grace=grace,
            timeout=left,
            timeouts=timeouts,
            watch_path=watch_path,
        )
        return _with_own_code(outcome)

    shown = view if metrics is None else MetricsView(view, metrics)
    return supervise(attempt, run_id=run_id, log_dir=log_dir, limits=limits, timeout=timeout, view=shown)


def _with_own_code(outcome: LaunchOutcome) -> LaunchOutcome:
    """The command's own exit code, where it ended by itself or in its own way after a signal.

    Of a command that started several tasks, that of the first one that failed: srun has the highest of all, which may
    be 143, of a task that it has ended itself.
    """
    code = outcome.tasks[0].exit_code
    if outcome.reason == "failed" and outcome.failure is not None and outcome.failure.task != _COMMAND:
        own = outcome.failure.exit_code
        code = code if own is None else own if own >= 0 else 128 - own
    if outcome.reason in ("failed", "interrupted", "preempted") and code is not None and code > 0:
        return replace(outcome, exit_code=code)
    return outcome


class CommandView(View):
    """What a person sees of a supervised command: its own output, and a word of the supervisor when there is need.

    Args:
        output: Where the command's output goes, bytes for bytes.
        words: Where the supervisor's lines go.
    """

    def __init__(self, output: BinaryIO, words: Any = None) -> None:
        self._output = output
        self._words = sys.stderr if words is None else words
        self._log: Path | None = None
        self._offset = 0

    def before(self, plan: LaunchPlan) -> None:
        """An attempt is about to start: its output comes after what is in its log now."""
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

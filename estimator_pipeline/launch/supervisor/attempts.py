"""Jobs that can be restarted: a local cluster with new ports, or a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from estimator_pipeline.cluster.spec import Task
from estimator_pipeline.launch.history import attempts_text
from estimator_pipeline.launch.local.metrics import MetricsView
from estimator_pipeline.launch.local.orphan_guard import RUN_ID_VARIABLE, SUPERVISOR_VARIABLE
from estimator_pipeline.launch.local.outcome import Failure, LaunchOutcome
from estimator_pipeline.launch.local.plan import LaunchPlan, LaunchShape, TaskPlan
from estimator_pipeline.launch.local.run import HEARTBEAT_SECS, launch_local, run_local
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

# The name of a command in the view and in the summary.
_COMMAND = "command"


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
        return launch_local(
            command,
            shape=shape,
            log_dir=folder,
            run_id=attempt_id,
            environ={**base, **extra},
            files=files,
            foreign=foreign,
            hold=hold,
            cores=cores,
            view=shown,
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
    watch_path: Path | None = None,
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
        watch_path: A file or folder whose changes count as progress.
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
            watch_path=watch_path,
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

"""Launches on this machine as one of the schedulers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.launch.history import last_failed, read_events
from estimator_pipeline.launch.job_status import JobEntry, JobStatus, TaskFailure, read_progress
from estimator_pipeline.launch.local.outcome import end_of, lines_of
from estimator_pipeline.launch.local.plan import launches_folder, log_folder_of, make_log_folder, new_run_id
from estimator_pipeline.launch.local.record import RECORD, Launch, is_launch, read_launch
from estimator_pipeline.launch.logs.readers import JobLogs
from estimator_pipeline.launch.scheduler import (
    JobList,
    JobReference,
    ListRequest,
    LogFolder,
    LogRequest,
    Scheduler,
    SubmitOption,
    SubmitPlan,
    SubmitRequest,
    SubmitResult,
    check_element,
)
from estimator_pipeline.launch.stacks.requests import attempts_of
from estimator_pipeline.utils.deadline import Deadline
from estimator_pipeline.utils.paths import real_path
from estimator_pipeline.utils.remaining_time import time_text
from estimator_pipeline.utils.text import counted

__all__ = ["LocalScheduler"]

OUTPUT = "launch.log"
_LABEL = "launch"
_POLL_SECS = 0.1
# A launch of `submit local` writes its record after the imports, which a slow disk may delay.
_START_SECS = 300.0
# Beside the grace period: the tasks write a checkpoint, then the launcher exits.
_STOP_SECS = 120.0


class LocalScheduler(Scheduler[Launch]):
    """Launches; one is found by its log folder, or by the job file if that folder is in the model directory."""

    name = "local"
    title = "this machine"
    location = "on this machine"
    submit_help = """Launch a job on this machine in the background, and print its log folder.

    The launch is that of `launch`: all tasks run on this machine, and it continues when the terminal is closed.
    `status`, `logs`, `stacks` and `cancel` take the same job file, or the log folder. Exit codes: 0 if it has started,
    2 for bad input, or if a launch of the same model directory runs.
    """
    submit_options = (
        SubmitOption(
            "--max-restarts",
            "Restart a failed job at most this many times in a row without progress.",
            "N",
            int,
            least=0,
        ),
    )
    # Tasks always have time for a checkpoint.
    options = frozenset({"checkpoint", "folder"})
    instead = {"now": "leave it out; `kill -KILL PID` of the launcher ends all of its tasks at once."}
    checks = ("identity", "data", "shards", "model")

    def plan(self, request: SubmitRequest) -> SubmitPlan:
        from estimator_pipeline.job import load_job

        job = load_job(request.file, overrides=request.settings)
        run_id = new_run_id()
        folder = log_folder_of(job, run_id)
        command = [sys.executable, "-m", "estimator_pipeline", "launch", str(request.file), "--no-checks"]
        command += ["--log-dir", str(folder), *(f"--set={change}" for change in request.settings)]
        if "max_restarts" in request.options:
            command += ["--max-restarts", str(request.options["max_restarts"])]
        content = Launch(folder, command=tuple(command), model_dir=job.run.model_dir)
        text = json.dumps({"command": command, "folder": str(folder)}, indent=2)
        return SubmitPlan(shlex.join(command), text, [job], content)

    def submit(self, plan: SubmitPlan, *, environ: Mapping[str, str]) -> SubmitResult:
        """Start the launch in a new session, and wait until it has checked its input and started."""
        content: Launch = plan.content
        for launch in _launches(content.folder.parent):
            if launch.is_running and real_path(launch.model_dir) == real_path(content.model_dir):
                raise ConfigError(
                    f"a launch of the same model directory runs: {_job_id(launch)}; nothing is started.",
                    code="jobs/exists",
                    hint=f"wait for its end, cancel it (`estimator-pipeline cancel {_job_id(launch)}`), or set a "
                    "different run.model_dir.",
                )
        output = content.folder / OUTPUT
        try:
            make_log_folder(content.folder)
            with open(output, "ab") as log:
                process = subprocess.Popen(
                    content.command,
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ConfigError(
                f"the launch cannot be started with its logs in {content.folder}.",
                code="file/unwritable",
                found=f"{error.strerror}: {error.filename}",
                hint="set run.model_dir to a folder that can be written to.",
            ) from None
        for _ in Deadline(_START_SECS).polls(_POLL_SECS):
            if (content.folder / RECORD).is_file() or process.poll() is not None:
                break
        if not (content.folder / RECORD).is_file():
            process.kill()
            process.wait()
            last = end_of(output, offset=0, limit=4096).strip()
            shutil.rmtree(content.folder, ignore_errors=True)
            raise ConfigError(
                "the launch did not start.",
                code="launch/cannot-start",
                found=last or f"no record within {_START_SECS:.0f} seconds",
                hint="run `estimator-pipeline launch` with the same arguments to see what it prints.",
            )
        process.returncode = 0  # It continues; Popen would warn of a process without an exit code.
        launch = read_launch(content.folder)
        job_id = _job_id(launch)
        commands = [f"{name + ':':<7} estimator-pipeline {name} {job_id}" for name in ("status", "logs", "cancel")]
        return SubmitResult(launch.document(), [(job_id, False), *((line, True) for line in commands)])

    def claims(self, reference: JobReference) -> bool:
        """Return whether a name is a log folder, or a job file or model directory with launches.

        A launch that has ended does not claim a job file that names an image: only the cluster knows its job.
        """
        launch = _newest(reference)
        if launch is None or "namespace" in reference.options:
            return False
        job = reference.job
        return job is None or job.kubernetes.image is None or launch.is_running

    def last_active(self, reference: JobReference) -> float:
        launch = _newest(reference)
        return 0.0 if launch is None else time.time() if launch.is_running else launch.last_active

    def find(self, reference: JobReference, *, environ: Mapping[str, str]) -> Launch:
        launch = _newest(reference)
        if launch is None:
            raise ConfigError(
                f"{reference.name}: nothing was launched here.",
                code="jobs/not-found",
                found="no logs of a launch",
                hint="name a job file that was launched (with the same --set), or the log folder.",
            )
        return launch

    def status(self, job: Launch, *, environ: Mapping[str, str]) -> JobEntry:
        launch = read_launch(job.folder)
        return JobEntry(launch.document(), [_status(launch)])

    def list_jobs(self, request: ListRequest, *, environ: Mapping[str, str]) -> JobList:
        """See `Scheduler`: the newest launch of each model directory below the folder, and others that run."""
        records = request.records[RECORD]
        launches = sorted((read_launch(path.parent) for path in records), key=lambda launch: launch.started)
        newest = {launch.model_dir or str(launch.folder): launch.folder for launch in launches}
        last = set(newest.values())
        shown = [launch for launch in reversed(launches) if launch.folder in last or launch.is_running]
        recent = [launch for launch in shown if launch.is_running or launch.last_active >= request.since]
        entries = [self.status(launch, environ=environ) for launch in recent]
        return JobList(entries, len(shown) - len(recent))

    def logs(self, job: Launch, reference: JobReference, request: LogRequest, *, environ: Mapping[str, str]) -> None:
        """See `Scheduler`; the launcher has a log, too, if it was started by `submit local`."""
        check_element(reference.options.get("element"), None, noun="logs")
        known = (_LABEL, *_tasks_of(job))
        request.check(known)
        if request.failed:
            _write_failed_log(job, request)
            return
        logs = _LaunchLogs(job.folder, wanted=request.task, last=request.lines or None)
        logs.show(request, known, has_ended=lambda: not read_launch(job.folder).is_running)

    def stacks(self, job: Launch, reference: JobReference) -> LogFolder:
        return LogFolder(job.folder, _tasks_of(job))

    def cancel(
        self, job: Launch, reference: JobReference, *, environ: Mapping[str, str], report: Callable[[str], None]
    ) -> None:
        """Send the launcher SIGTERM, on which it stops the tasks after a checkpoint, and wait until it has exited."""
        launch, job_id = read_launch(job.folder), _job_id(job)
        if not launch.is_running:
            report(f"{job_id} has ended already")
            return
        if not launch.is_here:
            raise ConfigError(
                f"{job_id} does not run on this machine.",
                code="argument/not-applicable",
                found=f"it was launched on {launch.host}" if launch.host else "no record of its process",
                hint="run the command there, or send the launcher SIGTERM.",
            )
        try:
            os.kill(launch.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass  # it has just ended
        except PermissionError as error:
            raise ConfigError(
                f"{job_id} cannot be cancelled by this user.",
                code="file/unwritable",
                found=f"process {launch.pid}: {error.strerror}",
                hint="run the command as the user who launched it.",
            ) from None
        report(f"{job_id}: asked to stop with a checkpoint")
        allowed = launch.grace + _STOP_SECS
        for _ in Deadline(allowed).polls(_POLL_SECS):
            if not read_launch(job.folder).is_running:
                report(f"{job_id}: {_status(read_launch(job.folder)).text}")
                return
        raise TaskFailedError(
            f"{job_id} has not ended within {allowed:.0f} seconds.",
            code="scheduler/refused",
            found=f"process {launch.pid} still runs",
            hint=f"wait, or end it with all tasks at once: `kill -KILL {launch.pid}`.",
        )


# Launches ----------------------------------------------------------------------------------------------------------


def _job_id(launch: Launch) -> str:
    """Return the path of the log folder, relative if it is below the current folder."""
    path, here = str(launch.folder), f"{os.getcwd()}/"
    return path.removeprefix(here) if path.startswith(here) else path


def _newest(reference: JobReference) -> Launch | None:
    """Return the launch of a log folder, or of a job file or model directory the newest, preferably one that runs."""
    if reference.is_id:
        return None
    job, path = reference.job, Path(reference.name)
    if job is None and is_launch(path):
        return read_launch(path)
    launches = _launches(launches_folder(reference.name if job is None else job.run.model_dir))
    return max(launches, key=lambda launch: (launch.is_running, launch.last_active), default=None)


def _launches(logs: Path) -> list[Launch]:
    return [read_launch(folder) for folder in logs.glob("*") if is_launch(folder)]


def _tasks_of(launch: Launch) -> tuple[str, ...]:
    """Return the names of the tasks; without a record those that have a log."""
    logs = (log for folder in attempts_of(launch.folder) for log in sorted(folder.glob("*.log")) if log.name != OUTPUT)
    return launch.tasks or tuple(dict.fromkeys(":".join(log.stem.rsplit("-", 1)) for log in logs))


class _LaunchLogs(JobLogs):
    """Reader of the logs of a launch: the launcher's, and each task's in every attempt."""

    def __init__(self, folder: Path, *, wanted: str | None, last: int | None) -> None:
        super().__init__(last=last)
        self._folder, self._wanted = folder, wanted

    def files(self) -> Iterator[tuple[Path, str, bool]]:
        if self._wanted in (None, _LABEL):
            yield self._folder / OUTPUT, _LABEL, True
        attempts = attempts_of(self._folder)
        for attempt in attempts:
            for task in _tasks_of(read_launch(self._folder)):
                if self._wanted in (None, task):
                    yield attempt / f"{task.replace(':', '-')}.log", task, attempt == attempts[-1]


def _write_failed_log(launch: Launch, request: LogRequest) -> None:
    """Write the failure in one line, and the last lines of that task's log."""
    failure = _failure(read_launch(launch.folder), read_events(launch.folder))
    if failure is None:
        raise ConfigError("no task has failed, as far as the launcher knows.", code="jobs/not-found")
    request.write(failure.text())
    for line in lines_of(launch.folder / failure.log, request.lines) if failure.log else ():
        request.write(line)


# Status ------------------------------------------------------------------------------------------------------------


def _status(launch: Launch) -> JobStatus:
    running = launch.is_running
    if not running:
        launch = read_launch(launch.folder)  # the launcher records its end before it exits
    events = [event for event in read_events(launch.folder) if event.get("time", 0.0) >= launch.started]
    restarts = sum(event.get("event") == "restart_in" for event in events)
    progress = read_progress(list(folder.glob("*.progress.jsonl")) for folder in reversed(attempts_of(launch.folder)))
    failure = _failure(launch, events)
    state, text, failed = ("RUNNING", "running", False) if running else _end_state(launch, failure, progress)
    seconds = (time.time() if running else launch.last_active) - launch.started if launch.started else 0.0
    details = [time_text(seconds)] if launch.started else []
    details += [f"process {launch.pid} on {launch.host}"] if running and launch.pid else []
    details += [f"restarted {counted(restarts, 'time')}"] if restarts else []
    return JobStatus(
        job_id=_job_id(launch),
        state=state,
        text=text,
        name=launch.name,
        nodes=launch.host,
        run_time=time_text(seconds) if launch.started else "",
        exit_code=None if launch.end is None else launch.end["exit_code"],
        progress=progress,
        failure=failure if running or failed else None,
        task_restarts=restarts,
        failed=failed,
        model_dir=launch.model_dir,
        phase="running" if running else "ended",
        details=tuple(details),
    )


def _end_state(launch: Launch, failure: TaskFailure | None, progress: Mapping[str, Any]) -> tuple[str, str, bool]:
    """Return the state of a launch that has ended, the state as text, and whether it has failed."""
    if launch.end is None and launch.is_here:
        return "KILLED", f"killed: process {launch.pid} is gone and has recorded no end", True
    if launch.end is None and "result" in progress:
        return "DONE", "done", False
    if launch.end is None:
        where = f" on {launch.host}" if launch.host else ""
        return "UNKNOWN", f"unknown: no heartbeat of a task{where}, and no record of an end", True
    reason, code, number = (launch.end[name] for name in ("reason", "exit_code", "signal"))
    state = reason.upper()
    if reason == "done":
        return state, "done", False
    if reason == "timeout":
        return state, "ended by its --timeout", True
    if reason == "interrupted" or (reason == "preempted" and number is not None):
        by = signal.Signals(number or signal.SIGINT).name
        saved = "; the next launch resumes from the last checkpoint" if reason == "preempted" else ""
        return state, f"stopped by {by}{saved} (exit code {code})", False
    why = launch.end["why"] if failure is None else failure.text()
    return state, f"failed: {why}" if why else f"failed (exit code {code})", True


def _failure(launch: Launch, events: Sequence[Mapping[str, Any]]) -> TaskFailure | None:
    """Return the failure that ended a launch, or the last one that was followed by a restart."""
    if launch.end is not None and launch.end["failure"] is not None:
        fields = dict(launch.end["failure"])
        return TaskFailure(description=fields.pop("what"), **fields)
    event = last_failed(events)
    if event is None:
        return None
    task, attempt = str(event.get("task") or ""), event.get("attempt") or 1
    log = launch.folder / f"attempt-{attempt}" / f"{task.replace(':', '-')}.log"
    return TaskFailure.of_event(event, task=task, log=log, below=launch.folder)

"""Slurm jobs: submit, status, list and cancel, by Slurm's commands.

A submission has a folder with the script, the job file, `submission.json` and logs:

    output.log             output of the script and the supervisor, over all requeues
    run-0/task-1.log       output of the task of rank 1 in the first run; run-1 is the run after a requeue
    run-0/attempt-1/...    files of the supervisor: progress of the tasks, and its history
    3/output.log, ...      of an array: the same for each element
The status comes from `scontrol show job`, whose format is stable, unlike that of `squeue --json`. It knows a job for
some minutes after its end (MinJobAge). After that `sacct` does, if accounting is set up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimator_pipeline.cluster.resolution import EVALUATOR_VARIABLE
from estimator_pipeline.errors import ConfigError, PipelineError, TaskFailedError
from estimator_pipeline.job import Job
from estimator_pipeline.launch.job_status import JobStatus
from estimator_pipeline.launch.local.orphan_guard import RUN_ID_VARIABLE
from estimator_pipeline.launch.local.outcome import end_of
from estimator_pipeline.launch.slurm.history import JobHistory, history_of, was_asked_to_stop
from estimator_pipeline.launch.slurm.logs import progress_of
from estimator_pipeline.launch.slurm.script import OUTPUT, SCRIPT, SlurmPlan
from estimator_pipeline.launch.slurm.status import (
    ASKED,
    ENDED,
    FAILED,
    NO_ANSWER,
    failed_text,
    remedy_of,
    state_text,
)
from estimator_pipeline.launch.supervisor.ranks import numbers
from estimator_pipeline.progress.progress_file import PROGRESS_VARIABLE
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.text import counted

__all__ = [
    "Submission",
    "cancel",
    "find_submission",
    "job_status",
    "list_jobs",
    "records_in",
    "submissions_folder",
    "submit",
]

RECORD = "submission.json"
# The levels: a folder of models, a model, its folder of submissions, a submission.
_DEEPEST = 4
# Seconds after `slurm.signal_seconds` within which Slurm reports that the job has ended.
_SLACK_SECS = 30.0
_COMMAND_SECS = 60.0
_POLL_SECS = 1.0

# A job that is ending does not keep a model directory from the next one for long.
_OVER = (*ENDED, "COMPLETING")

# Variables of Slurm that users set for its commands.
_CLIENT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")


@dataclass(frozen=True)
class Submission:
    """The content of `submission.json`.

    Attributes:
        job_id: Slurm's id of the job or of the array.
        folder: The folder of the script and the logs.
        name: The job's name.
        tasks: The names of the tasks in the order of their ranks.
        model_dirs: The model directory of the job, or of each array element.
        array: The number of array elements, or None.
        submitted: The time in seconds since 1970.
        stop_seconds: Seconds that the tasks may take to stop with a checkpoint.
    """

    job_id: str
    folder: Path
    name: str
    tasks: tuple[str, ...] = ()
    model_dirs: tuple[str, ...] = ()
    array: int | None = None
    submitted: float = 0.0
    stop_seconds: float = 120.0

    @property
    def log_folders(self) -> tuple[Path, ...]:
        """The folders of output.log and the runs: one, or one for each array element."""
        return tuple(self.folder / str(i) for i in range(self.array)) if self.array else (self.folder,)

    def document(self) -> dict[str, Any]:
        """Return the submission as a JSON document."""
        return {**self.__dict__, "scheduler": "slurm", "folder": str(self.folder)}


def submissions_folder(job: Job) -> Path:
    """Return the folder of a job's submissions.

    Raises:
        ConfigError: The model directory is in a bucket, and slurm.dir is not set.
    """
    if job.slurm.dir is not None:
        return Path(job.slurm.dir).absolute()
    if "://" in job.run.model_dir:
        raise ConfigError(
            "scripts and logs of Slurm jobs need a folder that all nodes share.",
            code="file/unwritable",
            found=f"run.model_dir {job.run.model_dir}, which is not a folder, and no slurm.dir",
            hint="set slurm.dir.",
        )
    return Path(job.run.model_dir).absolute() / "slurm"


def submit(plan: SlurmPlan, *, environ: Mapping[str, str]) -> Submission:
    """Write the submission's folder, and submit the script by sbatch.

    Raises:
        ConfigError: There is no sbatch, a job of the same model directory has not ended, the folder cannot be written,
            or Slurm rejects the job. The folder is removed.
    """
    _program("sbatch", environ)
    folder = Path(plan.folder)
    if not plan.has_dependency:
        _check_model_dirs(plan, environ)
    try:
        for part in range(plan.array or 0):
            (folder / str(part)).mkdir(parents=True)
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in plan.files.items():
            (folder / file).write_text(text, encoding="utf-8")
        (folder / SCRIPT).write_text(plan.script, encoding="utf-8")
        (folder / SCRIPT).chmod(0o755)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(
            f"the submission cannot be written to {folder}",
            code="file/unwritable",
            found=f"{error.strerror}: {error.filename}",
            hint="set slurm.dir to a folder that can be written to and that all nodes share.",
        ) from None
    done = _ran(["sbatch", "--parsable", str(folder / SCRIPT)], _clean(environ))
    job_id = done.stdout.strip().splitlines()[-1].partition(";")[0] if done.stdout.strip() else ""
    if done.returncode != 0 or not job_id.isdigit():
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(
            "Slurm rejected the job.",
            code="scheduler/refused",
            found=_output(done),
            hint="change the section slurm of the job file (--set slurm.partition=..., slurm.time=...); "
            "`--dry-run` shows the script.",
        )
    submission = Submission(
        job_id=job_id,
        folder=folder,
        name=plan.name,
        tasks=plan.tasks,
        model_dirs=plan.model_dirs,
        array=plan.array,
        submitted=time.time(),
        stop_seconds=plan.signal_seconds + _SLACK_SECS,
    )
    durable.write(folder / RECORD, json.dumps(submission.document(), indent=1).encode() + b"\n")
    return submission


def _check_model_dirs(plan: SlurmPlan, environ: Mapping[str, str]) -> None:
    """Raise an error if a job with a model directory of this plan waits or runs."""
    wanted = {_resolved(model_dir) for model_dir in plan.model_dirs}
    for submission, states in _alive(Path(plan.folder).parent, environ):
        for element, model_dir in enumerate(submission.model_dirs):
            state = states.get(element)
            if state is None or _resolved(model_dir) not in wanted:
                continue
            job_id = _id_of(submission, element)
            raise ConfigError(
                f"job {job_id} ({submission.name}) of the same model directory is {state_text(state)}; nothing is "
                "submitted.",
                code="jobs/exists",
                found=f"run.model_dir {model_dir}",
                hint=f"wait for its end, cancel it (`estimator-pipeline cancel {job_id}`), or set a different "
                f"run.model_dir; with slurm.dependency: afterany:{job_id} the new job starts after it.",
            )


def _trains_in(submission: Submission, model_dir: str) -> bool:
    """Return whether a job, or an element of an array, trains in this directory or in a folder in it."""
    base = _resolved(model_dir).rstrip("/")
    return any(f"{_resolved(folder)}/".startswith(f"{base}/") for folder in submission.model_dirs)


def _resolved(model_dir: str) -> str:
    return model_dir if "://" in model_dir else os.path.realpath(model_dir)


def _alive(folder: Path, environ: Mapping[str, str]) -> Iterator[tuple[Submission, dict[int, str]]]:
    """Iterate over the submissions that Slurm has not ended, with the states of their elements; 0 without an array.

    Args:
        folder: A folder of submissions. Those elsewhere are found by Slurm's records of the jobs' scripts.
        environ: The environment of Slurm's commands. Nothing is alive if they do not answer.
    """
    try:
        records = [record for record in _fields(_show_job(None, environ)) if record.get("JobState") not in _OVER]
    except PipelineError:
        return
    files = dict.fromkeys(folder.glob(f"*/{RECORD}")) if records else {}
    scripts = (Path(record.get("Command", "")) for record in records)
    files |= dict.fromkeys(script.parent / RECORD for script in scripts if script.name == SCRIPT)
    for file in files:
        try:
            submission = _read(file)
        except ConfigError:
            continue
        states: dict[int, str] = {}
        for record in records:
            # Slurm starts again with id 1 when it loses its state.
            if submission.job_id in (record["JobId"], record.get("ArrayJobId")) and (
                Path(record.get("Command", file)).parent.name == file.parent.name
            ):
                elements = {0} if submission.array is None else _elements(record.get("ArrayTaskId", ""))
                states |= dict.fromkeys(elements, record.get("JobState", ""))
        if states:
            yield submission, states


def find_submission(
    target: str, *, folder: Path | None = None, model_dir: str | None = None, environ: Mapping[str, str]
) -> Submission:
    """Find a submission.

    Args:
        target: A job's id, or the folder of a submission, of submissions or of a model. Of several submissions, the
            newest counts, or an earlier one of the same model directory that still waits or runs.
        folder: The folder of the submissions, if `target` is a job file.
        model_dir: The model directory, if `target` is a job file: `slurm.dir` may have submissions of several.
        environ: The environment of Slurm's commands.

    Raises:
        ConfigError: There is no such submission.
    """
    if folder is None and re.fullmatch(r"\d+(_\d+)?", target):
        records = _fields(_show_job(target, environ))
        script = Path(records[0].get("Command", "") if records else "")
        if script.name == SCRIPT and (script.parent / RECORD).is_file():
            return _read(script.parent / RECORD)
        raise ConfigError(
            f"{target}: Slurm knows no such job of estimator-pipeline.",
            code="jobs/not-found",
            found=f"its script is {script}" if records else "no such job, or it ended some minutes ago",
            hint="name the job file, or the submission's folder.",
        )
    place = folder if folder is not None else Path(target)
    files = records_in(place)
    if files:
        submissions = [_read(file) for file in files]
        if model_dir is not None:
            submissions = [job for job in submissions if _trains_in(job, model_dir)] or submissions
        newest = max(submissions, key=lambda submission: submission.submitted)
        return newest if len(files) == 1 else _newest_alive(newest, environ) or newest
    raise ConfigError(
        f"{target}: nothing has been submitted to Slurm here.",
        code="jobs/not-found",
        found=f"no {RECORD} in {place}, or in folders in it",
        hint="name a job file that was submitted (with the same --set), a submission's folder or a job's id.",
    )


def records_in(place: Path) -> list[Path]:
    """Return the records of the submissions in a folder: of a submission, of submissions, or of a model."""
    for base in (place, place / "slurm"):
        if (base / RECORD).is_file():
            return [base / RECORD]
        files = [child / RECORD for child in base.iterdir() if (child / RECORD).is_file()] if base.is_dir() else []
        if files:
            return files
    return []


def _newest_alive(newest: Submission, environ: Mapping[str, str]) -> Submission | None:
    """Return the newest submission with a model directory of this one that waits or runs, if there is one."""
    wanted = set(map(_resolved, newest.model_dirs))
    alive = [submission for submission, _ in _alive(newest.folder.parent, environ)]
    same = [submission for submission in alive if wanted.intersection(map(_resolved, submission.model_dirs))]
    return max(same, key=lambda submission: submission.submitted, default=None)


def job_status(submission: Submission, *, environ: Mapping[str, str]) -> list[JobStatus]:
    """Return the status of a job, or of each array element, by Slurm if it answers.

    Raises:
        ConfigError: There is no scontrol.
    """
    try:
        records = _fields(_show_job(submission.job_id, environ))
    except TaskFailedError as error:
        return _without_answer(submission, error)
    return _statuses(submission, records, environ)


def list_jobs(
    folder: Path, *, environ: Mapping[str, str], since: float = 0.0
) -> tuple[list[tuple[Submission, list[JobStatus]]], int]:
    """List this user's jobs in Slurm, and those submitted below a folder.

    Of the submissions to one model directory, only the newest is listed, and others that Slurm still knows. The newest
    jobs come first.

    Args:
        folder: The folder to search for model directories, four levels deep.
        environ: The environment of Slurm's commands.
        since: Leave out submissions that ended before this time, in seconds since 1970.

    Returns:
        The jobs, and the number of submissions that are left out.
    """
    known: list[dict[str, str]] = []
    no_answer: PipelineError | None = None
    try:
        known = _fields(_show_job(None, environ))
    except PipelineError as error:
        no_answer = error
    files = {path.parent.resolve(): path for path in _newest_records(folder)}
    for record in known:
        file = Path(record.get("Command", "")).parent / RECORD
        if record.get("UserId", "").endswith(f"({os.getuid()})") and Path(record["Command"]).name == SCRIPT:
            files.setdefault(file.parent.resolve(), file)
    jobs, left_out = [], 0
    for file in files.values():
        with contextlib.suppress(ConfigError):
            submission = _read(file)
            records = [record for record in known if submission.job_id in (record["JobId"], record.get("ArrayJobId"))]
            has_ended = no_answer is None and all(record.get("JobState") in ENDED for record in records)
            if has_ended and _last_change(submission) < since:
                left_out += 1
            elif no_answer is not None:
                jobs.append((submission, _without_answer(submission, no_answer)))
            else:
                jobs.append((submission, _statuses(submission, records, environ)))
    return sorted(jobs, key=lambda job: job[0].submitted, reverse=True), left_out


def _last_change(submission: Submission) -> float:
    """Return when a submission was last changed: its scripts log their ends."""
    changed = submission.submitted
    for folder in submission.log_folders:
        with contextlib.suppress(OSError):
            changed = max(changed, (folder / OUTPUT).stat().st_mtime)
    return changed


def _newest_records(folder: Path) -> Iterator[Path]:
    """Return the record of the newest submission in each folder of submissions."""
    newest: dict[Path, tuple[float, Path]] = {}
    for depth in range(_DEEPEST + 1):
        for path in folder.glob("*/" * depth + RECORD):
            with contextlib.suppress(OSError):
                candidate = (path.stat().st_mtime, path)
                newest[path.parent.parent] = max(candidate, newest.get(path.parent.parent, candidate))
    yield from (path for _, path in newest.values())


def _statuses(submission: Submission, records: list[dict[str, str]], environ: Mapping[str, str]) -> list[JobStatus]:
    """Return the status of a job by Slurm's records, if Slurm still has them."""
    if not records:
        return [_forgotten(submission, i, environ) for i in range(submission.array or 1)]
    if submission.array is None:
        # The first component of a heterogeneous job runs the script.
        return [_status(submission, 0, records[0])]
    statuses = []
    for i in range(submission.array):
        record = next((record for record in records if i in _elements(record.get("ArrayTaskId", ""))), None)
        statuses.append(_forgotten(submission, i, environ) if record is None else _status(submission, i, record))
    return statuses


def cancel(
    submission: Submission,
    *,
    checkpoint: bool,
    environ: Mapping[str, str],
    report: Callable[[str], None] = lambda text: None,
) -> None:
    """Cancel a job.

    Args:
        submission: The job.
        checkpoint: Whether to let the tasks stop with a checkpoint first. Otherwise Slurm waits KillWait (30 seconds
            by default) between SIGTERM and SIGKILL.
        environ: The environment of Slurm's commands.
        report: Called with messages about the progress.

    Raises:
        TaskFailedError: Slurm does not answer, or does not cancel the job.
    """
    alive = [status for status in job_status(submission, environ=environ) if not status.ended]
    if not alive:
        report(f"job {submission.job_id} has ended already")
        return
    if checkpoint and any(status.state == "RUNNING" for status in alive):
        # Only to the script: it stops the tasks, and does not requeue the job then.
        _checked(["scancel", "--batch", "--signal=TERM", submission.job_id], environ)
        report(f"job {submission.job_id}: asked to stop with a checkpoint")
        deadline = time.monotonic() + submission.stop_seconds
        while time.monotonic() < deadline:
            alive = [status for status in job_status(submission, environ=environ) if not status.ended]
            if not any(status.state in ("RUNNING", "COMPLETING") for status in alive):
                break
            time.sleep(_POLL_SECS)
    if alive:
        _checked(["scancel", submission.job_id], environ)
        report(f"job {submission.job_id}: cancelled")


# -- Slurm's commands -------------------------------------------------------------------------------------------


def _program(name: str, environ: Mapping[str, str]) -> None:
    if shutil.which(name, path=environ.get("PATH")) is None:
        raise ConfigError(
            f"there is no {name} on this machine.",
            code="scheduler/unavailable",
            found="no such program on PATH",
            hint="run this where Slurm's commands are (a login node), or `module load slurm`; "
            "`--dry-run` prints the script anywhere.",
        )


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Remove the variables of this process's task, which a job would inherit."""
    ours = {name for name in environ if name.startswith(("SLURM_", "SRUN_")) and name not in _CLIENT} | {"TF_CONFIG"}
    ours |= {RUN_ID_VARIABLE, EVALUATOR_VARIABLE, PROGRESS_VARIABLE}
    return {name: value for name, value in environ.items() if name not in ours}


def _ran(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    _program(command[0], environ)
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            timeout=_COMMAND_SECS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TaskFailedError(
            f"{command[0]} did not answer within {_COMMAND_SECS:.0f} seconds.",
            code="scheduler/unavailable",
            hint="check whether Slurm's controller is up: `scontrol ping`.",
        ) from None


def _output(done: subprocess.CompletedProcess[str]) -> str:
    text = " ".join((done.stderr or done.stdout).split())
    return text or f"exit code {done.returncode}, and no message"


def _checked(command: Sequence[str], environ: Mapping[str, str]) -> None:
    done = _ran(command, environ)
    # The job may have ended in the meantime, which is not an error.
    if done.returncode != 0 and "Invalid job id" not in done.stderr and "already completing" not in done.stderr:
        raise TaskFailedError(f"{' '.join(command)} failed.", code="scheduler/refused", found=_output(done))


def _show_job(job_id: str | None, environ: Mapping[str, str]) -> str:
    """Return scontrol's output for a job, or for all jobs."""
    done = _ran(["scontrol", "show", "job", "--oneliner", *([] if job_id is None else [job_id])], environ)
    if done.returncode == 0:
        return done.stdout
    if "Invalid job id" in done.stderr:
        return ""
    raise TaskFailedError(
        f"Slurm does not report the status of {'its jobs' if job_id is None else f'job {job_id}'}.",
        code="scheduler/unavailable",
        found=_output(done),
        hint="check whether Slurm's controller is up: `scontrol ping`.",
    )


def _fields(text: str) -> list[dict[str, str]]:
    """Parse `scontrol show job --oneliner`: KEY=VALUE, where values may have blanks."""
    key = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=")
    records = []
    for line in text.splitlines():
        if not (hits := list(key.finditer(line))):
            continue
        ends = [hit.start() for hit in hits[1:]] + [len(line)]
        record: dict[str, str] = {}
        for hit, end in zip(hits, ends, strict=True):
            record.setdefault(hit[1], line[hit.end() : end].strip())
        if "JobId" in record:
            records.append(record)
    return records


def _elements(text: str) -> set[int]:
    """Parse the array elements of a record: "2", "1-3", "0,4-5%2"."""
    return set(numbers(text.partition("%")[0]))


def _status(submission: Submission, element: int, record: Mapping[str, str]) -> JobStatus:
    """Return the status by a record of Slurm."""
    state, folder = record.get("JobState", "UNKNOWN"), submission.log_folders[element]
    code = _exit_code(record.get("ExitCode", ""))
    reason = record.get("Reason", "None")
    waits = state == "PENDING" and reason not in ("None", "")
    hint = remedy_of(reason) if waits else ""
    history = history_of(folder, submission.tasks)
    asked = state == "FAILED" and code == 143 and was_asked_to_stop(folder)
    text = state_text(state)
    if state == "FAILED":
        text = ASKED if asked else failed_text(code, history.failure, history.setup_end)
    elif state == "OUT_OF_MEMORY" and history.failure is not None:
        text = f"{text}: {history.failure.text()}"
    if waits:
        text = f"cannot start: {reason}" if hint else f"{text} ({reason})"
    nodes, run_time, limit = (record.get(name, "") for name in ("NodeList", "RunTime", "TimeLimit"))
    nodes, limit = ("" if value in ("(null)", "UNLIMITED") else value for value in (nodes, limit))
    restarts = int(record["Restarts"]) if record.get("Restarts", "").isdigit() else 0
    details = [] if not run_time or state == "PENDING" else [f"{run_time} of {limit}" if limit else run_time]
    details += [f"on {nodes}"] if nodes else []
    details += [f"requeued {counted(restarts, 'time')}"] if restarts else []
    return _job_status(
        submission,
        element,
        history,
        details,
        state=state,
        text=text,
        restarts=restarts,
        reason=reason if waits else "",
        hint=hint,
        nodes=nodes,
        run_time=run_time,
        time_limit=limit,
        exit_code=code if state in ENDED else None,
        failure=None if asked or state == "COMPLETED" else history.failure,
        failed=(state in FAILED and not asked) or bool(hint),
    )


def _job_status(
    submission: Submission, element: int, history: JobHistory, details: Sequence[str] = (), *, state: str, **fields: Any
) -> JobStatus:
    """Return a status with what the files of the job show, whether Slurm still knows the job or not."""
    restarts = history.restarts
    in_place = [f"restarted in place {counted(restarts, 'time')}"] if restarts else []
    return JobStatus(
        job_id=_id_of(submission, element),
        state=state,
        name=submission.name,
        progress=progress_of(submission.log_folders[element]),
        task_restarts=restarts,
        setup=history.setup_lines,
        model_dir=submission.model_dirs[element] if element < len(submission.model_dirs) else "",
        phase="ended" if state in (*ENDED, "UNKNOWN") else "running" if state == "RUNNING" else "waiting",
        details=(*details, *in_place),
        **fields,
    )


def _id_of(submission: Submission, element: int) -> str:
    return submission.job_id if submission.array is None else f"{submission.job_id}_{element}"


def _exit_code(text: str) -> int | None:
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None
    return int(code) or (128 + int(number) if number.isdigit() and int(number) else 0)


def _forgotten(submission: Submission, element: int, environ: Mapping[str, str]) -> JobStatus:
    """Return the status of a job that scontrol has forgotten, by sacct or its logs."""
    job_id, folder = _id_of(submission, element), submission.log_folders[element]
    if shutil.which("sacct", path=environ.get("PATH")) is not None:
        command = ["sacct", "--allocations", "--parsable2", "--noheader", f"--jobs={job_id}"]
        done = _ran([*command, "--format=State,ExitCode,Elapsed,NodeList"], environ)
        values = done.stdout.strip().splitlines()[-1].split("|") if done.returncode == 0 and done.stdout.strip() else []
        if len(values) == 4:
            state = values[0].split()[0]
            return _status(
                submission,
                element,
                {"JobState": state, "ExitCode": values[1], "RunTime": values[2], "NodeList": values[3]},
            )
    lines = end_of(folder / OUTPUT, offset=0, limit=4096).rstrip().splitlines()
    history, asked = history_of(folder, submission.tasks), was_asked_to_stop(folder)
    text = "Slurm no longer knows the job"
    if history.failure is not None and history.end == "gave_up":
        text += f"; it failed: {history.failure.text()}"
    elif lines:
        text += f"; the last line of its output: {lines[-1]}"
    state = {"done": "COMPLETED", "gave_up": "FAILED"}.get(history.end, "UNKNOWN")
    return _job_status(
        submission,
        element,
        history,
        state="CANCELLED" if asked else state,
        text=text,
        failure=None if asked or history.end == "done" else history.failure,
        failed=not asked and history.end != "done",
    )


def _without_answer(submission: Submission, error: PipelineError) -> list[JobStatus]:
    """Return the status without an answer of Slurm, from the tasks' progress."""
    why = error.found or error.message
    text = f"Slurm does not answer ({why}); this is the job's last reported progress"
    histories = [history_of(folder, submission.tasks) for folder in submission.log_folders]
    return [
        _job_status(submission, element, history, state=NO_ANSWER, text=text, failure=history.failure, failed=True)
        for element, history in enumerate(histories)
    ]


def _read(path: Path) -> Submission:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Submission(
            job_id=str(record["job_id"]),
            # The current path: the file system may be mounted elsewhere.
            folder=path.parent,
            name=str(record["name"]),
            tasks=tuple(record["tasks"]),
            model_dirs=tuple(record["model_dirs"]),
            array=record["array"],
            submitted=float(record["submitted"]),
            stop_seconds=float(record["stop_seconds"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a valid record of a submission.",
            code="file/bad-format",
            found=f"{type(error).__name__}: {error}",
            hint="name a submission's folder with a complete record, or use Slurm's commands.",
        ) from None

"""Slurm jobs that this package has submitted: sent off, looked at, read and ended, by Slurm's own commands.

A submission has a folder: the script, the job file, `submission.json` and, once it runs, logs:

    output.log             what the script and the supervisor say, over all requeues
    run-0/task-1.log       what the task of rank 1 says in the first run; run-1 is the one after a requeue
    run-0/attempt-1/...    the supervisor's: progress of the tasks, and its history
    3/output.log, ...      of an array: the same for each element

Slurm is asked by `scontrol show job`, whose form has not changed for many versions, while that of `squeue --json`
has. It knows a job for some minutes after its end (MinJobAge); after that `sacct` does, where there is accounting.
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
from estimator_pipeline.launch.local.orphan_guard import RUN_ID_VARIABLE
from estimator_pipeline.launch.local.outcome import end_of
from estimator_pipeline.launch.slurm.history import history_of, was_asked
from estimator_pipeline.launch.slurm.logs import progress_of
from estimator_pipeline.launch.slurm.script import OUTPUT, SCRIPT, SlurmPlan
from estimator_pipeline.launch.slurm.status import ASKED, ENDED, FAILED, NO_ANSWER, JobStatus, failed_text, state_text
from estimator_pipeline.launch.supervisor.ranks import numbers
from estimator_pipeline.progress.progress_file import PROGRESS_VARIABLE
from estimator_pipeline.utils import durable_files as durable

__all__ = [
    "ENDED",
    "SLACK_SECS",
    "JobStatus",
    "Submission",
    "cancel",
    "find_submission",
    "job_status",
    "list_jobs",
    "submit",
]

RECORD = "submission.json"
# A folder of models, a model, its folder of submissions, a submission.
_DEEPEST = 4
SLACK_SECS = 30.0
"""What a job may take besides `slurm.signal_seconds` until Slurm says that it has ended."""
_COMMAND_SECS = 60.0
_POLL_SECS = 1.0

# Variables of Slurm that a person sets for its commands.
_CLIENT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")


@dataclass(frozen=True)
class Submission:
    """What `submission.json` holds.

    Attributes:
        job_id: As Slurm has it; of an array the array's.
        folder: Where script and logs are.
        name: The job's.
        tasks: Their names, in order of their ranks.
        model_dirs: Of the job, or of each element of an array.
        array: How many elements, or None.
        submitted: When, in seconds since 1970.
        stop_seconds: How long the tasks may take to stop with a checkpoint.
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
        """Where output.log and the runs lie: one folder, or one for each element of an array."""
        return tuple(self.folder / str(i) for i in range(self.array)) if self.array else (self.folder,)

    def document(self) -> dict[str, Any]:
        """As a JSON document."""
        return {**self.__dict__, "scheduler": "slurm", "folder": str(self.folder)}


def submit(plan: SlurmPlan, *, name: str, stop_seconds: float, environ: Mapping[str, str]) -> Submission:
    """Writes the submission's folder, and hands the script to sbatch.

    Raises:
        ConfigError: There is no sbatch, the folder cannot be written, or Slurm refuses the job. Nothing is left.
    """
    _program("sbatch", environ)
    folder = Path(plan.folder)
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
            "Slurm refused the job.",
            code="scheduler/refused",
            found=_said(done),
            hint="change the section slurm of the job file (--set slurm.partition=..., slurm.time=...); "
            "`--dry-run` shows the script.",
        )
    submission = Submission(
        job_id=job_id,
        folder=folder,
        name=name,
        tasks=plan.tasks,
        model_dirs=plan.model_dirs,
        array=plan.array,
        submitted=time.time(),
        stop_seconds=stop_seconds,
    )
    durable.write(folder / RECORD, json.dumps(submission.document(), indent=1).encode() + b"\n")
    return submission


def find_submission(target: str, *, folder: Path | None = None, environ: Mapping[str, str]) -> Submission:
    """The submission that a person means.

    Args:
        target: A job's id, or the folder of a submission, of submissions (the newest counts) or of a model.
        folder: Where the submissions of a job file are, where `target` is one.
        environ: For Slurm's commands.

    Raises:
        ConfigError: There is none.
    """
    if folder is None and re.fullmatch(r"\d+(_\d+)?", target):
        found = _fields(_show_job(target, environ))
        script = Path(found[0].get("Command", "") if found else "")
        if script.name == SCRIPT and (script.parent / RECORD).is_file():
            return _read(script.parent / RECORD)
        raise ConfigError(
            f"{target}: Slurm knows no such job of estimator-pipeline.",
            code="jobs/not-found",
            found=f"its script is {script}" if found else "no such job, or it ended some minutes ago",
            hint="name the job file, or the submission's folder.",
        )
    place = folder if folder is not None else Path(target)
    for base in (place, place / "slurm"):
        if (base / RECORD).is_file():
            return _read(base / RECORD)
        records = [one / RECORD for one in base.iterdir() if (one / RECORD).is_file()] if base.is_dir() else []
        if records:
            return max((_read(record) for record in records), key=lambda one: one.submitted)
    raise ConfigError(
        f"{target}: nothing has been submitted to Slurm here.",
        code="jobs/not-found",
        found=f"no {RECORD} in {place}, or in folders in it",
        hint="name a job file that was submitted (with the same --set), a submission's folder or a job's id.",
    )


def job_status(submission: Submission, *, environ: Mapping[str, str]) -> list[JobStatus]:
    """How the job stands, or each element of an array. Where Slurm does not answer, what the tasks told last.

    Raises:
        ConfigError: There is no scontrol.
    """
    try:
        found = _fields(_show_job(submission.job_id, environ))
    except TaskFailedError as error:
        return _without_answer(submission, error)
    return _statuses(submission, found, environ)


def list_jobs(folder: Path, *, environ: Mapping[str, str]) -> list[tuple[Submission, list[JobStatus]]]:
    """The jobs of this user that Slurm knows, and those that were submitted to a model directory below a folder.

    Of the submissions of one model directory the newest counts, unless Slurm still knows others. The newest come
    first.

    Args:
        folder: Where to look for model directories, four levels deep.
        environ: For Slurm's commands.
    """
    shown: list[dict[str, str]] = []
    trouble: PipelineError | None = None
    try:
        shown = _fields(_show_job(None, environ))
    except PipelineError as error:
        trouble = error
    records = {path.parent.resolve(): path for path in _newest_records(folder)}
    for one in shown:
        record = Path(one.get("Command", "")).parent / RECORD
        if one.get("UserId", "").endswith(f"({os.getuid()})") and Path(one["Command"]).name == SCRIPT:
            records.setdefault(record.parent.resolve(), record)
    found = []
    for record in records.values():
        with contextlib.suppress(ConfigError):
            submission = _read(record)
            own = [one for one in shown if submission.job_id in (one["JobId"], one.get("ArrayJobId"))]
            if trouble is not None:
                found.append((submission, _without_answer(submission, trouble)))
            else:
                found.append((submission, _statuses(submission, own, environ)))
    return sorted(found, key=lambda one: one[0].submitted, reverse=True)


def _newest_records(folder: Path) -> Iterator[Path]:
    """Of each folder of submissions the newest one's record."""
    newest: dict[Path, tuple[float, Path]] = {}
    for depth in range(_DEEPEST + 1):
        for path in folder.glob("*/" * depth + RECORD):
            with contextlib.suppress(OSError):
                mine = (path.stat().st_mtime, path)
                newest[path.parent.parent] = max(mine, newest.get(path.parent.parent, mine))
    yield from (path for _, path in newest.values())


def _statuses(submission: Submission, found: list[dict[str, str]], environ: Mapping[str, str]) -> list[JobStatus]:
    """How a job stands by Slurm's records of it, of which there are none once it has forgotten it."""
    if not found:
        return [_forgotten(submission, i, environ) for i in range(submission.array or 1)]
    if submission.array is None:
        # The first component of a heterogeneous job runs the script.
        return [_status(submission, 0, found[0])]
    statuses = []
    for i in range(submission.array):
        own = next((one for one in found if i in _elements(one.get("ArrayTaskId", ""))), None)
        statuses.append(_forgotten(submission, i, environ) if own is None else _status(submission, i, own))
    return statuses


def cancel(
    submission: Submission,
    *,
    checkpoint: bool,
    environ: Mapping[str, str],
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Ends a job.

    Args:
        submission: Which.
        checkpoint: Whether to let the tasks stop with a checkpoint first, for as long as they may take. Slurm itself
            waits KillWait (30 seconds by default) between SIGTERM and SIGKILL.
        environ: For Slurm's commands.
        say: Told what happens.

    Raises:
        TaskFailedError: Slurm does not answer, or does not end the job.
    """
    alive = [one for one in job_status(submission, environ=environ) if not one.ended]
    if not alive:
        say(f"job {submission.job_id} has ended already")
        return
    if checkpoint and any(one.state == "RUNNING" for one in alive):
        # To the script alone: it asks the tasks, and knows then that the job is not to be requeued.
        _checked(["scancel", "--batch", "--signal=TERM", submission.job_id], environ)
        say(f"job {submission.job_id}: asked to stop with a checkpoint")
        deadline = time.monotonic() + submission.stop_seconds
        while time.monotonic() < deadline:
            alive = [one for one in job_status(submission, environ=environ) if not one.ended]
            if not any(one.state in ("RUNNING", "COMPLETING") for one in alive):
                break
            time.sleep(_POLL_SECS)
    if alive:
        _checked(["scancel", submission.job_id], environ)
        say(f"job {submission.job_id}: cancelled")


# -- asking Slurm -----------------------------------------------------------------------------------------------


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
    """Without what says of this process which task it is: a job takes over the environment that it is submitted in."""
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
            hint="see whether Slurm's controller is up: `scontrol ping`.",
        ) from None


def _said(done: subprocess.CompletedProcess[str]) -> str:
    text = " ".join((done.stderr or done.stdout).split())
    return text or f"exit code {done.returncode}, and no message"


def _checked(command: Sequence[str], environ: Mapping[str, str]) -> None:
    done = _ran(command, environ)
    # A job that has ended by itself in the meantime is no error.
    if done.returncode != 0 and "Invalid job id" not in done.stderr and "already completing" not in done.stderr:
        raise TaskFailedError(f"{' '.join(command)} failed.", code="scheduler/refused", found=_said(done))


def _show_job(job_id: str | None, environ: Mapping[str, str]) -> str:
    """What Slurm says of a job, or of all that it knows."""
    done = _ran(["scontrol", "show", "job", "--oneliner", *([] if job_id is None else [job_id])], environ)
    if done.returncode == 0:
        return done.stdout
    if "Invalid job id" in done.stderr:
        return ""
    raise TaskFailedError(
        f"Slurm does not say how {'jobs stand' if job_id is None else f'job {job_id} stands'}.",
        code="scheduler/unavailable",
        found=_said(done),
        hint="see whether Slurm's controller is up: `scontrol ping`.",
    )


def _fields(text: str) -> list[dict[str, str]]:
    """Lines of `scontrol show job --oneliner`: KEY=VALUE, and values may have blanks."""
    key = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=")
    found = []
    for line in text.splitlines():
        if not (hits := list(key.finditer(line))):
            continue
        ends = [hit.start() for hit in hits[1:]] + [len(line)]
        one: dict[str, str] = {}
        for hit, end in zip(hits, ends, strict=True):
            one.setdefault(hit[1], line[hit.end() : end].strip())
        if "JobId" in one:
            found.append(one)
    return found


def _elements(text: str) -> set[int]:
    """ "2", "1-3", "0,4-5%2": which elements of an array a record of Slurm is of."""
    return set(numbers(text.partition("%")[0]))


def _status(submission: Submission, element: int, found: Mapping[str, str]) -> JobStatus:
    state, folder = found.get("JobState", "UNKNOWN"), submission.log_folders[element]
    code = _exit_code(found.get("ExitCode", ""))
    reason = found.get("Reason", "None")
    waits = state == "PENDING" and reason not in ("None", "")
    history = history_of(folder, submission.tasks)
    asked = state == "FAILED" and code == 143 and was_asked(folder)
    text = state_text(state)
    if state == "FAILED":
        text = ASKED if asked else failed_text(code, history.failure)
    elif state == "OUT_OF_MEMORY" and history.failure is not None:
        text = f"{text}: {history.failure.text()}"
    nodes = found.get("NodeList", "")
    return JobStatus(
        job_id=_id_of(submission, element),
        state=state,
        text=f"{text} ({reason})" if waits else text,
        name=submission.name,
        restarts=int(found["Restarts"]) if found.get("Restarts", "").isdigit() else 0,
        reason=reason if waits else "",
        nodes="" if nodes == "(null)" else nodes,
        run_time=found.get("RunTime", ""),
        time_limit="" if found.get("TimeLimit", "UNLIMITED") == "UNLIMITED" else found["TimeLimit"],
        exit_code=code if state in ENDED else None,
        progress=progress_of(folder),
        failure=None if asked or state == "COMPLETED" else history.failure,
        task_restarts=history.restarts,
        failed=state in FAILED and not asked,
    )


def _id_of(submission: Submission, element: int) -> str:
    return submission.job_id if submission.array is None else f"{submission.job_id}_{element}"


def _exit_code(text: str) -> int | None:
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None
    return int(code) or (128 + int(number) if number.isdigit() and int(number) else 0)


def _forgotten(submission: Submission, element: int, environ: Mapping[str, str]) -> JobStatus:
    """A job that scontrol no longer knows, by accounting or else by its own last words."""
    own, folder = _id_of(submission, element), submission.log_folders[element]
    if shutil.which("sacct", path=environ.get("PATH")) is not None:
        command = ["sacct", "--allocations", "--parsable2", "--noheader", f"--jobs={own}"]
        done = _ran([*command, "--format=State,ExitCode,Elapsed,NodeList"], environ)
        words = done.stdout.strip().splitlines()[-1].split("|") if done.returncode == 0 and done.stdout.strip() else []
        if len(words) == 4:
            state = words[0].split()[0]
            return _status(
                submission,
                element,
                {"JobState": state, "ExitCode": words[1], "RunTime": words[2], "NodeList": words[3]},
            )
    lines = end_of(folder / OUTPUT, offset=0, limit=4096).rstrip().splitlines()
    history, asked = history_of(folder, submission.tasks), was_asked(folder)
    text = "Slurm knows it no longer"
    if history.failure is not None and history.end == "gave_up":
        text += f"; it failed: {history.failure.text()}"
    elif lines:
        text += f"; its last words: {lines[-1]}"
    state = {"done": "COMPLETED", "gave_up": "FAILED"}.get(history.end, "UNKNOWN")
    return JobStatus(
        job_id=own,
        state="CANCELLED" if asked else state,
        text=text,
        name=submission.name,
        progress=progress_of(folder),
        failure=None if asked or history.end == "done" else history.failure,
        task_restarts=history.restarts,
        failed=not asked and history.end != "done",
    )


def _without_answer(submission: Submission, error: PipelineError) -> list[JobStatus]:
    """A job whose scheduler does not answer: what its tasks told last."""
    found = []
    for element, folder in enumerate(submission.log_folders):
        history = history_of(folder, submission.tasks)
        found.append(
            JobStatus(
                job_id=_id_of(submission, element),
                state=NO_ANSWER,
                text=f"Slurm does not answer ({error.found or error.message}); this is what the job told last",
                name=submission.name,
                progress=progress_of(folder),
                failure=history.failure,
                task_restarts=history.restarts,
                failed=True,
            )
        )
    return found


def _read(path: Path) -> Submission:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Submission(
            job_id=str(found["job_id"]),
            # Where it lies now: the file system may be mounted elsewhere.
            folder=path.parent,
            name=str(found["name"]),
            tasks=tuple(found["tasks"]),
            model_dirs=tuple(found["model_dirs"]),
            array=found["array"],
            submitted=float(found["submitted"]),
            stop_seconds=float(found["stop_seconds"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is no record of a submission.",
            code="file/bad-format",
            found=f"{type(error).__name__}: {error}",
            hint="name a submission's folder whose record is whole, or use Slurm's own commands.",
        ) from None

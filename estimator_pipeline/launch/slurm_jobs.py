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
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator_pipeline import durable
from estimator_pipeline.cluster.resolving import EVALUATOR_VARIABLE
from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.launch.guard import RUN_ID_VARIABLE
from estimator_pipeline.launch.progress import PROGRESS_VARIABLE
from estimator_pipeline.launch.slurm import OUTPUT, SCRIPT, SlurmPlan
from estimator_pipeline.launch.slurm_logs import progress_of, progress_text

__all__ = ["ENDED", "SLACK_SECS", "JobStatus", "Submission", "cancel", "find_submission", "job_status", "submit"]

RECORD = "submission.json"
ENDED = (
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
)
SLACK_SECS = 30.0
"""What a job may take besides `slurm.signal_seconds` until Slurm says that it has ended."""
_COMMAND_SECS = 60.0
_POLL_SECS = 1.0

# Variables of Slurm that a person sets for its commands.
_CLIENT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")

_WORDS = {
    "PENDING": "waiting in the queue",
    "RUNNING": "running",
    "CONFIGURING": "starting",
    "COMPLETING": "ending",
    "COMPLETED": "done",
    "CANCELLED": "cancelled",
    "TIMEOUT": "ended by its time limit",
    "NODE_FAIL": "ended because a node failed",
    "PREEMPTED": "ended for another job",
    "OUT_OF_MEMORY": "ended because memory ran out",
    "SUSPENDED": "suspended",
    "REQUEUED": "going back into the queue",
}
_CODES = {
    2: "failed: bad input (exit code 2)",
    3: "failed: training diverged (exit code 3)",
    75: "stopped with a checkpoint, and not requeued (exit code 75)",
    143: "stopped as asked; the next submission goes on from the last checkpoint (exit code 143)",
}


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


@dataclass(frozen=True)
class JobStatus:
    """What is known of a job, or of one element of an array.

    Attributes:
        job_id: "17", or "17_2".
        state: Slurm's word, such as "RUNNING"; "UNKNOWN" once Slurm has forgotten it.
        text: The state in words.
        restarts: How often it has been requeued.
        reason: Why it waits.
        nodes: Where it runs, in Slurm's notation.
        run_time: How long it has run, as Slurm writes it.
        time_limit: How long it may.
        exit_code: Of the script, once it has ended.
        progress: What the tasks told: step, loss, steps_per_sec, checkpoint, evaluation.
    """

    job_id: str
    state: str
    text: str
    name: str = ""
    restarts: int = 0
    reason: str = ""
    nodes: str = ""
    run_time: str = ""
    time_limit: str = ""
    exit_code: int | None = None
    progress: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether it has ended for good, as far as is known."""
        return self.state in (*ENDED, "UNKNOWN")

    def document(self) -> dict[str, Any]:
        """As a JSON document."""
        return dict(self.__dict__)

    def lines(self) -> list[str]:
        """For people."""
        words = [f"job {self.job_id} ({self.name}): {self.text}" if self.name else f"job {self.job_id}: {self.text}"]
        if self.run_time and self.state != "PENDING":
            words.append(f"{self.run_time} of {self.time_limit}" if self.time_limit else self.run_time)
        if self.nodes:
            words.append(f"on {self.nodes}")
        if self.restarts:
            words.append(f"requeued {self.restarts} time{'s'[: self.restarts > 1]}")
        lines = [", ".join(words)]
        if self.progress:
            lines.append("  " + progress_text(self.progress))
        return lines


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
            found=f"{error.strerror}: {error.filename}",
            mend="set slurm.dir to a folder that can be written to and that all nodes share.",
        ) from None
    done = _ran(["sbatch", "--parsable", str(folder / SCRIPT)], _clean(environ))
    job_id = done.stdout.strip().splitlines()[-1].partition(";")[0] if done.stdout.strip() else ""
    if done.returncode != 0 or not job_id.isdigit():
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(
            "Slurm refused the job.",
            found=_said(done),
            mend="change the section slurm of the job file (--set slurm.partition=..., slurm.time=...); "
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
    temporary = folder / f".{RECORD}.tmp"
    temporary.write_text(json.dumps(submission.document(), indent=1) + "\n", encoding="utf-8")
    durable.rename(temporary, folder / RECORD)
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
            found=f"its script is {script}" if found else "no such job, or it ended some minutes ago",
            mend="name the job file, or the submission's folder.",
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
        found=f"no {RECORD} in {place}, or in folders in it",
        mend="name a job file that was submitted (with the same --set), a submission's folder or a job's id.",
    )


def job_status(submission: Submission, *, environ: Mapping[str, str]) -> list[JobStatus]:
    """How the job stands, or each element of an array.

    Raises:
        ConfigError: There is no scontrol.
        TaskFailedError: Slurm does not answer.
    """
    found = _fields(_show_job(submission.job_id, environ))
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
            found="no such program on PATH",
            mend="run this where Slurm's commands are (a login node), or `module load slurm`; "
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
            mend="see whether Slurm's controller is up: `scontrol ping`.",
        ) from None


def _said(done: subprocess.CompletedProcess[str]) -> str:
    text = " ".join((done.stderr or done.stdout).split())
    return text or f"exit code {done.returncode}, and no message"


def _checked(command: Sequence[str], environ: Mapping[str, str]) -> None:
    done = _ran(command, environ)
    # A job that has ended by itself in the meantime is no error.
    if done.returncode != 0 and "Invalid job id" not in done.stderr and "already completing" not in done.stderr:
        raise TaskFailedError(f"{' '.join(command)} failed.", found=_said(done))


def _show_job(job_id: str, environ: Mapping[str, str]) -> str:
    done = _ran(["scontrol", "show", "job", "--oneliner", job_id], environ)
    if done.returncode == 0:
        return done.stdout
    if "Invalid job id" in done.stderr:
        return ""
    raise TaskFailedError(
        f"Slurm does not say how job {job_id} stands.",
        found=_said(done),
        mend="see whether Slurm's controller is up: `scontrol ping`.",
    )


def _fields(text: str) -> list[dict[str, str]]:
    """Lines of `scontrol show job --oneliner`: KEY=VALUE, and values may have blanks."""
    key = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=")
    found = []
    for line in text.splitlines():
        hits = list(key.finditer(line))
        ends = [hit.start() for hit in hits[1:]] + [len(line)]
        one: dict[str, str] = {}
        for hit, end in zip(hits, ends, strict=True):
            one.setdefault(hit[1], line[hit.end() : end].strip())
        if "JobId" in one:
            found.append(one)
    return found


def _elements(text: str) -> set[int]:
    """ "2", "1-3", "0,4-5%2": which elements of an array a record of Slurm is of."""
    found: set[int] = set()
    for part in text.partition("%")[0].split(","):
        first, dash, last = part.partition("-")
        if first.isdigit() and (not dash or last.isdigit()):
            found |= set(range(int(first), int(last if dash else first) + 1))
    return found


def _status(submission: Submission, element: int, found: Mapping[str, str]) -> JobStatus:
    state = found.get("JobState", "UNKNOWN")
    code = _exit_code(found.get("ExitCode", ""))
    reason = found.get("Reason", "None")
    waits = state == "PENDING" and reason not in ("None", "")
    text = _CODES.get(code or 0, f"failed (exit code {code})") if state == "FAILED" else _word(state)
    nodes = found.get("NodeList", "")
    return JobStatus(
        job_id=submission.job_id if submission.array is None else f"{submission.job_id}_{element}",
        state=state,
        text=f"{text} ({reason})" if waits else text,
        name=submission.name,
        restarts=int(found["Restarts"]) if found.get("Restarts", "").isdigit() else 0,
        reason=reason if waits else "",
        nodes="" if nodes == "(null)" else nodes,
        run_time=found.get("RunTime", ""),
        time_limit="" if found.get("TimeLimit", "UNLIMITED") == "UNLIMITED" else found["TimeLimit"],
        exit_code=code if state in ENDED else None,
        progress=progress_of(submission.log_folders[element]),
    )


def _word(state: str) -> str:
    return _WORDS.get(state, state.lower().replace("_", " "))


def _exit_code(text: str) -> int | None:
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None
    return int(code) or (128 + int(number) if number.isdigit() and int(number) else 0)


def _forgotten(submission: Submission, element: int, environ: Mapping[str, str]) -> JobStatus:
    """A job that scontrol no longer knows, by accounting or else by its own last words."""
    own = submission.job_id if submission.array is None else f"{submission.job_id}_{element}"
    folder = submission.log_folders[element]
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
    last = ""
    with contextlib.suppress(OSError):
        last = (folder / OUTPUT).read_text(errors="replace").rstrip().rpartition("\n")[2]
    text = f"Slurm knows it no longer; its last words: {last}" if last else "Slurm knows it no longer"
    return JobStatus(job_id=own, state="UNKNOWN", text=text, name=submission.name, progress=progress_of(folder))


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
            found=f"{type(error).__name__}: {error}",
            mend="name a submission's folder whose record is whole, or use Slurm's own commands.",
        ) from None

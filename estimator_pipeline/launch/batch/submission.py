"""Submissions of batch jobs: their folders and records."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.batch.runs import OUTPUT
from estimator_pipeline.launch.scheduler import SUBMISSION
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.paths import real_path

if TYPE_CHECKING:
    from estimator_pipeline.job import Job

__all__ = [
    "RECORD",
    "RESUBMITTED",
    "SCHEDULERS",
    "SCRIPT",
    "BatchPlan",
    "Submission",
    "newest_records",
    "read_submission",
    "submissions_folder",
    "submissions_in",
]

SCHEDULERS = ("slurm", "pbs")
"""The schedulers of batch jobs: names of sections of the job file, and of folders of submissions."""
RECORD = SUBMISSION
SCRIPT = "job.sh"
RESUBMITTED = "resubmitted"
"""The ids of the jobs that the script has submitted to resume, a line each, where it cannot requeue its job."""


@dataclass(frozen=True)
class Submission:
    """The content of `submission.json`.

    Attributes:
        job_id: The scheduler's id of the job or of the array; of the newest one, if the script has submitted further
            jobs to resume.
        folder: The folder of the script and the logs.
        name: The job's name.
        tasks: The names of the tasks in the order of their ranks.
        model_dirs: The model directory of the job, or of each array element.
        array: The number of array elements, or None.
        submitted: The time in seconds since 1970.
        stop_seconds: Seconds that the tasks may take to stop with a checkpoint.
        scheduler: The name of the scheduler.
    """

    job_id: str
    folder: Path
    name: str
    tasks: tuple[str, ...] = ()
    model_dirs: tuple[str, ...] = ()
    array: int | None = None
    submitted: float = 0.0
    stop_seconds: float = 120.0
    scheduler: str = "slurm"

    @property
    def log_folders(self) -> tuple[Path, ...]:
        """The folders of output.log and the runs: one, or one for each array element."""
        return tuple(self.folder / str(i) for i in range(self.array)) if self.array else (self.folder,)

    def id_of(self, element: int) -> str:
        """Return the id of the job, or of an array element."""
        return self.job_id if self.array is None else f"{self.job_id}_{element}"

    def trains_in(self, model_dir: str) -> bool:
        """Return whether the job, or an element of the array, trains in this directory or in a folder in it."""
        base = real_path(model_dir).rstrip("/")
        return any(f"{real_path(folder)}/".startswith(f"{base}/") for folder in self.model_dirs)

    def last_change(self) -> float:
        """Return when it was last changed, in seconds since 1970: its scripts log their ends."""
        changed = self.submitted
        for folder in self.log_folders:
            with contextlib.suppress(OSError):
                changed = max(changed, (folder / OUTPUT).stat().st_mtime)
        return changed

    def document(self) -> dict[str, Any]:
        """Return the submission as a JSON document."""
        return {**self.__dict__, "folder": str(self.folder)}

    def write(self) -> None:
        """Write its record."""
        durable.write(self.folder / RECORD, json.dumps(self.document(), indent=1).encode() + b"\n")


@dataclass(frozen=True)
class BatchPlan:
    """A submission, before anything is written or run.

    Attributes:
        script: The batch script.
        files: Further files by name: the job file, or one for each array element.
        submission: Its record, without an id.
        has_dependency: Whether the scheduler starts it after a different job.
        submit_options: Options of the command that submits the script, which are not in it.
    """

    script: str
    files: Mapping[str, str]
    submission: Submission
    has_dependency: bool = False
    submit_options: tuple[str, ...] = ()

    def write(self) -> None:
        """Write the submission's folder with the script and the job file.

        Raises:
            ConfigError: The folder cannot be written; it is removed.
        """
        folder, scheduler = self.submission.folder, self.submission.scheduler
        try:
            for place in (*self.submission.log_folders, folder):
                place.mkdir(parents=True, exist_ok=True)
            for file, text in {**self.files, SCRIPT: self.script}.items():
                (folder / file).write_text(text, encoding="utf-8")
            (folder / SCRIPT).chmod(0o755)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise ConfigError(
                f"the submission cannot be written to {folder}",
                code="file/unwritable",
                found=f"{error.strerror}: {error.filename}",
                hint=f"set {scheduler}.dir to a folder that can be written to and that all nodes share.",
            ) from None


def submissions_folder(job: Job, scheduler: str, *, title: str) -> Path:
    """Return the folder of a job's submissions to a scheduler.

    Raises:
        ConfigError: The model directory is in a bucket, and the section does not set `dir`.
    """
    folder = getattr(job, scheduler).dir
    if folder is not None:
        return Path(folder).absolute()
    if "://" in job.run.model_dir:
        raise ConfigError(
            f"scripts and logs of {title} jobs need a folder that all nodes share.",
            code="file/unwritable",
            found=f"run.model_dir {job.run.model_dir}, which is not a folder, and no {scheduler}.dir",
            hint=f"set {scheduler}.dir.",
        )
    return Path(job.run.model_dir).absolute() / scheduler


def read_submission(path: Path) -> Submission:
    """Read a record.

    Raises:
        ConfigError: It is not a valid record.
    """
    try:
        record: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        job_ids = [str(record["job_id"])]
        with contextlib.suppress(FileNotFoundError):
            job_ids += (path.parent / RESUBMITTED).read_text(encoding="utf-8").split()
        return Submission(
            job_id=job_ids[-1],
            # The current path: the file system may be mounted elsewhere.
            folder=path.parent,
            name=str(record["name"]),
            tasks=tuple(record["tasks"]),
            model_dirs=tuple(record["model_dirs"]),
            array=record["array"],
            submitted=float(record["submitted"]),
            stop_seconds=float(record["stop_seconds"]),
            # Slurm was the first one, whose records did not name it.
            scheduler=str(record.get("scheduler", "slurm")),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a valid record of a submission.",
            code="file/bad-format",
            found=f"{type(error).__name__}: {error}",
            hint="name a submission's folder with a complete record, or use the scheduler's commands.",
        ) from None


def submissions_in(place: Path) -> list[Path]:
    """Return the records of a submission's folder, of a folder of submissions, or of a model directory."""
    for base in (place, *(place / name for name in SCHEDULERS)):
        if (base / RECORD).is_file():
            return [base / RECORD]
    return [record for base in (place, *(place / name for name in SCHEDULERS)) for record in base.glob(f"*/{RECORD}")]


def newest_records(records: Sequence[Path]) -> list[Path]:
    """Return the record of the newest submission in each folder of submissions."""
    newest: dict[Path, tuple[float, Path]] = {}
    for path in records:
        with contextlib.suppress(OSError):
            candidate = (path.stat().st_mtime, path)
            newest[path.parent.parent] = max(candidate, newest.get(path.parent.parent, candidate))
    return [path for _, path in newest.values()]

"""What a scheduler does, and what is passed to it.

`launch/schedulers.py` lists the schedulers. docs/internals/schedulers.md shows how to add one.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from estimator_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from estimator_pipeline.job import Job
    from estimator_pipeline.launch.job_status import JobEntry

__all__ = [
    "COMMON_OPTIONS",
    "LAUNCH",
    "SUBMISSION",
    "JobList",
    "JobReference",
    "ListRequest",
    "LogFolder",
    "LogRequest",
    "Scheduler",
    "SubmitOption",
    "SubmitPlan",
    "SubmitRequest",
    "SubmitResult",
    "check_element",
    "explicit_options",
]

JobT = TypeVar("JobT")

SUBMISSION = "submission.json"
"""The record of a submission of a batch job, in its folder."""
LAUNCH = "launch.json"
"""The record of a launch on this machine, in its log folder."""
# Folder levels below the searched one: a folder of models, a model, its submissions or logs, one of these.
_DEEPEST = 4


# Submitting ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SubmitOption:
    """An option of `submit NAME`.

    Attributes:
        flag: "--namespace".
        help: Its help text.
        metavar: The placeholder of its value.
        kind: The type of its value: str, int, Path, bool for an option without a value, or list for a repeatable one.
        least: The least value of a number.
        short: Its short form: "-n".
        field: The field of the job file that it sets; "" if `Scheduler.plan` reads it.
    """

    flag: str
    help: str
    metavar: str | None = None
    kind: type = str
    least: int | None = None
    short: str = ""
    field: str = ""

    @property
    def name(self) -> str:
        """Its key in `SubmitRequest.options`: "at_once" for --at-once."""
        return self.flag.removeprefix("--").replace("-", "_")


COMMON_OPTIONS = (
    SubmitOption("--set", "Set a field of the job file; repeatable.", "KEY=VALUE", list),
    SubmitOption(
        "--continue-with",
        "Continue the run on these files, each new record once; repeatable.",
        "FILES",
        list,
        field="input.continue_with",
    ),
    SubmitOption(
        "--epochs",
        "With --continue-with: train on each new record this often.",
        "N",
        int,
        field="input.continue_epochs",
    ),
    SubmitOption(
        "--no-checks",
        "Skip the checks of data, functions, model and limits, if only the tasks' machines have them.",
        kind=bool,
    ),
    SubmitOption("--dry-run", "Print what would be submitted, without submitting it.", kind=bool),
    SubmitOption("--json", "Print one JSON document on standard output.", kind=bool),
)
"""The options of `submit` for every scheduler."""


def explicit_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that are set: not None or False."""
    return {name: value for name, value in values.items() if value is not None and value is not False}


@dataclass(frozen=True)
class SubmitRequest:
    """A job file to submit.

    Attributes:
        file: The job file.
        settings: The changes of --set, and of the options that set a field.
        options: The values of the other options, if they are set.
    """

    file: Path
    settings: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, file: Path, options: Sequence[SubmitOption], values: Mapping[str, Any]) -> SubmitRequest:
        """Return the request of these values of the options, by their names."""
        explicit, fields = explicit_options(values), {option.name: option.field for option in options if option.field}
        settings = list(explicit.pop("set", ()))
        settings += [f"{fields[name]}={json.dumps(value)}" for name, value in explicit.items() if name in fields]
        others = {name: value for name, value in explicit.items() if name not in fields}
        return cls(file, tuple(settings), others)


@dataclass(frozen=True)
class SubmitPlan:
    """What `Scheduler.submit` will submit; nothing is written or run yet.

    Attributes:
        text: The script or the manifests, for --dry-run.
        json: The same as a JSON document.
        jobs: The job, or the jobs of an array, for the checks of `doctor`.
        content: The scheduler's plan.
        other_python: Whether the tasks run in a different Python installation.
    """

    text: str
    json: str
    jobs: Sequence[Job]
    content: Any
    other_python: bool = False


@dataclass(frozen=True)
class SubmitResult:
    """What has been submitted.

    Attributes:
        document: It as a JSON document.
        messages: The lines for the user; those with True are for standard error.
    """

    document: Mapping[str, Any]
    messages: Sequence[tuple[str, bool]]


# Submitted jobs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobReference:
    """A job as the user names it.

    Attributes:
        name: A job file, a folder, a job id, or a name such as job/digits.
        settings: The changes of --set, as in its submission.
        options: The values of the options that not all schedulers have, if they are set: namespace, element,
            checkpoint, now.
        is_id: Whether the name is an id in a scheduler's notation, and not a path.
    """

    name: str
    settings: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    is_id: bool = False

    @cached_property
    def job(self) -> Job | None:
        """The job of the job file; None if the name is not that of a job file.

        Raises:
            ConfigError: The job file is invalid, or there are settings and no job file.
        """
        from estimator_pipeline.job import load_job

        path = Path(self.name)
        is_id = self.is_id or self.name.isdigit()
        if path.is_file() or (not is_id and not path.is_dir() and "." in path.name):
            return load_job(path, overrides=self.settings)
        if self.settings:
            raise ConfigError(
                f"--set {self.settings[0]} requires a job file, and {self.name} is not one.",
                code="argument/not-applicable",
                hint="leave it out.",
            )
        return None


def check_element(element: int | None, elements: int | None, *, noun: str) -> int:
    """Return the element of an array that --element selects; 0 for a job that is not an array.

    Args:
        element: The value of --element.
        elements: The number of elements; None for a job that is not an array.
        noun: What each element has: "logs" or "tasks".

    Raises:
        ConfigError: The job is an array without this element, or --element is set for a job that is not an array.
    """
    if elements is None and element is not None:
        raise ConfigError(
            f"--element {element}: the job is not an array.", code="argument/not-applicable", hint="leave it out."
        )
    if elements is not None and (element is None or element >= elements):
        raise ConfigError(
            f"the job is an array, and each element has separate {noun}.",
            code="argument/missing",
            found=f"{elements} elements" + ("" if element is None else f", and --element {element}"),
            hint=f"name one of them: --element 0 to {elements - 1}.",
        )
    return element or 0


@dataclass(frozen=True)
class LogRequest:
    """The logs to show.

    Attributes:
        task: Only this task; None for all.
        failed: Only the task that failed first.
        follow: Whether to wait for new lines until the job ends.
        lines: The number of last lines of each log; 0 for all lines of all runs.
        write: Called with each line.
    """

    task: str | None
    failed: bool
    follow: bool
    lines: int
    write: Callable[[str], None]

    def check(self, tasks: Sequence[str]) -> None:
        """Raise an error if the job does not have the task, or if options contradict each other."""
        if self.task is not None and self.task not in tasks:
            raise ConfigError(
                f"--task {self.task}: the job has no such task.",
                code="jobs/not-found",
                found=f"its tasks: {', '.join(tasks)}",
            )
        if self.failed and (self.task is not None or self.follow):
            raise ConfigError(
                "--failed shows one log to its end.", code="argument/conflict", hint="leave --task and --follow out."
            )

    def show(self, tasks: Sequence[str]) -> Callable[[str, str], None]:
        """Return a function that writes a line of a task, with the task's name if several tasks are shown."""
        width = max(map(len, tasks))
        return lambda task, line: self.write(line if self.task is not None else f"{task:<{width}} | {line}")


class LogFolder(NamedTuple):
    """A folder in which tasks write their heartbeats and answer requests.

    Attributes:
        path: The log folder of a launch or of a supervised run.
        tasks: The task names by rank, if the scheduler has started the tasks.
    """

    path: Path
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class ListRequest:
    """The jobs to list.

    Attributes:
        options: The options that are set: folder, namespace.
        since: Leave out jobs that ended before this time, in seconds since 1970.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    since: float = 0.0

    @cached_property
    def records(self) -> Mapping[str, Sequence[Path]]:
        """The records of submissions and launches below the folder, by file name."""
        records: dict[str, list[Path]] = {SUBMISSION: [], LAUNCH: []}
        for folder in _folders(self.options.get("folder", Path()), _DEEPEST):
            for name, paths in records.items():
                if (folder / name).is_file():
                    paths.append(folder / name)
        return records


def _folders(folder: Path, levels: int) -> Iterator[Path]:
    yield folder
    if levels:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield from _folders(Path(entry.path), levels - 1)


class JobList(NamedTuple):
    """A list of jobs.

    Attributes:
        entries: The jobs, the newest first.
        left_out: The number of jobs that ended too long ago.
        unknown: Why the jobs of a scheduler are unknown; "" if they are known.
    """

    entries: Sequence[JobEntry]
    left_out: int = 0
    unknown: str = ""


class Scheduler(abc.ABC, Generic[JobT]):
    """A scheduler to which job files are submitted. `JobT` is its record of a submitted job.

    A scheduler has no state: jobs are in files, or are found by its commands, whose environment is `environ`. Methods
    raise a `ConfigError` for bad input, also if the commands are not on this machine or there is no such job, and a
    `TaskFailedError` if the scheduler does not answer or rejects a command.

    Attributes:
        name: Its name in `submit NAME` and in JSON documents.
        title: Its name in texts.
        location: The words after "jobs" in messages: "of Slurm".
        program: The command that shows its jobs; "" if it needs none.
        notation: Job ids that no other scheduler has, such as KIND/NAME in Kubernetes; None if there are none.
        accepts_numbers: Whether a number is an id of one of its jobs.
        submit_help: The help text of `submit NAME`.
        submit_options: The options of `submit NAME` beside `COMMON_OPTIONS`, in the order of its help.
        options: The options of `status`, `logs`, `stacks` and `cancel` that it supports, of those that not all
            schedulers do: element, checkpoint, now, namespace, and for a list of jobs folder.
        instead: An option of these that it does not support -> a hint what to do instead.
        checks: The names of the checks of `doctor` that run before a submission.
        other_files: Whether the tasks see a different file system than the submitting process.
        shows_rejected: Whether --dry-run prints what the checks reject.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    location: ClassVar[str]
    program: ClassVar[str] = ""
    notation: ClassVar[re.Pattern[str] | None] = None
    accepts_numbers: ClassVar[bool] = False
    submit_help: ClassVar[str]
    submit_options: ClassVar[tuple[SubmitOption, ...]] = ()
    options: ClassVar[frozenset[str]]
    instead: ClassVar[Mapping[str, str]] = {}
    checks: ClassVar[tuple[str, ...]]
    other_files: ClassVar[bool] = False
    shows_rejected: ClassVar[bool] = False

    def is_available(self, environ: Mapping[str, str]) -> bool:
        """Return whether its commands are on this machine."""
        return not self.program or shutil.which(self.program, path=environ.get("PATH")) is not None

    @abc.abstractmethod
    def plan(self, request: SubmitRequest) -> SubmitPlan:
        """Build what will be submitted, without writing or running anything."""

    @abc.abstractmethod
    def submit(self, plan: SubmitPlan, *, environ: Mapping[str, str]) -> SubmitResult:
        """Submit a plan. It is an error if a different job of the same name or model directory exists."""

    @abc.abstractmethod
    def claims(self, reference: JobReference) -> bool:
        """Return whether a name can only be one of this scheduler, or files or the job file's section show it.

        No commands are called.
        """

    def last_active(self, reference: JobReference) -> float:
        """Return when the newest run of a claimed name last showed that it runs, in seconds since 1970.

        Of several schedulers that claim a job file, the one with the latest run has the job.

        Returns:
            0 if only the scheduler's commands could show it.
        """
        return 0.0

    @abc.abstractmethod
    def find(self, reference: JobReference, *, environ: Mapping[str, str]) -> JobT:
        """Find a job, or raise an error."""

    @abc.abstractmethod
    def status(self, job: JobT, *, environ: Mapping[str, str]) -> JobEntry:
        """Return the status of a job."""

    @abc.abstractmethod
    def list_jobs(self, request: ListRequest, *, environ: Mapping[str, str]) -> JobList:
        """List the jobs of this package."""

    @abc.abstractmethod
    def logs(self, job: JobT, reference: JobReference, request: LogRequest, *, environ: Mapping[str, str]) -> None:
        """Write the lines of a job's logs; until the job ends, over restarts, if `request.follow`."""

    @abc.abstractmethod
    def stacks(self, job: JobT, reference: JobReference) -> LogFolder:
        """Return the log folder of a job's newest run, or raise an error if this machine cannot reach it."""

    @abc.abstractmethod
    def cancel(
        self, job: JobT, reference: JobReference, *, environ: Mapping[str, str], report: Callable[[str], None]
    ) -> None:
        """Cancel a job so that it is not restarted, and report the progress; return when that is certain."""

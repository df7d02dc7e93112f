"""The section `pbs` of a job file: the resources and options of `submit pbs`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from estimator_pipeline.job.base import Problem, Section, explained
from estimator_pipeline.job.sections.batch import BatchSection, Count, Role, Text, Value, as_text, resources_of

__all__ = ["PbsResources", "PbsSection", "seconds_of_walltime"]

_WALLTIME = re.compile(r"\d+(:\d\d){0,2}")
_SIZE = re.compile(r"\d+([kmgtp]?[bw])?", re.IGNORECASE)
_OPTION = re.compile(r"-([a-zA-Z])(?: ?(\S.*))?")
# Options that the script sets.
_SCRIPT_OPTIONS = {
    "A": "set pbs.account",
    "e": "output goes to pbs.dir",
    "I": "a job file has no terminal",
    "J": "submit one job for each element: PBS arrays are not supported",
    "j": "output goes to pbs.dir",
    "k": "output goes to pbs.dir",
    "M": "set pbs.mail_user",
    "m": "set pbs.mail_points",
    "N": "set pbs.job_name",
    "o": "output goes to pbs.dir",
    "P": "set pbs.project",
    "q": "set pbs.queue",
    "S": "the script is for bash",
    "z": "the id is required",
}
_SCRIPT_RESOURCES = {
    "select": "set the fields of chunks, such as pbs.ncpus",
    "nodes": "set the fields of chunks, such as pbs.ncpus",
    "place": "set pbs.place",
    "walltime": "set pbs.walltime",
}


def _walltime(value: int | str) -> int | str:
    if isinstance(value, str) and not _WALLTIME.fullmatch(value):
        raise explained(
            "this is not a time limit of PBS.",
            found=f'{value!r}; allowed: seconds, "MM:SS", "HH:MM:SS"',
            hint='write for example "4:00:00", in quotes.',
        )
    return value


def _size(value: str) -> str:
    if not _SIZE.fullmatch(value):
        raise explained(
            "this is not an amount of memory of PBS.",
            found=f"{value!r}; allowed: a whole number with kb, mb, gb or tb",
            hint='write for example "64gb".',
        )
    return value


class PbsResources(Section):
    """The chunk of a task, for one role or for all roles.

    Fields:
        ncpus: CPUs of a task.
        mem: Memory of a task: `"64gb"`.
        ngpus: GPUs of a task; 0 for a role without GPUs.
        resources: Further resources of its chunk, such as `{host: n1, scratch: 100gb}`.
    """

    ncpus: Count | None = None
    mem: Annotated[str, BeforeValidator(as_text), AfterValidator(_size)] | None = None
    ngpus: Annotated[int, Field(ge=0)] | None = None
    resources: dict[str, Value] | None = None

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        hints = dict.fromkeys(("ncpus", "mem", "ngpus"), "set pbs.{}") | {
            "mpiprocs": "leave it out: a chunk has one task"
        }
        for name in self.resources or {}:
            if name in hints:
                yield Problem(
                    ("resources", name), "the script already sets this.", name, f"{hints[name].format(name)}."
                )


class PbsSection(BatchSection, PbsResources):
    """Options of `estimator-pipeline submit pbs`. The fields of `PbsResources` apply to all roles.

    Fields:
        queue: Queue.
        project: Project.
        walltime: Time limit of one run: seconds or "HH:MM:SS". null: the queue's.
        place: Placement of the chunks: scatter (each task on a different host), pack or free, with `:excl` for hosts
            that are not shared.
        mail_points: Events of mail: a, b, e.
        qsub: Further options of qsub: `"-l software=1"`, `"-W umask=022"`.
        roles: Resources of a role (chief, worker, ps, evaluator) that replace those above.
    """

    queue: Text | None = None
    project: Text | None = None
    walltime: Annotated[Count | Text, AfterValidator(_walltime)] | None = None
    place: Text = "scatter"
    mail_points: Text | None = None
    qsub: list[Text] = []
    roles: dict[Role, PbsResources] = {}

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        for i, option in enumerate(self.qsub):
            match = _OPTION.fullmatch(option)
            if match is None:
                yield Problem(
                    ("qsub", i),
                    "this is not an option of qsub.",
                    f"{option!r}; allowed: -l name=value, -W name=value, -r n",
                    "write it as on the command line, each option separately.",
                    code="job/bad-value",
                )
                continue
            names = [part.partition("=")[0].strip() for part in (match[2] or "").split(",")] if match[1] == "l" else []
            hints = [_SCRIPT_RESOURCES[name] for name in names if name in _SCRIPT_RESOURCES]
            hints += [_SCRIPT_OPTIONS[match[1]]] if match[1] in _SCRIPT_OPTIONS else []
            if match[1] == "W" and "depend=" in option:
                hints.append("set pbs.dependency")
            if hints:
                yield Problem(("qsub", i), "the script already sets this.", f"{option!r}", f"{hints[0]}.")

    def of_role(self, role: str) -> PbsResources:
        """Return the resources of a role: the section's fields with the overrides of the role."""
        overrides = {name: resources_of(fields, PbsResources) for name, fields in self.roles.items()}
        return PbsResources(**{**resources_of(self, PbsResources), **overrides.get(role, {})})  # type: ignore[call-overload]


def seconds_of_walltime(walltime: int | str | None) -> int | None:
    """Return a time limit in seconds; None for the queue's."""
    if walltime is None:
        return None
    seconds = 0
    for part in str(walltime).split(":"):
        seconds = seconds * 60 + int(part)
    return seconds

"""The section `slurm` of a job file: the resources and options of `submit slurm`."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from estimator_pipeline.job.base import Problem, Section, explained
from estimator_pipeline.job.sections.batch import BatchSection, Count, Role, Text, as_text, resources_of

__all__ = ["SlurmResources", "SlurmSection", "option_of", "seconds_of"]

# The formats of sbatch --time: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.
_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}")
_MEMORY = re.compile(r"\d+[KMGT]?")
_OPTION = re.compile(r"--([a-z0-9-]+)(?:[= ](.*))?")
# Options that the script sets.
_SCRIPT_OPTIONS = {
    "array": "submit with --array",
    "chdir": "submit in that folder",
    "error": "output goes to slurm.dir",
    "job-name": "set slurm.job_name",
    "ntasks": "set the section cluster",
    "open-mode": "leave it out: it is append, so that a requeue keeps earlier output",
    "output": "set slurm.dir",
    "requeue": "set slurm.max_requeues",
    "no-requeue": "set slurm.max_requeues: 0",
    "signal": "set slurm.signal_seconds",
    "time": "set slurm.time",
}


def _amount(value: str) -> str:
    if not _MEMORY.fullmatch(value):
        raise explained(
            "this is not an amount of memory.",
            found=f"{value!r}; allowed: a whole number with K, M, G or T",
            hint='write for example "64G".',
        )
    return value


def _limit(value: int | str) -> int | str:
    if isinstance(value, str) and not _TIME.fullmatch(value):
        raise explained(
            "this is not a time limit of Slurm.",
            found=f'{value!r}; allowed: minutes, "HH:MM:SS", "D-HH:MM:SS"',
            hint='write for example "4:00:00", in quotes.',
        )
    return value


def _joined(value: Any) -> Any:
    """Join a list of names with commas, as in Slurm; pydantic checks everything else."""
    return ",".join(value) if isinstance(value, list) and all(isinstance(name, str) for name in value) else value


_Names = Annotated[Text, BeforeValidator(_joined)]
_Memory = Annotated[str, BeforeValidator(as_text), AfterValidator(_amount)]


class SlurmResources(Section):
    """Resources of the tasks of one role or of all roles.

    Fields:
        partition: Partition; several separated by commas.
        nodes: Number of nodes. null: derived by Slurm from `tasks_per_node`.
        tasks_per_node: Maximum tasks per node.
        cpus_per_task: CPUs per task. null: 1.
        gpus_per_task: GPUs per task: a number, or `"a100:2"`; 0 for a role without GPUs.
        gpus_per_node: GPUs per node.
        gres: Generic resources per node: `"tmpdir:100G"`.
        mem: Memory per node: `"64G"`.
        mem_per_cpu: Memory per CPU. Not with `mem`.
        constraint: Required features of nodes: `"a100&ib"`.
        nodelist: Nodes that must be part of the job: `"n[1-4]"`, or a list.
        exclude: Nodes that must not.
        exclusive: Do not share nodes.
        sbatch: Further options of sbatch: `"--licenses=x:1"`. Values are quoted automatically.
    """

    partition: Text | None = None
    nodes: Count | None = None
    tasks_per_node: Count | None = None
    cpus_per_task: Count | None = None
    gpus_per_task: Annotated[int, Field(ge=0)] | Text | None = None
    gpus_per_node: Annotated[int, Field(ge=0)] | Text | None = None
    gres: _Names | None = None
    mem: _Memory | None = None
    mem_per_cpu: _Memory | None = None
    constraint: Text | None = None
    nodelist: _Names | None = None
    exclude: _Names | None = None
    exclusive: bool | None = None
    sbatch: list[Text] | None = None

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.mem is not None and self.mem_per_cpu is not None:
            yield Problem(
                ("mem_per_cpu",),
                "memory is set both per node and per CPU.",
                f"mem {self.mem} and mem_per_cpu {self.mem_per_cpu}",
                "keep one of them.",
            )
        yield from _option_problems("sbatch", self.sbatch or [], _SCRIPT_OPTIONS)


class SlurmSection(BatchSection, SlurmResources):
    """Options of `estimator-pipeline submit slurm`. The fields of `SlurmResources` apply to all roles.

    Fields:
        qos: Quality of service.
        comment: Comment in the queue.
        time: Time limit of one run: minutes, "HH:MM:SS" or "D-HH:MM:SS". null: the partition's.
        srun: Further options of srun: `"--mpi=none"`.
        mail_type: Events of mail: END,FAIL.
        roles: Resources of a role (chief, worker, ps, evaluator) that replace those above.
    """

    qos: Text | None = None
    comment: Text | None = None
    time: Annotated[Count | Text, AfterValidator(_limit)] | None = None
    srun: list[Text] = []
    mail_type: Text | None = None
    roles: dict[Role, SlurmResources] = {}

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        reserved = {"het-group": "set slurm.roles", "ntasks": "set the section cluster", "output": "set slurm.dir"}
        yield from _option_problems("srun", self.srun, reserved)

    def of_role(self, role: str) -> SlurmResources:
        """Return the resources of a role: the section's fields with the overrides of the role."""
        common = resources_of(self, SlurmResources)
        roles: Mapping[str, SlurmResources] = {str(name): resources for name, resources in self.roles.items()}
        overrides = resources_of(roles[role], SlurmResources) if role in roles else {}
        if overrides.get("mem") or overrides.get("mem_per_cpu"):
            common.pop("mem", None)
            common.pop("mem_per_cpu", None)
        return SlurmResources(**{**common, **overrides})


def option_of(text: str) -> tuple[str, str | None] | None:
    """Return the name and the value of a long option, or None for other text.

    A value that is one word in shell quotes is unquoted, for job files of earlier versions.
    """
    match = _OPTION.fullmatch(text)
    if match is None:
        return None
    value = match[2]
    if value is not None and any(c in value for c in "'\"\\"):
        with contextlib.suppress(ValueError):
            words = shlex.split(value)
            value = words[0] if len(words) == 1 else value
    return match[1], value


def seconds_of(time: int | str | None) -> int | None:
    """Return a time limit in seconds, or None without a limit or for the partition's limit."""
    if time is None:
        return None
    days, dash, rest = str(time).rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    # The first part is hours after a dash or with three parts, otherwise minutes.
    weights = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    seconds = sum(part * weight for part, weight in zip(parts, weights, strict=False))
    return int(days or 0) * 86400 + seconds or None


def _option_problems(field: str, options: list[str], reserved: Mapping[str, str]) -> Iterator[Problem]:
    for i, option in enumerate(options):
        parsed = option_of(option)
        if parsed is None:
            yield Problem(
                (field, i),
                "this is not a long option.",
                f"{option!r}; allowed: --name, --name=value",
                "write it as on the command line, with two dashes.",
                code="job/bad-value",
            )
        elif parsed[0] in reserved:
            yield Problem(
                (field, i),
                f"the script already sets --{parsed[0]}.",
                f"{option!r}",
                f"{reserved[parsed[0]]}.",
            )

"""The section `slurm` of a job file: the resources and options of `submit slurm`."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from estimator_pipeline.job.base import Problem, Section, explained

__all__ = ["SlurmResources", "SlurmSection", "of_resources", "option_of", "seconds_of"]

_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1)]
Role = Literal["chief", "worker", "ps", "evaluator"]

# The formats of sbatch --time: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.
_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}")
_MEMORY = re.compile(r"\d+[KMGT]?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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


def _text_of(value: Any) -> Any:
    """Convert a number or boolean to text for the shell; pydantic checks everything else."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _joined(value: Any) -> Any:
    """Join a list of names with commas, as in Slurm; pydantic checks everything else."""
    return ",".join(value) if isinstance(value, list) and all(isinstance(name, str) for name in value) else value


_Names = Annotated[_Text, BeforeValidator(_joined)]
_Memory = Annotated[str, BeforeValidator(_text_of), AfterValidator(_amount)]
_Value = Annotated[str, BeforeValidator(_text_of)]


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

    partition: _Text | None = None
    nodes: _Count | None = None
    tasks_per_node: _Count | None = None
    cpus_per_task: _Count | None = None
    gpus_per_task: Annotated[int, Field(ge=0)] | _Text | None = None
    gpus_per_node: Annotated[int, Field(ge=0)] | _Text | None = None
    gres: _Names | None = None
    mem: _Memory | None = None
    mem_per_cpu: _Memory | None = None
    constraint: _Text | None = None
    nodelist: _Names | None = None
    exclude: _Names | None = None
    exclusive: bool | None = None
    sbatch: list[_Text] | None = None

    def problems(self) -> Iterator[Problem]:
        if self.mem is not None and self.mem_per_cpu is not None:
            yield Problem(
                ("mem_per_cpu",),
                "memory is set both per node and per CPU.",
                f"mem {self.mem} and mem_per_cpu {self.mem_per_cpu}",
                "keep one of them.",
            )
        yield from _option_problems("sbatch", self.sbatch or [], _SCRIPT_OPTIONS)


class SlurmSection(SlurmResources):
    """Options of `estimator-pipeline submit slurm`. The fields of `SlurmResources` apply to all roles.

    Fields:
        job_name: Name in the queue. null: the job's name.
        account: Account.
        qos: Quality of service.
        comment: Comment in the queue.
        dependency: Dependency of the job: `"afterok:1234"`.
        time: Time limit of one run: minutes, "HH:MM:SS" or "D-HH:MM:SS". null: the partition's.
        signal_seconds: Seconds before the time limit at which tasks are asked to stop with a checkpoint.
        max_requeues: Maximum number of requeues after the time limit or a preemption.
        max_restarts: Maximum restarts in place in a row without progress. See docs/guides/restarts.md.
        step_timeout: Seconds without a step (five times as many for the first, at least 1800) after which the job
            counts as hung and is restarted. null: never. See docs/guides/restarts.md.
        metrics_dir: Directory of node_exporter's textfile collector on the first node; the supervisor writes
            slurm-JOBID.prom there. See docs/guides/restarts.md.
        setup: Bash lines before the tasks start: `module load ...`, `source venv/bin/activate`. See
            docs/guides/slurm.md.
        teardown: Shell lines after the tasks end, in any case. Their exit code is ignored.
        env: Environment variables of all tasks.
        command: Command for estimator-pipeline, such as `apptainer exec image.sif estimator-pipeline`. null: the Python
            that submits.
        srun: Further options of srun: `"--mpi=none"`.
        mail_user: Recipient of mail.
        mail_type: Events of mail: END,FAIL.
        dir: Directory of scripts, logs and records of submissions, on a shared file system. null: `slurm` in the model
            directory.
        roles: Resources of a role (chief, worker, ps, evaluator) that replace those above.
    """

    job_name: _Text | None = None
    account: _Text | None = None
    qos: _Text | None = None
    comment: _Text | None = None
    dependency: _Text | None = None
    time: Annotated[_Count | _Text, AfterValidator(_limit)] | None = None
    signal_seconds: Annotated[int, Field(ge=30, le=65535)] = 120
    max_requeues: Annotated[int, Field(ge=0)] = 100
    max_restarts: Annotated[int, Field(ge=0)] = 3
    step_timeout: Annotated[float, Field(gt=0)] | None = None
    metrics_dir: _Text | None = None
    setup: list[_Text] = []
    teardown: list[_Text] = []
    env: dict[str, _Value] = {}
    command: _Text | None = None
    srun: list[_Text] = []
    mail_user: _Text | None = None
    mail_type: _Text | None = None
    dir: _Text | None = None
    roles: dict[Role, SlurmResources] = {}

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                yield Problem(
                    ("env", name),
                    "this is not the name of a variable.",
                    f"{name!r}; allowed: letters, digits and underscores",
                    "rename it.",
                    code="job/bad-value",
                )
        reserved = {"het-group": "set slurm.roles", "ntasks": "set the section cluster", "output": "set slurm.dir"}
        yield from _option_problems("srun", self.srun, reserved)

    def of_role(self, role: str) -> SlurmResources:
        """Return the resources of a role: the section's fields with the overrides of the role."""
        common = of_resources(self)
        roles: Mapping[str, SlurmResources] = {str(name): resources for name, resources in self.roles.items()}
        overrides = of_resources(roles[role]) if role in roles else {}
        if overrides.get("mem") or overrides.get("mem_per_cpu"):
            common.pop("mem", None)
            common.pop("mem_per_cpu", None)
        return SlurmResources(**{**common, **overrides})


def of_resources(section: SlurmResources) -> dict[str, Any]:
    """Return the fields of `SlurmResources` that are set."""
    fields = {name: getattr(section, name) for name in SlurmResources.model_fields}
    return {name: value for name, value in fields.items() if value is not None}


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

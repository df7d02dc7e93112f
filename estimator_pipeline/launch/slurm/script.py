"""Slurm batch script of a job file.

The script starts all tasks by one `srun` under `estimator-pipeline supervise`. Each task derives its role from Slurm's
variables (`estimator_pipeline.cluster.environments.slurm`); the ranks are the chief, the workers, the parameter
servers, the evaluator. Roles with different resources are components of a heterogeneous job
(https://slurm.schedmd.com/heterogeneous_jobs.html) in the same order.

`srun --kill-on-bad-exit=1` stops all tasks when one fails, since tasks that do not communicate with it would not
notice. It would do the same for a task that exits with 75, such as a preempted evaluator before the checkpoint is
written; and the tasks that it stops would exit with 75 too. So here a preempted task creates a file and exits with 0
(`estimator_pipeline.progress.progress_file`).
"""

from __future__ import annotations

import importlib.resources
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2

from estimator_pipeline.cluster.roles import tasks_of
from estimator_pipeline.job import Job, SlurmResources, dump_job
from estimator_pipeline.job.loading import JOB_FILE
from estimator_pipeline.job.sections.slurm import of_resources, option_of

__all__ = ["JOB_FILE", "SCRIPT", "Component", "SlurmPlan", "components_of", "plan_slurm"]

SCRIPT = "job.sh"
OUTPUT = "output.log"
_TEMPLATE = "script.jinja"
# Slurm ends a job at its time limit; the script needs this time before it for its last steps.
_SHUTDOWN_SECS = 10
# Number of stops in a row before the first step after which the script gives up.
_MOST_EARLY = 3


@dataclass(frozen=True)
class Component:
    """Consecutive tasks with the same resources.

    Attributes:
        tasks: Their names in the order of their ranks, such as "worker:0".
        resources: Their resources.
    """

    tasks: tuple[str, ...]
    resources: SlurmResources

    @property
    def text(self) -> str:
        """The tasks as text."""
        return ", ".join(self.tasks)


@dataclass(frozen=True)
class SlurmPlan:
    """A submission, before anything is written or run.

    Attributes:
        script: The batch script.
        files: Further files by name: the job file, or one for each array element.
        folder: The submission's folder.
        model_dirs: The absolute model directory, or that of each array element.
        tasks: The names of the tasks in the order of their ranks.
        array: The number of elements of an array; None for a single job.
        has_dependency: Whether Slurm starts it after a different job.
        name: The job's name.
        signal_seconds: Seconds that the tasks may take to stop with a checkpoint.
    """

    script: str
    folder: str
    files: dict[str, str] = field(default_factory=dict)
    model_dirs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    array: int | None = None
    has_dependency: bool = False
    name: str = ""
    signal_seconds: float = 0.0


def components_of(job: Job) -> tuple[Component, ...]:
    """Group the job's tasks into components, each with the same resources."""
    components: list[Component] = []
    for task in tasks_of(job.cluster):
        wanted = job.slurm.of_role(task.type)
        if components and components[-1].resources == wanted:
            components[-1] = Component((*components[-1].tasks, str(task)), wanted)
        else:
            components.append(Component((str(task),), wanted))
    return tuple(components)


def plan_slurm(
    job: Job,
    *,
    folder: str,
    working_dir: str,
    command: Sequence[str],
    version: str,
    elements: Sequence[Job] = (),
    at_once: int | None = None,
) -> SlurmPlan:
    """Build the submission of a job without writing it.

    Args:
        job: The job; for an array, the common part of its elements.
        folder: The submission's folder, on a file system that all nodes share.
        working_dir: The folder that relative paths of the job refer to.
        command: The command of estimator-pipeline for the supervisor; slurm.command may set a different one for tasks.
        version: The version of this package, for the script's header.
        elements: The jobs of an array.
        at_once: The number of elements that may run at the same time.
    """
    slurm, components = job.slurm, components_of(job)
    tasks = tuple(str(task) for task in tasks_of(job.cluster))
    array = f"--array=0-{len(elements) - 1}" + (f"%{at_once}" if at_once else "") if elements else None
    shown: list[dict[str, Any]] = [{"text": part.text, "options": _options(job, part)} for part in components]
    common = _common_options(job, folder, working_dir, array)
    # The supervisor runs beside srun, on the node of the script and outside of any container.
    supervisor = shlex.join(command)
    job_file = f"{folder}/job-$SLURM_ARRAY_TASK_ID.yaml" if elements else f"{folder}/{JOB_FILE}"
    script = _template().render(
        title=_one_line(job.name),
        tasks=_counted(tasks) + (f"; an array of {len(elements)}" if elements else ""),
        version=version,
        job_file_shown=_one_line(job_file.replace("$SLURM_ARRAY_TASK_ID", "N")),
        order="Ranks: " + ", ".join(f"{rank} {task}" for rank, task in enumerate(tasks)) + ".",
        common=common,
        components=shown,
        setup=[shlex.quote(line) for lines in slurm.setup for line in lines.split("\n")],
        teardown=shlex.quote("\n".join(slurm.teardown)) if slurm.teardown else None,
        env=[(name, shlex.quote(value)) for name, value in slurm.env.items()],
        folder=shlex.quote(folder),
        array=bool(elements),
        preemption_secs=slurm.signal_seconds - _SHUTDOWN_SECS,
        grace=slurm.signal_seconds,
        command=supervisor,
        max_restarts=slurm.max_restarts,
        max_requeues=slurm.max_requeues,
        most_early=_MOST_EARLY,
        metrics=shlex.quote(slurm.metrics_dir) if slurm.metrics_dir else None,
        step_timeout=f"{slurm.step_timeout:g}" if slurm.step_timeout else None,
        steps=_steps(job, components, run=slurm.command or supervisor, job_file=job_file),
    )
    files = {f"job-{i}.yaml": _job_file(element) for i, element in enumerate(elements)} or {JOB_FILE: _job_file(job)}
    return SlurmPlan(
        script=script,
        folder=folder,
        files=files,
        model_dirs=tuple(_absolute(element.run.model_dir, working_dir) for element in elements or [job]),
        tasks=tasks,
        array=len(elements) or None,
        has_dependency=any(line.startswith("#SBATCH") and " --dependency" in line for line in script.splitlines()),
        name=job.name,
        signal_seconds=float(slurm.signal_seconds),
    )


def _absolute(model_dir: str, working_dir: str) -> str:
    return model_dir if "://" in model_dir else os.path.join(working_dir, model_dir)


def _job_file(job: Job) -> str:
    """Format the tasks' job file, with the script's signals in an explicit list."""
    explicit = job.run.preemption_signals
    if explicit is not None:
        listed = [*explicit, *(name for name in ("SIGTERM", "SIGUSR1") if name not in explicit)]
        job = job.model_copy(update={"run": job.run.model_copy(update={"preemption_signals": listed})})
    return dump_job(job)


def _common_options(job: Job, folder: str, working_dir: str, array: str | None) -> list[str]:
    slurm = job.slurm
    # Slurm expands a percent sign in file names.
    plain = folder.replace("%", "%%")
    output = f"{plain}/%a/{OUTPUT}" if array else f"{plain}/{OUTPUT}"
    options = [
        f"--job-name={_quoted(slurm.job_name or job.name)}",
        f"--output={_quoted(output)}",
        "--open-mode=append",
        f"--chdir={_quoted(working_dir)}",
        "--requeue" if slurm.max_requeues else "--no-requeue",
        f"--signal=B:USR1@{slurm.signal_seconds}",
    ]
    # Components start together, so the dependency of the first one is enough.
    optional = {
        "comment": slurm.comment,
        "dependency": slurm.dependency,
        "mail-user": slurm.mail_user,
        "mail-type": slurm.mail_type,
    }
    options += [f"--{name}={_quoted(value)}" for name, value in optional.items() if value is not None]
    return [*options, *([array] if array else [])]


def _options(job: Job, component: Component) -> list[str]:
    # A component does not inherit these from the first one.
    common = {"time": job.slurm.time, "account": job.slurm.account, "qos": job.slurm.qos}
    options = [f"--{name}={_quoted(str(value))}" for name, value in common.items() if value is not None]
    options.append(f"--ntasks={len(component.tasks)}")
    resources = of_resources(component.resources)
    names = {
        "partition": "partition",
        "nodes": "nodes",
        "tasks_per_node": "ntasks-per-node",
        "cpus_per_task": "cpus-per-task",
        "gpus_per_task": "gpus-per-task",
        "gpus_per_node": "gpus-per-node",
        "gres": "gres",
        "mem": "mem",
        "mem_per_cpu": "mem-per-cpu",
        "constraint": "constraint",
        "nodelist": "nodelist",
        "exclude": "exclude",
    }
    options += [f"--{option}={_quoted(str(resources[name]))}" for name, option in names.items() if resources.get(name)]
    options += ["--exclusive"] if resources.get("exclusive") else []
    return [*options, *map(_user_option, resources.get("sbatch", []))]


def _user_option(text: str) -> str:
    """Format an option of slurm.sbatch, maybe with further ones: "--hold --nice=5"."""
    name, value = option_of(text) or (text, None)
    if value is None or value.startswith("--"):
        return text
    return f"--{name}={_quoted(value)}"


def _steps(job: Job, components: Sequence[Component], *, run: str, job_file: str) -> str:
    """Format the arguments of srun: a command for each component."""
    quoted = f'"{job_file}"' if "$" in job_file else shlex.quote(job_file)
    files = '--open-mode=append --output="$ep_logs/task-%t.log"'
    steps = []
    for i, component in enumerate(components):
        options = [f"--het-group={i}" if len(components) > 1 else f"--ntasks={len(component.tasks)}"]
        # Since Slurm 22.05 a step does not inherit the batch job's --cpus-per-task.
        if component.resources.cpus_per_task:
            options.append(f"--cpus-per-task={component.resources.cpus_per_task}")
        options += ["--kill-on-bad-exit=1", *job.slurm.srun]
        steps.append(f"{' '.join(options)} {files} \\\n    {run} train {quoted}")
    return " \\\n    : ".join(steps)


def _counted(tasks: Sequence[str]) -> str:
    kinds: dict[str, int] = {}
    for task in tasks:
        kind = task.partition(":")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    plural = {"worker": "workers", "evaluator": "evaluators", "chief": "chiefs", "ps": "ps"}
    return ", ".join(f"{count} {plural[kind] if count > 1 else kind}" for kind, count in kinds.items())


def _quoted(text: str) -> str:
    """Quote a value for an #SBATCH line if it has blanks or special characters."""
    plain = _one_line(text)
    if not plain or any(c.isspace() or c in "'\"#\\" for c in plain):
        return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return plain


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def _template() -> jinja2.Template:
    text = (importlib.resources.files(__package__) / _TEMPLATE).read_text(encoding="utf-8")
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(text)

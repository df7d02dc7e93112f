"""Slurm: a job file becomes a batch script that a person can read, and nothing else is done here.

The script starts all tasks by one `srun` under `estimator-pipeline supervise`. Each task finds its part by Slurm's
variables (:mod:`~estimator_pipeline.cluster.environments.slurm`); ranks are the chief, the workers, the parameter
servers, the evaluator. Roles that get other resources than the rest are components of a heterogeneous job
(https://slurm.schedmd.com/heterogeneous_jobs.html) in the same order.

`srun --kill-on-bad-exit=1` ends all tasks when the first one fails, which those that have not met it yet would not
notice by themselves. It does the same when a task ends with 75, and an evaluator that is asked to end does so before
the checkpoint is written; and tasks that it ends stop with 75 themselves, as if they had been preempted. So here a task
that was asked to end says so in a file, and exits with 0 (:mod:`~estimator_pipeline.progress.progress_file`).
"""

from __future__ import annotations

import importlib.resources
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2

from estimator_pipeline.cluster.roles import tasks_of
from estimator_pipeline.job import Job, SlurmResources, dump_job
from estimator_pipeline.job.sections.slurm import of_resources, option_of

__all__ = ["JOB_FILE", "SCRIPT", "Component", "SlurmPlan", "components_of", "plan_slurm"]

SCRIPT = "job.sh"
JOB_FILE = "job.yaml"
OUTPUT = "output.log"
_TEMPLATE = "script.jinja"
# Slurm ends a job at its limit, and the script has to say its last words before.
_LAST_WORDS_SECS = 10
# How often in a row a job may be asked to stop before it trains, until it is given up.
_MOST_EARLY = 3


@dataclass(frozen=True)
class Component:
    """Consecutive tasks that get the same resources.

    Attributes:
        tasks: Their names, in order of their ranks: "worker:0".
        resources: What they get.
    """

    tasks: tuple[str, ...]
    resources: SlurmResources

    @property
    def text(self) -> str:
        """The tasks in words."""
        return ", ".join(self.tasks)


@dataclass(frozen=True)
class SlurmPlan:
    """A submission before anything is written or run.

    Attributes:
        script: The batch script.
        files: Further files by their names in the submission's folder: the job file, or one for each array element.
        folder: Where they will lie.
        model_dirs: The model directory, or that of each array element.
        tasks: The names of the tasks in order of their ranks.
        array: How many elements an array has; None for a single job.
    """

    script: str
    folder: str
    files: dict[str, str] = field(default_factory=dict)
    model_dirs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    array: int | None = None


def components_of(job: Job) -> tuple[Component, ...]:
    """The job's tasks, cut where the resources change from one role to the next."""
    found: list[Component] = []
    for task in tasks_of(job.cluster):
        wanted = job.slurm.of_role(task.type)
        if found and found[-1].resources == wanted:
            found[-1] = Component((*found[-1].tasks, str(task)), wanted)
        else:
            found.append(Component((str(task),), wanted))
    return tuple(found)


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
    """What will be submitted.

    Args:
        job: The job; of an array what its elements have in common.
        folder: Of this submission, on a file system that all nodes share.
        working_dir: Where relative paths of the job start.
        command: How estimator-pipeline is called; the tasks' own command may be another, slurm.command.
        version: Of this package, for the script's head.
        elements: The jobs of an array.
        at_once: How many of them may run at the same time.
    """
    slurm, components = job.slurm, components_of(job)
    tasks = tuple(str(task) for task in tasks_of(job.cluster))
    array = f"--array=0-{len(elements) - 1}" + (f"%{at_once}" if at_once else "") if elements else None
    shown: list[dict[str, Any]] = [{"text": one.text, "options": _options(job, one)} for one in components]
    common = _common_options(job, folder, working_dir, array)
    # The supervisor runs beside srun, on the node of the script and in no container.
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
        setup=slurm.setup,
        teardown=slurm.teardown,
        env=[(name, shlex.quote(value)) for name, value in slurm.env.items()],
        folder=shlex.quote(folder),
        array=bool(elements),
        preemption_secs=slurm.signal_seconds - _LAST_WORDS_SECS,
        grace=slurm.signal_seconds,
        command=supervisor,
        max_restarts=slurm.max_restarts,
        max_requeues=slurm.max_requeues,
        most_early=_MOST_EARLY,
        metrics=shlex.quote(slurm.metrics_dir) if slurm.metrics_dir else None,
        step_timeout=f"{slurm.step_timeout:g}" if slurm.step_timeout else None,
        steps=_steps(job, components, run=slurm.command or supervisor, job_file=job_file),
    )
    files = {f"job-{i}.yaml": _written(one) for i, one in enumerate(elements)} or {JOB_FILE: _written(job)}
    return SlurmPlan(
        script=script,
        folder=folder,
        files=files,
        model_dirs=tuple(one.run.model_dir for one in elements or [job]),
        tasks=tasks,
        array=len(elements) or None,
    )


def _written(job: Job) -> str:
    """The job file that the tasks read: a list of signals of the job's own has those of the script as well."""
    own = job.run.preemption_signals
    if own is not None:
        listed = [*own, *(name for name in ("SIGTERM", "SIGUSR1") if name not in own)]
        job = job.model_copy(update={"run": job.run.model_copy(update={"preemption_signals": listed})})
    return dump_job(job)


def _common_options(job: Job, folder: str, working_dir: str, array: str | None) -> list[str]:
    slurm = job.slurm
    # A percent sign begins a pattern of Slurm.
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
    # Components start together, so the first one's dependency is that of all.
    given = {
        "comment": slurm.comment,
        "dependency": slurm.dependency,
        "mail-user": slurm.mail_user,
        "mail-type": slurm.mail_type,
    }
    options += [f"--{name}={_quoted(value)}" for name, value in given.items() if value is not None]
    return [*options, *([array] if array else [])]


def _options(job: Job, component: Component) -> list[str]:
    # A component takes over neither of them from the first.
    common = {"time": job.slurm.time, "account": job.slurm.account, "qos": job.slurm.qos}
    options = [f"--{name}={_quoted(str(value))}" for name, value in common.items() if value is not None]
    options.append(f"--ntasks={len(component.tasks)}")
    found = of_resources(component.resources)
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
    options += [f"--{option}={_quoted(str(found[name]))}" for name, option in names.items() if found.get(name)]
    options += ["--exclusive"] if found.get("exclusive") else []
    return [*options, *map(_own_option, found.get("sbatch", []))]


def _own_option(text: str) -> str:
    """An option of slurm.sbatch, which may hold another one in the place of a value: "--hold --nice=5"."""
    name, value = option_of(text) or (text, None)
    if value is None or value.startswith("--"):
        return text
    return f"--{name}={_quoted(value)}"


def _steps(job: Job, components: Sequence[Component], *, run: str, job_file: str) -> str:
    """The arguments of srun: one command for each component, in lines of the script."""
    quoted = f'"{job_file}"' if "$" in job_file else shlex.quote(job_file)
    files = '--open-mode=append --output="$logs/task-%t.log"'
    steps = []
    for i, component in enumerate(components):
        options = [f"--het-group={i}" if len(components) > 1 else f"--ntasks={len(component.tasks)}"]
        # Since 22.05 a step no longer has the batch job's --cpus-per-task by itself.
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
    """As sbatch reads its own lines: words in double quotes where there are blanks."""
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

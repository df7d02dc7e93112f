"""Slurm batch script of a job file.

One `srun` starts all tasks. Each task derives its role from Slurm's variables
(`estimator_pipeline.cluster.environments.slurm`). Roles with different resources are components of a heterogeneous job
(https://slurm.schedmd.com/heterogeneous_jobs.html) in the order of their ranks.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from typing import Any

from estimator_pipeline.cluster.roles import tasks_of
from estimator_pipeline.job import Job, SlurmResources
from estimator_pipeline.job.loading import JOB_FILE
from estimator_pipeline.job.sections.batch import resources_of
from estimator_pipeline.job.sections.slurm import option_of
from estimator_pipeline.launch.batch.runs import OUTPUT
from estimator_pipeline.launch.batch.script import one_line, plan_batch
from estimator_pipeline.launch.batch.submission import BatchPlan

__all__ = ["components_of", "plan_slurm"]


Component = tuple[SlurmResources, list[str]]
"""Consecutive tasks with the same resources, by their names in the order of the ranks."""


def components_of(job: Job) -> list[Component]:
    """Group the job's tasks into components."""
    groups = itertools.groupby(tasks_of(job.cluster), key=lambda task: job.slurm.of_role(task.type))
    return [(resources, list(map(str, tasks))) for resources, tasks in groups]


def plan_slurm(
    job: Job,
    *,
    folder: str,
    working_dir: str,
    command: Sequence[str],
    elements: Sequence[Job] = (),
    at_once: int | None = None,
    **values: Any,
) -> BatchPlan:
    """Build the submission of a job without writing it; see `plan_batch`.

    Args:
        job: The job; for an array, the common part of its elements.
        folder: The submission's folder.
        working_dir: The folder that relative paths of the job refer to.
        command: The command of estimator-pipeline for the supervisor.
        elements: The jobs of an array.
        at_once: The number of elements that may run at the same time.
        values: Further arguments of `plan_batch`.
    """
    components = components_of(job)
    array = f"--array=0-{len(elements) - 1}" + (f"%{at_once}" if at_once else "") if elements else None
    job_file = f"{folder}/job-$SLURM_ARRAY_TASK_ID.yaml" if elements else f"{folder}/{JOB_FILE}"
    common = _common_options(job, folder, working_dir, array)
    shown = [{"text": ", ".join(part[1]), "options": _options(job, *part)} for part in components]
    every_option = [option for options in (common, *(part["options"] for part in shown)) for option in options]
    steps = _steps(job, components, run=job.slurm.command or shlex.join(command), job_file=job_file)
    return plan_batch(
        job,
        scheduler="slurm",
        folder=folder,
        working_dir=working_dir,
        command=command,
        elements=elements,
        # An option of slurm.sbatch may have further ones: "--hold --dependency=singleton".
        has_dependency=any(" --dependency" in f" {option}" for option in every_option),
        common=common,
        components=shown,
        job_id="$SLURM_JOB_ID",
        launcher="srun",
        forwarding="srun forwards USR1 to them; TERM would end them.",
        requeue_program="scontrol",
        time_field="slurm.time",
        tasks_command=f"srun {steps}",
        **values,
    )


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


def _options(job: Job, section: SlurmResources, tasks: Sequence[str]) -> list[str]:
    # A component does not inherit these from the first one.
    common = {"time": job.slurm.time, "account": job.slurm.account, "qos": job.slurm.qos}
    options = [f"--{name}={_quoted(str(value))}" for name, value in common.items() if value is not None]
    options.append(f"--ntasks={len(tasks)}")
    resources = resources_of(section, SlurmResources)
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
    for i, (resources, tasks) in enumerate(components):
        options = [f"--het-group={i}" if len(components) > 1 else f"--ntasks={len(tasks)}"]
        # Since Slurm 22.05 a step does not inherit the batch job's --cpus-per-task.
        if resources.cpus_per_task:
            options.append(f"--cpus-per-task={resources.cpus_per_task}")
        options += ["--kill-on-bad-exit=1", *job.slurm.srun]
        steps.append(f"{' '.join(options)} {files} \\\n    {run} train {quoted}")
    return " \\\n    : ".join(steps)


def _quoted(text: str) -> str:
    """Quote a value for an #SBATCH line if it has blanks or special characters."""
    plain = one_line(text)
    if not plain or any(c.isspace() or c in "'\"#\\" for c in plain):
        return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return plain

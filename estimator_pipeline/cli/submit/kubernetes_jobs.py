"""Names, logs and cancellation of the jobs that `submit kubernetes` has created."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from estimator_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from estimator_pipeline.launch.kubernetes.kubectl import JobName
    from estimator_pipeline.launch.kubernetes.status import PodState

NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="Override kubernetes.namespace, for a job in Kubernetes."),
]


def kubernetes_job(job: str, settings: list[str] | None, namespace: str | None) -> JobName | None:
    """Return the Kubernetes job that the user names, or None for a Slurm job.

    Its name is KIND/NAME, such as job/digits, or a job file with an image in its section kubernetes. A file with both
    sections means Slurm once it has been submitted there.

    Raises:
        ConfigError: The job file is invalid, or --namespace is set for a Slurm job.
    """
    from estimator_pipeline.job import load_job
    from estimator_pipeline.launch.kubernetes.kubectl import JobName
    from estimator_pipeline.launch.kubernetes.manifests import kubernetes_name

    named = re.fullmatch(r"(job|jobset|tfjob)/([-a-z0-9]+)", job)
    if named and not Path(job).exists():
        if settings:
            raise ConfigError(
                f"--set {settings[0]} requires a job file, and {job} is not one.",
                code="argument/not-applicable",
                hint="leave it out.",
            )
        return JobName(named[1], named[2], namespace)
    if not job.isdigit() and not Path(job).is_dir() and "." in Path(job).name:
        loaded = load_job(job, overrides=settings or [])
        section = loaded.kubernetes
        if section.image is not None and (namespace is not None or not _submitted_to_slurm(loaded)):
            return JobName(section.kind, kubernetes_name(loaded.name), namespace or section.namespace)
    if namespace is not None:
        raise ConfigError(
            f"--namespace {namespace} is for jobs in Kubernetes, and {job} is not one.",
            code="argument/not-applicable",
            found="no image in a section kubernetes",
            hint="name a job file with that section (and the same --set), or KIND/NAME, such as job/digits.",
        )
    return None


def _submitted_to_slurm(loaded: object) -> bool:
    from estimator_pipeline.cli.submit.slurm import submissions_folder
    from estimator_pipeline.job import Job

    assert isinstance(loaded, Job)
    try:
        return "slurm" in loaded.model_fields_set and submissions_folder(loaded).is_dir()
    except ConfigError:
        return False


def logs(job: JobName, *, follow: bool, task: str | None, element: int | None, lines: int, failed: bool) -> None:
    """Print the logs of a job's pods, each line with its task, or the log of the first task that failed."""
    from estimator_pipeline.launch.kubernetes import logs as kubernetes_logs
    from estimator_pipeline.launch.kubernetes.jobs import find_objects
    from estimator_pipeline.launch.kubernetes.status import first_failure
    from estimator_pipeline.launch.logs.terminal import harmless

    if element is not None:
        raise ConfigError(
            f"--element {element}: the job is not an array.", code="argument/not-applicable", hint="leave it out."
        )
    there = find_objects(job, environ=os.environ)
    tasks = list(dict.fromkeys(pod.task for pod in there.pods)) if there is not None else []
    if not tasks:
        raise ConfigError(
            f"{job} has no pods and therefore no logs.", code="jobs/not-found", hint=f"see `status {job}{job.flags}`."
        )
    if task is not None and task not in tasks:
        raise ConfigError(
            f"--task {task}: the job has no such task.", code="jobs/not-found", found=f"its tasks: {', '.join(tasks)}"
        )
    assert there is not None
    if failed:
        if task is not None or follow:
            raise ConfigError(
                "--failed shows one log to its end.", code="argument/conflict", hint="leave --task and --follow out."
            )
        first = first_failure(there.workloads, there.pods)
        if first is None:
            raise ConfigError("no task has failed, as far as its pods are still there.", code="jobs/not-found")
        typer.echo(f"{first.task}: {first.failure} (pod {first.pod})")
        for line in kubernetes_logs.failed_log(first, lines=lines, job=job, environ=os.environ):
            typer.echo(harmless(line))
        return
    width = max(map(len, tasks))

    def show(who: str, line: str) -> None:
        typer.echo(harmless(line if task is not None else f"{who:<{width}} | {line}"))

    def wanted(pods: Sequence[PodState]) -> list[PodState]:
        return [pod for pod in pods if task in (None, pod.task)]

    def now() -> tuple[list[PodState], bool]:
        there = find_objects(job, environ=os.environ)
        return (wanted(there.pods), there.status.ended) if there is not None else ([], True)

    if follow:
        kubernetes_logs.follow(now, lines=lines, show=show, job=job, environ=os.environ)
        return
    for who, line in kubernetes_logs.printed(wanted(there.pods), lines=lines, job=job, environ=os.environ):
        show(who, line)


def cancel(job: JobName, *, now: bool) -> None:
    """Cancel a job, with time for a checkpoint unless `now`."""
    from estimator_pipeline.launch.kubernetes import jobs as kubernetes_jobs

    kubernetes_jobs.cancel(job, now=now, environ=os.environ, report=typer.echo)

"""The schedulers: which one a name means, and the jobs of all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.launch.job_status import JobEntry
from estimator_pipeline.launch.kubernetes.scheduler import KubernetesScheduler
from estimator_pipeline.launch.local.scheduler import LocalScheduler
from estimator_pipeline.launch.pbs.scheduler import PbsScheduler
from estimator_pipeline.launch.scheduler import JobList, JobReference, ListRequest, Scheduler, explicit_options
from estimator_pipeline.launch.slurm.scheduler import SlurmScheduler

__all__ = ["SCHEDULERS", "find_job", "find_scheduler", "list_jobs", "reference_of", "scheduler_named"]

SCHEDULERS: tuple[Scheduler[Any], ...] = (SlurmScheduler(), PbsScheduler(), KubernetesScheduler(), LocalScheduler())
"""Of those whose `claims` is true for a name, the one with the latest run has the job; the first one if no files show
when. Slurm is the first:

- A job file with several sections means Slurm or PBS if it was submitted there, which files show; Kubernetes, whose
  objects are in the cluster only, claims every job file that names an image, and a launch that has ended does not.
- A name that nothing claims means the first one, or PBS where only its commands are: ids of Slurm are numbers, and PBS
  accepts the number of an id.
- A list of jobs has those that are in files, and of the first one whose commands are available: kubectl on a machine
  with Slurm is often configured for something else.
"""


def scheduler_named(name: str) -> Scheduler[Any]:
    """Return the scheduler of `submit NAME`."""
    return next(scheduler for scheduler in SCHEDULERS if scheduler.name == name)


def reference_of(name: str, settings: Sequence[str] | None = None, **options: Any) -> JobReference:
    """Return the reference to a job with the options that are set: not None or False."""
    is_id = any(scheduler.notation and scheduler.notation.fullmatch(name) for scheduler in SCHEDULERS)
    return JobReference(name, tuple(settings or ()), explicit_options(options), is_id=is_id and not Path(name).exists())


def find_scheduler(reference: JobReference, *, environ: Mapping[str, str] | None = None) -> Scheduler[Any]:
    """Return the scheduler that has the job of this name.

    Args:
        reference: The job.
        environ: The environment of the schedulers' commands; None for this process's.

    Raises:
        ConfigError: The job file is invalid, or the scheduler does not support an option.
    """
    claiming = [candidate for candidate in SCHEDULERS if candidate.claims(reference)]
    if claiming:
        scheduler = max(claiming, key=lambda candidate: candidate.last_active(reference))
    else:
        scheduler = _scheduler_of_numbers(os.environ if environ is None else environ)
    for option in reference.options:
        if option not in scheduler.options:
            raise ConfigError(
                f"--{option} is for jobs {_location(option)}.",
                code="argument/not-applicable",
                hint=scheduler.instead.get(option, "leave it out."),
            )
    return scheduler


def _scheduler_of_numbers(environ: Mapping[str, str]) -> Scheduler[Any]:
    accepting = [scheduler for scheduler in SCHEDULERS if scheduler.accepts_numbers]
    return next((scheduler for scheduler in accepting if scheduler.is_available(environ)), accepting[0])


def find_job(reference: JobReference, *, environ: Mapping[str, str]) -> tuple[Scheduler[Any], Any]:
    """Return the scheduler that has the job of this name, and its record of the job.

    Args:
        reference: The job.
        environ: The environment of the schedulers' commands.

    Raises:
        ConfigError: There is no such job. Also the errors of `find_scheduler`.
        TaskFailedError: The scheduler does not answer.
    """
    scheduler = find_scheduler(reference, environ=environ)
    try:
        return scheduler, scheduler.find(reference, environ=environ)
    except ConfigError:
        job = reference.job
        if job is None or scheduler.claims(reference):
            raise
        raise ConfigError(
            f"{reference.name}: nothing was launched or submitted with this job file.",
            code="jobs/not-found",
            found=f"no logs of `launch` in {job.run.model_dir}/logs, and no submission to {scheduler.title}",
            hint="name the job file as it was launched or submitted (with the same --set), or a log folder (--log-dir "
            "of `launch` or `supervise`).",
        ) from None


def _location(option: str) -> str:
    return next(scheduler.location for scheduler in SCHEDULERS if option in scheduler.options)


def list_jobs(request: ListRequest, *, environ: Mapping[str, str]) -> JobList:
    """List the jobs of all schedulers, or of those that support the options.

    Args:
        request: The jobs to list.
        environ: The environment of the schedulers' commands.

    Raises:
        ConfigError: No scheduler supports all options.
        TaskFailedError: The scheduler that the options select does not answer.
    """
    options = request.options
    selected = [scheduler for scheduler in SCHEDULERS if options.keys() <= scheduler.options]
    if not selected:
        first, second = list(options)[:2]
        raise ConfigError(
            f"--{first} is for jobs {_location(first)}, and --{second} for those {_location(second)}.",
            code="argument/conflict",
            hint="leave one of them out.",
        )
    if not options:
        available = [scheduler for scheduler in SCHEDULERS if scheduler.program and scheduler.is_available(environ)]
        selected = [
            scheduler for scheduler in SCHEDULERS if "folder" in scheduler.options or scheduler in available[:1]
        ]
    entries: list[JobEntry] = []
    left_out, unknown = 0, ""
    for scheduler in selected:
        try:
            jobs = scheduler.list_jobs(request, environ=environ)
        except TaskFailedError as error:
            if options:
                raise
            # kubectl may be installed without a cluster; the list of other jobs is still right.
            unknown = f"jobs {scheduler.location}, if any, are unknown: {error.found}"
            continue
        entries += jobs.entries
        left_out += jobs.left_out
    return JobList(entries, left_out, unknown)

"""`estimator-pipeline status`: show the status of jobs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import JOB_HELP, NamespaceOption, SubmittedSettings, above_zero
from estimator_pipeline.errors import ConfigError

# Without --all, jobs that ended earlier are not listed.
_RECENT_SECS = 7 * 86400.0


def command(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help=f"{JOB_HELP} Default: all jobs.")] = None,
    settings: SubmittedSettings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Without JOB: search this folder for model directories.", show_default="."),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Without JOB: also list jobs that ended more than a week ago.")
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", callback=above_zero, help="Refresh at this interval until all jobs have ended."
        ),
    ] = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show the status of a job: pending, running, or ended and why; and the progress of its training.

    Without JOB, list all jobs: the user's jobs in Slurm and PBS, and the newest submission and launch of each model
    directory below the current folder, unless they ended more than a week ago. With --namespace, or with kubectl and
    without Slurm and PBS, list those in Kubernetes. Exit codes: 1 if a job has failed or its status is unknown,
    otherwise 0.
    """
    from estimator_pipeline.launch.job_status import status_json, status_lines
    from estimator_pipeline.launch.logs.terminal import harmless
    from estimator_pipeline.launch.scheduler import JobList, ListRequest
    from estimator_pipeline.launch.schedulers import find_job, list_jobs, reference_of
    from estimator_pipeline.utils.text import counted

    single = job is not None
    if not single and settings:
        raise ConfigError(
            f"--set {settings[0]} requires a job file.",
            code="argument/not-applicable",
            hint="name the job file.",
        )
    if single and (folder is not None or show_all):
        option = "--all" if folder is None else f"--folder {folder}"
        raise ConfigError(
            f"{option} is for a list of jobs, and {job} is a single job.",
            code="argument/not-applicable",
            hint="leave one of them out.",
        )
    reference = reference_of(job or "", settings, folder=folder, namespace=namespace)
    if single:
        scheduler, submitted = find_job(reference, environ=os.environ)
    while True:
        if single:
            jobs = JobList([scheduler.status(submitted, environ=os.environ)])
        else:
            since = 0.0 if show_all else time.time() - _RECENT_SECS
            jobs = list_jobs(ListRequest(reference.options, since), environ=os.environ)
        if watch is not None and sys.stdout.isatty() and not as_json:
            typer.echo("\x1b[H\x1b[2J", nl=False)
        if as_json:
            typer.echo(status_json(jobs.entries, single=single))
        else:
            typer.echo(harmless("\n".join(status_lines(jobs.entries, single=single))))
        if jobs.left_out:
            typer.echo(f"{counted(jobs.left_out, 'job')} that ended more than a week ago: --all", err=as_json)
        if jobs.unknown:
            typer.echo(jobs.unknown, err=True)
        statuses = [status for entry in jobs.entries for status in entry.jobs]
        if watch is None or all(status.ended for status in statuses):
            raise typer.Exit(int(bool(jobs.unknown) or any(status.failed for status in statuses)))
        time.sleep(watch)

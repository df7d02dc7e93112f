"""`estimator-pipeline status`: how a submitted job stands."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from estimator_pipeline.cli import kubernetes_jobs
from estimator_pipeline.cli.seconds import above_zero

if TYPE_CHECKING:
    from estimator_pipeline.launch.slurm_jobs import Submission
    from estimator_pipeline.launch.slurm_status import JobStatus

    Jobs = list[tuple[Submission, list[JobStatus]]]

JOB_HELP = (
    "The job file that was submitted, the folder of its submission, or the job's id; in Kubernetes KIND/NAME, "
    "as job/digits."
)


def command(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help=f"{JOB_HELP} Without one: all jobs.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As the job file was changed when it was submitted."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Without JOB: where model directories are looked for.", show_default="."),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", callback=above_zero, help="Look again so often, until all have ended."),
    ] = None,
    namespace: kubernetes_jobs.NamespaceOption = None,
) -> None:
    """Say how a submitted job stands: in the queue, running, ended and why; how far its training is.

    Without JOB a table of all jobs: those of this user that Slurm knows, and those submitted to a model directory below
    the current folder. The exit code is 1 where a job has failed, or nobody can say how it stands, and 0 otherwise.
    """
    from estimator_pipeline.errors import ConfigError
    from estimator_pipeline.launch.terminal import harmless

    if job is None and settings:
        raise ConfigError(f"--set {settings[0]} changes a job file, and none is named.", mend="name the job file.")
    if job is not None and folder is not None:
        raise ConfigError(f"--folder {folder} is for a list of jobs, and {job} is one.", mend="leave one of them out.")
    if job is None and namespace is not None:
        raise ConfigError(f"--namespace {namespace} is for one job, and none is named.", mend="name it, as job/digits.")
    if job is not None and (theirs := kubernetes_jobs.kubernetes_job(job, settings, namespace)) is not None:
        kubernetes_jobs.status(theirs, as_json=as_json, watch=watch)
        return
    submission = None if job is None else submission_of(job, settings)
    while True:
        found = _jobs(submission, folder or Path())
        one = submission is not None
        text = _as_json(found, one=one) if as_json else "\n".join(_lines(found, one=one))
        if watch is not None and sys.stdout.isatty() and not as_json:
            typer.echo("\x1b[H\x1b[2J", nl=False)
        typer.echo(text if as_json else harmless(text))
        statuses = [each for _, jobs in found for each in jobs]
        if watch is None or all(each.ended for each in statuses):
            raise typer.Exit(int(any(each.failed for each in statuses)))
        time.sleep(watch)


def _jobs(submission: Submission | None, folder: Path) -> Jobs:
    from estimator_pipeline.launch import slurm_jobs

    if submission is None:
        return slurm_jobs.list_jobs(folder, environ=os.environ)
    return [(submission, slurm_jobs.job_status(submission, environ=os.environ))]


def _as_json(found: Jobs, *, one: bool) -> str:
    documents = [{"submission": own.document(), "jobs": [each.document() for each in jobs]} for own, jobs in found]
    return json.dumps(documents[0] if one else documents, indent=2)


def _lines(found: Jobs, *, one: bool) -> list[str]:
    from estimator_pipeline.launch.job_table import job_table

    if one:
        ((submission, jobs),) = found
        return [*(line for each in jobs for line in each.lines()), f"script and logs: {submission.folder}"]
    return job_table([each for _, jobs in found for each in jobs]) if found else ["no jobs"]


def submission_of(job: str, settings: list[str] | None) -> Submission:
    """The newest submission of a job file, or the one that a folder or an id names."""
    from estimator_pipeline.cli.submit_slurm import submissions_folder
    from estimator_pipeline.errors import ConfigError
    from estimator_pipeline.job import load_job
    from estimator_pipeline.launch import slurm_jobs

    is_file = not job.isdigit() and not Path(job).is_dir() and "." in Path(job).name
    if not is_file:
        if settings:
            raise ConfigError(f"--set {settings[0]} changes a job file, and {job} is none.", mend="leave it out.")
        return slurm_jobs.find_submission(job, environ=os.environ)
    folder = submissions_folder(load_job(job, overrides=settings or []))
    return slurm_jobs.find_submission(job, folder=folder, environ=os.environ)

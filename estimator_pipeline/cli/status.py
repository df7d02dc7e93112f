"""`estimator-pipeline status`: how a submitted job stands."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from estimator_pipeline.launch.slurm_jobs import Submission

JOB_HELP = "The job file that was submitted, the folder of its submission, or the job's id."


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help=JOB_HELP)],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As the job file was changed when it was submitted."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Say how a submitted job stands: in the queue, running, ended and why; how far its training is.

    The exit code is 1 where it has failed, or nobody can say how it stands, and 0 otherwise.
    """
    from estimator_pipeline.launch import slurm_jobs

    submission = submission_of(job, settings)
    found = slurm_jobs.job_status(submission, environ=os.environ)
    if as_json:
        document = {"submission": submission.document(), "jobs": [one.document() for one in found]}
        typer.echo(json.dumps(document, indent=2))
    else:
        for one in found:
            for line in one.lines():
                typer.echo(line)
        typer.echo(f"script and logs: {submission.folder}")
    raise typer.Exit(int(any(one.failed for one in found)))


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

"""`estimator-pipeline cancel`: a submitted job is ended."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from estimator_pipeline.cli.status import JOB_HELP, submission_of


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help=JOB_HELP)],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Let the tasks stop with a checkpoint first, however long it takes.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As the job file was changed when it was submitted."),
    ] = None,
) -> None:
    """End a submitted job; it is not requeued. Submitted again it goes on from its last checkpoint.

    Without --checkpoint the tasks have as long to write one as Slurm leaves between SIGTERM and SIGKILL (30 seconds,
    unless the site says otherwise); with it, slurm.signal_seconds.
    """
    from estimator_pipeline.launch import slurm_jobs

    slurm_jobs.cancel(submission_of(job, settings), checkpoint=checkpoint, environ=os.environ, say=typer.echo)

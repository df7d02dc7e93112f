"""`estimator-pipeline cancel`: a submitted job is ended."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from estimator_pipeline.cli.submit import kubernetes_jobs
from estimator_pipeline.cli.submit.status import JOB_HELP, submission_of
from estimator_pipeline.errors import ConfigError


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help=JOB_HELP)],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Let the tasks stop with a checkpoint first, however long it takes.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As the job file was changed when it was submitted."),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="In Kubernetes: kill the pods, without the time for a checkpoint.")
    ] = False,
    namespace: kubernetes_jobs.NamespaceOption = None,
) -> None:
    """End a submitted job; it is not requeued. Submitted again it goes on from its last checkpoint.

    Without --checkpoint the tasks have as long to write one as Slurm leaves between SIGTERM and SIGKILL (30 seconds,
    unless the site says otherwise); with it, slurm.signal_seconds. In Kubernetes they always have
    kubernetes.termination_grace_seconds, unless --now is given; the job is deleted, and its logs with it.
    """
    from estimator_pipeline.launch.slurm import jobs as slurm_jobs

    if now and checkpoint:
        raise ConfigError(
            "--now and --checkpoint contradict each other.", code="argument/conflict", hint="give one of them."
        )
    if (theirs := kubernetes_jobs.kubernetes_job(job, settings, namespace)) is not None:
        kubernetes_jobs.cancel(theirs, now=now)
        return
    if now:
        raise ConfigError(
            "--now is for jobs in Kubernetes.",
            code="argument/not-applicable",
            hint="leave it out: `scancel --signal=KILL JOBID`.",
        )
    slurm_jobs.cancel(submission_of(job, settings), checkpoint=checkpoint, environ=os.environ, report=typer.echo)

"""`estimator-pipeline cancel`: cancel a submitted job."""

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
        bool, typer.Option("--checkpoint", help="Let the tasks write a checkpoint first, within slurm.signal_seconds.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a field of the job file, as in its submission; repeatable."
        ),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Kill the pods without time for a checkpoint (Kubernetes).")
    ] = False,
    namespace: kubernetes_jobs.NamespaceOption = None,
) -> None:
    """Cancel a submitted job without a requeue. When submitted again, it resumes from its last checkpoint.

    Without --checkpoint the tasks can write a checkpoint in the time between Slurm's SIGTERM and SIGKILL (30 seconds
    unless the site has changed it); with it, within slurm.signal_seconds. In Kubernetes they have
    kubernetes.termination_grace_seconds, unless --now is set; the job is deleted together with its logs.
    """
    from estimator_pipeline.launch.slurm import jobs as slurm_jobs

    if now and checkpoint:
        raise ConfigError(
            "--now and --checkpoint contradict each other.", code="argument/conflict", hint="leave one of them out."
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

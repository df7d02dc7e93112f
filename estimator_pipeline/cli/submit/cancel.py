"""`estimator-pipeline cancel`: cancel a job."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from estimator_pipeline.cli.options import JobArgument, NamespaceOption, SubmittedSettings
from estimator_pipeline.errors import ConfigError


def command(
    job: JobArgument,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Let the tasks write a checkpoint first, within signal_seconds.")
    ] = False,
    settings: SubmittedSettings = None,
    now: Annotated[
        bool, typer.Option("--now", help="Kill the pods without time for a checkpoint (Kubernetes).")
    ] = False,
    namespace: NamespaceOption = None,
) -> None:
    """Cancel a job without a requeue. When submitted or launched again, it resumes from its last checkpoint.

    A launch stops its tasks with a checkpoint, as after Ctrl-C, and the command waits for its end. Without --checkpoint
    the tasks can write a checkpoint in the time between SIGTERM and SIGKILL of Slurm (30 seconds unless the site has
    changed it) or PBS (10); with it, within slurm.signal_seconds or pbs.signal_seconds. In Kubernetes they have
    kubernetes.termination_grace_seconds, unless --now is set; the job is deleted together with its logs.
    """
    from estimator_pipeline.launch.schedulers import find_job, reference_of

    if now and checkpoint:
        raise ConfigError(
            "--now and --checkpoint contradict each other.", code="argument/conflict", hint="leave one of them out."
        )
    reference = reference_of(job, settings, checkpoint=checkpoint, now=now, namespace=namespace)
    scheduler, submitted = find_job(reference, environ=os.environ)
    scheduler.cancel(submitted, reference, environ=os.environ, report=typer.echo)

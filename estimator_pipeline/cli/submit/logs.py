"""`estimator-pipeline logs`: print the logs of a job."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from estimator_pipeline.cli.options import ElementOption, JobArgument, NamespaceOption, SubmittedSettings


def command(
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the logs until the job ends, across requeues.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Print only this task, such as worker:1; script for the batch script, launch for the launcher.",
        ),
    ] = None,
    failed: Annotated[
        bool,
        typer.Option(
            "--failed", help="Print only the task that failed first in the newest run, of an array in any element."
        ),
    ] = False,
    element: ElementOption = None,
    lines: Annotated[
        int, typer.Option(min=0, help="Print the last N lines of each log; 0: all lines of all runs.")
    ] = 20,
    settings: SubmittedSettings = None,
    namespace: NamespaceOption = None,
) -> None:
    """Print the logs of a launched or submitted job, each line with its task."""
    from estimator_pipeline.launch.logs.terminal import harmless
    from estimator_pipeline.launch.scheduler import LogRequest
    from estimator_pipeline.launch.schedulers import find_job, reference_of

    reference = reference_of(job, settings, element=element, namespace=namespace)
    request = LogRequest(task, failed, follow, lines, write=lambda line: typer.echo(harmless(line)))
    scheduler, submitted = find_job(reference, environ=os.environ)
    scheduler.logs(submitted, reference, request, environ=os.environ)

"""`estimator-pipeline stacks`: print the Python stacks of a running job's tasks."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from estimator_pipeline.cli.options import ElementOption, JobArgument, SubmittedSettings, above_zero


def command(
    job: JobArgument,
    task: Annotated[str | None, typer.Option(metavar="TASK", help="Print only this task, such as worker:1.")] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Print only the current line of each task.")] = False,
    timeout: Annotated[float, typer.Option(callback=above_zero, help="Wait this many seconds for answers.")] = 15.0,
    element: ElementOption = None,
    settings: SubmittedSettings = None,
) -> None:
    """Print the current line of each task of a running job, and the Python stacks of all its threads.

    The job keeps running. The output starts with a line for each task: the innermost line of the job's code, or the
    current call of its main thread. Tasks answer within a few seconds, also on other machines with the same log folder.

    Exit codes: 0 if all tasks answered, 1 if one did not, 2 if no task runs.
    """
    from estimator_pipeline.launch.logs.terminal import harmless
    from estimator_pipeline.launch.schedulers import find_job, reference_of
    from estimator_pipeline.launch.stacks import requests as stack_requests

    reference = reference_of(job, settings, element=element)
    scheduler, submitted = find_job(reference, environ=os.environ)
    folder = scheduler.stacks(submitted, reference)
    attempt = stack_requests.attempt_of(folder.path)
    answers = stack_requests.request_stacks(attempt, ranks=folder.tasks, wanted=task, timeout=timeout)
    for answer in answers:
        for line in answer.lines():
            typer.echo(harmless(line))
    for answer in answers:
        if answer.stacks and not brief:
            typer.echo(harmless(f"\n==> {answer.head}\n\n{answer.stacks}"))
    raise typer.Exit(int(any(answer.missing and not answer.ended for answer in answers)))

"""`estimator-pipeline submit`: submit a job file to a scheduler, which declares the options."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from estimator_pipeline.launch.scheduler import COMMON_OPTIONS, SubmitOption

_JOB = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="Submit this job file.")]


def command(name: str, job: Path, values: dict[str, Any]) -> None:
    """Submit a job file.

    Args:
        name: The scheduler.
        job: The job file.
        values: The values of the scheduler's options, by their names; None and False if they are not set.
    """
    from estimator_pipeline.cli.checks_before import reject_failing_jobs
    from estimator_pipeline.cli.train import is_trained
    from estimator_pipeline.launch.scheduler import SubmitRequest
    from estimator_pipeline.launch.schedulers import scheduler_named

    scheduler = scheduler_named(name)
    plan = scheduler.plan(SubmitRequest.of(job, (*scheduler.submit_options, *COMMON_OPTIONS), values))

    def show_plan() -> None:
        typer.echo(plan.json if values["json"] else plan.text.rstrip("\n"))

    if not scheduler.other_files and len(plan.jobs) == 1 and is_trained(plan.jobs[0], as_json=values["json"]):
        return
    if values["dry_run"] and scheduler.shows_rejected:
        show_plan()
    if not values["no_checks"]:
        reject_failing_jobs(
            plan.jobs,
            file=str(job),
            done="nothing is submitted (--no-checks submits all the same)",
            checks=scheduler.checks,
            other_python=plan.other_python,
            other_files=scheduler.other_files,
        )
    if values["dry_run"]:
        if not scheduler.shows_rejected:
            show_plan()
        return
    result = scheduler.submit(plan, environ=os.environ)
    if values["json"]:
        typer.echo(json.dumps(result.document, indent=2))
        return
    for line, is_error in result.messages:
        typer.echo(line, err=is_error)


def command_of(name: str) -> Callable[..., None]:
    """Return the command of a scheduler, whose signature has the scheduler's options for typer."""
    from estimator_pipeline.launch.schedulers import scheduler_named

    def submit(job: Path, **values: Any) -> None:
        command(name, job, values)

    scheduler = scheduler_named(name)
    parameters = [inspect.Parameter("job", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=_JOB)]
    parameters += [_parameter(option) for option in (*scheduler.submit_options, *COMMON_OPTIONS)]
    submit.__doc__ = scheduler.submit_help
    submit.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    submit.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return submit


def _parameter(option: SubmitOption) -> inspect.Parameter:
    kinds: dict[type, Any] = {bool: bool, list: list[str] | None}
    flags = [option.flag, option.short] if option.short else [option.flag]
    declared = typer.Option(*flags, metavar=option.metavar, help=option.help, min=option.least)
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if option.kind is bool else None,
        annotation=Annotated[kinds.get(option.kind, option.kind | None), declared],
    )

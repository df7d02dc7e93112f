"""`estimator-pipeline doctor`: what is wrong with a job, before it waits in a queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from estimator_pipeline.cli.options import above_zero
from estimator_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from estimator_pipeline.doctor import DoctorFinding
    from estimator_pipeline.job import Job


def command(
    job: Annotated[Path | None, typer.Argument(metavar="[JOB.yaml]", help="The job file.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the job file; may be repeated."),
    ] = None,
    tf_config: Annotated[
        str | None,
        typer.Option("--tf-config", metavar="FILE|JSON", help="A TF_CONFIG in the place of the environment's."),
    ] = None,
    environment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which scheduler to ask; none: none but TF_CONFIG.")
    ] = None,
    model_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="The model directory, where there is no job file.")
    ] = None,
    connect: Annotated[bool, typer.Option("--connect", help="Try the ports of the other tasks.")] = False,
    shared: Annotated[
        bool,
        typer.Option("--shared", help="On every task: meet the others in the model directory, and compare."),
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Import TensorFlow; open the data, read the latest checkpoint.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, callback=above_zero, help="Seconds for one host name or one connection.")
    ] = 5.0,
    wait: Annotated[
        float, typer.Option(min=1, callback=above_zero, help="For --shared: seconds for the others to come.")
    ] = 60.0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Run this check alone; may be repeated.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Leave this check out; may be repeated.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    list_checks: Annotated[bool, typer.Option("--list", help="Print the names of the checks, and end.")] = False,
) -> None:
    """Examine a job before it starts: what is wrong with it here, why that matters, and how to mend it.

    Start it as the job will be started: `srun estimator-pipeline doctor JOB.yaml --shared` examines every task, and
    what only shows when all are asked; rank 0 prints the report. Nothing is changed, and nothing is left behind.
    Without --deep TensorFlow is not imported.

    The exit code is 0 where no error was found (--strict: nor a warning), 1 where one was, 2 for bad usage.
    """
    import os

    from estimator_pipeline import doctor

    if list_checks:
        for check in doctor.CHECKS:
            typer.echo(f"{check.name:<12} {check.what}")
        typer.echo(f"{'tasks':<12} what only shows when all tasks meet (--shared)")
        return
    if job is None and settings:
        raise ConfigError(
            f"--set {settings[0]} requires a job file",
            code="argument/not-applicable",
            hint="name the job file",
        )
    loaded, first = _load(job, settings or [])
    text, source = _document(tf_config)
    context = doctor.Context(
        environ=dict(os.environ),
        job=loaded,
        job_file=None if job is None else str(job),
        document=text,
        document_source=source,
        environment=environment,
        model_dir=model_dir,
        connect=connect,
        deep=deep,
        shared=shared,
        timeout=timeout,
        wait=wait,
    )
    if shared and job is None and model_dir is None:
        raise ConfigError(
            "--shared needs a folder to meet in", code="argument/missing", hint="name the job file, or --model-dir DIR"
        )
    subject = ", ".join(filter(None, [str(job) if job else "", source if tf_config else "", _host()]))
    report = doctor.examine(context, only=only or [], skip=skip or [], first=first, subject=subject)
    if report.rank in (None, 0):
        typer.echo(json.dumps(report.to_dict(), indent=1) if as_json else str(report))
    raise typer.Exit(report.exit_code(strict=strict))


def _load(path: Path | None, settings: list[str]) -> tuple[Job | None, list[DoctorFinding]]:
    """The job, or what is wrong with its file: the rest is examined all the same."""
    import dataclasses

    from estimator_pipeline.doctor.findings import of_error
    from estimator_pipeline.job import load_job
    from estimator_pipeline.job.error_messages import MistakesError

    if path is None:
        return None, []
    try:
        return load_job(path, overrides=settings), []
    except ConfigError as problem:
        if not path.is_file():
            raise
        why = "every task ends with this error before it does anything"
        each = problem.mistakes if isinstance(problem, MistakesError) else [problem]
        return None, [dataclasses.replace(of_error(mistake, why), check="job_file") for mistake in each]


def _document(given: str | None) -> tuple[str | None, str]:
    """The text of --tf-config, and what to call it."""
    if given is None or given.lstrip().startswith(("{", "'", '"')):
        return given, "--tf-config"
    try:
        return Path(given).read_text(encoding="utf-8"), given
    except (OSError, UnicodeDecodeError) as problem:
        from estimator_pipeline.utils.io_errors import code_of

        raise ConfigError(
            f"--tf-config {given} cannot be read",
            code=code_of(problem),
            found=str(getattr(problem, "strerror", None) or problem),
            hint="name a file that holds the document, or write the document itself: --tf-config '{\"cluster\": ...}'",
        ) from problem


def _host() -> str:
    import socket

    return f"on {socket.gethostname()}"

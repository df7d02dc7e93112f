"""`estimator-pipeline doctor`: check a job before it waits in a queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from estimator_pipeline.cli.environment import tf_config_text
from estimator_pipeline.cli.options import (
    EnvironmentOption,
    JsonOption,
    SettingsOption,
    above_zero,
    argument,
    flag,
    option,
)
from estimator_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from estimator_pipeline.doctor import DoctorFinding
    from estimator_pipeline.job import Job


def command(
    job: Annotated[Path | None, argument("Check this job file.", "[JOB.yaml]")] = None,
    settings: SettingsOption = None,
    tf_config: Annotated[str | None, option("Use this TF_CONFIG instead of the environment's.", "FILE|JSON")] = None,
    environment: EnvironmentOption = None,
    model_dir: Annotated[str | None, option("Check this model directory; for use without a job file.", "DIR")] = None,
    connect: Annotated[bool, flag("--connect", "Connect to the ports of the other tasks.")] = False,
    shared: Annotated[
        bool, flag("--shared", "Run on every task: compare all tasks through the model directory.")
    ] = False,
    deep: Annotated[bool, flag("--deep", "Import TensorFlow, open the data and check its records.")] = False,
    timeout: Annotated[
        float, option("Limit each host lookup and each connection to this many seconds.", min=0.1, callback=above_zero)
    ] = 5.0,
    wait: Annotated[
        float, option("With --shared: wait this many seconds for the other tasks.", min=1, callback=above_zero)
    ] = 60.0,
    only: Annotated[list[str] | None, option("Run only this check; repeatable.", "CHECK")] = None,
    skip: Annotated[list[str] | None, option("Skip this check; repeatable.", "CHECK")] = None,
    strict: Annotated[bool, flag("--strict", "Treat warnings as errors.")] = False,
    as_json: JsonOption = False,
    list_checks: Annotated[bool, flag("--list", "List the checks and exit.")] = False,
) -> None:
    """Check a job before it starts: report each problem, its consequence and how to fix it.

    Start it the way the job is started: `srun estimator-pipeline doctor JOB.yaml --shared` checks every task and then
    compares the tasks with each other; rank 0 prints the report. The command changes nothing and leaves no files.
    Without --deep it does not import TensorFlow.

    Exit codes: 0 without errors (--strict: without warnings, too), 1 with errors, 2 for bad usage.
    """
    import os
    import socket

    from estimator_pipeline import doctor

    if list_checks:
        for check in doctor.CHECKS:
            typer.echo(f"{check.name:<12} {check.description}")
        typer.echo(f"{'tasks':<12} comparison of all tasks (--shared)")
        return
    if job is None and settings:
        raise ConfigError(
            f"--set {settings[0]} requires a job file", code="argument/not-applicable", hint="name the job file"
        )
    loaded, first = _load(job, settings or [])
    text, source = (None, "--tf-config") if tf_config is None else tf_config_text(tf_config)
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
            "--shared needs a folder that all tasks share",
            code="argument/missing",
            hint="name the job file, or --model-dir DIR",
        )
    subjects = [str(job) if job else "", source if tf_config else "", f"on {socket.gethostname()}"]
    report = doctor.examine(
        context, only=only or [], skip=skip or [], first=first, subject=", ".join(filter(None, subjects))
    )
    if report.rank in (None, 0):
        typer.echo(json.dumps(report.to_dict(), indent=1) if as_json else str(report))
    raise typer.Exit(report.exit_code(strict=strict))


def _load(path: Path | None, settings: list[str]) -> tuple[Job | None, list[DoctorFinding]]:
    """Return the job, or the errors in its file; the other checks run in either case."""
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

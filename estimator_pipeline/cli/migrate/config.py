"""`estimator-pipeline migrate config`: convert an old configuration to a job file."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import JsonOption, OverwriteOption, SettingsOption, argument, option


def command(
    source: Annotated[Path, argument("Read this configuration; - for standard input.", "FILE")],
    output: Annotated[Path | None, option("Write the job file here; default: standard output.", "JOB.yaml")] = None,
    wanted: Annotated[
        str | None,
        option(
            "Read this format: run_config, hparams_json, hparams, flags_json, flags, cloud_ml_engine, sagemaker, "
            "sagemaker_estimator, shell or tfjob; default: detected.",
            "NAME",
            "--format",
        ),
    ] = None,
    template: Annotated[
        Path | None, option("Take fields that the configuration lacks from this job file.", "JOB.yaml")
    ] = None,
    settings: SettingsOption = None,
    params: Annotated[
        list[str] | None, option("Treat this hyperparameter as one of the model; repeatable.", "NAME", "--param")
    ] = None,
    scheduler: Annotated[
        str, option("Write machines and limits to this section: kubernetes or slurm.", "NAME")
    ] = "kubernetes",
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a RunConfig, HParams, flags, an AI Platform or SageMaker job, a command line, or a TFJob to a job file.

    The report and comments in the job file list every field of the configuration: converted, needs a decision, or no
    longer needed. Required fields that the configuration lacks become ???, and the job is rejected until they are set.
    The report goes to standard error if the job file goes to standard output.

    Exit codes: 0 if there is a job file, with or without open decisions, 2 for bad input.
    """
    from estimator_pipeline.migrate.configs import convert_config, report_text, write_conversion

    conversion = convert_config(
        source,
        wanted=wanted,
        template=template,
        settings=settings or (),
        params=params or (),
        scheduler=scheduler,
        stdin=sys.stdin.buffer,
    )
    written = (
        [str(path) for path in write_conversion(conversion, output, overwrite=overwrite)] if output is not None else []
    )
    if as_json:
        typer.echo(json.dumps({**conversion.document(), "written": written}, indent=2, ensure_ascii=False, default=str))
        return
    stream = sys.stderr if output is None else sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else None
    typer.echo(report_text(conversion, width=width, color=stream.isatty()), err=output is None)
    if output is None:
        typer.echo(conversion.text, nl=False)
    for path in written:
        typer.echo(f"written: {path}")

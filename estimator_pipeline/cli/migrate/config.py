"""`estimator-pipeline migrate config`: a configuration of another era as a job file."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration; - for standard input.")],
    output: Annotated[
        Path | None, typer.Option(metavar="JOB.yaml", help="Where the job file goes; standard output by default.")
    ] = None,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="run_config, hparams_json, hparams, flags_json, flags, cloud_ml_engine, sagemaker, "
            "sagemaker_estimator, sagemaker_program, shell or tfjob; found out by default.",
        ),
    ] = None,
    template: Annotated[
        Path | None, typer.Option(metavar="JOB.yaml", help="A job file with what the configuration lacks.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Give a field of the job file; may be repeated."),
    ] = None,
    params: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="NAME", help="This hyperparameter is one of the model; may be repeated."),
    ] = None,
    scheduler: Annotated[
        str, typer.Option(metavar="NAME", help="Whose section gets machines and limits: kubernetes or slurm.")
    ] = "kubernetes",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Make a job file of a RunConfig, HParams, flags, a job of AI Platform or SageMaker, a command line, or a TFJob.

    Every field of the configuration is accounted for: taken, needs a decision, or no longer needed; in the report, and
    as comments in the job file. What a job needs and the configuration does not say is left as ???, and such a job is
    refused until it is given. The report goes to standard error where the job file goes to standard output.

    The exit code is 0 when there is a job file, decisions to be made or not, and 2 for bad input.
    """
    from estimator_pipeline.migrate.configs import convert_config, report_text, write_conversion

    made = convert_config(
        source,
        wanted=wanted,
        template=template,
        settings=settings or (),
        params=params or (),
        scheduler=scheduler,
        stdin=sys.stdin.buffer,
    )
    written = [str(path) for path in write_conversion(made, output, overwrite=overwrite)] if output is not None else []
    if as_json:
        typer.echo(json.dumps({**made.document(), "written": written}, indent=2, ensure_ascii=False, default=str))
        return
    stream = sys.stderr if output is None else sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else None
    typer.echo(report_text(made, width=width, color=stream.isatty()), err=output is None)
    if output is None:
        typer.echo(made.text, nl=False)
    for path in written:
        typer.echo(f"written: {path}")

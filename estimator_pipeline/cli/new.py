"""`estimator-pipeline new FILE --label COLUMN`: write a job file for a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.errors import ConfigError

__all__ = ["command"]


def command(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="CSV or Parquet files, or a pattern in quotes.")
    ],
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column to predict.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="The job file; by default named as the table.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="The number of workers.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the job file.")] = False,
) -> None:
    """Look at a table, and write a job file that trains a model on it.

    Prints what each column was taken for. `estimator-pipeline launch FILE.yaml` trains it.
    """
    from estimator_pipeline.models.features.suggestion import suggest

    name = _name(files[0])
    path = output or Path(f"{name}.yaml")
    if path.exists() and not force:
        raise ConfigError(
            f"{path} exists already", code="file/exists", hint="name a different file with --output, or pass --force"
        )
    job = suggest(files, label, model_dir=f"runs/{name}", workers=workers, environ=os.environ)
    path.write_text(job.text, encoding="utf-8")
    typer.echo(f"{job.features.records:,} training records; the columns:\n\n{job.features.table()}")
    typer.echo(f"\n{path} was written. Next:\n\n  estimator-pipeline launch {path}")


def _name(file: str) -> str:
    """Return a name for the job, from the name of a table."""
    stem = Path(file).name.split(".")[0]
    kept = "".join(character if character.isalnum() or character in "-_" else "" for character in stem)
    return kept.strip("-_") or "table"

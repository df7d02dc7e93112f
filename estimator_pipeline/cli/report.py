"""`estimator-pipeline report RUN`: write an HTML page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import OverwriteOption, argument, option

__all__ = ["command"]


def command(
    run: Annotated[str, argument("Report on this model directory, or that of this job file.", "RUN")],
    output: Annotated[Path, option("Write the page to this file.", "FILE.html", "--output", "-o")] = Path(
        "report.html"
    ),
    overwrite: OverwriteOption = False,
) -> None:
    """Write a page of a run: result, curves, evaluations, tasks, attempts, ledger and job.

    The page is one file: it has its charts and styles, and runs no script.
    """
    from estimator_pipeline.results.output import check_output, write_output
    from estimator_pipeline.results.run import read_run

    check_output(output, suffix=".html", overwrite=overwrite)
    results = read_run(run)

    from estimator_pipeline.results.page import render

    write_output(output, render(results).encode())
    typer.echo(f"report: {output}")

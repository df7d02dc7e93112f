"""`estimator-pipeline compare RUN RUN...`: compare the settings and evaluations of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import JsonOption, OverwriteOption, argument, flag, option

__all__ = ["command"]


def command(
    runs: Annotated[list[str], argument("Compare these model directories, or those of these job files.", "RUN")],
    by: Annotated[str, option("Order the runs by this metric of the evaluations.", "METRIC")] = "loss",
    mode: Annotated[
        str | None,
        option("Whether its smallest or its largest value is the best; default: by its name.", "min|max"),
    ] = None,
    best: Annotated[bool, flag("--best", "Show the best evaluation of each run, not the last one.")] = False,
    plot: Annotated[Path | None, option("Write the curves of the metric to this PNG file.", "FILE.png")] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare runs: the fields of the job that differ, the global step, and the metrics of the last evaluation.

    The best run is first. Runs without an evaluation are last. A field has the end of its name: learning_rate for
    model.optimizer.learning_rate.
    """
    from estimator_pipeline.results.comparison import compare_runs
    from estimator_pipeline.results.output import check_output, write_output

    if plot is not None:
        check_output(plot, suffix=".png", overwrite=overwrite)
    comparison = compare_runs(runs, by=by, mode=mode, best=best)
    if plot is not None:
        from estimator_pipeline.utils import charts

        series = {compared.run.name: compared.run.curve(by) for compared in comparison.runs}
        write_output(plot, charts.png_of(charts.curves(series, ylabel=by, page=False)))
    typer.echo(json.dumps(comparison.document(), indent=2) if as_json else "\n".join(comparison.lines()))
    if plot is not None:
        typer.echo(f"curves: {plot}", err=as_json)

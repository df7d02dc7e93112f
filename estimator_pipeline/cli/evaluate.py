"""`estimator-pipeline evaluate JOB.yaml`: evaluate a checkpoint of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import (
    CheckpointOption,
    EngineOption,
    JsonOption,
    SettingsOption,
    argument,
    option,
)

__all__ = ["command"]


def command(
    job: Annotated[Path, argument("Evaluate a checkpoint of this job.", "JOB.yaml")],
    data: Annotated[
        list[str] | None, option("Evaluate on these files, with labels, in place of the job's data.", "FILE")
    ] = None,
    checkpoint: CheckpointOption = "latest",
    settings: SettingsOption = None,
    engine: EngineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a checkpoint of a job, and print its metrics.

    The command writes nothing to the model directory. FILE is of the job's kind, as for `predict`.
    """
    from estimator_pipeline.cli.train import prepared_job
    from estimator_pipeline.utils.jsonable import finite

    loaded, path = prepared_job(job, settings, engine, checkpoint)
    metrics = loaded.evaluate(data, checkpoint=path)
    if as_json:
        typer.echo(json.dumps(finite({"checkpoint": path, "metrics": metrics}), indent=2))
        return
    width = max(map(len, metrics))
    typer.echo(path)
    for name, value in sorted(metrics.items()):
        typer.echo(f"  {name:<{width}}  {value:.6g}" if isinstance(value, float) else f"  {name:<{width}}  {value}")

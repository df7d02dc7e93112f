"""`estimator-pipeline export JOB.yaml -o DIR`: write the SavedModel of a checkpoint of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import CheckpointOption, EngineOption, SettingsOption, argument, option

__all__ = ["command"]


def command(
    job: Annotated[Path, argument("Export a checkpoint of this job.", "JOB.yaml")],
    output: Annotated[Path, option("Write the SavedModel to this new folder.", "DIR", "--output", "-o")],
    checkpoint: CheckpointOption = "latest",
    settings: SettingsOption = None,
    engine: EngineOption = None,
) -> None:
    """Write the SavedModel of a checkpoint, with the signatures of `model.export`.

    TensorFlow Serving reads a folder of versions: write to DIR/1, for example. The command writes nothing to the model
    directory.
    """
    from estimator_pipeline.cli.train import prepared_job

    loaded, path = prepared_job(job, settings, engine, checkpoint)
    typer.echo(f"{loaded.export(output, checkpoint=path)} is the SavedModel of {path}")

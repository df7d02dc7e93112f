"""`estimator-pipeline partition`: write a job's data as TFRecord files, one per worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import JsonOption, SettingsOption, argument, option


def command(
    job: Annotated[Path, argument("Write the data of this job file.", "JOB.yaml")],
    folder: Annotated[Path, argument("Write to this new folder.", "DIR")],
    parts: Annotated[int, option("Write this many training files, at least one per worker.", min=1)],
    settings: SettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the data of a job as TFRecord files before training, so that each worker opens only its files.

    Record i goes to file i modulo the number of files, as it is read, before scaling and shuffling. The command prints
    how many records each file has, and the `input` section of a job that reads the files.
    """
    from estimator_pipeline.errors import ConfigError
    from estimator_pipeline.job import FunctionInput, load_job

    loaded = load_job(job, overrides=settings or [])
    if isinstance(loaded.input, FunctionInput):
        raise ConfigError(
            "a user input function returns batches, not records, so its data cannot be partitioned",
            code="argument/not-applicable",
            found=f"input.train {loaded.input.train}",
            hint="write the files where the function reads its data, or call inputs.partition from Python",
        )
    from estimator_pipeline.engines.jobs.build import build
    from estimator_pipeline.inputs import partition

    files = partition(build(loaded).data, folder, parts=parts)
    section = {**files.section(), "global_batch_size": loaded.input.global_batch_size, "seed": loaded.input.seed}
    weight = loaded.input.weight_key
    if weight is not None:
        labels = [name for name in files.label_key if name != weight]
        section |= {"label_key": labels if len(labels) > 1 else labels[0], "weight_key": weight}
    scale = getattr(loaded.input, "scale", None)
    if scale is not None:
        section["scale"] = scale
    if as_json:
        typer.echo(json.dumps({"train": files.train, "eval": files.eval, "input": section}, indent=2))
        return
    typer.echo(files)
    typer.echo("input:")
    for field, value in section.items():
        typer.echo(f"  {field}: {json.dumps(value)}")

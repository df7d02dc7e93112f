"""`estimator-pipeline partition`: a job's data as TFRecord files, one part for each worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file whose data is written.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; a new folder.")],
    parts: Annotated[int, typer.Option(min=1, help="Training files, at least one for each worker.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the job file; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Write the data of a job as TFRecord files before training, so that each worker opens its own alone.

    Record i goes to the part i modulo the number of parts, as it was read, before it is scaled and shuffled. What is
    printed is how many records each file has, and the `input` section of a job that reads them.
    """
    from estimator_pipeline.errors import ConfigError
    from estimator_pipeline.job import FunctionInput, load_job

    loaded = load_job(job, overrides=settings or [])
    if isinstance(loaded.input, FunctionInput):
        raise ConfigError(
            "an own input function gives batches, not records, so its data cannot be partitioned",
            code="argument/not-applicable",
            found=f"input.train {loaded.input.train}",
            hint="write the files where the function reads its data; or from Python: inputs.partition",
        )
    from estimator_pipeline.engines.jobs.common import job_inputs
    from estimator_pipeline.inputs import partition

    made = partition(job_inputs(loaded), folder, parts=parts)
    section = {**made.section(), "global_batch_size": loaded.input.global_batch_size, "seed": loaded.input.seed}
    weight = loaded.input.weight_key
    if weight is not None:
        labels = [name for name in made.label_key if name != weight]
        section |= {"label_key": labels if len(labels) > 1 else labels[0], "weight_key": weight}
    scale = getattr(loaded.input, "scale", None)
    if scale is not None:
        section["scale"] = scale
    if as_json:
        typer.echo(json.dumps({"train": made.train, "eval": made.eval, "input": section}, indent=2))
        return
    typer.echo(made)
    typer.echo("input:")
    for field, value in section.items():
        typer.echo(f"  {field}: {json.dumps(value)}")

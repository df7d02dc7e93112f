"""`estimator-pipeline predict`: predict the records of files with a job's checkpoint, or with an export."""

from __future__ import annotations

import functools
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from estimator_pipeline.cli.options import (
    CheckpointOption,
    EngineOption,
    EnvironmentOption,
    OverwriteOption,
    SettingsOption,
    argument,
    option,
)
from estimator_pipeline.errors import ConfigError

__all__ = ["command"]


def command(
    source: Annotated[str, argument("Predict with this job file, or this folder of a SavedModel.", "JOB.yaml|EXPORT")],
    files: Annotated[list[str], argument("Predict the records of these files; labels are not needed.", "FILE...")],
    output: Annotated[
        str,
        option(
            "Write to this file: .csv, .jsonl, .parquet or .tfrecord. -: CSV on standard output.", "FILE", "--out", "-o"
        ),
    ] = "-",
    checkpoint: CheckpointOption = "latest",
    names: Annotated[
        list[str] | None,
        option("Write this prediction; repeatable. Default: not the logits.", "KEY", "--output"),
    ] = None,
    keep: Annotated[
        list[str] | None,
        option("Copy this column to the output; repeatable. Columns that name a record always are.", "COLUMN"),
    ] = None,
    batch_size: Annotated[int | None, option("Predict this many records at a time.", min=1)] = None,
    signature: Annotated[str, option("Call this signature of an export.", "NAME")] = "serving_default",
    settings: SettingsOption = None,
    engine: EngineOption = None,
    overwrite: OverwriteOption = False,
    environment: EnvironmentOption = None,
) -> None:
    """Predict the records of files.

    FILE is of the job's kind: CSV, JSON lines or Parquet for a table, TFRecord files, an .npz file, a folder of
    images, or a split of TensorFlow Datasets. Records keep their order.

    Started by a scheduler as several tasks, each worker predicts its share, and writes OUT-00000-of-00002.csv and so
    on. The command writes nothing to the model directory.
    """
    from estimator_pipeline.cli.train import prepared_job
    from estimator_pipeline.compat.bootstrap import start_lines
    from estimator_pipeline.engines.jobs.exported import is_export, predict_with_export
    from estimator_pipeline.engines.jobs.prediction_files import format_of_output, write_predictions
    from estimator_pipeline.progress.stages import LongStep
    from estimator_pipeline.utils.text import counted

    format_of_output(output)
    share = _share(environment)
    path = _path(output, share, overwrite=overwrite)
    arguments: dict[str, Any] = {"keep": keep or (), "batch_size": batch_size}
    if is_export(source):
        changes = [*(settings or []), *([engine] if engine else [])]
        if changes or checkpoint != "latest":
            raise ConfigError(
                f"{source} is an export, which has one checkpoint and no settings",
                code="argument/not-applicable",
                found=", ".join(changes) or f"--checkpoint {checkpoint}",
                hint="leave --set, --engine and --checkpoint out, or name the job file",
            )
        with start_lines.hidden():
            predictions = predict_with_export(source, files, signature=signature, share=share, **arguments)
    else:
        job, checkpoint = prepared_job(Path(source), settings, engine, checkpoint)
        predictions = job.predict(files, checkpoint=checkpoint, share=share, **arguments)
    if not predictions.num_records:
        print(f"no records for worker {share[0]} of {share[1]}: {path} is not written", file=sys.stderr)
        return
    started = time.monotonic()
    step = LongStep("predicting", predictions.num_records, functools.partial(print, file=sys.stderr), first=False)
    columns, left_out = write_predictions(
        predictions, path, names=names or (), progress=lambda records: step.done(records, noun="records")
    )
    where = "standard output" if path == "-" else path
    more = f"; not written: {', '.join(left_out)} (--output {left_out[0]})" if left_out else ""
    print(
        f"{counted(predictions.num_records, 'prediction')} by {predictions.checkpoint} in "
        f"{time.monotonic() - started:.1f} s, to {where}: {', '.join(columns)}{more}",
        file=sys.stderr,
    )


def _share(environment: str | None) -> tuple[int, int]:
    """Return the index of this process among the workers, and their number."""
    from estimator_pipeline.cluster import TFConfig, from_environ
    from estimator_pipeline.cluster.detection import NO_ENVIRONMENT, detect

    detected = None
    tf_config: TFConfig | None = None
    if "TF_CONFIG" in os.environ:
        tf_config = from_environ(os.environ)
    elif environment != NO_ENVIRONMENT and (detected := detect(os.environ, name=environment)) is not None:
        tf_config = detected.allocation.tf_config
        if tf_config is None:
            return detected.allocation.rank, detected.allocation.size or 1
    if tf_config is None:
        return 0, 1
    if not tf_config.is_training_task:
        raise ConfigError(
            f"{tf_config.task} has no share of the records",
            code="argument/not-applicable",
            hint="run predict in the chief and the workers only, or without TF_CONFIG",
        )
    return tf_config.rank, tf_config.num_training_tasks


def _path(output: str, share: tuple[int, int], *, overwrite: bool) -> str:
    from estimator_pipeline.results.output import check_output

    index, count = share
    if output == "-":
        return output
    path = Path(output)
    if count > 1:
        path = path.with_name(f"{path.stem}-{index:05d}-of-{count:05d}{path.suffix}")
    check_output(path, overwrite=overwrite)
    return str(path)

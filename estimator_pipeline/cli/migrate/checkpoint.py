"""`estimator-pipeline migrate checkpoint`: convert a checkpoint for a different engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import JsonOption, OverwriteOption, SettingsOption, function_option


def command(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="Convert this model directory, checkpoint or .keras file.")
    ],
    to: Annotated[str, typer.Option(help="Convert for this engine: keras (Keras 2), keras3 or estimator.")],
    job: Annotated[
        Path | None, typer.Option(metavar="JOB.yaml", help="Convert for this job, which resumes from the result.")
    ] = None,
    settings: SettingsOption = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Write to this folder, or for Keras to this .keras or .weights.h5 file; default: the job's model_dir.",
        ),
    ] = None,
    overwrite: OverwriteOption = False,
    model: Annotated[str | None, function_option("Call this function for the compiled Keras model.")] = None,
    estimator: Annotated[str | None, function_option("Call this function for the Estimator.")] = None,
    input_fn: Annotated[
        str | None, function_option("Use this input function for the Estimator's training data.")
    ] = None,
    source_model: Annotated[
        str | None, function_option("Call this function for the model of a .weights.h5 SRC.")
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option(metavar="NAMES.yaml", help="Map each Keras weight to the other engine's variable.")
    ] = None,
    mapping_out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the complete mapping to this file.")
    ] = None,
    allow_leftover: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Ignore this variable of SRC.")
    ] = None,
    initialize: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Initialize this variable of the target.")
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Accept this variable although it contradicts the step or the settings."),
    ] = None,
    drop_optimizer_state: Annotated[
        bool, typer.Option("--drop-optimizer-state", help="Reset the optimizer state.")
    ] = False,
    use_ema_weights: Annotated[
        bool, typer.Option("--use-ema-weights", help="Use the moving averages (EMA) as weights.")
    ] = False,
    learning_rate: Annotated[
        float | None, typer.Option(help="Set the constant learning rate of SRC's training.")
    ] = None,
    momentum: Annotated[
        str | None, typer.Option(metavar="v1|keras", help="Set the convention of SRC's momentum.")
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Set the global step, if SRC has none.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Convert a checkpoint for a different engine: weights, optimizer slots, step, BatchNorm statistics.

    SRC may be a checkpoint of an Estimator, of TensorFlow 1, of Keras 2 or of Keras 3. With a job file, the job resumes
    from the result at the same step and record: estimator-pipeline train JOB.yaml --engine keras.

    Variables are matched by name, then by layer order and shape if these are unambiguous, or by --mapping. Variables
    without a match are an error that names them, and nothing is written. NAME may contain a *.

    Exit codes: 0 if the result was written, 2 if something does not match.
    """
    import logging

    from estimator_pipeline import compat
    from estimator_pipeline.migrate import migrate_checkpoint

    # The user cannot act upon deprecation warnings about calls within TensorFlow.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if to == "keras3":
        compat.use_keras_3()
    done = migrate_checkpoint(
        source,
        to=to,
        job=job,
        settings=settings or (),
        model=model,
        estimator=estimator,
        input_fn=input_fn,
        source_model=source_model,
        output=output,
        mapping=mapping,
        mapping_out=mapping_out,
        allow_leftover=allow_leftover or (),
        initialize=initialize or (),
        accept=accept or (),
        drop_optimizer_state=drop_optimizer_state,
        use_ema_weights=use_ema_weights,
        learning_rate=learning_rate,
        momentum=momentum,
        step=step,
        overwrite=overwrite,
    )
    typer.echo(json.dumps(done.to_dict(), indent=2) if as_json else str(done))

"""`estimator-pipeline migrate checkpoint`: convert a checkpoint for a different engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import FUNCTION, JsonOption, OverwriteOption, SettingsOption, argument, flag, option


def command(
    source: Annotated[str, argument("Convert this model directory, checkpoint or .keras file.", "SRC")],
    to: Annotated[str, option("Convert for this engine: keras (Keras 2), keras3 or estimator.")],
    job: Annotated[Path | None, option("Convert for this job, which resumes from the result.", "JOB.yaml")] = None,
    settings: SettingsOption = None,
    output: Annotated[
        str | None,
        option(
            "Write to this folder, or for Keras to this .keras or .weights.h5 file; default: the job's model_dir.",
            "PATH",
        ),
    ] = None,
    overwrite: OverwriteOption = False,
    model: Annotated[str | None, option("Call this function for the compiled Keras model.", FUNCTION)] = None,
    estimator: Annotated[str | None, option("Call this function for the Estimator.", FUNCTION)] = None,
    input_fn: Annotated[
        str | None, option("Use this input function for the Estimator's training data.", FUNCTION)
    ] = None,
    source_model: Annotated[
        str | None, option("Call this function for the model of a .weights.h5 SRC.", FUNCTION)
    ] = None,
    mapping: Annotated[
        Path | None, option("Map each Keras weight to the other engine's variable.", "NAMES.yaml")
    ] = None,
    allow_leftover: Annotated[list[str] | None, option("Ignore this variable of SRC.", "NAME")] = None,
    initialize: Annotated[list[str] | None, option("Initialize this variable of the target.", "NAME")] = None,
    accept: Annotated[
        list[str] | None, option("Accept this variable although it contradicts the step or the settings.", "NAME")
    ] = None,
    drop_optimizer_state: Annotated[bool, flag("--drop-optimizer-state", "Reset the optimizer state.")] = False,
    use_ema_weights: Annotated[bool, flag("--use-ema-weights", "Use the moving averages (EMA) as weights.")] = False,
    learning_rate: Annotated[float | None, option("Set the constant learning rate of SRC's training.")] = None,
    momentum: Annotated[str | None, option("Set the convention of SRC's momentum.", "v1|keras")] = None,
    step: Annotated[int | None, option("Set the global step, if SRC has none.", min=0)] = None,
    as_json: JsonOption = False,
) -> None:
    """Convert a checkpoint for a different engine: weights, optimizer slots, step, BatchNorm statistics.

    SRC may be a checkpoint of an Estimator, of TensorFlow 1, of Keras 2 or of Keras 3. With a job file, the job resumes
    from the result at the same step and record: estimator-pipeline train JOB.yaml --engine keras.

    Variables are matched by name, then by layer order and shape if these are unambiguous, or by --mapping. Variables
    without a match are an error that names them, and nothing is written. NAME may contain a *.

    Exit codes: 0 if the result was written, 2 if something does not match.
    """
    from estimator_pipeline import compat
    from estimator_pipeline.migrate import migrate_checkpoint

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

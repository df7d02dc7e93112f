"""`estimator-pipeline migrate export`: export a Keras model with an old export's signatures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import FUNCTION, JsonOption, OverwriteOption, SettingsOption, argument, flag, option


def command(
    source: Annotated[str, argument("Read the old export from this SavedModel folder.", "SRC")],
    output: Annotated[str, option("Write the new export to this folder.", "DIR")],
    job: Annotated[Path | None, option("Use the model of this job.", "JOB.yaml")] = None,
    settings: SettingsOption = None,
    model: Annotated[
        str | None, option("Call this function for the Keras model, or load this .keras file.", FUNCTION)
    ] = None,
    engine: Annotated[str | None, option("Use this engine: keras (Keras 2) or keras3.")] = None,
    overwrite: OverwriteOption = False,
    allow_mismatch: Annotated[
        bool, flag("--allow-mismatch", "Write the export even if its predictions differ.")
    ] = False,
    checkpoint: Annotated[str | None, option("Load this checkpoint, .keras file or export.", "PATH")] = None,
    mapping: Annotated[Path | None, option("Map each Keras weight to the checkpoint's variable.", "NAMES.yaml")] = None,
    allow_leftover: Annotated[list[str] | None, option("Ignore this variable of the checkpoint.", "NAME")] = None,
    use_ema_weights: Annotated[bool, flag("--use-ema-weights", "Use the moving averages (EMA) as weights.")] = False,
    signature: Annotated[
        Path | None, option("Map the old outputs and inputs to the model's, and list the classes.", "FILE.yaml")
    ] = None,
    head: Annotated[str | None, option("Set the head: multi_class, binary, multi_label or regression.")] = None,
    gives: Annotated[str | None, option("Set what the model returns: logits, probabilities or predictions.")] = None,
    features: Annotated[
        str | None, option("Call this function to convert the features to the model's input.", FUNCTION)
    ] = None,
    examples: Annotated[Path | None, option("Compare on these serialized tf.Example records.", "FILE.tfrecord")] = None,
    inputs: Annotated[Path | None, option("Compare on these arrays, named after the inputs.", "FILE.npz")] = None,
    records: Annotated[int, option("Compare this many records.")] = 64,
    seed: Annotated[int, option("Set the seed of generated records.")] = 0,
    tolerance: Annotated[str, option("Compare with this tolerance: bit_equal, rounding or amplified.")] = "rounding",
    as_json: JsonOption = False,
) -> None:
    """Export a Keras model with the signatures of an Estimator's export, and compare the predictions of both.

    Signatures keep their names, inputs, outputs, dtypes, shapes and method names. Serialized tf.Example records are
    parsed as before. The comparison uses your records, or generates records that fit the signatures.

    A part of a signature without a unique counterpart is an error that names all of them. The new export is moved to
    its place only after both have returned the same predictions.

    Exit codes: 0 if the predictions are the same, 1 if not, 2 if something does not match.
    """
    from estimator_pipeline.migrate import migrate_export
    from estimator_pipeline.utils.jsonable import finite

    done = migrate_export(
        source,
        output=output,
        job=job,
        settings=settings or (),
        model=model,
        engine=engine,
        checkpoint=checkpoint,
        mapping=mapping,
        use_ema_weights=use_ema_weights,
        allow_leftover=allow_leftover or (),
        signature=signature,
        head=head,
        gives=gives,
        features=features,
        examples=examples,
        inputs=inputs,
        records=records,
        seed=seed,
        tolerance=tolerance,
        overwrite=overwrite,
        allow_mismatch=allow_mismatch,
    )
    typer.echo(json.dumps(finite(done.to_dict()), indent=2) if as_json else str(done))
    raise typer.Exit(0 if done.equal else 1)

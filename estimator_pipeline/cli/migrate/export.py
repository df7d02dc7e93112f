"""`estimator-pipeline migrate export`: a Keras model with an old export's signatures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

_WEIGHTS = "Weights"
_SIGNATURES = "What names do not say"
_COMPARED = "What is compared"


def command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The old export: a SavedModel's folder.")],
    output: Annotated[str, typer.Option(metavar="DIR", help="Where the new one is written.")],
    job: Annotated[Path | None, typer.Option(metavar="JOB.yaml", help="The job that trained the model.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the job file; may be repeated."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="A function that returns a Keras model; or a .keras file."),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="keras (Keras 2) or keras3.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="Write it although it answers otherwise.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="A checkpoint, a .keras file, an export.", rich_help_panel=_WEIGHTS),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(metavar="NAMES.yaml", help="A Keras weight: the checkpoint's.", rich_help_panel=_WEIGHTS),
    ] = None,
    allow_leftover: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Do without this variable of it.", rich_help_panel=_WEIGHTS),
    ] = None,
    use_ema_weights: Annotated[
        bool, typer.Option("--use-ema-weights", help="Weights are their moving averages.", rich_help_panel=_WEIGHTS)
    ] = False,
    signature: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml", help="Old outputs and inputs: the model's; classes.", rich_help_panel=_SIGNATURES
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="multi_class, binary, multi_label or regression.", rich_help_panel=_SIGNATURES),
    ] = None,
    gives: Annotated[
        str | None,
        typer.Option(help="What the model gives: logits, probabilities, predictions.", rich_help_panel=_SIGNATURES),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME", help="Makes the model's input of the features.", rich_help_panel=_SIGNATURES
        ),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(metavar="FILE.tfrecord", help="Serialized tf.Example records.", rich_help_panel=_COMPARED),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Arrays by the inputs' names.", rich_help_panel=_COMPARED),
    ] = None,
    records: Annotated[int, typer.Option(help="How many are compared.", rich_help_panel=_COMPARED)] = 64,
    seed: Annotated[int, typer.Option(help="Of records that are drawn.", rich_help_panel=_COMPARED)] = 0,
    tolerance: Annotated[
        str, typer.Option(help="bit_equal, rounding or amplified.", rich_help_panel=_COMPARED)
    ] = "rounding",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Write a Keras model with the signatures of an Estimator's export, and compare what the two answer.

    Signatures keep their names, inputs, outputs, types, shapes and method names; serialized tf.Example records are
    parsed as they were. Records are given, or drawn to fit the signatures.

    What has no counterpart, or more than one, is an error that names all of it. The new export is put in its place
    only after both have given the same answers.

    The exit code is 0 when the answers are the same, 1 when they are not, 2 when something does not fit.
    """
    import logging

    from estimator_pipeline.migrate import migrate_export
    from estimator_pipeline.utils.jsonable import finite

    # What TensorFlow says of its own old functions is not for the person who migrates.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
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

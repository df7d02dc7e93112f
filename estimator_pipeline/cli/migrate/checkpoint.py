"""`estimator-pipeline migrate checkpoint`: a training's state from one engine to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

_PROGRAM = "A program's functions, in the place of a job file"
_CHOICES = "What a person has to say"


def command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A model directory, a checkpoint, a .keras file.")],
    to: Annotated[str, typer.Option(help="keras (Keras 2), keras3 or estimator.")],
    job: Annotated[Path | None, typer.Option(metavar="JOB.yaml", help="The job that goes on from it.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the job file; may be repeated."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="A folder; for Keras also a .keras or .weights.h5; the job's model_dir."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME", help="A function that returns a compiled Keras model.", rich_help_panel=_PROGRAM
        ),
    ] = None,
    estimator: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="A function that returns an Estimator.", rich_help_panel=_PROGRAM),
    ] = None,
    input_fn: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="The Estimator's training data.", rich_help_panel=_PROGRAM),
    ] = None,
    source_model: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="The model of a .weights.h5 SRC.", rich_help_panel=_PROGRAM),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(metavar="NAMES.yaml", help="A Keras weight: the other side's.", rich_help_panel=_CHOICES),
    ] = None,
    mapping_out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Where the whole mapping is written.", rich_help_panel=_CHOICES),
    ] = None,
    allow_leftover: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Leave this variable of SRC behind.", rich_help_panel=_CHOICES),
    ] = None,
    initialize: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Begin this variable of the target anew.", rich_help_panel=_CHOICES),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Take it although it fits neither step nor settings.", rich_help_panel=_CHOICES
        ),
    ] = None,
    drop_optimizer_state: Annotated[
        bool, typer.Option("--drop-optimizer-state", help="Begin the optimizer anew.", rich_help_panel=_CHOICES)
    ] = False,
    use_ema_weights: Annotated[
        bool,
        typer.Option("--use-ema-weights", help="Weights are their moving averages.", rich_help_panel=_CHOICES),
    ] = False,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="The constant rate that SRC was trained with.", rich_help_panel=_CHOICES),
    ] = None,
    momentum: Annotated[
        str | None,
        typer.Option(metavar="v1|keras", help="What SRC's momentum sums up.", rich_help_panel=_CHOICES),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="The global step, where SRC has none.", rich_help_panel=_CHOICES)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Move a training to another engine: weights, optimizer slots, the step, BatchNorm's statistics.

    SRC may be a checkpoint of an Estimator, of TensorFlow 1, of Keras 2 or of Keras 3. With a job file the job goes on
    from what is written, at the same step and record: estimator-pipeline train JOB.yaml --engine keras.

    Variables are matched by name, then by layer order and shape where that is unambiguous, or by --mapping. Whatever
    does not fit is an error that names it, and nothing is written then. NAME may have a * in it.

    The exit code is 0 when it was written, 2 when something does not fit.
    """
    import logging

    from estimator_pipeline import compat
    from estimator_pipeline.migrate import migrate_checkpoint

    # What TensorFlow says of its own old functions is not for the person who migrates.
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

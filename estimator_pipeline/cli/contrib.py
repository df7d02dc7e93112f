"""`estimator-pipeline contrib install`: TensorFlow 1.15's own files of tf.contrib, for `exec --tf1`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    wheel: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The wheel of tensorflow 1.15.5, where pip cannot download it.", show_default=False
        ),
    ] = None,
) -> None:
    """Take the Python files of tf.contrib out of TensorFlow 1.15.5's wheel into this user's cache.

    pip downloads the wheel (110 MB) from its package index, and installs nothing. `exec --tf1` then finds there
    what of tf.contrib has no home in today's packages. ESTIMATOR_PIPELINE_CONTRIB names another folder.
    """
    from estimator_pipeline.compat.tf1 import contrib_wheel

    typer.echo(f"TensorFlow 1.15.5, tf.contrib: {contrib_wheel.LICENCE}")
    if wheel is None:
        typer.echo("Downloading the wheel with pip ...")
    typer.echo(f"{contrib_wheel.FILES} files are in {contrib_wheel.install(wheel)}")

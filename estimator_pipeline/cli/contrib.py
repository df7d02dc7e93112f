"""`estimator-pipeline contrib install`: install TensorFlow 1.15's tf.contrib files for `exec --tf1`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import option


def command(
    wheel: Annotated[
        Path | None, option("Use this wheel of tensorflow 1.15.5 instead of a download.", "FILE", show_default=False)
    ] = None,
) -> None:
    """Extract the Python files of tf.contrib from TensorFlow 1.15.5's wheel into the user's cache.

    pip downloads the wheel (110 MB) from its package index and installs nothing. `exec --tf1` loads from there the
    tf.contrib modules that today's packages lack. Set ESTIMATOR_PIPELINE_CONTRIB to use a different folder.
    """
    from estimator_pipeline.compat.tf1 import contrib_wheel

    typer.echo(f"TensorFlow 1.15.5, tf.contrib: {contrib_wheel.LICENCE}")
    if wheel is None:
        typer.echo("Downloading the wheel with pip ...")
    typer.echo(f"{contrib_wheel.FILES} files are in {contrib_wheel.install(wheel)}")

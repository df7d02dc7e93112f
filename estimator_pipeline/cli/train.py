"""`estimator-pipeline train`: this process's task of a job file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the job file; may be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON document on standard output.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="No log lines of TensorFlow below warnings.")
    ] = False,
) -> None:
    """Run the task that TF_CONFIG gives this process, or the whole job where there is no TF_CONFIG.

    Start it with the same arguments on every task of the cluster. Training goes on from the latest checkpoint.
    The exit code is 0 when the job is done, 2 for bad input, 1 when it failed.
    """
    import os

    from estimator_pipeline.cluster import from_environ
    from estimator_pipeline.job import load_job

    # Both are checked before TensorFlow is imported: a mistake is told in half a second, not in ten.
    loaded = load_job(job, overrides=settings or [])
    from_environ(os.environ)

    from estimator_pipeline import compat
    from estimator_pipeline.engines.job import run_job

    tf = compat.install()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.WARN if quiet else tf.compat.v1.logging.INFO)
    result = run_job(loaded)
    if as_json:
        json.dump(result.to_dict(), sys.stdout, indent=2)
        print()
    else:
        print(result)

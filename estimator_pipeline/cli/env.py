"""`estimator-pipeline env`: print the environment for a bug report."""

from __future__ import annotations

import json
import os

import typer

from estimator_pipeline.cli.options import JsonOption

__all__ = ["command"]


def command(as_json: JsonOption = False) -> None:
    """Print versions, machine, limits, GPUs, scheduler and variables as a code block for a bug report.

    Nothing is imported or checked: `doctor` does that. Variables that may hold a password, a path or a host name are
    only named; read the values of the others before you publish them.
    """
    from estimator_pipeline.doctor.environment_report import read_environment

    report = read_environment(os.environ)
    typer.echo(json.dumps(report.document(), indent=2) if as_json else report.markdown())

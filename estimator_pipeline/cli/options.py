"""Declarations of options: those that several commands have, and callbacks for options in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from estimator_pipeline.job.arguments import check_seconds

__all__ = [
    "FUNCTION",
    "JOB_HELP",
    "AcceptChangesOption",
    "BackoffOption",
    "CheckpointOption",
    "ContinueEpochsOption",
    "ContinueWithOption",
    "ElementOption",
    "EngineOption",
    "EnvironmentOption",
    "GraceOption",
    "HeartbeatTimeoutOption",
    "JobArgument",
    "JsonOption",
    "MetricsOption",
    "NamespaceOption",
    "OverwriteOption",
    "SettingsOption",
    "StartTimeoutOption",
    "SubmittedSettings",
    "TimeoutOption",
    "above_zero",
    "argument",
    "flag",
    "from_zero",
    "option",
]

JOB_HELP = (
    "Name the job by its job file, the folder of its submission, or the job id; in Kubernetes by KIND/NAME, such as "
    "job/digits; a launch by its log folder."
)
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help=JOB_HELP)]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a field of the job file; repeatable.")
]
SubmittedSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a field of the job file, as in its submission; repeatable."),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="Override kubernetes.namespace, for a job in Kubernetes."),
]
ElementOption = Annotated[int | None, typer.Option(min=0, metavar="N", help="Select this element of an array.")]
EnvironmentOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Detect the task from this scheduler; none: from TF_CONFIG only.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
EngineOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Override run.engine: estimator, keras or keras3.")
]
AcceptChangesOption = Annotated[
    bool,
    typer.Option(
        "--accept-changes", help="Resume from the checkpoint even if seed, data, global batch or model have changed."
    ),
]
CheckpointOption = Annotated[
    str, typer.Option(metavar="STEP", help="Use the checkpoint of this step or path, the latest or the best.")
]
ContinueWithOption = Annotated[
    list[str] | None,
    typer.Option(
        "--continue-with", metavar="FILES", help="Continue the run on these files, each new record once; repeatable."
    ),
]
ContinueEpochsOption = Annotated[
    int | None,
    typer.Option("--epochs", min=1, metavar="N", help="With --continue-with: train on each new record this often."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
FUNCTION = "FILE.py:NAME"
"""The placeholder of a function of a program."""


def option(text: str, metavar: str | None = None, *names: str, **others: Any) -> Any:
    """Return a `typer.Option` with this help text and this placeholder of its value."""
    return typer.Option(*names, help=text, metavar=metavar, **others)


def flag(name: str, text: str) -> Any:
    """Return a `typer.Option` without a value, by its name: "--json" or "--ledger/--no-ledger"."""
    return typer.Option(name, help=text)


def argument(text: str, metavar: str, **others: Any) -> Any:
    """Return a `typer.Argument` with this help text and this placeholder."""
    return typer.Argument(help=text, metavar=metavar, **others)


def above_zero(param: typer.CallbackParam, value: float | None) -> float | None:
    """Reject NaN and values that are not above 0; click's limits accept NaN."""
    return check_seconds(value, param.opts[0])


def from_zero(param: typer.CallbackParam, value: float | None) -> float | None:
    """Reject NaN and values below 0; 0 means none or immediately."""
    return check_seconds(value, param.opts[0], zero=True)


# Of `launch` and `supervise`.
StartTimeoutOption = Annotated[
    float | None,
    typer.Option(
        callback=from_zero,
        help="Treat a task as hung after this many seconds without a first step.",
        show_default="five times --step-timeout, at least 1800; 0: none",
    ),
]
HeartbeatTimeoutOption = Annotated[
    float | None,
    typer.Option(
        callback=from_zero,
        help="Treat a task that sends heartbeats as hung after this many seconds without one.",
        show_default="60 with --max-restarts, otherwise none; 0: none",
    ),
]
TimeoutOption = Annotated[
    float | None, typer.Option(callback=above_zero, help="Stop after this many seconds, all attempts together.")
]
BackoffOption = Annotated[
    float,
    typer.Option(
        callback=from_zero, help="Wait this many seconds before the first restart; doubled for each restart in a row."
    ),
]
GraceOption = Annotated[
    float, typer.Option(callback=from_zero, help="Wait this many seconds between SIGTERM and SIGKILL.")
]
MetricsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write steps, loss and restarts to this file, NAME.prom, for Prometheus's textfile collector.",
    ),
]

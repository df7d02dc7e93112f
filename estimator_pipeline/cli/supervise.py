"""`estimator-pipeline supervise`: run a command, and restart it after failures that a restart may resolve."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from estimator_pipeline.cli.launch import COMMAND_KEY, CommandAfterDashes, check_program, timeouts_of
from estimator_pipeline.cli.options import (
    BackoffOption,
    GraceOption,
    HeartbeatTimeoutOption,
    MetricsOption,
    StartTimeoutOption,
    TimeoutOption,
    from_zero,
)
from estimator_pipeline.errors import ConfigError


class _Supervise(CommandAfterDashes):
    pieces = "[OPTIONS] -- COMMAND [ARGS]..."


SETTINGS: dict[str, Any] = {"cls": _Supervise}


def command(
    context: typer.Context,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Restart a failed command at most this many times in a row without progress.")
    ] = 3,
    step_timeout: Annotated[
        float | None,
        typer.Option(
            callback=from_zero,
            help="Treat the command as hung after this many seconds without a step or output.",
        ),
    ] = None,
    start_timeout: StartTimeoutOption = None,
    heartbeat_timeout: HeartbeatTimeoutOption = None,
    backoff: BackoffOption = 1.0,
    log_dir: Annotated[
        Path | None, typer.Option(help="Write the history and the command's output to this folder.")
    ] = None,
    timeout: TimeoutOption = None,
    grace: GraceOption = 30.0,
    metrics: MetricsOption = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON document on standard output, and the command's output on standard error."
        ),
    ] = False,
) -> None:
    """Run a command with all its child processes, and restart it after failures that a restart may resolve.

    Use it for the srun line of a batch script, or as the entry point of a container. The output is passed through.
    SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 are forwarded to the command, which is not restarted afterwards.

    The exit code is that of the command, or of the first task to fail if srun started several. It is 1 if a signal
    killed the command, it hung or time ran out, 3 if training diverged, 75 if it was preempted, and 128 plus the signal
    number if a forwarded signal ended it.
    """
    from estimator_pipeline import launch

    program: list[str] | None = context.meta.get(COMMAND_KEY)
    if not program:
        raise ConfigError(
            "supervise needs a command.", code="argument/missing", hint="Add it: `supervise -- COMMAND ARGS`."
        )
    run_id = launch.new_run_id()
    folder = log_dir or Path(tempfile.mkdtemp(prefix="estimator-pipeline-"))
    output = sys.stderr.buffer if as_json else sys.stdout.buffer
    outcome = launch.supervise_command(
        check_program(program),
        log_dir=folder.absolute(),
        run_id=run_id,
        limits=launch.RestartLimits(max_restarts=max_restarts, backoff=backoff),
        view=launch.CommandView(output, sys.stderr),
        grace=grace,
        timeout=timeout,
        timeouts=timeouts_of(step_timeout, start_timeout, heartbeat_timeout, supervised=max_restarts > 0),
        metrics=metrics,
    )
    if as_json:
        typer.echo(json.dumps(outcome.document(), indent=2))
    raise typer.Exit(outcome.exit_code)

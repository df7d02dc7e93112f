"""`estimator-pipeline supervise`: a command as a whole, started again where it fails and that makes sense."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from estimator_pipeline.cli.launch import (
    COMMAND_KEY,
    HEARTBEAT_HELP,
    METRICS_HELP,
    START_HELP,
    CommandAfterDashes,
    found_program,
    timeouts_of,
)
from estimator_pipeline.cli.options import above_zero, from_zero
from estimator_pipeline.errors import ConfigError


class _Supervise(CommandAfterDashes):
    pieces = "[OPTIONS] -- COMMAND [ARGS]..."


SETTINGS: dict[str, Any] = {"cls": _Supervise}


def command(
    context: typer.Context,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Start the command again when it fails, so often in a row without progress.")
    ] = 3,
    step_timeout: Annotated[
        float | None,
        typer.Option(callback=from_zero, help="No step, no line of output, no change for so many seconds: it hangs."),
    ] = None,
    start_timeout: Annotated[
        float | None,
        typer.Option(
            callback=from_zero,
            help="No first step after so many seconds: it hangs.",
            show_default=START_HELP,
        ),
    ] = None,
    heartbeat_timeout: Annotated[
        float | None,
        typer.Option(
            callback=from_zero,
            help="No heartbeat for so many seconds, of a command that sends them.",
            show_default=HEARTBEAT_HELP,
        ),
    ] = None,
    watch: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A file or folder that changes while all is well, for --step-timeout."),
    ] = None,
    backoff: Annotated[
        float,
        typer.Option(callback=from_zero, help="Seconds before the first restart; they double with each in a row."),
    ] = 1.0,
    log_dir: Annotated[Path | None, typer.Option(help="Where the history and the command's output go.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(callback=above_zero, help="End it after this many seconds, all attempts together."),
    ] = None,
    grace: Annotated[float, typer.Option(callback=from_zero, help="Seconds between SIGTERM and SIGKILL.")] = 30.0,
    metrics: Annotated[Path | None, typer.Option(metavar="FILE", help=METRICS_HELP)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on standard output, the output on standard error.")
    ] = False,
) -> None:
    """Run a command with all its children, and run it again when it fails and that makes sense.

    For the srun line of a batch script, or the program of a container. Its output is passed through. SIGTERM, SIGINT,
    SIGUSR1 and SIGUSR2 are passed on to it, and after them it is not started again.

    The exit code is the command's own, or that of the first task to fail where srun has started several; 1 when a
    signal ended it, it hung or time ran out, 3 when training diverged, 75 when it was preempted; 128 plus the number of
    a signal that ended it and this.
    """
    from estimator_pipeline import launch

    program: list[str] | None = context.meta.get(COMMAND_KEY)
    if not program:
        raise ConfigError(
            "supervise was given no command.", code="argument/missing", hint="Name one: `supervise -- COMMAND ARGS`."
        )
    if watch is not None and not step_timeout:
        raise ConfigError(
            f"--watch {watch} has no deadline.",
            code="argument/bad-value",
            hint="Set how long it may be unchanged: --step-timeout SECONDS.",
        )
    run_id = launch.new_run_id()
    folder = log_dir or Path(tempfile.mkdtemp(prefix="estimator-pipeline-"))
    output = sys.stderr.buffer if as_json else sys.stdout.buffer
    outcome = launch.supervise_command(
        found_program(program),
        log_dir=folder.absolute(),
        run_id=run_id,
        limits=launch.RestartLimits(max_restarts=max_restarts, backoff=backoff),
        view=launch.CommandView(output, sys.stderr),
        grace=grace,
        timeout=timeout,
        timeouts=timeouts_of(step_timeout, start_timeout, heartbeat_timeout, supervised=max_restarts > 0),
        watch_path=watch,
        metrics=metrics,
    )
    if as_json:
        typer.echo(json.dumps(outcome.document(), indent=2))
    raise typer.Exit(outcome.exit_code)

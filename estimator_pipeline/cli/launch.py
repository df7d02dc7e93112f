"""`estimator-pipeline launch`: run all tasks of a cluster as local processes."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from estimator_pipeline.cli.checks_before import reject_failing_jobs
from estimator_pipeline.cli.environment import tf_config_text
from estimator_pipeline.cli.options import (
    AcceptChangesOption,
    BackoffOption,
    ContinueEpochsOption,
    ContinueWithOption,
    EngineOption,
    GraceOption,
    HeartbeatTimeoutOption,
    JsonOption,
    MetricsOption,
    SettingsOption,
    StartTimeoutOption,
    TimeoutOption,
    from_zero,
    option,
)
from estimator_pipeline.cli.train import is_trained, with_engine
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils import system_limits

if TYPE_CHECKING:
    from estimator_pipeline.job import Job
    from estimator_pipeline.launch import LaunchOutcome, TaskTimeouts

COMMAND_KEY = "estimator_pipeline.command"


class CommandAfterDashes(TyperCommand):
    """A command that takes everything after the first `--` as a command line."""

    pieces = "[OPTIONS] JOB.yaml  |  [OPTIONS] -- COMMAND [ARGS]..."

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND_KEY] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [self.pieces]


SETTINGS = {"cls": CommandAfterDashes}


class Cores(Enum):
    """How the CPUs are divided among the tasks."""

    SPLIT = "split"
    SHARE = "share"


def command(
    context: typer.Context,
    job: Annotated[Path | None, typer.Argument(metavar="JOB.yaml", help="Run this job file.")] = None,
    workers: Annotated[int | None, typer.Option(help="Start this many workers, without the chief.")] = None,
    ps: Annotated[int | None, typer.Option(help="Start this many parameter servers.")] = None,
    chief: Annotated[bool | None, typer.Option("--chief/--no-chief", help="Start a chief.")] = None,
    evaluator: Annotated[
        bool | None, typer.Option("--evaluator/--no-evaluator", help="Start an evaluator, which evaluates checkpoints.")
    ] = None,
    dialect: Annotated[
        str | None, typer.Option(help="Write TF_CONFIG in this dialect: canonical, master or evaluator_in_cluster.")
    ] = None,
    tf_config: Annotated[str | None, option("Start the cluster of this TF_CONFIG document.", "FILE|JSON")] = None,
    settings: SettingsOption = None,
    engine: EngineOption = None,
    accept_changes: AcceptChangesOption = False,
    continue_with: ContinueWithOption = None,
    epochs: ContinueEpochsOption = None,
    ledger: Annotated[
        bool | None,
        typer.Option(
            "--ledger/--no-ledger",
            help="Record which records are consumed, in model_dir/ledger, for `inspect`. Programs: `exec --ledger`.",
        ),
    ] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Write the logs of the tasks to this folder.")] = None,
    cores: Annotated[
        Cores, typer.Option(help="Split the CPUs and threads among the tasks, or share all CPUs.")
    ] = Cores.SPLIT,
    timeout: TimeoutOption = None,
    linger: Annotated[
        float,
        typer.Option(
            callback=from_zero,
            help="Wait this many seconds after the training for ps, evaluator and idle workers to exit.",
        ),
    ] = 120.0,
    grace: GraceOption = 5.0,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Restart a failed job at most this many times in a row without progress.")
    ] = 0,
    step_timeout: Annotated[
        float | None,
        typer.Option(callback=from_zero, help="Treat a training task as hung after this many seconds without a step."),
    ] = None,
    start_timeout: StartTimeoutOption = None,
    heartbeat_timeout: HeartbeatTimeoutOption = None,
    backoff: BackoffOption = 1.0,
    hold_ports: Annotated[
        bool,
        typer.Option(
            "--hold-ports/--free-ports",
            help="Keep the ports bound until the tasks use them, or free them before the start (for servers other than "
            "TensorFlow's).",
        ),
    ] = True,
    metrics: MetricsOption = None,
    no_checks: Annotated[
        bool, typer.Option("--no-checks", help="Skip the checks of data, functions and model before the start.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan without starting anything.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run every task of a cluster on this machine, each as a process with its TF_CONFIG.

    A job file is read once: the job with all options, which override the file, is written to job.yaml in the log
    folder, and each task runs `estimator-pipeline train` with it.
    Everything after -- is the command of a program that reads TF_CONFIG; without options it runs as two workers.

    Exit codes: 0 for success, 1 if a task failed, hung or ran out of time, 2 for bad input, 3 if training diverged,
    75 if a task was preempted, 130 or 143 if SIGINT or SIGTERM stopped the launch.
    """
    from estimator_pipeline import launch
    from estimator_pipeline.cluster.spec import parse_tf_config
    from estimator_pipeline.job import load_job
    from estimator_pipeline.launch.local.plan import log_folder_of
    from estimator_pipeline.launch.local.record import Launch, record_launch
    from estimator_pipeline.launch.local.run import planned_cluster

    if job is None and ledger:
        raise ConfigError(
            "--ledger requires a job file.",
            code="argument/not-applicable",
            hint="Pass it to `exec`: `launch -- estimator-pipeline exec --ledger DIR PROGRAM`.",
        )
    program: list[str] | None = context.meta.get(COMMAND_KEY)
    settings = with_engine(settings, engine, ledger, accept_changes, continue_with, epochs)
    _check_usage(job=job, program=program, settings=settings)
    explicit: dict[str, Any] = {
        "workers": workers,
        "ps": ps,
        "chief": chief,
        "evaluator": evaluator,
        "dialect": dialect,
    }
    cluster = {name: value for name, value in explicit.items() if value is not None}
    if tf_config is not None:
        text, source = tf_config_text(tf_config)
        cluster = {**launch.LaunchShape.of(parse_tf_config(text, source=source)).__dict__, **cluster}
    run_id = launch.new_run_id()
    loaded: Job | None = None
    files: dict[Path, str] = {}
    if job is not None:
        settings += [f"cluster.{name}={json.dumps(value)}" for name, value in cluster.items()]
        loaded = load_job(job, overrides=settings)
        if is_trained(loaded, as_json=as_json):
            return
        names = [field.name for field in dataclasses.fields(launch.LaunchShape)]
        shape = launch.LaunchShape(**{name: getattr(loaded.cluster, name) for name in names})
        folder = (log_dir or log_folder_of(loaded, run_id)).absolute()
        run, files = _resolved(loaded, folder, run_id=run_id)
    else:
        run, shape = check_program(program or []), launch.LaunchShape(**cluster)
        folder = (log_dir or log_folder_of(None, run_id)).absolute()
    timeouts = timeouts_of(step_timeout, start_timeout, heartbeat_timeout, supervised=max_restarts > 0)
    cluster_plan = functools.partial(
        planned_cluster,
        shape=shape,
        log_dir=folder,
        run_id=run_id,
        files=files,
        foreign=job is None,
        hold=hold_ports,
        cores=cores.value,
    )
    planned = functools.partial(cluster_plan, run, environ=os.environ, heartbeat=_heartbeat(timeouts))
    if dry_run:
        with planned() as plan:
            typer.echo(json.dumps(plan.document(), indent=2) if as_json else plan.text())
        return
    if loaded is not None:
        system_limits.require(os.environ, trains=True, tasks=shape.ports)
        if not no_checks:
            reject_failing_jobs([loaded], file=str(job), done="nothing was started", checks=("data", "shards", "model"))
    view = launch.view_for(sys.stderr if as_json else sys.stdout)
    if metrics is not None:
        view = launch.MetricsView(view, metrics)
    run_once = functools.partial(
        launch.run_local, view=view, grace=grace, timeout=timeout, linger=linger, timeouts=timeouts
    )

    def start() -> LaunchOutcome:
        if max_restarts > 0:
            limits = launch.RestartLimits(max_restarts=max_restarts, backoff=backoff)
            return launch.supervise_local(run, limits=limits, **cluster_plan.keywords, **run_once.keywords)
        with planned() as plan:
            return run_once(plan)

    model_dir = "" if loaded is None else loaded.run.model_dir
    record = Launch(
        folder,
        run_id=run_id,
        name=" ".join(run[:2]) if loaded is None else loaded.name,
        model_dir=os.path.abspath(model_dir) if model_dir and "://" not in model_dir else model_dir,
        tasks=shape.tasks,
        command=tuple(run),
        grace=grace,
    )
    report_and_exit(record_launch(record, start), as_json=as_json)


def _heartbeat(timeouts: TaskTimeouts) -> float | None:
    """Return the heartbeat interval in seconds; `stacks` and an outer supervisor read heartbeats, too."""
    from estimator_pipeline.launch import HEARTBEAT_SECS
    from estimator_pipeline.progress.progress_file import HEARTBEAT_FOLDER_VARIABLE

    supervised_above = bool(os.environ.get(HEARTBEAT_FOLDER_VARIABLE))
    return None if timeouts.heartbeat is None and supervised_above else HEARTBEAT_SECS


def timeouts_of(step: float | None, start: float | None, heartbeat: float | None, *, supervised: bool) -> TaskTimeouts:
    """Return the timeouts of the command line; 0 disables a timeout."""
    from estimator_pipeline.launch.local.timeouts import HEARTBEAT_TIMEOUT, TaskTimeouts

    if heartbeat is None and supervised:
        heartbeat = HEARTBEAT_TIMEOUT
    return TaskTimeouts(step=step or None, start=start, heartbeat=heartbeat or None)


def report_and_exit(outcome: LaunchOutcome, *, as_json: bool) -> NoReturn:
    """Print the outcome and exit with its code."""
    if as_json:
        typer.echo(json.dumps(outcome.document(), indent=2))
    if outcome.failure is not None:
        from estimator_pipeline.launch.logs.terminal import harmless

        typer.echo(harmless(f"\n{outcome.failure.text()}"), err=True)
    raise typer.Exit(outcome.exit_code)


def _check_usage(*, job: Path | None, program: list[str] | None, settings: list[str] | None) -> None:
    if job is None and not program:
        raise ConfigError(
            "launch needs a job file or a command.",
            code="argument/missing",
            hint="Add one: `launch JOB.yaml`, or `launch -- COMMAND ARGS`.",
        )
    if job is not None and program is not None:
        raise ConfigError(
            f"launch was given the job file {job} and a command.",
            code="argument/conflict",
            hint="Give one of the two.",
        )
    if job is None and settings:
        raise ConfigError(
            f"--set {settings[0]} requires a job file.",
            code="argument/not-applicable",
            hint="Put options of the command after the --.",
        )


def _resolved(job: Job, folder: Path, *, run_id: str) -> tuple[list[str], dict[Path, str]]:
    """Return the command of the tasks, and the file with the resolved job that it reads.

    Every task and every restart reads this file, so that a job file that is edited meanwhile changes nothing. It is
    `job.yaml` in the log folder. A folder of --log-dir may have a file of this name, of an earlier launch or the job
    file itself: that one is kept, and the name has the run id.
    """
    from estimator_pipeline.job import dump_job
    from estimator_pipeline.job.loading import JOB_FILE

    path = folder / JOB_FILE
    if os.path.lexists(path):
        path = path.with_stem(f"{path.stem}-{run_id}")
    return [sys.executable, "-m", "estimator_pipeline", "train", str(path)], {path: dump_job(job)}


def check_program(program: list[str]) -> list[str]:
    """Return the command if its program is on PATH."""
    if shutil.which(program[0]) is None:
        raise ConfigError(
            f"The command {program[0]!r} cannot be run.",
            code="launch/cannot-start",
            found="no such program on PATH, or a file that is not executable",
            hint="Name an executable, for example `-- python train.py`.",
        )
    return program

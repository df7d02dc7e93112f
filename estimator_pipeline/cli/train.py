"""`estimator-pipeline train`: run the task of this process from a job file."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from estimator_pipeline.cli.options import (
    AcceptChangesOption,
    ContinueEpochsOption,
    ContinueWithOption,
    EngineOption,
    EnvironmentOption,
    SettingsOption,
    argument,
    flag,
    option,
)
from estimator_pipeline.errors import ConfigError, PipelineError, TaskFailedError
from estimator_pipeline.utils import system_limits

if TYPE_CHECKING:
    from estimator_pipeline.job import Job


def with_engine(
    settings: list[str] | None,
    engine: str | None,
    ledger: bool | None = None,
    accept_changes: bool = False,
    continue_with: list[str] | None = None,
    epochs: int | None = None,
) -> list[str]:
    """Return the changes of the options that are fields of the job file, in the form of --set."""
    if epochs is not None and not continue_with:
        raise ConfigError(
            "--epochs counts the epochs of --continue-with",
            code="argument/not-applicable",
            hint="name the new files with --continue-with, or use --set train.epochs=N",
        )
    changes = [*(settings or []), *([] if engine is None else [f"run.engine={engine}"])]
    # --ledger does not override a folder that --set names.
    named = any(change.startswith("run.ledger=") for change in changes)
    if ledger is not None and not (ledger and named):
        changes.append(f"run.ledger={str(ledger).lower()}")
    if continue_with:
        changes.append(f"input.continue_with={json.dumps(continue_with)}")
    if epochs is not None:
        changes.append(f"input.continue_epochs={epochs}")
    return [*changes, "run.accept_changes=true"] if accept_changes else changes


def is_trained(job: Job, *, as_json: bool) -> bool:
    """Return whether the run has trained on all files of --continue-with, and print it."""
    if job.input.continue_with is None:
        return False
    from estimator_pipeline.engines.jobs.continuing import nothing_new

    text = nothing_new(job)
    if text is not None:
        typer.echo(json.dumps({"nothing_new": text}) if as_json else text)
    return text is not None


def prepared_job(path: Path, settings: list[str] | None, engine: str | None, checkpoint: str) -> tuple[Any, str]:
    """Return a `LoadedJob`, in a process with TensorFlow, and the path of its checkpoint.

    The job file is checked before TensorFlow is imported.
    """
    from estimator_pipeline.job import load_job

    job = load_job(path, overrides=with_engine(settings, engine))
    if checkpoint == "best":
        from estimator_pipeline.results.comparison import best_step
        from estimator_pipeline.results.run import read_run

        checkpoint = str(best_step(read_run(job.run.model_dir)))
    from estimator_pipeline.compat.bootstrap import start_lines
    from estimator_pipeline.engines.jobs.loaded import LoadedJob

    with start_lines.hidden():
        loaded = LoadedJob(job).prepared()
    return loaded, loaded.checkpoint(checkpoint)


def command(
    job: Annotated[Path, argument("Run this job file.", "JOB.yaml")],
    settings: SettingsOption = None,
    engine: EngineOption = None,
    accept_changes: AcceptChangesOption = False,
    continue_with: ContinueWithOption = None,
    epochs: ContinueEpochsOption = None,
    ledger: Annotated[
        bool | None,
        flag("--ledger/--no-ledger", "Record which records are consumed, in model_dir/ledger, for `inspect`."),
    ] = None,
    record: Annotated[Path | None, option("Record each training step in this folder, for `parity`.", "DIR")] = None,
    start: Annotated[
        Path | None, option("Start from the initial values of the step records in this folder.", "DIR")
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print the result as one JSON document on standard output.")] = False,
    quiet: Annotated[bool, flag("--quiet", "Hide TensorFlow's log lines below warnings.")] = False,
    environment: EnvironmentOption = None,
) -> None:
    """Run the task that TF_CONFIG or a scheduler assigns to this process, or the whole job without either.

    Start it with the same arguments in every task of the cluster. Under srun, mpirun, an Indexed Job and so on, each
    task detects its type and index. Training resumes from the latest checkpoint.
    Exit codes: 0 when the job is complete, 1 when it failed, 2 for bad input.
    """
    from estimator_pipeline.cli.environment import enter
    from estimator_pipeline.cluster import from_environ, proxies
    from estimator_pipeline.job import load_job
    from estimator_pipeline.progress import progress_file

    progress_file.forget_preemption(os.environ)
    with _reported():
        # Both are checked before TensorFlow is imported: errors appear after half a second, not after ten.
        loaded = load_job(job, overrides=with_engine(settings, engine, ledger, accept_changes, continue_with, epochs))
        if is_trained(loaded, as_json=as_json):
            return
        run, cluster = loaded.run, loaded.cluster
        ports, dialect = cluster.ports, cluster.dialect
        enter(os.environ, cluster, environment=environment, ports=ports, directory=run.model_dir, dialect=dialect)
        tf_config = from_environ(os.environ)
        proxies.bypass(os.environ)
        sizes_pools = any((run.threads.intra_op, run.threads.inter_op, *("thread" in n for n in run.session_config)))
        system_limits.require(os.environ, trains=True, sized=sizes_pools)

        from estimator_pipeline.compat.bootstrap import start_lines
        from estimator_pipeline.engines.jobs.build import prepare_process
        from estimator_pipeline.engines.jobs.run import run_job
        from estimator_pipeline.job.user_code import place_in
        from estimator_pipeline.progress.task_events import TaskEvents

        if tf_config.is_chief:
            progress_file.from_environ(os.environ).emit("stage", text="importing TensorFlow")
        with start_lines.hidden():
            tf = prepare_process(loaded)
        tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.WARN if quiet else tf.compat.v1.logging.INFO)
        try:
            result = run_job(loaded, tf_config=tf_config, recording=_recording(record, start))
        except SystemExit as left:
            # The job is not complete before its training ends, whatever exit code its code passes to sys.exit.
            error = TaskFailedError(
                f"sys.exit({left.code!r}) was called before the end of training",
                code="training/ended-early",
                found=place_in(left),
                hint="raise an exception to report an error, or end the data to stop the training",
            )
            TaskEvents(os.environ).raised(error)
            raise error from left
        _print_result(json.dumps(result.to_dict(), indent=2) if as_json else str(result))


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Write an event of an error, from which a launcher reports it without a search in the log."""
    from estimator_pipeline.progress.task_events import TaskEvents

    try:
        yield
    except Exception as error:
        if isinstance(error, PipelineError) and error.exit_code == ConfigError.exit_code:
            TaskEvents(os.environ).ended(error, status="failed", refusal=error.to_dict())
        elif not isinstance(error, TaskFailedError):
            TaskEvents(os.environ).raised(error)
        raise


def _print_result(result: str) -> None:
    """Print the result of the training; only warn if standard output cannot be written."""
    try:
        print(result, flush=True)
    except OSError as error:
        # Otherwise the interpreter tries to flush it again at exit, and fails.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        logging.getLogger("tensorflow").warning(
            "Training is complete, but its result cannot be written to standard output: %s", error.strerror or error
        )


def _recording(folder: Path | None, start: Path | None) -> Any:
    if folder is None and start is None:
        return None
    from estimator_pipeline.engines.recording.step_recorder import NullStepWriter, StepRecorder
    from estimator_pipeline.parity.step_records import BatchWriter, StepWriter, initial_of
    from estimator_pipeline.utils.variable_names import GLOBAL_STEP, canonical_of_layers

    values = None if start is None else {k: v for k, v in initial_of(start).items() if k != GLOBAL_STEP}
    return StepRecorder(
        writer=NullStepWriter if folder is None else functools.partial(StepWriter, folder),
        canonical=canonical_of_layers,
        start=values,
        batches=None if folder is None else lambda task: BatchWriter(folder, task).batch,
    )

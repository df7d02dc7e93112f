"""`estimator-pipeline train`: this process's task of a job file."""

from __future__ import annotations

import functools
import json
import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from estimator_pipeline.errors import ConfigError, PipelineError, TaskFailedError
from estimator_pipeline.utils import system_limits


def with_engine(
    settings: list[str] | None, engine: str | None, ledger: bool | None = None, accept_changes: bool = False
) -> list[str]:
    """The changes to a job file that --set, --engine, --ledger and --accept-changes ask for."""
    changes = [*(settings or []), *([] if engine is None else [f"run.engine={engine}"])]
    # A folder that the job file or --set names stays what it is.
    named = any(change.startswith("run.ledger=") for change in changes)
    if ledger is not None and not (ledger and named):
        changes.append(f"run.ledger={str(ledger).lower()}")
    return [*changes, "run.accept_changes=true"] if accept_changes else changes


def command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the job file; may be repeated."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="estimator, keras or keras3, in the place of run.engine.")
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes", help="Go on from the checkpoint although seed, data, global batch or model changed."
        ),
    ] = False,
    ledger: Annotated[
        bool | None,
        typer.Option(
            "--ledger/--no-ledger", help="Write down which records are consumed, in model_dir/ledger, for `inspect`."
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write down what each training step did, for `parity`.")
    ] = None,
    start: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Start from the values that the record in DIR starts from.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON document on standard output.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No log lines of TensorFlow below warnings.")] = False,
    environment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which scheduler tells this process its task; none: none but TF_CONFIG."),
    ] = None,
) -> None:
    """Run the task that TF_CONFIG or a scheduler gives this process, or the whole job where there is neither.

    Start it with the same arguments on every task of the cluster: by srun, mpirun, an Indexed Job and so on, each task
    finds its part by itself. Training goes on from the latest checkpoint.
    The exit code is 0 when the job is done, 2 for bad input, 1 when it failed.
    """
    from estimator_pipeline.progress.progress_file import forget_preemption
    from estimator_pipeline.progress.task_events import TaskEvents

    forget_preemption(os.environ)
    try:
        _train(
            job,
            with_engine(settings, engine, ledger, accept_changes),
            recorded=(record, start),
            as_json=as_json,
            quiet=quiet,
            environment=environment,
        )
    except PipelineError as error:
        if error.exit_code == ConfigError.exit_code:
            # A launcher can tell it as it is, and need not look for it in the log.
            TaskEvents(os.environ).ended(error, status="failed", refusal=error.to_dict())
        elif not isinstance(error, TaskFailedError):
            TaskEvents(os.environ).raised(error)
        raise
    except Exception as error:
        TaskEvents(os.environ).raised(error)
        raise


def _train(
    job: Path,
    changes: list[str],
    *,
    recorded: tuple[Path | None, Path | None],
    as_json: bool,
    quiet: bool,
    environment: str | None,
) -> None:
    from estimator_pipeline.cli.environment import enter
    from estimator_pipeline.cluster import from_environ, proxies
    from estimator_pipeline.job import load_job

    # Both are checked before TensorFlow is imported: a mistake is told in half a second, not in ten.
    loaded = load_job(job, overrides=changes)
    enter(
        os.environ,
        loaded.cluster,
        environment=environment,
        ports=loaded.cluster.ports,
        directory=loaded.run.model_dir,
        dialect=loaded.cluster.dialect,
    )
    from_environ(os.environ)
    proxies.bypass(os.environ)
    system_limits.require(os.environ, trains=True, sized=_sizes_pools(loaded.run))

    from estimator_pipeline.cli.library_logging import leave_out_own_deprecations
    from estimator_pipeline.engines.jobs.runner import prepare_process, run_job
    from estimator_pipeline.job.user_code import place_in
    from estimator_pipeline.progress.task_events import TaskEvents

    tf = prepare_process(loaded)
    # A library that logs through absl gives the root logger a handler, and TensorFlow's lines would come twice.
    logging.getLogger("tensorflow").propagate = False
    leave_out_own_deprecations()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.WARN if quiet else tf.compat.v1.logging.INFO)
    try:
        result = run_job(loaded, recording=_recording(*recorded))
    except SystemExit as left:
        # A job is done when its training has ended, whatever code its own Python ends the process with.
        error = TaskFailedError(
            f"the process was ended before the end of training, by a call of sys.exit({left.code!r})",
            code="training/ended-early",
            found=place_in(left),
            hint="raise an exception there where something is wrong, or let the data end",
        )
        TaskEvents(os.environ).raised(error)
        raise error from left
    _tell(json.dumps(result.to_dict(), indent=2) if as_json else str(result))


def _sizes_pools(run: Any) -> bool:
    threads = run.threads.intra_op or run.threads.inter_op
    return bool(threads) or any("thread" in name for name in run.session_config)


def _tell(result: str) -> None:
    """Prints what training came to. It has ended, whether there is room for that or not."""
    try:
        print(result, flush=True)
    except OSError as error:
        # Else the interpreter tries once more to write it as it ends, and fails.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        logging.getLogger("tensorflow").warning(
            "Training has ended well, and its result cannot be written to standard output: %s", error.strerror or error
        )


def _recording(folder: Path | None, start: Path | None) -> Any:
    if folder is None and start is None:
        return None
    from estimator_pipeline.engines.recording.step_recorder import NullStepWriter, StepRecorder
    from estimator_pipeline.parity.step_records import BatchWriter, StepWriter, initial_of
    from estimator_pipeline.utils.variable_names import GLOBAL_STEP, canonical

    values = None if start is None else {k: v for k, v in initial_of(start).items() if k != GLOBAL_STEP}
    return StepRecorder(
        writer=NullStepWriter if folder is None else functools.partial(StepWriter, folder),
        canonical=canonical,
        start=values,
        batches=None if folder is None else lambda task: BatchWriter(folder, task).batch,
    )

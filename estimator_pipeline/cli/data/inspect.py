"""`estimator-pipeline inspect`: show which worker reads which record, and check a ledger."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from estimator_pipeline.cli.options import JsonOption, SettingsOption, argument, flag, option
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.text import few

if TYPE_CHECKING:
    from estimator_pipeline.inputs.ledger import Ledger, LedgerReport
    from estimator_pipeline.inputs.ledger.layout import LedgerLayout
    from estimator_pipeline.job import Job

_TABLE = 10  # Default number of steps in the table.


def command(
    job: Annotated[
        Path | None, argument("Inspect this job file; or a model directory, or the folder of a ledger.", "[JOB.yaml]")
    ] = None,
    ledger: Annotated[Path | None, option("Check this ledger instead of showing what a job would read.", "DIR")] = None,
    input_fn: Annotated[
        str | None, option("Inspect this input function instead of a job file.", "FILE.py:FUNCTION")
    ] = None,
    workers: Annotated[
        int | None, option("Assume this many training tasks instead of the job's `cluster`.", min=1)
    ] = None,
    steps: Annotated[str | None, option("Show these steps; the first step is 1.", "FIRST:LAST")] = None,
    count_data: Annotated[
        bool, flag("--count-data", "Read the data once to find missing records, for a ledger of fingerprints.")
    ] = False,
    epoch_records: Annotated[
        int | None, option("With --count-data: take this many records as an epoch of a data set without an end.", min=1)
    ] = None,
    settings: SettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which records each worker would read at which step, or check the ledger of a training.

    `train --ledger`, `launch --ledger` and `exec --ledger DIR` write ledgers. Exit codes: 0 for success, 1 if the check
    reports a problem, 2 for bad input.
    """
    from estimator_pipeline.inputs import ledger as ledgers
    from estimator_pipeline.inputs.ledger.layout import consumed, planned
    from estimator_pipeline.job import load_job

    if job is not None and input_fn is not None:
        raise ConfigError(
            f"inspect cannot combine the job file {job} with --input-fn {input_fn}",
            code="argument/conflict",
            hint="leave one of the two out",
        )
    if job is None and input_fn is None and ledger is None:
        raise ConfigError(
            "inspect needs a job file, an input function or a ledger",
            code="argument/missing",
            hint="add JOB.yaml, --input-fn FILE.py:FUNCTION or --ledger DIR",
        )
    if job is None and settings:
        raise ConfigError(
            f"--set {settings[0]} requires a job file", code="argument/not-applicable", hint="name the job file"
        )
    if job is not None and ledger is None and job.is_dir():
        ledger = _ledger_of(job, as_json=as_json)
        job = None
        if ledger is None:
            return
    wanted = _steps(steps)
    shown = wanted or range(1, _TABLE + 1)
    loaded = None if job is None else load_job(job, overrides=settings or [])
    if ledger is None and (count_data or epoch_records):
        raise ConfigError("--count-data requires a ledger", code="argument/not-applicable", hint="add --ledger DIR")
    if ledger is not None:
        records = ledgers.read(ledger)
        counts_data = count_data or epoch_records is not None or input_fn is not None
        report = _check(records, loaded, input_fn, counts_data=counts_data, epoch_records=epoch_records)
        document, text = {"check": report.to_dict()}, str(report)
        if wanted is not None:
            layout = consumed(records, wanted)
            document, text = document | layout.document(), f"{text}\n{layout.text()}"
    else:
        if loaded is not None and loaded.input.source != "function":
            tasks, facts, lines = _facts(loaded, workers)
            layout = planned(facts, tasks, shown)
            layout.lines = lines
        else:
            layout = _read_functions(loaded, input_fn, workers, shown)
        document, text = layout.document(), layout.text()
    typer.echo(json.dumps(document, indent=1) if as_json else text)
    if ledger is not None and not report.well:
        raise typer.Exit(1)


def _ledger_of(folder: Path, *, as_json: bool) -> Path | None:
    """Return the folder of a ledger, or of the ledger of a model directory, whose checkpoints are printed.

    Raises:
        ConfigError: The folder has neither a ledger nor a checkpoint.
    """
    from estimator_pipeline.engines.model_dir.layout import checkpoint_step

    if any(folder.glob("*.ledger")):
        return folder
    steps = sorted({checkpoint_step(str(path.with_suffix(""))) for path in folder.glob("*-[0-9]*.index")})
    ledger = folder / "ledger" if (folder / "ledger").is_dir() else None
    if not steps and ledger is None:
        raise ConfigError(
            f"{folder} is neither a model directory nor the folder of a ledger",
            code="file/not-found",
            found="a folder without a checkpoint, a ledger or a file named like worker-0.1.ledger",
            hint="name the model directory of a run, the folder of its ledger, or a job file",
        )
    if as_json and ledger is None:
        typer.echo(json.dumps({"checkpoints": steps}, indent=1))
    elif not as_json:
        from estimator_pipeline.engines.model_dir.continuations import read_continuations

        typer.echo(f"checkpoints: {f'of the steps {few(steps, 20)}' if steps else 'none'}")
        for continuation in read_continuations(str(folder)):
            typer.echo(continuation)
        if ledger is None:
            typer.echo("no ledger: train with --ledger to record which records are consumed")
    return ledger


def _check(
    records: Ledger, loaded: Job | None, input_fn: str | None, *, counts_data: bool, epoch_records: int | None
) -> LedgerReport:
    from estimator_pipeline.inputs import ledger as ledgers

    facts = counts = None
    has_function = input_fn is not None or (loaded is not None and loaded.input.source == "function")
    if records.kind == "fingerprints" and counts_data:
        from estimator_pipeline.engines.recording import ledger as recording

        if not has_function:
            raise ConfigError(
                "this ledger holds fingerprints, and there is no input function to count the data with",
                code="argument/not-applicable",
                hint="name it: --input-fn FILE.py:FUNCTION, or a job file with input.source function",
            )
        counts = recording.count_data(_function(loaded, input_fn), epoch_records=epoch_records)
    elif records.kind == "records" and loaded is not None and not has_function:
        facts = _data(loaded).train_facts()
        if loaded.input.shard_policy == "auto":
            facts["policy"] = "auto"
    return ledgers.check(records, facts=facts, counts=counts)


def _steps(text: str | None) -> range | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        steps = range(int(first), int(last if colon else first) + 1)
    except ValueError:
        steps = range(0)
    if not steps or steps[0] < 1:
        raise ConfigError(
            f"--steps {text!r} is not a range of steps",
            code="argument/bad-value",
            hint="write FIRST:LAST, such as 1:20; the first step is 1",
        )
    return steps


def _data(loaded: Job) -> Any:
    from estimator_pipeline.engines.jobs.build import build

    return build(loaded).data


def _tasks(loaded: Job | None, workers: int | None) -> tuple[str, ...]:
    if workers is not None or loaded is None:
        return tuple(f"worker:{index}" for index in range(workers or 2))
    chief = ["chief:0"] if loaded.cluster.chief else []
    return (*chief, *(f"worker:{index}" for index in range(loaded.cluster.workers)))


def _facts(loaded: Job, workers: int | None) -> tuple[tuple[str, ...], list[dict[str, Any]], list[str]]:
    """Return the tasks of a job, the metadata of each task's data, and a description of the training data."""
    from estimator_pipeline.engines.core.startup import latest_step
    from estimator_pipeline.engines.model_dir.run_identity import policy_of
    from estimator_pipeline.inputs.sharding import ShardOptions

    data, tasks = _data(loaded), _tasks(loaded, workers)
    if (began_under := policy_of(loaded.run.model_dir)) and latest_step(loaded.run.model_dir):
        data = data.with_policy(began_under)
    asynchronous = loaded.run.train_distribute == "parameter_server" or loaded.cluster.ps > 0
    # A CPU is one device. The number of GPUs of a task is unknown here.
    local = loaded.run.devices_per_task or 1
    replicas = local if asynchronous else local * len(tasks)
    facts = [data.train_facts(ShardOptions(len(tasks), index, replicas, asynchronous)) for index in range(len(tasks))]
    if facts[0]["policy"] == "hint":
        facts = [{**pipeline, "replicas": len(tasks)} for pipeline in facts]
    lines = data.describe(len(tasks), replicas_per_pipeline=local, asynchronous=asynchronous).splitlines()
    return tasks, facts, list(itertools.takewhile(lambda line: not line.startswith("evaluation"), lines))


def _function(loaded: Job | None, input_fn: str | None) -> Any:
    """Return the training input function of a job or of a program."""
    from estimator_pipeline import compat
    from estimator_pipeline.job.user_code import load_function

    if loaded is not None:
        return _data(loaded).train_input_fn
    compat.install()
    return load_function(input_fn or "", field="--input-fn")


def _read_functions(loaded: Job | None, input_fn: str | None, workers: int | None, steps: range) -> LedgerLayout:
    from estimator_pipeline.engines.recording.ledger import read_input_fn
    from estimator_pipeline.inputs.ledger.layout import LedgerLayout

    tasks, function = _tasks(loaded, workers), _function(loaded, input_fn)
    local = (loaded.run.devices_per_task or 1) if loaded is not None else 1
    read = {
        task: read_input_fn(function, pipeline=index, pipelines=len(tasks), local=local, steps=steps[-1])
        for index, task in enumerate(tasks)
    }
    batches_of: dict[int, Any] = {
        step: {task: batches[step - 1] for task, batches in read.items() if step <= len(batches)} for step in steps
    }
    lines = [
        f"training: a user input function, called for {len(tasks)} worker(s) and read up to step {steps[-1]}",
        "  records are identified by fingerprints of their content: the first 24 of 64 bits are shown",
        "  how a user input function shards its data is unknown",
    ]
    known = {step: parts for step, parts in batches_of.items() if parts}
    return LedgerLayout(tasks, known, None, None, fingerprints=True, lines=lines)

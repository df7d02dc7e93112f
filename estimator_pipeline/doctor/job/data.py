"""Checks of the input data: files exist, record counts, and even shards.

Without `deep` the checks do not use TensorFlow. They read names, sizes, the description of a prepared TFDS data set,
the record counts of .npz files and of uncompressed TFRecord files up to `COUNTED_BYTES`, and the first cells of
CSV files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, error, of_error, ok, warning
from estimator_pipeline.doctor.job import functions
from estimator_pipeline.doctor.job.data_files import (
    NotPrepared,
    data_dir_of,
    data_set_folder,
    files_of,
    unknown_data_set,
)
from estimator_pipeline.engines.model_dir.checkpoints import latest_checkpoint
from estimator_pipeline.errors import InputError, PipelineError
from estimator_pipeline.inputs.sampler import split_files
from estimator_pipeline.inputs.sharding import choose_policy
from estimator_pipeline.job import FunctionInput, Job, TfdsInput

__all__ = ["check_data", "check_shards"]

_UNEVEN = 1.05  # Ratio of the largest to the smallest shard from which on a warning is given.


def check_data(context: Context) -> Iterator[DoctorFinding]:
    """Check that the data exists."""
    job = context.needed_job()
    if context.other_files:
        yield from _in_catalogue(context)
        return
    yield from functions.check(context)
    yield from _warm_start(context)
    if isinstance(job.input, FunctionInput):
        if context.deep:
            yield from _called(context)
        return
    if context.deep:
        from estimator_pipeline.doctor.job import opened_data

        yield from opened_data.check(context)
        return
    try:
        every = files_of(context)
    except InputError as problem:
        yield of_error(problem, "every task that reads it fails with this error")
        return
    except NotPrepared as problem:
        yield problem.finding
        return
    for files in every:
        for path in files.paths:
            if os.path.isfile(path) and not os.path.getsize(path):
                yield warning(f"{path} is empty", f"it has no records for {files.use}", "write it again, or remove it")
    for files in every:
        yield ok(files.text)


def _warm_start(context: Context) -> Iterator[DoctorFinding]:
    """Check the checkpoint of `run.warm_start_from`, which a run that resumes does not read."""
    section = context.needed_job().run.warm_start_from
    if section is None or "://" in section.path or latest_checkpoint(context.directory) is not None:
        return
    path = section.path.rstrip("/")
    if not os.path.exists(f"{path}.index") and latest_checkpoint(path) is None:
        yield error(
            f"run.warm_start_from: there is no checkpoint {section.path}",
            "the chief fails with this error at its start",
            "name a checkpoint without a suffix, such as runs/old/model.ckpt-200, or a model directory",
            code="file/not-found",
        )


def _in_catalogue(context: Context) -> Iterator[DoctorFinding]:
    """Check that a TFDS data set exists, where its files are not visible from here."""
    section = context.needed_job().input
    if not isinstance(section, TfdsInput):
        raise CheckSkipped("the data is not on this machine")
    name = section.name.partition(":")[0]
    there = name == "digits" or data_set_folder(context, section) is not None
    unknown = None if there else unknown_data_set(context, name, data_dir_of(context, section, name))
    yield unknown or ok(f"the data set {name} is known")


def check_shards(context: Context) -> Iterator[DoctorFinding]:
    """Check that all workers get about equally many records, and at least one batch."""
    job = context.needed_job()
    try:
        training = files_of(context)[0]
    except (InputError, NotPrepared):
        raise CheckSkipped("the data does not exist") from None
    section = job.input
    pipelines = context.num_training_tasks
    if training.records is None:
        raise CheckSkipped("records are counted only with --deep")
    total = sum(training.records)
    if total < section.global_batch_size and section.continue_with is None:
        yield DoctorFinding(
            "error" if section.drop_remainder and not _endless(job) else "warning",
            f"{total} training records, and a global batch of {section.global_batch_size}",
            "each step reads some records more than once, or no step runs",
            f"set input.global_batch_size to {total} or less, or add data",
            code="data/cannot-shard",
        )
    try:
        policy, why = choose_policy(
            section.shard_policy, training.records if training.in_files else None, pipelines, False
        )
    except InputError as problem:
        yield of_error(problem, "every worker fails with this error")
        return
    if policy != "file":
        parts = f"of {len(training.records)} file(s) " if training.in_files else ""
        yield ok(f"{total} records {parts}for {pipelines} input pipeline(s), policy {policy}: {why}")
        return
    counts = [sum(training.records[i] for i in mine) for mine in split_files(training.records, pipelines)]
    each = f"{min(counts)} to {max(counts)}" if min(counts) != max(counts) else f"{counts[0]}"
    message = f"{each} records per worker of {total} in {len(training.records)} file(s), sharded by file"
    if not min(counts):
        yield error(
            message,
            "a worker without records fails at its first step, and the others wait for it",
            "set input.shard_policy: data, or write at least one file with records for each worker",
            code="data/cannot-shard",
        )
    elif max(counts) > _UNEVEN * min(counts):
        yield warning(
            message,
            f"workers run in lockstep, so the records of the smallest shard are used {max(counts) / min(counts):.2f} "
            "times as often",
            "set input.shard_policy: data, or write the files evenly (estimator-pipeline partition)",
        )
    else:
        yield ok(message)


def _endless(job: Job) -> bool:
    """Whether a number of steps or epochs ends training, and the data repeats until then."""
    return job.train.max_steps is not None or job.train.epochs is not None


# With TensorFlow --------------------------------------------------------------------------------------------------


def _called(context: Context) -> Iterator[DoctorFinding]:
    """Call the input functions in the same way as the job."""
    from estimator_pipeline.doctor.machine import import_tensorflow
    from estimator_pipeline.engines.jobs.build import build

    try:
        import_tensorflow(context)
        data = build(context.needed_job()).data
        for input_fn in (data.train_input_fn, data.eval_input_fn):
            input_fn()
    except PipelineError as problem:
        yield of_error(problem, "every task that reads it fails with this error")

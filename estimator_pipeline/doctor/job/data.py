"""The data: whether the files are there, how many records they hold, and whether the workers' shares are even.

Without `deep` only what can be told without TensorFlow is: names, sizes, the description of a prepared TFDS data set,
the record counts of uncompressed TFRecord files up to :data:`COUNTED_BYTES`, and of .npz files; the first cells of CSV
files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, NotLookedAt, error, of_error, ok, warning
from estimator_pipeline.doctor.job import functions
from estimator_pipeline.doctor.job.data_files import (
    NotPrepared,
    data_dir_of,
    data_set_folder,
    files_of,
    unknown_data_set,
)
from estimator_pipeline.errors import InputError, PipelineError
from estimator_pipeline.inputs.sampler import split_files
from estimator_pipeline.inputs.sharding import choose_policy
from estimator_pipeline.job import FunctionInput, Job, TfdsInput

__all__ = ["check_data", "check_shards"]

_UNEVEN = 1.05  # From this ratio on a person should know.


def check_data(context: Context) -> Iterator[DoctorFinding]:
    """Whether the data is there."""
    job = context.needed_job()
    if context.other_files:
        yield from _in_catalogue(context)
        return
    yield from functions.check(context)
    if isinstance(job.input, FunctionInput):
        if context.deep:
            yield from _called(context)
        return
    if context.deep:
        from estimator_pipeline.doctor.job import opened_data

        yield from opened_data.check(context)
        return
    try:
        found = files_of(context)
    except InputError as problem:
        yield of_error(problem, "every task that reads it ends with this error")
        return
    except NotPrepared as problem:
        yield problem.finding
        return
    empty = [(one, path) for one in found for path in one.paths if os.path.isfile(path) and not os.path.getsize(path)]
    for one, path in empty:
        yield warning(
            f"{path} is empty", f"it holds no record of the {one.use} data", "write it again, or leave it out"
        )
    for one in found:
        yield ok(one.told)


def _in_catalogue(context: Context) -> Iterator[DoctorFinding]:
    """Whether a data set can be had where its files are not seen from here."""
    section = context.needed_job().input
    if not isinstance(section, TfdsInput):
        raise NotLookedAt("the data is not on this machine")
    name = section.name.partition(":")[0]
    there = name == "digits" or data_set_folder(context, section) is not None
    unknown = None if there else unknown_data_set(context, name, data_dir_of(context, section, name))
    yield unknown or ok(f"the data set {name} is known")


def check_shards(context: Context) -> Iterator[DoctorFinding]:
    """Whether each worker gets about as many records as the others, and at least a batch."""
    job = context.needed_job()
    try:
        found = files_of(context)
    except (InputError, NotPrepared):
        raise NotLookedAt("the data is not there") from None
    training = found[0]
    section = job.input
    pipelines = context.num_training_tasks
    if training.records is None:
        raise NotLookedAt("records are not counted without --deep")
    total = sum(training.records)
    if total < section.global_batch_size:
        yield (error if section.drop_remainder and not _endless(job) else warning)(
            f"{total} training records, and a global batch of {section.global_batch_size}",
            "each step reads some records more than once, or no step is made at all",
            f"set input.global_batch_size to {total} or less, or give more data",
        )
    try:
        policy, why = choose_policy(
            section.shard_policy, training.records if training.in_files else None, pipelines, False
        )
    except InputError as problem:
        yield of_error(problem, "every worker ends with this error")
        return
    if policy != "file":
        parts = f"of {len(training.records)} file(s) " if training.in_files else ""
        yield ok(f"{total} records {parts}for {pipelines} input pipeline(s), policy {policy}: {why}")
        return
    counts = [sum(training.records[i] for i in mine) for mine in split_files(training.records, pipelines)]
    each = f"{min(counts)} to {max(counts)}" if min(counts) != max(counts) else f"{counts[0]}"
    told = f"{each} records a worker of {total} in {len(training.records)} file(s), shared by file"
    if not min(counts):
        yield error(
            told,
            "a worker without a record ends at its first step, and the others wait for it",
            "set input.shard_policy: data, or write at least one file with records for each worker",
        )
    elif max(counts) > _UNEVEN * min(counts):
        yield warning(
            told,
            f"workers step together, so the records of the smaller share come {max(counts) / min(counts):.2f} times as "
            "often",
            "set input.shard_policy: data, or write the files evenly (estimator-pipeline partition)",
        )
    else:
        yield ok(told)


def _endless(job: Job) -> bool:
    """Whether training is ended by its steps, and goes through the data as often as that takes."""
    return job.train.max_steps is not None or job.train.epochs is not None


# Files -----------------------------------------------------------------------------------------------------------


# TensorFlow Datasets -----------------------------------------------------------------------------------------------


# Own functions, and TensorFlow's say ---------------------------------------------------------------------------------


def _called(context: Context) -> Iterator[DoctorFinding]:
    """What the input functions give, looked at as the job does."""
    from estimator_pipeline.doctor.machine import import_tensorflow
    from estimator_pipeline.engines.jobs.common import job_inputs

    try:
        import_tensorflow(context)
        data = job_inputs(context.needed_job())
        for input_fn in (data.train_input_fn, data.eval_input_fn):
            input_fn()
    except PipelineError as problem:
        yield of_error(problem, "every task that reads it ends with this error")

"""Check that opens the data in the same way as the job, for `--deep`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, of_error, ok, warning
from estimator_pipeline.doctor.job.data_files import COUNTED_BYTES, NotPrepared, files_of, tfrecord_reader
from estimator_pipeline.errors import InputError, PipelineError
from estimator_pipeline.inputs.sources.tfrecord_index import IndexedTFRecords
from estimator_pipeline.job import TfdsInput, TFRecordInput

__all__ = ["check", "whole"]


def check(context: Context) -> Iterator[DoctorFinding]:
    """Open the data like the job, and report which task reads what."""
    job = context.needed_job()
    if isinstance(job.input, TfdsInput):
        try:
            files_of(context)
        except InputError as problem:
            yield of_error(problem, "every task that reads it fails with this error")
            return
        except NotPrepared as problem:
            # A check must not start a download.
            yield problem.finding
            return
    from estimator_pipeline.doctor.machine import import_tensorflow
    from estimator_pipeline.engines.jobs.build import build

    try:
        import_tensorflow(context)
        data = build(job).data
        asynchronous = job.run.train_distribute == "parameter_server"
        text = data.describe(
            context.num_training_tasks, replicas_per_pipeline=context.devices_per_task, asynchronous=asynchronous
        )
    except PipelineError as problem:
        yield of_error(problem, "every task that reads it fails with this error")
        return
    for line in text.splitlines():
        if not line.startswith(" "):
            yield ok(line)
        elif "more often" in line or "times as often" in line:
            yield warning(
                line.strip(),
                "the workers' shards are uneven",
                "set input.shard_policy: data, or write the files evenly",
            )
    yield from whole(context)


def whole(context: Context) -> Iterator[DoctorFinding]:
    """Compare every record of the TFRecord files with its checksum, up to COUNTED_BYTES."""
    section = context.needed_job().input
    if not isinstance(section, TfdsInput | TFRecordInput):
        return
    readers: dict[str, IndexedTFRecords] = {}
    for each in files_of(context):
        if isinstance(section, TFRecordInput):
            readers |= dict.fromkeys(each.paths, tfrecord_reader(each.paths, section))
        else:
            paths = [path for path in each.paths if ".tfrecord" in path]
            readers |= dict.fromkeys(paths, IndexedTFRecords(paths, compression="", cache=None, memory_limit=0))
    read = records = files = 0
    for path, reader in readers.items():
        size = os.path.getsize(path)
        if read and read + size > COUNTED_BYTES:
            continue
        try:
            records += reader.check(path)
        except InputError as problem:
            yield of_error(problem, "training fails with this error when it reads that record")
            continue
        read, files = read + size, files + 1
    if files:
        yield ok(f"{records} records of {files} of {len(readers)} TFRecord file(s) match their checksums")

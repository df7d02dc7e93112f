"""Arithmetic of shards and schedules for simulated clusters: time and memory by size.

Nothing is read: the plans and samplers of `inputs/` compute what workers would read. Each axis varies one size and
keeps the others. If the size allows it, the records of all workers are compared with the records of the step.
"""

from __future__ import annotations

import functools
import time
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from estimator_pipeline.errors import PipelineError
from estimator_pipeline.inputs.sampler import IndexSampler, record_ids, split_files, steps_per_epoch
from estimator_pipeline.inputs.sharding import ShardOptions, eval_shards, train_shards

BATCH = 64


def run(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Measure all axes up to `spec["largest"]`: records, workers, files, steps."""
    largest = spec["largest"]
    workers, records = largest["workers"], largest["records"]
    rows: list[dict[str, Any]] = []
    for size in _tens(1000, records):
        rows.append(_row("records", size, functools.partial(_step, size, min(workers, max(1, size // BATCH)), 1000)))
    for size in _twos(workers):
        rows.append(_row("workers", size, functools.partial(_step, records, size, 1000)))
    for size in _tens(1, largest["steps"]):
        rows.append(_row("steps", size, functools.partial(_step, records, workers, size)))
    for size in _tens(10, largest["files"]):
        rows.append(_row("files", size, functools.partial(_files, size, min(workers, size))))
    for size in _twos(workers):
        rows.append(_row("a step of all workers", size, functools.partial(_whole_step, records, size)))
    return {"rows": rows, "epoch_steps": steps_per_epoch(records, BATCH * workers).full}


def _tens(first: int, last: int) -> list[int]:
    sizes = [first]
    while sizes[-1] * 10 <= last:
        sizes.append(sizes[-1] * 10)
    return sizes


def _twos(last: int) -> list[int]:
    return [size for size in (1, 4, 16, 64, 256, 1024, 4096) if size <= last]


def _row(axis: str, size: int, work: Callable[[], None]) -> dict[str, Any]:
    work()
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
        if sum(seconds) > 2:
            break
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"axis": axis, "size": size, "seconds": float(np.median(seconds)), "bytes": peak}


def _plan(records: int, workers: int, worker: int) -> Any:
    return train_shards(
        [records],
        ShardOptions(workers, worker, workers),
        global_batch=BATCH * workers,
        sampler=IndexSampler(records, seed=1),
        policy="data",
    )


def _step(records: int, workers: int, step: int) -> None:
    """Compute the plan of the last worker and its batch of one step, for training and evaluation."""
    ids = _plan(records, workers, workers - 1).ids(step)
    _check(ids.shape == (1, BATCH) and 0 <= int(ids.min()) and int(ids.max()) < records, "ids out of range")
    plan = eval_shards(
        [records], ShardOptions(workers, workers - 1, workers), global_batch=BATCH * workers, policy="data"
    )
    last = plan.ids(plan.num_batches - 1)
    _check(len(last) == 0 or int(last[-1]) == records - 1, "the last worker does not evaluate the last record")


def _whole_step(records: int, workers: int) -> None:
    """Check that the batches of all workers have the records of the step, without duplicates."""
    step, batch = 12345, BATCH * workers
    ids = np.concatenate([_plan(records, workers, worker).ids(step)[0] for worker in range(workers)])
    _check(
        np.array_equal(ids, record_ids(IndexSampler(records, seed=1), step * batch, (step + 1) * batch)),
        "other records",
    )
    # Within an epoch each record occurs once.
    _check((step + 1) * batch > records or len(np.unique(ids)) == batch, "a record is read twice in one step")


def _files(files: int, workers: int) -> None:
    """Check that each file is assigned once if files of unequal sizes are split by records."""
    shares = split_files([1000 + index % 7 for index in range(files)], workers)
    _check(sum(map(len, shares)) == files, "a file is left out, or read twice")


def _check(is_valid: bool, message: str) -> None:
    if not is_valid:
        raise PipelineError(f"simulated: {message}")

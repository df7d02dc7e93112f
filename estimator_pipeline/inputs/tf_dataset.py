"""Construction of datasets from a plan: record ids, then the records, then batches."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from estimator_pipeline.errors import PipelineError
from estimator_pipeline.inputs.sampler import records_at
from estimator_pipeline.inputs.sharding import EvalShards, TrainShards
from estimator_pipeline.inputs.source import Source, tensorflow
from estimator_pipeline.utils.process_state import STATE

__all__ = ["FetchCallback", "batches_to_rebatch", "eval_batches", "explained", "train_batches"]

# on_fetch(whether an iterator starts with them, the ids of batches in order, further metadata)
FetchCallback = Callable[..., None]

_BLOCK_STEPS = 64  # Steps fetched by one call into Python: at 64 the cost of the call is negligible.
_BLOCK_BYTES = 8 * 2**20
# At the exit of the process TensorFlow waits for the prefetch threads, and a call into Python from one of them would
# block forever. So the exit waits for current reads, and for the prefetch after them.
_LEAVING_SECS = 10.0
_QUIET_SECS = 0.2


class _Running:
    """The number of threads that are reading records, and the time since the last read."""

    def __init__(self) -> None:
        self._count, self._since, self._lock = 0, 0.0, threading.Lock()

    def __enter__(self) -> None:
        self._change(1)

    def __exit__(self, *error: object) -> None:
        self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:
            self._count += by
            self._since = time.monotonic()

    def wait(self) -> None:
        """Wait until no thread has been reading for a moment, with a time limit."""
        deadline = time.monotonic() + _LEAVING_SECS
        while (now := time.monotonic()) < deadline and (self._count or now - self._since < _QUIET_SECS):
            time.sleep(_QUIET_SECS / 10)


_running = _Running()
atexit.register(_running.wait)


def train_batches(
    tf: Any,
    source: Source,
    plan: TrainShards,
    start_step: int,
    assemble: Callable[..., Any],
    *,
    by_block: bool,
    on_fetch: FetchCallback | None = None,
) -> tuple[Any, int]:
    """Return the batches of a training stream.

    Args:
        tf: TensorFlow.
        source: The records.
        plan: The records to read.
        start_step: The global step to start at.
        assemble: Converts the raw values of a batch to (features, labels).
        by_block: Whether `assemble` accepts many batches at once, along an additional first axis.
        on_fetch: Called with the ids (within the plan's parts) of the batches as they are fetched, in order.

    Returns:
        A dataset, and its number of batches.
    """
    start = plan.first_step(start_step)
    steps = _block_steps(source, plan)

    def fetch(block: np.ndarray) -> list[np.ndarray]:
        first = start + int(block) * steps
        count = steps if plan.full_steps is None else min(steps, plan.full_steps - first)
        ids = plan.ids(first, count)
        if on_fetch is not None:
            on_fetch(not block, ids)
        return [value.reshape(ids.shape + value.shape[1:]) for value in _read(source, ids.ravel())]

    left = None if plan.full_steps is None else max(plan.full_steps - start, 0)
    # An endless stream has as many blocks as can be counted; no run reaches the end.
    blocks = 2**62 // steps - start // steps if left is None else -(-left // steps)
    batch = plan.batch if left is None or not plan.tail_steps else None
    dataset = _fetched(tf, source, tf.data.Dataset.range(blocks), fetch, [None, batch])
    dataset = dataset.map(assemble).unbatch() if by_block else _assembled(tf, dataset.unbatch(), assemble)
    if left is None:
        return dataset, tf.data.INFINITE_CARDINALITY
    tail = plan.tail_ids(start)
    if tail:

        def fetch_tail(index: np.ndarray) -> list[np.ndarray]:
            if on_fetch is not None:
                on_fetch(not left and not index, [tail[int(index)]])
            return _read(source, tail[int(index)])

        rest = _fetched(tf, source, tf.data.Dataset.range(len(tail)), fetch_tail, [None])
        dataset = dataset.concatenate(_assembled(tf, rest, assemble))
    return dataset, left * plan.replicas.local + len(tail)


def batches_to_rebatch(
    tf: Any,
    source: Source,
    plan: TrainShards,
    start_step: int,
    assemble: Callable[..., Any],
    *,
    on_fetch: FetchCallback | None = None,
) -> tuple[Any, int | None]:
    """Return the global batches of a training stream whose records TensorFlow shards.

    Args:
        tf: TensorFlow.
        source: The records.
        plan: The plan of a single pipeline with all records.
        start_step: The global step to start at.
        assemble: Converts the raw values of a batch to (features, labels).
        on_fetch: As for `train_batches`; a batch is not a step's, and only its positions show the pipeline.

    Returns:
        A dataset with tf.data.experimental.SHARD_HINT instead of a worker's index, and its number of batches; None
        if that depends on the worker.
    """
    batch = plan.batch * plan.replicas.num_replicas
    # An endless stream has as many records as can be counted, in whole batches.
    stop = 2**62 // batch * batch if plan.full_steps is None else plan.full_steps * batch
    begin = min(start_step * batch, stop)
    hint = tf.data.experimental.SHARD_HINT
    positions = tf.data.Dataset.range(begin, stop).shard(hint, hint)
    positions = positions.batch(batch, drop_remainder=True)

    def fetch(at: np.ndarray) -> list[np.ndarray]:
        ids = records_at(plan.sampler, at)
        if on_fetch is not None:
            workers = int(at[1] - at[0]) if len(at) > 1 else 1
            facts = {"pipelines": workers, "pipeline": int(at[0] - begin) % batch, "records_per_step": batch // workers}
            on_fetch(int(at[0]) < begin + batch, [ids], **facts)
        return _read(source, ids)

    batches = _fetched(tf, source, positions, fetch, [batch])
    return _assembled(tf, batches, assemble), tf.data.INFINITE_CARDINALITY if plan.full_steps is None else None


def eval_batches(tf: Any, source: Source, plan: EvalShards, assemble: Callable[..., Any]) -> tuple[Any, int]:
    """Return the batches of an evaluation, in the form of `train_batches`."""
    # Fetched individually: their sizes may differ, and unbatch() crashes the process on an empty batch.
    batches = tf.data.Dataset.range(plan.num_batches)
    batches = _fetched(tf, source, batches, lambda index: _read(source, plan.ids(int(index))), [None])
    return _assembled(tf, batches, assemble), plan.num_batches


def _assembled(tf: Any, batches: Any, assemble: Callable[..., Any]) -> Any:
    return batches.map(assemble, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _fetched(tf: Any, source: Source, numbers: Any, fetch: Callable[..., Any], axes: list[int | None]) -> Any:
    # Python reads the records to keep the data out of the graph, which an Estimator writes to disk completely.
    types = [tf.as_dtype(dtype) for dtype, _ in source.raw_specs]

    failed: list[PipelineError] = []

    def fetch_or_raise(number: np.ndarray) -> list[np.ndarray]:
        with _running:
            if failed:
                # TensorFlow continues to prefetch after an error.
                raise failed[0]
            try:
                values: list[np.ndarray] = fetch(number)
            except PipelineError as error:
                failed.append(error)
                STATE.input_errors.append(error)
                raise
            return values

    def call(number: Any) -> tuple[Any, ...]:
        values = tf.numpy_function(fetch_or_raise, [number], types)
        for value, (_, shape) in zip(values, source.raw_specs, strict=True):
            value.set_shape([*axes, *shape])
        return tuple(values)

    # AutoGraph is not needed, and its analysis would take longer than building the rest of a small job's graph.
    return numbers.map(tf.autograph.experimental.do_not_convert(call)).prefetch(1)


def _read(source: Source, ids: np.ndarray) -> list[np.ndarray]:
    if not source.in_memory:
        STATE.input_reads.append((source, ids))
    return source.raw(ids)


def explained(error: BaseException) -> PipelineError | None:
    """Return the error of reading records that TensorFlow has wrapped in an exception.

    Args:
        error: The exception of training or evaluation.

    Returns:
        The original error; None for an exception with a different cause.
    """
    if isinstance(error, PipelineError):
        return None
    text = str(error)
    if known := next((raised for raised in reversed(STATE.input_errors) if raised.message in text), None):
        return known
    if STATE.input_reads and "Iterator" in text and isinstance(error, tensorflow().errors.InvalidArgumentError):
        # TensorFlow decodes ahead of the step, and does not name the record.
        reads = [*reversed(STATE.input_reads)]
        STATE.input_reads.clear()
        return next(filter(None, (source.undecodable(ids) for source, ids in reads)), None)
    return None


def _block_steps(source: Source, plan: TrainShards) -> int:
    record = sum(
        int(np.prod(shape, dtype=np.int64)) * (source.string_bytes if dtype == "string" else np.dtype(dtype).itemsize)
        for dtype, shape in source.raw_specs
    )
    step = max(record * plan.batch * plan.replicas.local, 1)
    return max(1, min(_BLOCK_STEPS, _BLOCK_BYTES // step))

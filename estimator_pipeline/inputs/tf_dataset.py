"""From a plan to a dataset: the numbers of the records, the records behind them, the batches made of them."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from estimator_pipeline.errors import PipelineError
from estimator_pipeline.inputs.sampler import records_at
from estimator_pipeline.inputs.sharding import EvalShards, TrainShards
from estimator_pipeline.inputs.source import Source

__all__ = ["Tell", "batches_to_rebatch", "eval_batches", "explained", "train_batches"]

# tell(whether an iterator begins with them, the ids of batches in the order of handing out, what else is known)
Tell = Callable[..., None]

_BLOCK_STEPS = 64  # Steps fetched by one call into Python: at 64 the call's own cost is lost in the noise.
_BLOCK_BYTES = 8 * 2**20
_raised: deque[PipelineError] = deque(maxlen=8)
# At the end of the process TensorFlow waits for the threads that read ahead, and a call into Python that one of them
# makes then never comes back. So what is read is waited for, and what is read ahead after it.
_LEAVING_SECS = 10.0
_QUIET_SECS = 0.2


class _Running:
    """How many threads are reading records, and since when none is."""

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
        """Until none has been for a moment; for a bounded time."""
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
    tell: Tell | None = None,
) -> tuple[Any, int]:
    """The batches of a training stream.

    Args:
        tf: TensorFlow.
        source: The records.
        plan: Which of them.
        start_step: The global step to begin at.
        assemble: Makes (features, labels) of the raw values of a batch.
        by_block: Whether `assemble` may be given many batches at once, along a first axis of their own.
        tell: Told the ids (within the plan's parts) of the batches as they are fetched, in the order of handing out.

    Returns:
        A dataset, and how many batches it has.
    """
    start = plan.first_step(start_step)
    steps = _block_steps(source, plan)

    def fetch(block: np.ndarray) -> list[np.ndarray]:
        first = start + int(block) * steps
        count = steps if plan.full_steps is None else min(steps, plan.full_steps - first)
        ids = plan.ids(first, count)
        if tell is not None:
            tell(not block, ids)
        return [value.reshape(ids.shape + value.shape[1:]) for value in source.raw(ids.ravel())]

    left = None if plan.full_steps is None else max(plan.full_steps - start, 0)
    # Without an end, as many blocks as can be counted: no run comes to the end of them.
    blocks = 2**62 // steps - start // steps if left is None else -(-left // steps)
    batch = plan.batch if left is None else None
    dataset = _fetched(tf, source, tf.data.Dataset.range(blocks), fetch, [None, batch])
    dataset = dataset.map(assemble).unbatch() if by_block else _assembled(tf, dataset.unbatch(), assemble)
    if left is None:
        return dataset, tf.data.INFINITE_CARDINALITY
    tail = plan.tail_ids(start)
    if tail:

        def fetch_tail(index: np.ndarray) -> list[np.ndarray]:
            if tell is not None:
                tell(not left and not index, [tail[int(index)]])
            return source.raw(tail[int(index)])

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
    tell: Tell | None = None,
) -> tuple[Any, int | None]:
    """The global batches of a training stream whose records TensorFlow shares out.

    Args:
        tf: TensorFlow.
        source: The records.
        plan: For one pipeline, of all of them.
        start_step: The global step to begin at.
        assemble: Makes (features, labels) of the raw values of a batch.
        tell: As for `train_batches`; a batch is not a step's, and which pipeline this is shows in its positions alone.

    Returns:
        A dataset that has tf.data.experimental.SHARD_HINT in the place of a worker's number, and how many batches it
        has; None where that depends on who reads.
    """
    batch = plan.batch * plan.replicas.num_replicas
    # Without an end, as many as can be counted, in whole batches.
    stop = 2**62 // batch * batch if plan.full_steps is None else plan.full_steps * batch
    begin = min(start_step * batch, stop)
    hint = tf.data.experimental.SHARD_HINT
    positions = tf.data.Dataset.range(begin, stop).shard(hint, hint)
    positions = positions.batch(batch, drop_remainder=True)

    def fetch(at: np.ndarray) -> list[np.ndarray]:
        ids = records_at(plan.sampler, at)
        if tell is not None:
            workers = int(at[1] - at[0]) if len(at) > 1 else 1
            told = {"pipelines": workers, "pipeline": int(at[0] - begin) % batch, "records_per_step": batch // workers}
            tell(int(at[0]) < begin + batch, [ids], **told)
        return source.raw(ids)

    batches = _fetched(tf, source, positions, fetch, [batch])
    return _assembled(tf, batches, assemble), tf.data.INFINITE_CARDINALITY if plan.full_steps is None else None


def eval_batches(tf: Any, source: Source, plan: EvalShards, assemble: Callable[..., Any]) -> tuple[Any, int]:
    """The batches of an evaluation, as `train_batches` gives them."""
    # Fetched one by one: their sizes may differ, and unbatch() crashes the process on one without records.
    batches = tf.data.Dataset.range(plan.num_batches)
    batches = _fetched(tf, source, batches, lambda index: source.raw(plan.ids(int(index))), [None])
    return _assembled(tf, batches, assemble), plan.num_batches


def _assembled(tf: Any, batches: Any, assemble: Callable[..., Any]) -> Any:
    return batches.map(assemble, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _fetched(tf: Any, source: Source, numbers: Any, fetch: Callable[..., Any], axes: list[int | None]) -> Any:
    # Python reads the records: it is what keeps the data out of the graph, which an Estimator writes to disk
    # whole.
    types = [tf.as_dtype(dtype) for dtype, _ in source.raw_specs]

    failed: list[PipelineError] = []

    def told(number: np.ndarray) -> list[np.ndarray]:
        with _running:
            if failed:
                # TensorFlow reads on ahead, for nobody.
                raise failed[0]
            try:
                values: list[np.ndarray] = fetch(number)
            except PipelineError as error:
                failed.append(error)
                _raised.append(error)
                raise
            return values

    def call(number: Any) -> tuple[Any, ...]:
        values = tf.numpy_function(told, [number], types)
        for value, (_, shape) in zip(values, source.raw_specs, strict=True):
            value.set_shape([*axes, *shape])
        return tuple(values)

    # AutoGraph has nothing to do here, and takes longer to find that out than the rest of a small job's graph to build.
    return numbers.map(tf.autograph.experimental.do_not_convert(call)).prefetch(1)


def explained(error: BaseException) -> PipelineError | None:
    """What reading records has raised in this process and TensorFlow has wrapped, with all of the calls to it.

    Args:
        error: what training or evaluation raised.

    Returns:
        The error as it was; None for one that comes from something else.
    """
    if isinstance(error, PipelineError):
        return None
    text = str(error)
    return next((one for one in reversed(_raised) if one.message in text), None)


def _block_steps(source: Source, plan: TrainShards) -> int:
    record = sum(
        int(np.prod(shape, dtype=np.int64)) * (1024 if dtype == "string" else np.dtype(dtype).itemsize)
        for dtype, shape in source.raw_specs
    )
    step = max(record * plan.batch * plan.replicas.local, 1)
    return max(1, min(_BLOCK_STEPS, _BLOCK_BYTES // step))

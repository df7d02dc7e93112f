"""Datasets of raw values: the plan's record numbers, and the records behind them, some batches at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from estimator_pipeline.inputs.plan import EvalPlan, TrainPlan
from estimator_pipeline.inputs.sources import Source

__all__ = ["eval_blocks", "train_blocks"]

_BLOCK_STEPS = 64  # Steps fetched by one call into Python: at 64 the call's own cost is lost in the noise.
_BLOCK_BYTES = 8 * 2**20


def train_blocks(tf: Any, source: Source, plan: TrainPlan, start_step: int) -> tuple[Any, int]:
    """Blocks of batches, and the number of batches in all of them.

    A block is raw values of shape (batches, batch, ...), read by one call.
    """
    start = plan.first_step(start_step)
    steps = _block_steps(source, plan)

    def fetch(block: np.ndarray) -> list[np.ndarray]:
        first = start + int(block) * steps
        count = steps if plan.full_steps is None else min(steps, plan.full_steps - first)
        ids = plan.ids(first, count)
        return [value.reshape(ids.shape + value.shape[1:]) for value in source.raw(ids.ravel())]

    if plan.full_steps is None:
        # As many blocks as can be counted: no run comes to the end of them.
        blocks = tf.data.Dataset.range(2**62 // steps - start // steps)
        return _fetched(tf, source, blocks, fetch, plan.batch), tf.data.INFINITE_CARDINALITY
    left = max(plan.full_steps - start, 0)
    dataset = _fetched(tf, source, tf.data.Dataset.range(-(-left // steps)), fetch, None)
    tail = plan.tail_ids(start)
    if tail:
        rest = tf.data.Dataset.range(len(tail))
        dataset = dataset.concatenate(
            _fetched(tf, source, rest, lambda i: [v[np.newaxis] for v in source.raw(tail[int(i)])], None)
        )
    return dataset, left * plan.replicas.local + len(tail)


def eval_blocks(tf: Any, source: Source, plan: EvalPlan) -> Any:
    """Blocks of one batch each: their sizes may differ."""
    batches = tf.data.Dataset.range(plan.num_batches)
    return _fetched(
        tf, source, batches, lambda i: [v[np.newaxis] for v in source.raw(plan.ids(int(i)))], None
    )


def _fetched(tf: Any, source: Source, numbers: Any, fetch: Callable[..., Any], batch: int | None) -> Any:
    # Python reads the records: it is what keeps the data out of the graph, which an Estimator writes to disk
    # whole.
    types = [tf.as_dtype(dtype) for dtype, _ in source.raw_specs]

    def call(number: Any) -> tuple[Any, ...]:
        values = tf.numpy_function(fetch, [number], types)
        for value, (_, shape) in zip(values, source.raw_specs, strict=True):
            value.set_shape([None, batch, *shape])
        return tuple(values)

    return numbers.map(call).prefetch(1)


def _block_steps(source: Source, plan: TrainPlan) -> int:
    record = sum(
        int(np.prod(shape, dtype=np.int64)) * (1024 if dtype == "string" else np.dtype(dtype).itemsize)
        for dtype, shape in source.raw_specs
    )
    step = max(record * plan.batch * plan.replicas.local, 1)
    return max(1, min(_BLOCK_STEPS, _BLOCK_BYTES // step))

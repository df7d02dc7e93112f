"""Datasets of input functions under a strategy, for both Keras engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError


def scope(strategy: Any) -> Any:
    """Return the scope of a strategy; for None, an empty context."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def distributed(
    strategy: Any, input_fn: Callable[..., Any], convert: Callable[[Any], Any] = lambda dataset: dataset
) -> Any:
    """Return an input function's dataset; under a strategy one per worker, created with its InputContext.

    With the shard policy "hint" it is one dataset for all workers, which the strategy shards.

    Args:
        strategy: None, or a synchronous strategy.
        input_fn: The input function.
        convert: Converts its dataset.
    """
    rebatched = getattr(input_fn, "rebatched", False)
    if strategy is None:
        return convert(input_fn(compat.tensorflow().distribute.InputContext()) if rebatched else input_fn())
    if rebatched:
        return strategy.experimental_distribute_dataset(convert(input_fn()))
    return strategy.distribute_datasets_from_function(lambda context: convert(input_fn(context)))


def steps_of(strategy: Any, input_fn: Callable[..., Any], *, hint: str) -> int | None:
    """Return the number of steps in which all workers read their datasets; None without a strategy.

    Without a strategy, Keras detects the end of the data.

    Raises:
        ConfigError: The number of batches is unknown.
    """
    if strategy is None:
        return None
    tf = compat.tensorflow()
    extended = strategy.extended
    # Each replica of a worker takes one of its batches per step.
    local = len(extended.worker_devices)
    pipelines = strategy.num_replicas_in_sync // local
    sizes = []
    for pipeline in range(pipelines):
        context = tf.distribute.InputContext(pipelines, pipeline, strategy.num_replicas_in_sync)
        sizes.append(int(input_fn(context).cardinality()))
    if min(sizes) < 0:
        raise ConfigError(
            f"the number of batches of the input function {getattr(input_fn, '__name__', input_fn)} is unknown, and "
            "under a strategy Keras needs the number of steps",
            code="argument/missing",
            found="a dataset without an end" if tf.data.INFINITE_CARDINALITY in sizes else "an unknown cardinality",
            hint=hint,
        )
    return -(-max(sizes) // local)

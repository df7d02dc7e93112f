"""What both Keras engines do with a strategy and an input function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError


def scope(strategy: Any) -> Any:
    """The scope of a strategy; of None, a block like any other."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def distributed(
    strategy: Any, input_fn: Callable[..., Any], made_of: Callable[[Any], Any] = lambda dataset: dataset
) -> Any:
    """An input function's dataset; under a strategy one for each worker, made with its InputContext.

    With the shard policy "hint" it is one dataset for all, in which the strategy gives each worker its part.

    Args:
        strategy: None, or a synchronous one.
        input_fn: the input function.
        made_of: from its dataset the one to read.
    """
    rebatched = getattr(input_fn, "rebatched", False)
    if strategy is None:
        return made_of(input_fn(compat.tensorflow().distribute.InputContext()) if rebatched else input_fn())
    if rebatched:
        return strategy.experimental_distribute_dataset(made_of(input_fn()))
    return strategy.distribute_datasets_from_function(lambda context: made_of(input_fn(context)))


def steps_of(strategy: Any, input_fn: Callable[..., Any], *, hint: str) -> int | None:
    """In how many steps all workers together read their datasets; None without a strategy, where Keras sees the end.

    Raises:
        ConfigError: it cannot be known.
    """
    if strategy is None:
        return None
    tf = compat.tensorflow()
    extended = strategy.extended
    # Two replicas of a worker take two of its batches for one step.
    local = len(extended.worker_devices)
    pipelines = strategy.num_replicas_in_sync // local
    sizes = []
    for pipeline in range(pipelines):
        context = tf.distribute.InputContext(pipelines, pipeline, strategy.num_replicas_in_sync)
        sizes.append(int(input_fn(context).cardinality()))
    if min(sizes) < 0:
        raise ConfigError(
            f"how many batches the input function {getattr(input_fn, '__name__', input_fn)} gives is not known, and "
            "under a strategy Keras must be told the number of steps",
            code="argument/missing",
            found="a dataset without an end" if tf.data.INFINITE_CARDINALITY in sizes else "an unknown cardinality",
            hint=hint,
        )
    return -(-max(sizes) // local)

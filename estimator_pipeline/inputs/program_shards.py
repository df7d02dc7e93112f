"""Sharding of the training data of an unchanged program, whose input function takes no `input_context`.

Each of n tasks keeps every n-th batch of the program's dataset. All read the whole dataset: what is saved is training,
not reading.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.compat.internals import dataset_order
from estimator_pipeline.compat.internals import estimator_wrapping as around
from estimator_pipeline.errors import ProgramInputError
from estimator_pipeline.inputs.wrapping import wrap_input_fn
from estimator_pipeline.utils.logger import logger

__all__ = ["shard_every_training"]

_BY_HAND = "add the parameter input_context to the input_fn, shard by it before the shuffle, and omit --shard-input"


def shard_every_training() -> None:
    """Shard the data of every later training of an Estimator in this process among the training tasks.

    A dataset whose order differs between the tasks, an input function that takes an `input_context`, and one that
    returns tensors are errors when the training starts. TF_CONFIG is read then: the program may set it.
    """
    compat.install()

    def enter(input_fn: Any, hooks: list[Any]) -> Any:
        tf_config = from_environ(os.environ)
        if tf_config.cluster is None or len(tf_config.cluster.training_tasks) < 2:
            return input_fn
        return _sharded(input_fn, tf_config)

    around.training_input(enter)


def _sharded(input_fn: Callable[..., Any], tf_config: TFConfig) -> Any:
    tf: Any = compat.tensorflow()
    assert tf_config.cluster is not None
    tasks = tf_config.cluster.training_tasks
    if "input_context" in inspect.signature(input_fn).parameters:
        raise _refused("it takes an input_context, by which it shards itself", hint="omit --shard-input")

    def call(input_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        data = input_fn(*args, **kwargs)
        if not isinstance(data, tf.data.Dataset | tf.compat.v1.data.Dataset):
            raise _refused(f"it returns a {type(data).__name__}, not a tf.data.Dataset", hint=_BY_HAND)
        operation = dataset_order.differing_order(data)
        if operation is not None:
            hint = f"pass a seed, or set RunConfig.tf_random_seed; or {_BY_HAND}"
            raise _refused(f"{operation}: each task would read the records in a different order", hint=hint)
        if tf_config.is_chief:
            logger.warning(
                "--shard-input: each of %d tasks trains on different batches of the input_fn. The batch size is that "
                "of one task, as before: a step trains on %d batches, and an epoch has 1/%d of the steps",
                *[len(tasks)] * 3,
            )
        return data.shard(len(tasks), tasks.index(tf_config.task))

    return wrap_input_fn(input_fn, call)


def _refused(why: str, *, hint: str) -> ProgramInputError:
    return ProgramInputError("--shard-input cannot shard the data of this input_fn", found=why, hint=hint)

"""Evaluations on several replicas of one process count every record.

Each step of a mirrored evaluation needs a batch for each replica. If the data ends within a step, the whole step fails,
and it is a race whether the replicas with a batch have already counted it: 3 of 12 evaluations of three batches on two
replicas lost the last batch (2.21, two cores). Here the last batches are split so that every replica has one. Batches
that cannot be split, with a static size or fewer records than replicas, are unchanged, as is data with enough batches.

Private use: `Estimator._call_input_fn`, which creates every dataset of an Estimator, with its InputContext.
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.compat.internals.data_end.even_batches import are_even, even_batches
from estimator_pipeline.utils.logger import logger

NAME = "even-batches"
WHAT = (
    "an evaluation on several replicas of one process counts every record: the last batches are split, so that each "
    "replica has one; before, it sometimes lost records"
)


def apply() -> None:
    import tensorflow as tf
    from tensorflow_estimator.python.estimator import estimator as module

    original = module.Estimator._call_input_fn

    @functools.wraps(original)
    def call_input_fn(self: Any, input_fn: Any, mode: Any, input_context: Any = None) -> Any:
        data = original(self, input_fn, mode, input_context)
        if mode != tf.estimator.ModeKeys.EVAL or input_context is None or are_even(data):
            return data
        replicas = input_context.num_replicas_in_sync
        # In a cluster each worker has a separate pipeline, and all have the same number of batches.
        if replicas < 2 or input_context.num_input_pipelines != 1 or not isinstance(data, tf.data.Dataset):
            return data
        try:
            return even_batches(data, replicas, strict=False)
        except (TypeError, ValueError, NotImplementedError) as error:
            logger.warning("evaluations on %d replicas may lose the last batch: %s", replicas, error)
            return data

    module.Estimator._call_input_fn = call_input_fn

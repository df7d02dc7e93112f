"""Evaluations on several replicas of one process count every record.

Each step of a mirrored evaluation asks for a batch for each replica. Where the data end in the middle of such a round,
TensorFlow's step fails as a whole, and whether the replicas that had a batch have counted it by then is a race: of 12
evaluations of three batches on two replicas three have lost the last one (2.21, two cores). Batches of the last rounds
are cut, so that every replica has one. What cannot be cut, for its size is fixed or it has fewer records than replicas,
stays as it is, and so does everything where the rounds are whole.

Private use: `Estimator._call_input_fn`, which every dataset of an Estimator comes by, with the context of its pipeline.
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.compat.internals.data_end.even_batches import are_even, even_batches
from estimator_pipeline.utils.logger import logger

NAME = "even-batches"
WHAT = (
    "an evaluation on several replicas of one process counts every record: the last batches are cut, so that each "
    "replica has one; it lost some at times"
)


def apply() -> None:
    import tensorflow as tf
    from tensorflow_estimator.python.estimator import estimator as module

    original = module.Estimator._call_input_fn

    @functools.wraps(original)
    def call_input_fn(self: Any, input_fn: Any, mode: Any, input_context: Any = None) -> Any:
        found = original(self, input_fn, mode, input_context)
        if mode != tf.estimator.ModeKeys.EVAL or input_context is None or are_even(found):
            return found
        replicas = input_context.num_replicas_in_sync
        # Of a cluster each worker has a pipeline of its own, and all of them the same number of batches to make.
        if replicas < 2 or input_context.num_input_pipelines != 1 or not isinstance(found, tf.data.Dataset):
            return found
        try:
            return even_batches(found, replicas, strict=False)
        except (TypeError, ValueError, NotImplementedError) as error:
            logger.warning("evaluations on %d replicas may lose the last batch: %s", replicas, error)
            return found

    module.Estimator._call_input_fn = call_input_fn

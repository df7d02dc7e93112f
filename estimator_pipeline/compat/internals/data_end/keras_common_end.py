"""Where the data of one worker end first, in training with Keras.

All workers stop after the last step for which each has a batch, as an Estimator's do
(:mod:`estimator_pipeline.compat.internals.data_end.common_end`).

Under MultiWorkerMirroredStrategy the workers sum up in each step how many replicas have a batch, unless their data have
no end, and TensorFlow gives those without one an empty one until all have ended. Here that sum says of each worker
whether it has one, and where a worker has none the data end on all.

Whether there is such a sum at all each worker finds out from its own dataset: where one has data with an end and
another has not, the one waits for the other for ever. Here they tell each other (:meth:`StepsTogether.alike`).

Private use: `input_lib._calculate_replicas_with_values`, the same from 2.15 to 2.21: nothing public decides there.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from estimator_pipeline.compat.internals import coordination_service as coordination

__all__ = ["StepsTogether"]

_tracing: list[StepsTogether] = []


class StepsTogether:
    """One training of one worker.

    Args:
        strategy: the training strategy.
        tasks: names of all training tasks.
        own: this task's name.
        timeout: seconds that the others are waited for.
    """

    def __init__(self, strategy: Any, *, tasks: Sequence[str], own: str, timeout: float) -> None:
        import tensorflow as tf

        _patch()
        self._strategy, self._tasks, self._own, self._timeout = strategy, list(tasks), own, timeout
        with tf.device("CPU:0"):
            # Told when the data end.
            self._counts = tf.Variable([-1] * len(self._tasks), dtype=tf.int64, trainable=False)

    def alike(self, dataset: Any) -> Any:
        """The dataset, whose end is looked for if that of any worker may have one."""
        import tensorflow as tf

        endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        told = coordination.exchange(
            "data without an end", str(endless), own=self._own, tasks=self._tasks, timeout=self._timeout
        )
        if not endless or told is None or set(told.values()) == {"True"}:
            return dataset
        # What is filtered may have an end.
        return dataset.filter(tf.autograph.experimental.do_not_convert(lambda *element: True))

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """In the block, a step that is traced ends where a worker has no batch for it."""
        _tracing.append(self)
        try:
            yield
        finally:
            _tracing.pop()

    def lacking(self) -> list[bool] | None:
        """Of each task whether its data had ended, when training met their end; None: it met none."""
        counts = self._counts.numpy()
        return None if counts[0] < 0 else [count == 0 for count in counts]

    def replicas_with_values(self, optionals: list[Any]) -> Any:
        """How many replicas have a batch; raises OutOfRangeError, on all workers, where a worker has none.

        Args:
            optionals: this worker's, one a replica.
        """
        import tensorflow as tf

        own = tf.add_n([tf.cast(one.has_value(), tf.int64) for one in optionals])
        spread = tf.one_hot(self._tasks.index(self._own), len(self._tasks), on_value=own, off_value=tf.zeros_like(own))
        counts = self._strategy.reduce(tf.distribute.ReduceOp.SUM, spread, axis=None)
        counts = tf.reshape(counts, [len(self._tasks)])

        def end() -> Any:
            with tf.control_dependencies([self._counts.assign(counts)]):
                return next(iter(tf.data.Dataset.range(0)))

        return tf.cond(tf.reduce_all(counts > 0), lambda: tf.reduce_sum(counts), end)


@functools.cache
def _patch() -> None:
    from tensorflow.python.distribute import input_lib

    original = input_lib._calculate_replicas_with_values

    @functools.wraps(original)
    def replicas_with_values(strategy, input_workers, optional_list):
        if not _tracing:
            return original(strategy, input_workers, optional_list)
        (own,) = optional_list
        return _tracing[-1].replicas_with_values(own)

    input_lib._calculate_replicas_with_values = replicas_with_values

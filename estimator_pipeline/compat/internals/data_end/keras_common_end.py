"""Common end of synchronous training with Keras.

All workers stop after the last step for which each has a batch, as in an Estimator (`common_end`).

Under MultiWorkerMirroredStrategy the workers sum in each step how many replicas have a batch, unless their data is
infinite. TensorFlow gives replicas without data an empty batch until all data has ended. Here the sum has the count of
each worker, and if a worker has no batch, the data ends on all workers.

Each worker decides from its own dataset whether there is such a sum: if one has finite and one has infinite data, the
first waits for the other forever. Here the workers exchange this information (`StepsTogether.alike`).

Private use: `input_lib._calculate_replicas_with_values`, unchanged from 2.15 to 2.21; there is no public alternative.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.utils.process_state import STATE

__all__ = ["StepsTogether"]


class StepsTogether:
    """The common end of one training, on one worker.

    Args:
        strategy: The training strategy.
        tasks: Names of all training tasks.
        task: This task's name.
        timeout: Seconds to wait for the other tasks.
    """

    def __init__(self, strategy: Any, *, tasks: Sequence[str], task: str, timeout: float) -> None:
        import tensorflow as tf

        _patch()
        self._strategy, self._tasks, self._task, self._timeout = strategy, list(tasks), task, timeout
        with tf.device("CPU:0"):
            # Assigned when the data ends.
            self._counts = tf.Variable([-1] * len(self._tasks), dtype=tf.int64, trainable=False)

    def alike(self, dataset: Any) -> Any:
        """Return the dataset, with an unknown cardinality if it is infinite but that of a worker is not."""
        import tensorflow as tf

        endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        by_task = coordination.exchange(
            "data without an end", str(endless), task=self._task, tasks=self._tasks, timeout=self._timeout
        )
        if not endless or by_task is None or set(by_task.values()) == {"True"}:
            return dataset
        # A filtered dataset has an unknown cardinality.
        return dataset.filter(tf.autograph.experimental.do_not_convert(lambda *element: True))

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Let a step that is traced in the block end if a worker has no batch for it."""
        STATE.traced_steps.append(self)
        try:
            yield
        finally:
            STATE.traced_steps.pop()

    def lacking(self) -> list[bool] | None:
        """Return whether each task's data had ended when training ended with the data; None if it did not."""
        counts = self._counts.numpy()
        return None if counts[0] < 0 else [count == 0 for count in counts]

    def replicas_with_values(self, optionals: list[Any]) -> Any:
        """Count the replicas with a batch; raises OutOfRangeError on all workers if a worker has none.

        Args:
            optionals: This worker's optionals, one per replica.
        """
        import tensorflow as tf

        local = tf.add_n([tf.cast(optional.has_value(), tf.int64) for optional in optionals])
        index = self._tasks.index(self._task)
        spread = tf.one_hot(index, len(self._tasks), on_value=local, off_value=tf.zeros_like(local))
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
        if not STATE.traced_steps:
            return original(strategy, input_workers, optional_list)
        (optionals,) = optional_list
        return STATE.traced_steps[-1].replicas_with_values(optionals)

    input_lib._calculate_replicas_with_values = replicas_with_values

"""Synchronous training ends on all workers when the data of one worker ends.

In tf.estimator the worker without a batch leaves the step, and the others wait for its gradients forever. None reaches
the last checkpoint, which all write together. Here the last step is the last one for which all workers have a batch
(`compat/internals/data_end/common_end.py`).

Private use: `Estimator._actual_train_model_distributed`, through which all training under a strategy runs;
`Estimator._get_iterator_from_input_fn` and `Estimator._call_input_fn`, which provide its data, unchanged in the
estimator package since 2.0; `StopAtStepHook._last_step`, to omit the warning where training ends anyway.
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.compat.internals.data_end.common_end import CommonEnd

NAME = "common-end"
WHAT = (
    "under MultiWorkerMirroredStrategy all tasks stop after the last step for which each has a batch, and write its "
    "checkpoint; before, the others waited forever if the data of one task ended first"
)


def apply() -> None:
    import tensorflow
    from tensorflow_estimator.python.estimator import estimator as module

    original = module.Estimator._actual_train_model_distributed

    @functools.wraps(original)
    def train(self: Any, strategy: Any, input_fn: Any, hooks: Any, saving_listeners: Any) -> Any:
        tasks = _tasks(self, strategy)
        # Input functions of this package give all workers the same number of batches.
        if len(tasks) < 2 or getattr(input_fn, "as_many_for_all", False):
            return original(self, strategy, input_fn, hooks, saving_listeners)

        def notify() -> None:
            for hook in hooks:
                getattr(hook, "data_ends", lambda: None)()

        def last(step: int) -> bool:
            return any(step == getattr(hook, "_last_step", None) for hook in hooks)

        restoring = getattr(tensorflow.data.experimental, "CheckpointInputPipelineHook", ())
        within = any(isinstance(hook, restoring) for hook in hooks)
        end = CommonEnd(strategy, tasks=tasks, on_end=notify, last=last, starts_within=within)
        self._get_iterator_from_input_fn = functools.partial(_iterator, self, end)
        try:
            return original(self, strategy, input_fn, hooks, saving_listeners)
        finally:
            del self._get_iterator_from_input_fn

    module.Estimator._actual_train_model_distributed = train


def _tasks(estimator: Any, strategy: Any) -> list[str]:
    """Return the training tasks in the order of their pipelines; empty unless training is synchronous."""
    from tensorflow.python.distribute import collective_all_reduce_strategy

    from estimator_pipeline.compat.internals import distribute_coordinator as coordinator

    task = coordinator.training_task(estimator._config)
    if task is None or not isinstance(strategy.extended, collective_all_reduce_strategy.CollectiveAllReduceExtended):
        return []
    jobs = task[0]
    return [f"{job}:{index}" for job in ("chief", "worker") for index in range(len(jobs.get(job, ())))]


def _iterator(estimator: Any, end: CommonEnd, input_fn: Any, mode: Any, strategy: Any) -> tuple[Any, list[Any]]:
    from tensorflow_estimator.python.estimator import util

    iterator = strategy.make_input_fn_iterator(
        lambda context: end.watched(estimator._call_input_fn(input_fn, mode, context), context)
    )
    return _WatchedIterator(iterator, end), [util.DistributedIteratorInitializerHook(iterator), end.hook()]


class _WatchedIterator:
    """The training iterator; removes from its elements the flag whether more follow."""

    def __init__(self, iterator: Any, end: CommonEnd) -> None:
        self._iterator, self._end = iterator, end

    def get_next(self) -> Any:
        return self._end.next_of(self._iterator)

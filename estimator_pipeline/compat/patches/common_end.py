"""Synchronous training on several workers ends together where the data of one end first.

In tf.estimator the worker without a batch leaves the step, and the others wait for its gradients for ever; none comes
to the last checkpoint, which all write together. Here the step for which all have a batch is the last one
(:mod:`estimator_pipeline.compat.internals.data_end.common_end`).

Private use: `Estimator._actual_train_model_distributed`, which every training under a strategy comes by,
`Estimator._get_iterator_from_input_fn` and `Estimator._call_input_fn`, from which it has its data, the same in every
estimator package since 2.0; `StopAtStepHook._last_step`, for where training ends anyway there is nothing to warn of.
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.compat.internals.data_end.common_end import CommonEnd

NAME = "common-end"
WHAT = (
    "under MultiWorkerMirroredStrategy all tasks stop after the last step for which each has a batch, and write its "
    "checkpoint; where the data of one ended first the others waited for ever"
)


def apply() -> None:
    import tensorflow
    from tensorflow_estimator.python.estimator import estimator as module

    original = module.Estimator._actual_train_model_distributed

    @functools.wraps(original)
    def train(self: Any, strategy: Any, input_fn: Any, hooks: Any, saving_listeners: Any) -> Any:
        tasks = _tasks(self, strategy)
        # Input functions of this package give every worker as many batches.
        if len(tasks) < 2 or getattr(input_fn, "as_many_for_all", False):
            return original(self, strategy, input_fn, hooks, saving_listeners)

        def tell() -> None:
            for hook in hooks:
                getattr(hook, "data_ends", lambda: None)()

        def last(step: int) -> bool:
            return any(step == getattr(hook, "_last_step", None) for hook in hooks)

        restoring = getattr(tensorflow.data.experimental, "CheckpointInputPipelineHook", ())
        within = any(isinstance(hook, restoring) for hook in hooks)
        end = CommonEnd(strategy, tasks=tasks, on_end=tell, last=last, starts_within=within)
        self._get_iterator_from_input_fn = functools.partial(_iterator, self, end)
        try:
            return original(self, strategy, input_fn, hooks, saving_listeners)
        finally:
            del self._get_iterator_from_input_fn

    module.Estimator._actual_train_model_distributed = train


def _tasks(estimator: Any, strategy: Any) -> list[str]:
    """The training tasks in the order of their pipelines; none unless they step together."""
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
    return _Told(iterator, end), [util.DistributedIteratorInitializerHook(iterator), end.hook()]


class _Told:
    """The iterator of a training, whose elements tell whether others follow; the model does not see that."""

    def __init__(self, iterator: Any, end: CommonEnd) -> None:
        self._iterator, self._end = iterator, end

    def get_next(self) -> Any:
        return self._end.next_of(self._iterator)

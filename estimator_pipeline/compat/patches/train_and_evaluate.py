"""`tf.estimator.train_and_evaluate` on this package's engine: every task has its end, and the job has a result.

In tf.estimator parameter servers never end; an evaluator never ends when training stopped early or `max_steps` is
None; the final checkpoint may never be evaluated, and under MultiWorkerMirroredStrategy without an evaluator nothing
is; the call returns None on every task of a cluster. The engine behind
:func:`estimator_pipeline.train_and_evaluate` has none of these faults; here the old call is led to it, and gives the
pair (metrics, exports) that it gave in a single process, on every task.

What the engine has no place for (a client of a remote cluster, TPUs, a cluster of workers with neither a strategy nor
parameter servers) goes to the original function.

Private use: the module of the estimator package that defines the function.
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.compat import delegates
from estimator_pipeline.compat.patches import cached_evaluation, every_checkpoint, replacing
from estimator_pipeline.compat.patches.applied import is_on

NAME = "train-and-evaluate"
WHAT = (
    "train_and_evaluate returns (metrics, exports) on every task, evaluates the final checkpoint, and every task "
    "ends: chief, workers, parameter servers, evaluator"
)


def apply() -> None:
    from tensorflow_estimator.python.estimator import training

    original = training.train_and_evaluate

    @functools.wraps(original)
    def train_and_evaluate(estimator: Any, train_spec: Any, eval_spec: Any) -> Any:
        run = delegates.train_and_evaluate()
        return run(
            estimator,
            train_spec,
            eval_spec,
            original=original,
            every_checkpoint=is_on(every_checkpoint.NAME),
            keep_evaluation=is_on(cached_evaluation.NAME),
        )

    replacing.everywhere(original, train_and_evaluate)

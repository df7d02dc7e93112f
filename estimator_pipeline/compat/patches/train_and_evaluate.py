"""`tf.estimator.train_and_evaluate` runs on this package's engine: every task exits, and returns a result.

In tf.estimator parameter servers never exit. An evaluator never exits if training stopped early or `max_steps` is
unset. The final checkpoint may never be evaluated, and under MultiWorkerMirroredStrategy without an evaluator no
checkpoint is. The call returns None on every task of a cluster. The engine behind
`estimator_pipeline.train_and_evaluate` does not have these bugs. Here the call is forwarded to it, and returns
(metrics, exports) on every task, as it did in a single process.

Cases that the engine does not support (a client of a remote cluster, TPUs, a cluster of workers with neither a strategy
nor parameter servers) use the original function.

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
    "exits: chief, workers, parameter servers, evaluator"
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

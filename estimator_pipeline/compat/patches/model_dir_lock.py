"""A training has its model directory to itself, and goes on from a checkpoint that is whole.

Two processes that train in one directory overwrite each other's checkpoints without a word. And a process that was
killed while it wrote leaves files that `Estimator.train` ends with an error on, each time it is started again. The
engine behind :func:`estimator_pipeline.train_and_evaluate` takes a lock and sets damaged checkpoints aside; here
`Estimator.train`, called by itself, does the same.

Private use: `Estimator.train` of the estimator package.
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.compat import delegates

NAME = "model-dir-lock"
WHAT = (
    "Estimator.train refuses a model_dir in which another process trains, and goes on from the newest checkpoint that "
    "is whole"
)


def apply() -> None:
    from tensorflow_estimator.python.estimator import estimator as module

    original = module.Estimator.train

    @functools.wraps(original)
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        with delegates.own_model_dir()(self):
            return original(self, *args, **kwargs)

    module.Estimator.train = train

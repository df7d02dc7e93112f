"""`Estimator.train` locks its model directory, and resumes from an undamaged checkpoint.

Two processes that train in one directory silently overwrite each other's checkpoints. A process that was killed while
it wrote a checkpoint leaves files with which `Estimator.train` fails at every restart. The engine behind
`estimator_pipeline.train_and_evaluate` takes a lock and sets damaged checkpoints aside; here `Estimator.train` does the
same.

Private use: `Estimator.train` of the estimator package.
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.compat import delegates

NAME = "model-dir-lock"
WHAT = (
    "Estimator.train rejects a model_dir in which another process trains, and resumes from the newest undamaged "
    "checkpoint"
)


def apply() -> None:
    from tensorflow_estimator.python.estimator import estimator as module

    original = module.Estimator.train

    @functools.wraps(original)
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        with delegates.own_model_dir()(self):
            return original(self, *args, **kwargs)

    module.Estimator.train = train

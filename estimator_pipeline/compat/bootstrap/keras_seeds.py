"""Seeds of tf_keras 2.16 to 2.18 on Python 3.12.

After `tf.keras.utils.set_random_seed` they draw the seeds of initializers with `randint(1, 1e9)`. Python 3.12 rejects a
float there: `TypeError: 'float' object cannot be interpreted as an integer`. tf_keras 2.19 passes an integer. The
resulting numbers are the same.

Private use: `tf_keras.src.backend.RandomGenerator._create_seed`, `tf_keras.src.utils.tf_utils.get_random_seed`.
"""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

from estimator_pipeline.compat.bootstrap import versions

_HIGHEST = 10**9


def apply() -> bool:
    """Draw seeds with integer bounds if necessary; return whether it was."""
    keras = versions.installed("tf-keras")
    if sys.version_info < (3, 12) or keras is None or versions.minor(keras) >= (2, 19):
        return False
    backend = importlib.import_module("tf_keras.src.backend")
    utils = importlib.import_module("tf_keras.src.utils.tf_utils")

    def draw() -> int:
        generator = getattr(backend._SEED_GENERATOR, "generator", None) or random
        seed: int = generator.randint(1, _HIGHEST)
        return seed

    def create_seed(self: Any, user_specified_seed: int | None) -> int:
        return draw() if user_specified_seed is None else user_specified_seed

    backend.RandomGenerator._create_seed = create_seed
    utils.get_random_seed = draw
    return True

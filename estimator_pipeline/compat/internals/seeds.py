"""TensorFlow's global seed within a block: the public API can set it, but not read it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from estimator_pipeline import compat

__all__ = ["global_seed"]


@contextlib.contextmanager
def global_seed(seed: int | None) -> Iterator[None]:
    """Set the global seed in the block, like an Estimator in its graph: `shuffle(seed=...)` depends on both.

    Afterwards the previous state, for example of `tf.keras.utils.set_random_seed`, is restored.

    Args:
        seed: The seed, or None for no seed. In a graph, which has a separate seed, this has no effect.
    """
    tf: Any = compat.tensorflow()
    if not tf.executing_eagerly():
        yield
        return
    from tensorflow.python.eager import context

    eager: Any = context.context()
    before, numbers = eager._seed, getattr(eager, "_rng", None)
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        eager._seed = before
        if numbers is None:
            del eager._rng
        else:
            eager._rng = numbers

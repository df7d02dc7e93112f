"""TensorFlow's global seed for a while: there is a public call that sets it, and none that reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from estimator_pipeline import compat

__all__ = ["global_seed"]


@contextlib.contextmanager
def global_seed(seed: int | None) -> Iterator[None]:
    """The seed in a block, as an Estimator sets its own in its graph: a `shuffle(seed=...)` goes by both.

    What a program has set outside of it, such as by `tf.keras.utils.set_random_seed`, is as it was afterwards.

    Args:
        seed: it; None as in a program that sets none. In a graph, which has one of its own, nothing is done.
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

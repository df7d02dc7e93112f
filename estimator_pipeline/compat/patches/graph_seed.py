"""`RunConfig(tf_random_seed=...)` also seeds Keras 2 initializers, as it seeds all other random operations of a graph.

The initializers of Keras 2, which `tf.compat.v1.layers` uses too, ignore the graph's seed: an initializer without a
seed draws one from Python's `random`. So two runs of a program with a seed start with different variables:
https://github.com/keras-team/tf-keras/blob/v2.19.0/tf_keras/src/backend.py#L2026

In a graph with a seed, each such initializer gets a seed that follows from the graph's seed and the number of seeds
that the graph has assigned. Python's and NumPy's generators, and the seeds of TensorFlow's own operations, are left
alone. After `tf.keras.utils.set_random_seed`, which seeds initializers itself, nothing changes.

Private use: `RandomGenerator._create_seed` and `_SEED_GENERATOR` of Keras' module `backend`, unchanged from 2.15 to
2.21.
"""

from __future__ import annotations

import random
import sys
import threading
import weakref
from typing import Any

NAME = "graph-seed"
WHAT = "RunConfig's tf_random_seed also seeds Keras initializers and tf.compat.v1.layers; they ignored it"

_HIGHEST = 10**9
# Graph -> the number of seeds that it has assigned.
_assigned: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class _SeedGenerator(threading.local):
    """Keras' global generator, which only the thread that called `set_random_seed` has; replicas run in others."""

    is_set = False

    def __setattr__(self, name: str, value: Any) -> None:
        type(self).is_set = True
        super().__setattr__(name, value)


def apply() -> None:
    import tensorflow as tf

    backend = sys.modules[tf.keras.initializers.RandomNormal.__module__].backend
    generator = getattr(backend._SEED_GENERATOR, "generator", None)
    backend._SEED_GENERATOR = _SeedGenerator()
    if generator is not None:
        backend._SEED_GENERATOR.generator = generator
    original = backend.RandomGenerator._create_seed

    def create_seed(self: Any, user_specified_seed: int | None) -> int:
        seed = None
        if user_specified_seed is None and not _SeedGenerator.is_set and not tf.executing_eagerly():
            seed = _next_seed(tf.compat.v1.get_default_graph())
        return original(self, user_specified_seed) if seed is None else seed

    backend.RandomGenerator._create_seed = create_seed


def _next_seed(graph: Any) -> int | None:
    """Return the seed of the next initializer of a graph; None without a seed of the graph."""
    while (outer := getattr(graph, "outer_graph", None)) is not None:
        graph = outer  # Functions have the seed of their graph, and count with it.
    if graph.seed is None:
        return None
    _assigned[graph] = number = _assigned.get(graph, 0) + 1
    return random.Random(f"{graph.seed}:{number}").randint(1, _HIGHEST)

"""Random numbers of Keras 2 layers that depend only on the seed, the step and the replica.

By default a layer uses a stateful random operation, which starts with the same seed in each process: every worker drops
the same units, a resumed run repeats its first numbers, and a session draws different numbers than a `tf.function`.
Within `drawn_by_step` the layers use stateless operations, with a key from

* the seed, the layer's seed if it has one, and the index of the draw in the step;
* the step, and the replica.

So replicas draw different numbers, a resumed run continues the sequence, and both engines draw the same numbers. Random
operations that a model calls directly (`tf.nn.dropout` in a custom layer) are not changed.

Private use: `layer._random_generator`, the `RandomGenerator` that all Keras 2 layers use, unchanged from 2.15 to 2.21;
initializers have one of the type "stateless", which is not changed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["drawn_by_step"]

# An upper bound of replica numbers.
_REPLICAS = 2**20
_now = threading.local()


@contextlib.contextmanager
def drawn_by_step(tf: Any, *, seed: int, step: Any, replica: Any = 0) -> Iterator[None]:
    """Use these random numbers for layers that are called in the block, in this thread.

    Args:
        tf: TensorFlow with Keras 2.
        seed: The seed of the run.
        step: The number of previous steps; a variable or tensor of any integer dtype.
        replica: The index of this replica.
    """
    _take_over(tf)
    before = getattr(_now, "draws", None)
    _now.draws = _Draws(tf, seed, step, replica)
    try:
        yield
    finally:
        _now.draws = before


class _Draws:
    """The keys of the draws of one step."""

    def __init__(self, tf: Any, seed: int, step: Any, replica: Any) -> None:
        self._tf, self._seed, self._count = tf, seed, 0
        self._place = tf.cast(step, tf.int64) * _REPLICAS + tf.cast(replica, tf.int64)

    def key(self, layer_seed: Any) -> Any:
        """Return a key, int64 [2], which is different in each call; `layer_seed` may be None."""
        drawn = hashlib.blake2b(f"{self._seed}/{layer_seed}/{self._count}".encode(), digest_size=8).digest()
        self._count += 1
        number = int.from_bytes(drawn, "little", signed=True)
        return self._tf.stack([self._tf.constant(number, self._tf.int64), self._place])


@functools.cache
def _take_over(tf: Any) -> None:
    """Patch Keras's generator, which is unchanged outside of `drawn_by_step`."""
    # With a name, since Keras counts the layers that it names.
    kind = type(tf.keras.layers.Dropout(0.5, name="asked")._random_generator)

    def normal(key: Any, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, **_: Any) -> Any:
        return tf.random.stateless_normal(shape, key, mean, stddev, dtype or tf.keras.backend.floatx())

    def truncated(key: Any, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, **_: Any) -> Any:
        return tf.random.stateless_truncated_normal(shape, key, mean, stddev, dtype or tf.keras.backend.floatx())

    def uniform(key: Any, shape: Any, minval: Any = 0.0, maxval: Any = None, dtype: Any = None, **_: Any) -> Any:
        return tf.random.stateless_uniform(shape, key, minval, maxval, dtype or tf.keras.backend.floatx())

    def dropout(key: Any, inputs: Any, rate: Any, noise_shape: Any = None) -> Any:
        return tf.nn.experimental.stateless_dropout(inputs, rate=rate, seed=key, noise_shape=noise_shape)

    def seed_of_one(key: Any) -> Any:
        return key

    _replace(kind, "random_normal", normal)
    _replace(kind, "truncated_normal", truncated)
    _replace(kind, "random_uniform", uniform)
    _replace(kind, "dropout", dropout)
    _replace(kind, "make_seed_for_stateless_op", seed_of_one)


def _replace(kind: Any, name: str, draw: Callable[..., Any]) -> None:
    theirs = getattr(kind, name)

    @functools.wraps(theirs)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        draws = getattr(_now, "draws", None)
        if draws is None or self._rng_type == kind.RNG_STATELESS:
            return theirs(self, *args, **kwargs)
        return draw(draws.key(self._seed), *args, **kwargs)

    setattr(kind, name, method)

"""Random numbers of Keras 2's layers that depend on the seed, the step and the replica alone.

By itself a layer draws from an operation that keeps a state of its own, and begins at the same seed in each process:
every worker drops the same units, a run that goes on from a checkpoint draws its first numbers again, and a session
draws others than a `tf.function`. Within :func:`drawn_by_step` the layers draw from operations without a state, whose
key is made of

* the seed, the layer's own seed if it has one, and the place of the draw among the step's draws;
* the step, and the replica.

So replicas draw each for themselves, a resumed run draws on, and both engines draw the same. What a model draws by
itself (`tf.nn.dropout` in a layer of one's own) is not changed.

Private use: `layer._random_generator`, the `RandomGenerator` by which all layers of Keras 2 draw, the same from 2.15
to 2.21; initializers have one of the kind "stateless", which is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["drawn_by_step"]

# A replica's number is below it.
_REPLICAS = 2**20
_now = threading.local()


@contextlib.contextmanager
def drawn_by_step(tf: Any, *, seed: int, step: Any, replica: Any = 0) -> Iterator[None]:
    """Layers that are called in the block, in this thread, draw as the module says.

    Args:
        tf: TensorFlow with Keras 2.
        seed: of the run.
        step: how many steps there were before; a variable or a tensor, of any type of integer.
        replica: the number of this replica among those that draw.
    """
    _take_over(tf)
    before = getattr(_now, "draws", None)
    _now.draws = _Draws(tf, seed, step, replica)
    try:
        yield
    finally:
        _now.draws = before


class _Draws:
    """Makes the keys of the draws of one step."""

    def __init__(self, tf: Any, seed: int, step: Any, replica: Any) -> None:
        self._tf, self._seed, self._count = tf, seed, 0
        self._place = tf.cast(step, tf.int64) * _REPLICAS + tf.cast(replica, tf.int64)

    def key(self, own: Any) -> Any:
        """int64 [2], another one at each call; `own` is the seed of a layer, or None."""
        drawn = hashlib.blake2b(f"{self._seed}/{own}/{self._count}".encode(), digest_size=8).digest()
        self._count += 1
        number = int.from_bytes(drawn, "little", signed=True)
        return self._tf.stack([self._tf.constant(number, self._tf.int64), self._place])


@functools.cache
def _take_over(tf: Any) -> None:
    """Has Keras's generator ask here first. Outside of :func:`drawn_by_step` it draws as ever."""
    # Named, for Keras counts the layers that it names.
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

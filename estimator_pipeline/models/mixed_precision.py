"""The Keras policy of numbers that layers compute in, set around the function that makes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = ["POLICIES", "policy_of", "precision"]

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def policy_of(mixed_precision: bool | str) -> str:
    """Return the name of the Keras policy that is asked for.

    Raises:
        ConfigError: there is none of this name.
    """
    policy = mixed_precision if isinstance(mixed_precision, str) else ("float32", "mixed_bfloat16")[mixed_precision]
    if policy not in POLICIES:
        raise ConfigError(
            f"mixed_precision is {mixed_precision!r}",
            code="argument/bad-value",
            found=f"allowed: {', '.join(POLICIES)}",
        )
    return policy


@contextlib.contextmanager
def precision(policy: str) -> Iterator[None]:
    """Layers made in the block follow this policy."""
    tf = compat.tensorflow()
    if policy == "float32":
        yield
        return
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)

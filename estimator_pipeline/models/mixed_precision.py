"""Mixed precision: the Keras dtype policy, set around the function that builds the layers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = ["POLICIES", "policy_of", "precision"]

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def policy_of(mixed_precision: bool | str) -> str:
    """Return the name of the requested Keras dtype policy.

    Raises:
        ConfigError: The policy is unknown.
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
    """Build the layers of the block under this dtype policy."""
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

"""Exchange of values between the training tasks of a cluster, through TensorFlow's coordination service.

MultiWorkerMirroredStrategy starts that service in eager mode. It stores keys and values for all tasks, and needs no
shared file system. Private use: `tensorflow.python.eager.context` (the public API has no access to the service; the
methods are unchanged from 2.15 to 2.21).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any

from estimator_pipeline.errors import WaitError

# The number of exchanges per key: a key of the service can be set only once.
_exchanged: Counter[str] = Counter()


def exchange(key: str, value: str, *, task: str, tasks: list[str], timeout: float) -> dict[str, str] | None:
    """Publish `value` for `task`, and return every task's value.

    Args:
        key: The name of the exchange. It may be repeated if all tasks do so: a process may run several jobs.
        value: This task's value.
        task: This task's name.
        tasks: Names of all training tasks.
        timeout: Seconds to wait.

    Returns:
        Task -> value, or None if this process has no coordination service.

    Raises:
        WaitError: A task did not publish its value in time.
    """
    import tensorflow as tf

    if not available():
        return None
    _exchanged[key] += 1
    place = f"{key}/{_exchanged[key]}"
    publish(f"{place}/{task}", value)
    values: dict[str, str] = {}
    deadline = time.monotonic() + timeout
    for other in tasks:
        try:
            values[other] = _published(f"{place}/{other}", deadline - time.monotonic())
        except tf.errors.OpError as error:
            raise WaitError(
                f"{task} waited up to {timeout:.0f} s for the {key} of {other}: {error.message.splitlines()[0]}",
                found=f"received from: {', '.join(values) or 'no task'}",
                hint=f"see the log of {other}; every task must run the same program",
            ) from error
    return values


def available() -> bool:
    """Whether this process has the coordination service."""
    from tensorflow.python.eager import context

    return context.context().coordination_service is not None


def publish(key: str, value: str) -> None:
    """Publish `value` under `key` for all tasks. A key can be set only once."""
    from tensorflow.python.eager import context

    context.context().set_config_key_value(f"estimator_pipeline/{key}", value)


def publish_first(key: str, value: str) -> None:
    """Publish `value` under `key`, unless the key is already set."""
    import tensorflow as tf

    with contextlib.suppress(tf.errors.AlreadyExistsError):
        publish(key, value)


def wait_for(key: str, seconds: float) -> str | None:
    """Wait for the value of `key`, without blocking other threads; None after `seconds`."""
    import tensorflow as tf

    try:
        return _published(key, seconds)
    except tf.errors.DeadlineExceededError:
        return None


def forget(key: str) -> None:
    """Delete the value of `key`."""
    from tensorflow.python.eager import context

    context.context().delete_config_key_value(f"estimator_pipeline/{key}")


def receive(key: str, *, timeout: float, description: str) -> str:
    """Wait for the value that a different task publishes under `key`, and return it.

    Args:
        key: The key.
        timeout: Seconds to wait.
        description: What is awaited, for the message.

    Raises:
        WaitError: No value was published in time.
    """
    import tensorflow as tf

    try:
        return _published(key, timeout)
    except tf.errors.DeadlineExceededError as error:
        raise WaitError(
            f"waited {timeout:.0f} s for {description}, which did not arrive",
            hint="see the log of the chief; every task must run the same program",
        ) from error


def _published(key: str, timeout: float) -> str:
    """Wait up to `timeout` seconds for the value of `key`; raises TensorFlow's error without one."""
    from tensorflow.python.eager import context

    value: Any = context.context().get_config_key_value(f"estimator_pipeline/{key}", max(1, int(1000 * timeout)))
    return value.decode() if isinstance(value, bytes) else str(value)

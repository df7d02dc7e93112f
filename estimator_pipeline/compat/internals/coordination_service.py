"""Facts exchanged between the training tasks of one cluster, through TensorFlow's coordination service.

MultiWorkerMirroredStrategy starts that service in eager mode; it holds keys and values for all tasks, and needs no
shared file system. Private use: `tensorflow.python.eager.context` (the public API has no access to the service; the
two methods are the same from 2.15 to 2.21).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any

from estimator_pipeline.errors import WaitError

# How often each thing was exchanged: a key of the service can be said once.
_exchanged: Counter[str] = Counter()


def exchange(key: str, value: str, *, own: str, tasks: list[str], timeout: float) -> dict[str, str] | None:
    """Publishes `value` for task `own` and returns every task's value.

    Args:
        key: what is exchanged. It may be again, by all tasks as often: a process may run several jobs.
        value: this task's value.
        own: this task's name.
        tasks: names of all training tasks.
        timeout: seconds until it is given up.

    Returns:
        task -> value, or None where this process has no coordination service.

    Raises:
        WaitError: a task did not publish its value in time.
    """
    import tensorflow as tf

    if not available():
        return None
    _exchanged[key] += 1
    place = f"{key}/{_exchanged[key]}"
    publish(f"{place}/{own}", value)
    values: dict[str, str] = {}
    deadline = time.monotonic() + timeout
    for task in tasks:
        try:
            values[task] = _published(f"{place}/{task}", deadline - time.monotonic())
        except tf.errors.OpError as error:
            raise WaitError(
                f"{own} waited up to {timeout:.0f} s for {task} to say its {key}: {error.message.splitlines()[0]}",
                found=f"heard from: {', '.join(values) or 'nobody'}",
                hint=f"see the log of {task}; every task must run the same program",
            ) from error
    return values


def available() -> bool:
    """Whether this process has the coordination service."""
    from tensorflow.python.eager import context

    return context.context().coordination_service is not None


def publish(key: str, value: str) -> None:
    """Says `value` under `key` to all tasks. A key can be said once."""
    from tensorflow.python.eager import context

    context.context().set_config_key_value(f"estimator_pipeline/{key}", value)


def publish_first(key: str, value: str) -> None:
    """Says `value` under `key`, unless something was said under it before: then that stands."""
    import tensorflow as tf

    with contextlib.suppress(tf.errors.AlreadyExistsError):
        publish(key, value)


def wait_for(key: str, seconds: float) -> str | None:
    """What stands under `key` as soon as it does; None where nothing comes for so long. Other threads run meanwhile."""
    import tensorflow as tf

    try:
        return _published(key, seconds)
    except tf.errors.DeadlineExceededError:
        return None


def forget(key: str) -> None:
    """Takes back what was published under `key`."""
    from tensorflow.python.eager import context

    context.context().delete_config_key_value(f"estimator_pipeline/{key}")


def receive(key: str, *, timeout: float, what: str) -> str:
    """What another task has published under `key`, or will.

    Args:
        key: as it was published.
        timeout: seconds until it is given up.
        what: for the message.

    Raises:
        WaitError: nothing was published in time.
    """
    import tensorflow as tf

    try:
        return _published(key, timeout)
    except tf.errors.DeadlineExceededError as error:
        raise WaitError(
            f"waited {timeout:.0f} s for {what}, and it did not come",
            hint="see the log of the chief; every task must run the same program",
        ) from error


def _published(key: str, timeout: float) -> str:
    """What stands under `key`, waited for `timeout` seconds; TensorFlow's own error where nothing comes."""
    from tensorflow.python.eager import context

    value: Any = context.context().get_config_key_value(f"estimator_pipeline/{key}", max(1, int(1000 * timeout)))
    return value.decode() if isinstance(value, bytes) else str(value)

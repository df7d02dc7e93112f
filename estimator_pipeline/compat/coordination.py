"""Facts exchanged between the training tasks before training starts, through TensorFlow's coordination service.

MultiWorkerMirroredStrategy starts that service in eager mode; it holds keys and values for all tasks, and needs no
shared file system. Private use: `tensorflow.python.eager.context` (the public API has no access to the service; the
two methods are the same from 2.15 to 2.21).
"""

from __future__ import annotations

import time
from typing import Any

from estimator_pipeline.errors import WaitError


def exchange(key: str, value: str, *, own: str, tasks: list[str], timeout: float) -> dict[str, str] | None:
    """Publishes `value` for task `own` and returns every task's value.

    Args:
        key: what is exchanged; used once in the life of a process.
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
    from tensorflow.python.eager import context

    eager = context.context()
    if eager.coordination_service is None:
        return None
    eager.set_config_key_value(f"estimator_pipeline/{key}/{own}", value)
    values: dict[str, str] = {}
    deadline = time.monotonic() + timeout
    for task in tasks:
        left_ms = max(1, int(1000 * (deadline - time.monotonic())))
        try:
            values[task] = _text(eager.get_config_key_value(f"estimator_pipeline/{key}/{task}", left_ms))
        except tf.errors.OpError as error:
            raise WaitError(
                f"{own} waited up to {timeout:.0f} s for {task} to say its {key}: {error.message.splitlines()[0]}",
                found=f"heard from: {', '.join(values) or 'nobody'}",
                mend=f"see the log of {task}; every task must run the same program",
            ) from error
    return values


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

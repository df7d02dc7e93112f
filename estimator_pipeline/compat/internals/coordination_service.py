"""Exchange of values between the training tasks of a cluster, through TensorFlow's coordination service.

MultiWorkerMirroredStrategy starts that service in eager mode. It stores keys and values for all tasks, and needs no
shared file system. Private use: `tensorflow.python.eager.context` (the public API has no access to the service; the
methods are unchanged from 2.15 to 2.21).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from estimator_pipeline.errors import TaskFailedError, WaitError
from estimator_pipeline.utils.process_state import STATE

_LOOK_SECS = 5.0


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
        TaskFailedError: A task died, or was started again, after it had joined the cluster.
    """
    import tensorflow as tf

    if not available():
        return None
    STATE.exchanges[key] += 1
    place = f"{key}/{STATE.exchanges[key]}"
    publish(f"{place}/{task}", value)
    values: dict[str, str] = {}
    deadline = time.monotonic() + timeout
    for other in tasks:
        try:
            values[other] = _published_by_peer(f"{place}/{other}", deadline - time.monotonic())
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
        TaskFailedError: A task died, or was started again, after it had joined the cluster.
    """
    import tensorflow as tf

    try:
        return _published_by_peer(key, timeout)
    except tf.errors.DeadlineExceededError as error:
        raise WaitError(
            f"waited {timeout:.0f} s for {description}, which did not arrive",
            hint="see the log of the chief; every task must run the same program",
        ) from error


def _published(key: str, seconds: float) -> str:
    """Wait up to `seconds` for the value of `key`, in one request; raises TensorFlow's error without one."""
    from tensorflow.python.eager import context

    value: Any = context.context().get_config_key_value(f"estimator_pipeline/{key}", max(1, int(1000 * seconds)))
    return value.decode() if isinstance(value, bytes) else str(value)


def _published_by_peer(key: str, timeout: float) -> str:
    """Wait like `_published` for a task that must be alive, which is checked meanwhile."""
    import tensorflow as tf

    while True:
        seconds = min(timeout, _LOOK_SECS)
        timeout -= seconds
        try:
            return _published(key, seconds)
        except tf.errors.DeadlineExceededError:
            require_all_alive()
            if timeout <= 0:
                raise


def joined(context: Any, task: str) -> None:
    """Publish that `task`, this process, has joined the cluster.

    Args:
        context: TensorFlow's C object of the eager context, whose Python object is not ready yet.
        task: This task's name.
    """
    import tensorflow as tf
    from tensorflow.python import pywrap_tfe

    STATE.joined_as = f"estimator_pipeline/joined/{task}"
    # An error means that the leader has died since.
    with contextlib.suppress(tf.errors.OpError):
        pywrap_tfe.TFE_InsertConfigKeyValue(context, STATE.joined_as, "yes")


def require_all_alive() -> None:
    """Check, once in five seconds, that the tasks which have joined the cluster are the ones that are there now.

    A task that dies before the first step is started again by its own supervisor. Its port then answers, but TensorFlow
    does not let it join, and reports nothing. The task with the service knows of each lost task; to the others, the
    service itself may be a new one, which does not have what they have published.

    Raises:
        TaskFailedError: A task died, or was started again, after it had joined the cluster.
    """
    if not available() or time.monotonic() < STATE.next_roll_call:
        return
    STATE.next_roll_call = time.monotonic() + _LOOK_SECS
    from tensorflow.python.eager import context

    config, server = context.context().coordination_service, context.context()._collective_ops_server_def
    task, leader = f"{server.job_name}:{server.task_index}", task_name(config.service_leader)
    lost = _lost_member(config.coordinated_job_list) if task == leader else _lost_service(leader)
    if lost is not None:
        failure = TaskFailedError(
            f"{task} cannot continue: {lost} died, or was started again, after it had joined the cluster",
            code="cluster/peer-lost",
            hint=f"see the log of {lost}; restart the job to resume from its last checkpoint",
        )
        failure.caused_by = lost
        raise failure


def _lost_member(jobs: Iterable[Any]) -> str | None:
    """Return a task that is in error: it has sent no heartbeats, or a new process took its place."""
    from tensorflow.python.eager import context

    tasks = [f"{job.name}:{index}" for job in jobs for index in range(job.num_tasks)]
    # A local call, since the service is in this process.
    states = context.context().get_task_states([(job.name, job.num_tasks) for job in jobs])
    return next((task for task, error in zip(tasks, states, strict=True) if error is not None), None)


def _lost_service(leader: str) -> str | None:
    """Return the leader if its service does not have what this task has published."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    if not STATE.joined_as:
        return None
    try:
        context.context().get_config_key_value(STATE.joined_as, 1000)
    except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
        return leader
    except tf.errors.OpError:
        return None  # the service does not answer; its port is watched elsewhere
    return None


def task_name(device: str) -> str:
    """Return "worker:0" for "/job:worker/replica:0/task:0"."""
    return device.removeprefix("/job:").replace("/replica:0", "").replace("/task", "")

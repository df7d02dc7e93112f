"""A training session with parameter servers waits only for these and its own task.

A RunConfig without `session_config` sets such device filters. With a custom `session_config`, even with only
`allow_soft_placement`, there are none, and a session waits until every task of the cluster answers: the chief for the
last worker, and a late worker for a chief that has exited, forever and silently. Here such a session gets the filters
that RunConfig would have set, unless its graph has operations on other tasks.

Private use: `Estimator._session_config`, with which every training creates its session, unchanged in the estimator
package since 1.4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.compat.internals import estimator_wrapping as around

NAME = "device-filters"
WHAT = (
    "with parameter servers a session waits only for these and its own task, also with a custom session_config; "
    "before, a late worker waited forever for a chief that had exited"
)


def apply() -> None:
    around.training(_filtered)


@contextlib.contextmanager
def _filtered(estimator: Any, hooks: list[Any]) -> Iterator[None]:
    before, tasks = estimator._session_config, _tasks(estimator.config)
    if before is None or before.device_filters or not tasks:
        yield
        return
    import tensorflow as tf

    class Filters(tf.compat.v1.train.SessionRunHook):
        """Sets the filters when the graph exists, before the session is created."""

        def begin(self) -> None:
            if not _has_others(tf.compat.v1.get_default_graph(), tasks):
                config.device_filters.extend(tasks)

    config = tf.compat.v1.ConfigProto()
    config.CopyFrom(before)
    estimator._session_config = config
    hooks.append(Filters())
    try:
        yield
    finally:
        estimator._session_config = before


def _tasks(config: Any) -> list[str]:
    """Return the device filters that RunConfig would set; empty without parameter servers."""
    if "ps" not in config.cluster_spec.jobs or config.train_distribute is not None:
        return []
    if config.task_type in ("chief", "master"):
        return ["/job:ps", f"/job:{config.task_type}"]
    return ["/job:ps", f"/job:worker/task:{config.task_id}"] if config.task_type == "worker" else []


def _has_others(graph: Any, tasks: list[str]) -> bool:
    """Whether a graph has operations on other tasks."""
    import tensorflow as tf

    known = [tf.DeviceSpec.from_string(task) for task in tasks]
    places = (tf.DeviceSpec.from_string(device) for device in {op.device for op in graph.get_operations()})
    return any(
        place.job is not None
        and not any(
            place.job == spec.job and (spec.task is None or place.task in (None, spec.task)) for spec in known
        )
        for place in places
    )  # fmt: skip

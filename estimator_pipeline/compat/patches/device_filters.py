"""A training session with parameter servers waits for these and for its own task, and for no other.

A RunConfig without `session_config` gives sessions such device filters. One with a `session_config` of the program's
own, be it `allow_soft_placement` alone, has none, and a session then waits until every task of the cluster answers: the
chief for the last worker, a worker that is late for a chief that has ended, for ever and without a word. Here such a
session gets the filters that RunConfig would have given it, unless its graph has operations on other tasks.

Private use: `Estimator._session_config`, which every training makes its session with, the same in every estimator
package since 1.4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.compat.internals import estimator_wrapping as around

NAME = "device-filters"
WHAT = (
    "with parameter servers a session waits for these and its own task alone also where the program has a "
    "session_config of its own; a late worker waited for ever for a chief that had ended"
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
        """Sets them once the graph is there, and the session is not yet."""

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
    """The tasks that a session of this one has to do with, as RunConfig has them; none without parameter servers."""
    if "ps" not in config.cluster_spec.jobs or config.train_distribute is not None:
        return []
    if config.task_type in ("chief", "master"):
        return ["/job:ps", f"/job:{config.task_type}"]
    return ["/job:ps", f"/job:worker/task:{config.task_id}"] if config.task_type == "worker" else []


def _has_others(graph: Any, tasks: list[str]) -> bool:
    """Whether a graph has operations on tasks beside these."""
    import tensorflow as tf

    own = [tf.DeviceSpec.from_string(task) for task in tasks]
    places = (tf.DeviceSpec.from_string(device) for device in {op.device for op in graph.get_operations()})
    return any(
        place.job is not None
        and not any(
            place.job == one.job and (one.task is None or place.task in (None, one.task)) for one in own
        )
        for place in places
    )  # fmt: skip

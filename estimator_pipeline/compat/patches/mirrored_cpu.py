"""MirroredStrategy over logical CPUs trains and evaluates under an Estimator.

Made in eager mode, it chooses ring collectives between the CPU's devices; run by an Estimator's session these wait
for each other for ever. And the session does not know of more than one CPU. For the time of a training or an
evaluation the reduction goes to one device, and the session is told the number of CPUs; the strategy is otherwise
the program's own, and Keras code that shares it finds it as it was.

Private use: `_cross_device_ops` of the strategy's `extended`, `Estimator._session_config`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.compat.internals import estimator_wrapping as around

NAME = "mirrored-cpu"
WHAT = "MirroredStrategy over several logical CPUs trains and evaluates, and does not wait for ever"


def apply() -> None:
    around.training(lambda estimator, hooks: _one_device(estimator, estimator._train_distribution))
    around.evaluation(lambda estimator, hooks: _one_device(estimator, estimator._eval_distribution))


@contextlib.contextmanager
def _one_device(estimator: Any, strategy: Any) -> Iterator[None]:
    import tensorflow as tf
    from tensorflow.python.distribute import mirrored_strategy

    kinds = (mirrored_strategy.MirroredStrategy, mirrored_strategy.MirroredStrategyV1)
    devices = strategy.extended.worker_devices if isinstance(strategy, kinds) else ()
    if len(devices) < 2 or any("cpu" not in device.lower() for device in devices):
        yield
        return
    extended, config = strategy.extended, estimator._session_config
    before = extended._cross_device_ops
    told = tf.compat.v1.ConfigProto()
    if config is not None:
        told.CopyFrom(config)
    told.device_count["CPU"] = max(len(devices), told.device_count["CPU"])
    if not isinstance(before, tf.distribute.ReductionToOneDevice):
        extended._cross_device_ops = tf.distribute.ReductionToOneDevice()
    estimator._session_config = told
    try:
        yield
    finally:
        extended._cross_device_ops, estimator._session_config = before, config

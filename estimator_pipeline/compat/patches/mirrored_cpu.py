"""MirroredStrategy with logical CPUs trains and evaluates under an Estimator.

Created in eager mode, it selects ring collectives between the CPU's devices, which deadlock in an Estimator's session.
The session also has only one CPU. During a training or an evaluation the reduction uses one device, and the session
config has the number of CPUs. Otherwise the program's strategy is unchanged, also for Keras code that shares it.

Private use: `_cross_device_ops` of the strategy's `extended`, `Estimator._session_config`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.compat.internals import estimator_wrapping as around

NAME = "mirrored-cpu"
WHAT = "MirroredStrategy with several logical CPUs trains and evaluates, instead of hanging"


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
    changed = tf.compat.v1.ConfigProto()
    if config is not None:
        changed.CopyFrom(config)
    changed.device_count["CPU"] = max(len(devices), changed.device_count["CPU"])
    if not isinstance(before, tf.distribute.ReductionToOneDevice):
        extended._cross_device_ops = tf.distribute.ReductionToOneDevice()
    estimator._session_config = changed
    try:
        yield
    finally:
        extended._cross_device_ops, estimator._session_config = before, config

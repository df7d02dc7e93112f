"""`tf.contrib.distribute`: strategies with their old arguments.

The classes translate the arguments and return strategies of `tf.distribute`; `isinstance` checks for the current
class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from estimator_pipeline.errors import CompatError

__all__ = [
    "CollectiveAllReduceStrategy",
    "MirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "list_devices",
]

_TODAY: Any = tf.compat.v1.distribute


class _Translated(type):
    """Metaclass of a class that creates objects of a different class, and accepts them in `isinstance`."""

    _today: type

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._today)


class MirroredStrategy(metaclass=_Translated):
    """Replicas on several devices of one machine.

    Args:
        devices: The devices of the replicas.
        num_gpus: Alternatively, the number of GPUs, or 0 for the CPU. Default: all GPUs, or the CPU.
        num_gpus_per_worker: The same.
        cross_device_ops: How gradients are reduced.
        auto_shard_dataset: Ignored: an input_fn under an Estimator shards by its InputContext.
    """

    _today = _TODAY.MirroredStrategy

    def __new__(  # type: ignore[misc]
        cls,
        devices: Sequence[str] | None = None,
        num_gpus: int | None = None,
        num_gpus_per_worker: int | None = None,
        cross_device_ops: Any = None,
        auto_shard_dataset: bool = False,
        cross_tower_ops: Any = None,
        prefetch_on_device: Any = None,
    ) -> Any:
        count = num_gpus if num_gpus is not None else num_gpus_per_worker
        if devices is None and count is not None:
            devices = _devices(count, "MirroredStrategy(num_gpus=...)")
        return cls._today(devices, cross_device_ops or cross_tower_ops)


class CollectiveAllReduceStrategy(metaclass=_Translated):
    """Replicas on all workers of TF_CONFIG: `tf.distribute.MultiWorkerMirroredStrategy`.

    Args:
        num_gpus_per_worker: The number of GPUs of each worker; all visible GPUs are used, so it must be their number.
    """

    _today = _TODAY.experimental.MultiWorkerMirroredStrategy

    def __new__(cls, num_gpus_per_worker: int = 0, **options: Any) -> Any:  # type: ignore[misc]
        _all_gpus(num_gpus_per_worker, "CollectiveAllReduceStrategy")
        return cls._today(**options)


class ParameterServerStrategy(metaclass=_Translated):
    """Variables on the parameter servers of TF_CONFIG.

    Args:
        num_gpus_per_worker: The number of GPUs of each worker; all visible GPUs are used, so it must be their number.
    """

    _today = _TODAY.experimental.ParameterServerStrategy

    def __new__(cls, num_gpus_per_worker: int = 0) -> Any:  # type: ignore[misc]
        _all_gpus(num_gpus_per_worker, "ParameterServerStrategy")
        return cls._today()


class OneDeviceStrategy(metaclass=_Translated):
    """A single device.

    Args:
        device: The device's name, such as `"/cpu:0"`.
    """

    _today = _TODAY.OneDeviceStrategy

    def __new__(cls, device: str, prefetch_on_device: Any = None) -> Any:  # type: ignore[misc]
        return cls._today(device)


def _devices(count: int, call: str) -> list[str]:
    if not count:
        return ["/device:CPU:0"]
    seen = len(tf.config.list_physical_devices("GPU"))
    if count > seen:
        raise CompatError(
            f"{call} requests {count} GPUs",
            code="argument/not-applicable",
            found=f"TensorFlow sees {seen} on this machine",
            hint=f"pass {seen}, or omit it to use all GPUs",
        )
    return [f"/device:GPU:{index}" for index in range(count)]


def _all_gpus(count: int, name: str) -> None:
    seen = len(tf.config.list_physical_devices("GPU"))
    if count not in (0, seen):
        raise CompatError(
            f"{name}(num_gpus_per_worker={count}) is not possible",
            code="argument/not-applicable",
            found=f"TensorFlow sees {seen} GPUs on this machine, and the current strategy uses all of them",
            hint=f"set CUDA_VISIBLE_DEVICES to {count} of them" if count < seen else f"pass {seen}",
        )


def list_devices() -> list[str]:
    """Return the full names of this process's devices, like `tf.contrib.eager.list_devices`.

    Private use: `tensorflow.python.eager.context`, which tf.config uses, too, but without names.
    """
    from tensorflow.python.eager import context

    eager = context.context()
    eager.ensure_initialized()
    return list(eager.devices())

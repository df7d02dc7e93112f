"""`tf.contrib.tpu` and the TPU cluster resolver, on machines without TPUs.

`TPUEstimator` and related classes are those of the estimator package, which train on CPU and GPU with `use_tpu=False`.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from estimator_pipeline.errors import CompatError

__all__ = [
    "AsyncCheckpointSaverHook",
    "TPUClusterResolver",
    "TPUDistributionStrategy",
    "TPUEstimator",
    "TPUStrategy",
    "initialize_tpu_system",
    "keras_to_tpu_model",
]

_HINT = "train on CPU or GPU with use_tpu=False (--use_tpu=false of most programs) and an empty name of the TPU"


def _error(name: str) -> CompatError:
    return CompatError(
        f"{name} needs a TPU",
        code="argument/not-applicable",
        found="with --tf1, programs train on CPU and GPU: TensorFlow has no code for tf.estimator on TPUs any more",
        hint=_HINT,
    )


class TPUClusterResolver(tf.distribute.cluster_resolver.ClusterResolver):
    """The resolver without a TPU, `TPUClusterResolver("")`: this process, without a cluster.

    Args:
        tpu: The name of a TPU, which must be empty or "local". None: the value of the variable TPU_NAME.

    Raises:
        CompatError: A TPU was named.
    """

    def __init__(self, tpu: Any = None, zone: Any = None, project: Any = None, **options: Any) -> None:
        if isinstance(tpu, (list, tuple)):
            tpu = ",".join(map(str, tpu))
        if tpu is None:
            tpu = os.environ.get("TPU_NAME", "")
        if isinstance(tpu, bytes):
            tpu = tpu.decode()
        if tpu not in ("", "local"):
            raise _error(f"TPUClusterResolver({tpu!r})")
        self.task_type: str | None = None
        self.task_id: int | None = None
        self.rpc_layer = None

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        return ""

    def get_master(self) -> str:
        return ""

    def get_job_name(self) -> str | None:
        return None

    def cluster_spec(self) -> Any:
        return tf.train.ClusterSpec({})

    @property
    def environment(self) -> str:
        return ""

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        return {"TPU": 0}


class TPUEstimator(tf.compat.v1.estimator.tpu.TPUEstimator):
    """`tf.compat.v1.estimator.tpu.TPUEstimator` for CPU and GPU; `use_tpu=True` raises an error."""

    def __init__(self, model_fn: Any = None, model_dir: Any = None, config: Any = None, params: Any = None,
                 use_tpu: bool = True, *args: Any, **options: Any) -> None:  # fmt: skip
        if use_tpu:
            raise _error("TPUEstimator(use_tpu=True)")
        super().__init__(model_fn, model_dir, config, params, use_tpu, *args, **options)


class AsyncCheckpointSaverHook(tf.compat.v1.train.CheckpointSaverHook):
    """Saves checkpoints, synchronously between two steps."""


def keras_to_tpu_model(*args: Any, **options: Any) -> Any:
    raise _error("keras_to_tpu_model")


class TPUDistributionStrategy:
    def __init__(self, *args: Any, **options: Any) -> None:
        raise _error("TPUDistributionStrategy")


class TPUStrategy:
    def __init__(self, *args: Any, **options: Any) -> None:
        raise _error("TPUStrategy")


def initialize_tpu_system(*args: Any, **options: Any) -> Any:
    raise _error("initialize_tpu_system")

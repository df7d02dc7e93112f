"""The configuration classes of tf.estimator, with the same names and fields, for Keras models of a model_fn."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline.cluster import from_environ
from estimator_pipeline.errors import ClusterError, ConfigError
from estimator_pipeline.models.keras_runtime import distribution as keras_cluster

__all__ = [
    "ClassificationOutput", "EvalSpec", "ModelFnModeKeys", "ModelFnRunConfig", "ModelFnSpec", "PredictOutput",
    "RegressionOutput", "ServingInputReceiver", "TPUConfig", "TPUModelFnSpec", "TensorServingInputReceiver",
    "TrainSpec",
]  # fmt: skip

_UNSET = object()
_OF_CLUSTERS = (
    "global_id_in_cluster", "is_chief", "num_ps_replicas", "num_worker_replicas", "task_id", "task_type",
)  # fmt: skip


class ModelFnModeKeys:
    """The values of a model_fn's `mode`."""

    TRAIN, EVAL, PREDICT, INFER = "train", "eval", "infer", "infer"


class ModelFnRunConfig:
    """The RunConfig of a model_fn that trains in a single process.

    Args:
        model_dir: The folder of checkpoints and event files.
        tf_random_seed: The seed of initial values and random numbers; None: a different seed each time.
        save_summary_steps: Steps between summaries; None: no summaries.
        save_checkpoints_steps: Steps between checkpoints; None: `save_checkpoints_secs` applies.
        save_checkpoints_secs: Seconds between checkpoints; 600 by default.
        keep_checkpoint_max: The number of checkpoints to keep; None or 0: all.
        log_step_count_steps: Steps between log lines; None: no log lines.
        train_distribute, eval_distribute: Strategies; those with one replica have no effect.
        further: Fields of sessions, servers and TPUs. Keras ignores them; they can be read.

    Raises:
        ConfigError: Checkpoints are set both by steps and by seconds.
        ClusterError: A strategy has several replicas, or TF_CONFIG has a cluster.
    """

    def __init__(
        self, model_dir: str | None = None, tf_random_seed: int | None = 1, save_summary_steps: int | None = 100,
        save_checkpoints_steps: Any = _UNSET, save_checkpoints_secs: Any = _UNSET, session_config: Any = None,
        keep_checkpoint_max: int | None = 5, keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100, train_distribute: Any = None, device_fn: Any = None,
        protocol: Any = None, eval_distribute: Any = None, experimental_distribute: Any = None, **further: Any,
    ) -> None:  # fmt: skip
        by_steps = save_checkpoints_steps not in (_UNSET, None)
        if by_steps and save_checkpoints_secs not in (_UNSET, None):
            raise ConfigError(
                "RunConfig: save_checkpoints_steps and save_checkpoints_secs are both set",
                code="argument/conflict",
                hint="set only one of them",
            )
        for strategy in (train_distribute, eval_distribute):
            if strategy is not None and strategy.num_replicas_in_sync > 1:
                raise _of_one_process(f"{type(strategy).__name__} of {strategy.num_replicas_in_sync} replicas")
        task = from_environ(os.environ)
        if not task.is_single_process:
            raise _of_one_process(f"TF_CONFIG describes a cluster; this task is {task.task}")
        self._cluster = keras_cluster.Cluster(task)
        self._fields: dict[str, Any] = {
            "model_dir": model_dir, "tf_random_seed": tf_random_seed, "save_summary_steps": save_summary_steps,
            "save_checkpoints_steps": save_checkpoints_steps if by_steps else None,
            "save_checkpoints_secs": None if by_steps or save_checkpoints_secs is None else (
                600 if save_checkpoints_secs is _UNSET else save_checkpoints_secs
            ),
            "session_config": session_config, "keep_checkpoint_max": keep_checkpoint_max,
            "keep_checkpoint_every_n_hours": keep_checkpoint_every_n_hours,
            "log_step_count_steps": log_step_count_steps, "train_distribute": None, "device_fn": device_fn,
            "protocol": protocol, "eval_distribute": None, "master": "", **further,
        }  # fmt: skip
        for name in ("save_summary_steps", "save_checkpoints_steps", "log_step_count_steps"):
            # Fractions are rounded up: programs divide numbers of records by batch sizes.
            self._fields[name] = math.ceil(self._fields[name]) if self._fields[name] is not None else None

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("_fields", {})
        if name in fields:
            return fields[name]
        if name in _OF_CLUSTERS:
            return getattr(self._cluster, name)
        raise AttributeError(f"RunConfig has no field {name!r}")

    def replace(self, **fields: Any) -> ModelFnRunConfig:
        """Return a copy with new values for some fields."""
        copy = dict(self._fields)
        if "save_checkpoints_steps" in fields:
            copy["save_checkpoints_secs"] = None
        if "save_checkpoints_secs" in fields:
            copy["save_checkpoints_steps"] = None
        return ModelFnRunConfig(**copy | fields)


def _of_one_process(found: str) -> ClusterError:
    return ClusterError(
        "a model_fn that is still TensorFlow 1 code trains in one process, on one device",
        code="training/unsupported",
        found=found,
        hint="train without it; or convert the program with migrate convert --to keras-layers, whose Keras layers "
        "train on several devices, or with --to estimator, and run its Estimator with estimator-pipeline exec",
    )


@dataclass(frozen=True)
class TPUConfig:
    """The TPU fields of a RunConfig, which `fit` on a CPU or a GPU ignores."""

    iterations_per_loop: int = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: Any = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Any = None
    eval_training_input_configuration: Any = 2
    experimental_host_call_every_n_steps: int = 1
    InputPipelineConfig = type(
        "InputPipelineConfig",
        (),
        {"PER_SHARD_V1": 1, "PER_HOST_V1": 2, "PER_HOST_V2": 3, "BROADCAST": 4, "SLICED": 5},
    )


@dataclass
class ModelFnSpec:
    """The EstimatorSpec of a model_fn: tensors and operations of the graph of a mode.

    Attributes:
        mode: "train", "eval" or "infer".
        predictions: A tensor or a dict of tensors.
        loss: A scalar.
        train_op: The operation of a training step.
        eval_metric_ops: Name -> (value, update operation), or a Keras metric.
        export_outputs: Signature -> output of a SavedModel.
        training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks: Hooks of `tf.compat.v1.train`.
        scaffold: Its `init_fn` is called once, when training starts without a checkpoint.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, Any] | None = None
    export_outputs: Mapping[str, Any] | None = None
    training_chief_hooks: Sequence[Any] | None = None
    training_hooks: Sequence[Any] | None = None
    scaffold: Any = None
    evaluation_hooks: Sequence[Any] | None = None
    prediction_hooks: Sequence[Any] | None = None

    def _replace(self, **fields: Any) -> ModelFnSpec:
        return dataclasses.replace(self, **fields)


def TPUModelFnSpec(
    mode: str, predictions: Any = None, loss: Any = None, train_op: Any = None, eval_metrics: Any = None,
    export_outputs: Any = None, scaffold_fn: Any = None, host_call: Any = None, training_hooks: Any = None,
    evaluation_hooks: Any = None, prediction_hooks: Any = None,
) -> ModelFnSpec:  # fmt: skip
    """Return the spec of a TPUEstimator's model_fn; `eval_metrics` is (function, its arguments)."""
    metrics = None
    if eval_metrics is not None:
        function, arguments = eval_metrics
        metrics = function(**arguments) if isinstance(arguments, Mapping) else function(*arguments)
    return ModelFnSpec(
        mode, predictions, loss, train_op, metrics, export_outputs, None, training_hooks,
        scaffold_fn() if scaffold_fn is not None else None, evaluation_hooks, prediction_hooks,
    )  # fmt: skip


# Training and evaluation


@dataclass(frozen=True)
class TrainSpec:
    """The training data, and the global step at which training ends; None: the end of the data.

    Raises:
        ConfigError: The number of steps is below 1.
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Any] | None = None
    saving_listeners: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        _require("TrainSpec", max_steps=self.max_steps)


@dataclass(frozen=True)
class EvalSpec:
    """The evaluation data and the exporters that run after a checkpoint.

    Args:
        steps: The number of batches; None: all.
        throttle_secs: The minimum time between the starts of two evaluations, in seconds.
        start_delay_secs: Ignored, as in an Estimator of one process.

    Raises:
        ConfigError: The number of steps is below 1.
    """

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[Any] | None = None
    exporters: Any = None
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def __post_init__(self) -> None:
        _require("EvalSpec", steps=self.steps)


def _require(kind: str, **steps: float | None) -> None:
    for name, value in steps.items():
        if value is not None and value <= 0:
            raise ConfigError(
                f"{kind}: {name} is {value}", code="argument/bad-value", hint="give a number, 1 or more, or None"
            )


# Exports


@dataclass(frozen=True)
class ServingInputReceiver:
    """The inputs of a SavedModel, and the features of the model_fn that are computed from them."""

    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Mapping[str, Any] | None = field(default=None)


@dataclass(frozen=True)
class TensorServingInputReceiver(ServingInputReceiver):
    """A ServingInputReceiver whose features are one tensor."""


@dataclass(frozen=True)
class PredictOutput:
    """A signature output with all tensors of a dict."""

    outputs: Any


@dataclass(frozen=True)
class ClassificationOutput:
    """A signature output with scores and class names."""

    scores: Any = None
    classes: Any = None


@dataclass(frozen=True)
class RegressionOutput:
    """A signature output with a number."""

    value: Any

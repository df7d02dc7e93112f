"""What a program says of its training, by the names and fields that tf.estimator has for it."""

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

_NOT_SAID = object()
_OF_CLUSTERS = (
    "global_id_in_cluster", "is_chief", "num_ps_replicas", "num_worker_replicas", "task_id", "task_type",
)  # fmt: skip


class ModelFnModeKeys:
    """What a model_fn is told as its mode."""

    TRAIN, EVAL, PREDICT, INFER = "train", "eval", "infer", "infer"


class ModelFnRunConfig:
    """How a model is trained and kept, and its place in a cluster: that of a process by itself.

    Args:
        model_dir: the folder of checkpoints and event files.
        tf_random_seed: of the model's initial values and random numbers; None: another one each time.
        save_summary_steps: steps from one summary to the next; None: none are written.
        save_checkpoints_steps: steps from one checkpoint to the next; None: `save_checkpoints_secs` counts.
        save_checkpoints_secs: seconds from one checkpoint to the next; 600 where nothing is said.
        keep_checkpoint_max: how many checkpoints are kept; None or 0: all.
        log_step_count_steps: steps from one line of the log to the next; None: none.
        train_distribute, eval_distribute: strategies of one replica change nothing.
        further: fields that say how sessions, servers or TPUs are used. Keras has none; they can be read.

    Raises:
        ConfigError: checkpoints by steps and by seconds.
        ClusterError: a strategy of several replicas, or a cluster in TF_CONFIG.
    """

    def __init__(
        self, model_dir: str | None = None, tf_random_seed: int | None = 1, save_summary_steps: int | None = 100,
        save_checkpoints_steps: Any = _NOT_SAID, save_checkpoints_secs: Any = _NOT_SAID, session_config: Any = None,
        keep_checkpoint_max: int | None = 5, keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100, train_distribute: Any = None, device_fn: Any = None,
        protocol: Any = None, eval_distribute: Any = None, experimental_distribute: Any = None, **further: Any,
    ) -> None:  # fmt: skip
        by_steps = save_checkpoints_steps not in (_NOT_SAID, None)
        if by_steps and save_checkpoints_secs not in (_NOT_SAID, None):
            raise ConfigError(
                "RunConfig: save_checkpoints_steps and save_checkpoints_secs are both given",
                code="argument/conflict",
                hint="give one of them",
            )
        for strategy in (train_distribute, eval_distribute):
            if strategy is not None and strategy.num_replicas_in_sync > 1:
                raise _of_one_process(f"{type(strategy).__name__} of {strategy.num_replicas_in_sync} replicas")
        task = from_environ(os.environ)
        if not task.is_single_process:
            raise _of_one_process(f"TF_CONFIG describes a cluster; this task is {task.task}")
        self._cluster = keras_cluster.Cluster(task)
        self._given: dict[str, Any] = {
            "model_dir": model_dir, "tf_random_seed": tf_random_seed, "save_summary_steps": save_summary_steps,
            "save_checkpoints_steps": save_checkpoints_steps if by_steps else None,
            "save_checkpoints_secs": None if by_steps or save_checkpoints_secs is None else (
                600 if save_checkpoints_secs is _NOT_SAID else save_checkpoints_secs
            ),
            "session_config": session_config, "keep_checkpoint_max": keep_checkpoint_max,
            "keep_checkpoint_every_n_hours": keep_checkpoint_every_n_hours,
            "log_step_count_steps": log_step_count_steps, "train_distribute": None, "device_fn": device_fn,
            "protocol": protocol, "eval_distribute": None, "master": "", **further,
        }  # fmt: skip
        for name in ("save_summary_steps", "save_checkpoints_steps", "log_step_count_steps"):
            # A share of a step is one: programs divide numbers of records by sizes of batches.
            self._given[name] = math.ceil(self._given[name]) if self._given[name] is not None else None

    def __getattr__(self, name: str) -> Any:
        given = self.__dict__.get("_given", {})
        if name in given:
            return given[name]
        if name in _OF_CLUSTERS:
            return getattr(self._cluster, name)
        raise AttributeError(f"RunConfig has no field {name!r}")

    def replace(self, **fields: Any) -> ModelFnRunConfig:
        """Return the same with other values of some fields."""
        given = dict(self._given)
        if "save_checkpoints_steps" in fields:
            given["save_checkpoints_secs"] = None
        if "save_checkpoints_secs" in fields:
            given["save_checkpoints_steps"] = None
        return ModelFnRunConfig(**given | fields)


def _of_one_process(found: str) -> ClusterError:
    return ClusterError(
        "a model_fn that stays a function of TensorFlow 1 trains in one process, on one device",
        code="training/unsupported",
        found=found,
        hint="train without it; or convert the program by migrate convert --to keras-layers, whose Keras layers train "
        "on several, or by --to estimator, and run its Estimator by estimator-pipeline exec",
    )


@dataclass(frozen=True)
class TPUConfig:
    """What was said for TPUs, of which `fit` on a CPU or a GPU takes nothing."""

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
    """What a model_fn gives for a mode: tensors and operations of the graph that it is called in.

    Attributes:
        mode: "train", "eval" or "infer".
        predictions: a tensor or a dict of tensors.
        loss: a scalar.
        train_op: the operation of a step.
        eval_metric_ops: name -> (value, update operation), or a Keras metric.
        export_outputs: signature -> output of a SavedModel.
        training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks: hooks, as of `tf.compat.v1.train`.
        scaffold: of which `init_fn` is called once, when a training begins without a checkpoint.
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
    """Return what a model_fn of a TPUEstimator gives: `eval_metrics` is a function and its arguments."""
    metrics = None
    if eval_metrics is not None:
        function, given = eval_metrics
        metrics = function(**given) if isinstance(given, Mapping) else function(*given)
    return ModelFnSpec(
        mode, predictions, loss, train_op, metrics, export_outputs, None, training_hooks,
        scaffold_fn() if scaffold_fn is not None else None, evaluation_hooks, prediction_hooks,
    )  # fmt: skip


# Training and evaluation


@dataclass(frozen=True)
class TrainSpec:
    """What is trained on, and until which step of all runs together; None: to the end of the data.

    Raises:
        ConfigError: a number of steps below 1.
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Any] | None = None
    saving_listeners: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        _require("TrainSpec", max_steps=self.max_steps)


@dataclass(frozen=True)
class EvalSpec:
    """What is evaluated on after a checkpoint, and what is exported then.

    Args:
        steps: how many batches; None: all.
        throttle_secs: from the begin of an evaluation to that of the next.
        start_delay_secs: has no meaning, as in an Estimator of one process.

    Raises:
        ConfigError: a number of steps below 1.
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
                f"{kind}: {name} is {value}", code="argument/bad-value", hint="give a number from 1 on, or None"
            )


# Exports


@dataclass(frozen=True)
class ServingInputReceiver:
    """What a SavedModel is fed with, and the features that the model_fn gets of it."""

    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Mapping[str, Any] | None = field(default=None)


@dataclass(frozen=True)
class TensorServingInputReceiver(ServingInputReceiver):
    """The same with features that are one tensor."""


@dataclass(frozen=True)
class PredictOutput:
    """All of a dict of tensors."""

    outputs: Any


@dataclass(frozen=True)
class ClassificationOutput:
    """Scores and names of classes."""

    scores: Any = None
    classes: Any = None


@dataclass(frozen=True)
class RegressionOutput:
    """A number."""

    value: Any

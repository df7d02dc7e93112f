"""`tf.contrib.learn`: the names that programs use with Estimators.

Its canned Estimators and monitors are not included: those of `tf.estimator` have different variables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from estimator_pipeline.compat.tf1.contrib.learn.estimator import Estimator, MetricSpec, ModelFnOps
from estimator_pipeline.compat.tf1.contrib.learn.experiment import (
    Experiment,
    ExportStrategy,
    InputFnOps,
    build_parsing_serving_input_fn,
    learn_runner_run,
    make_export_strategy,
)

__all__ = [
    "Estimator",
    "Experiment",
    "ExportStrategy",
    "InputFnOps",
    "MetricSpec",
    "ModeKeys",
    "ModelFnOps",
    "PredictionKey",
    "ProblemType",
    "RunConfig",
    "TaskType",
    "build_parsing_serving_input_fn",
    "infer_real_valued_columns_from_input_fn",
    "learn_runner_run",
    "make_export_strategy",
    "read_batch_features",
]


class ModeKeys:
    """The modes of a model_fn, with the same values as `tf.estimator.ModeKeys`."""

    TRAIN = "train"
    EVAL = "eval"
    INFER = "infer"

    @classmethod
    def validate(cls, key: str) -> None:
        if key not in (cls.TRAIN, cls.EVAL, cls.INFER):
            raise ValueError(f"Invalid mode {key}.")


class PredictionKey:
    """Names of a canned Estimator's predictions."""

    CLASSES = "classes"
    PROBABILITIES = "probabilities"
    LOGITS = "logits"
    LOGISTIC = "logistic"
    SCORES = "scores"
    TOP_K = "top_k"
    GENERIC = "output"


class ProblemType:
    """The problem type of an output alternative."""

    UNSPECIFIED = 0
    CLASSIFICATION = 1
    LINEAR_REGRESSION = 2
    LOGISTIC_REGRESSION = 3


class TaskType:
    """Tasks of a cluster."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"


_DEFAULT = object()


class RunConfig(tf.compat.v1.estimator.RunConfig):
    """`tf.estimator.RunConfig` with the arguments of `tf.contrib.learn`.

    Args:
        master: The session's master; None: from TF_CONFIG.
        num_cores: The number of threads of the session; 0: the number of cores.
        log_device_placement: Whether the session logs the placement of operations.
        gpu_memory_fraction: The fraction of each GPU's memory.
        **options: Those of `tf.estimator.RunConfig`; a session_config replaces the three above.
    """

    def __init__(
        self,
        master: str | None = None,
        num_cores: int = 0,
        log_device_placement: bool = False,
        gpu_memory_fraction: float = 1,
        tf_random_seed: int | None = None,
        save_summary_steps: int = 100,
        save_checkpoints_secs: Any = _DEFAULT,
        save_checkpoints_steps: int | None = None,
        keep_checkpoint_max: int = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int = 100,
        protocol: str | None = None,
        evaluation_master: str = "",
        model_dir: str | None = None,
        session_config: Any = None,
        session_creation_timeout_secs: int = 7200,
    ) -> None:
        if session_config is None:
            v1 = tf.compat.v1
            session_config = v1.ConfigProto(
                log_device_placement=log_device_placement,
                inter_op_parallelism_threads=num_cores,
                intra_op_parallelism_threads=num_cores,
                gpu_options=v1.GPUOptions(per_process_gpu_memory_fraction=gpu_memory_fraction),
                allow_soft_placement=True,
            )
        if save_checkpoints_secs is _DEFAULT:
            save_checkpoints_secs = None if save_checkpoints_steps is not None else 600
        super().__init__(
            model_dir=model_dir,
            tf_random_seed=tf_random_seed,
            save_summary_steps=save_summary_steps,
            save_checkpoints_steps=save_checkpoints_steps,
            save_checkpoints_secs=save_checkpoints_secs,
            session_config=session_config,
            keep_checkpoint_max=keep_checkpoint_max,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            log_step_count_steps=log_step_count_steps,
            protocol=protocol,
            session_creation_timeout_secs=session_creation_timeout_secs,
        )
        if master is not None:
            self._master = master
        if evaluation_master:
            self._evaluation_master = evaluation_master

    @property
    def environment(self) -> str:
        """The value of "environment" in TF_CONFIG; "local" by default."""
        import json
        import os

        return str(json.loads(os.environ.get("TF_CONFIG") or "{}").get("environment", "local"))

    @property
    def tf_config(self) -> Any:
        return self.session_config

    def uid(self, whitelist: Any = None) -> str:
        """Return a string that is the same for equal configurations."""
        left_out = {"_model_dir", *(f"_{name}" for name in whitelist or ())}
        return repr(sorted((name, str(value)) for name, value in vars(self).items() if name not in left_out))


def read_batch_features(
    file_pattern: Any,
    batch_size: int,
    features: dict[str, Any],
    reader: Callable[..., Any] | None = None,
    randomize_input: bool = True,
    num_epochs: int | None = None,
    queue_capacity: int = 10000,
    **options: Any,
) -> Any:
    """Return batches of parsed tf.train.Example records from TFRecord files, name -> tensor."""
    from estimator_pipeline.compat.tf1.contrib import data

    return data.read_batch_features(
        file_pattern, batch_size, features, None, None, randomize_input, num_epochs, queue_capacity
    )


def infer_real_valued_columns_from_input_fn(input_fn: Callable[[], Any]) -> list[Any]:
    """Return a numeric column for each dense feature of an input_fn, for canned Estimators of `tf.estimator`."""
    with tf.Graph().as_default():
        features, _ = input_fn()
        named = features if isinstance(features, dict) else {"": features}
        return [
            tf.feature_column.numeric_column(name, tuple(value.shape.as_list()[1:]) or (1,), dtype=value.dtype)
            for name, value in sorted(named.items())
        ]

"""Detection of this process's task and cluster from TF_CONFIG or a scheduler's variables. Imports no TensorFlow."""

from __future__ import annotations

from estimator_pipeline.cluster.detection import ENVIRONMENTS, Detection, detect
from estimator_pipeline.cluster.environments import Allocation
from estimator_pipeline.cluster.resolution import Resolved, resolve
from estimator_pipeline.cluster.spec import (
    DIALECTS,
    EVALUATOR,
    TASK_TYPES,
    ClusterSpec,
    Task,
    TFConfig,
    build_tf_config,
    from_environ,
    local_cluster,
    num_workers,
    own_index,
    parse_tf_config,
)

__all__ = [
    "DIALECTS",
    "ENVIRONMENTS",
    "EVALUATOR",
    "TASK_TYPES",
    "Allocation",
    "ClusterSpec",
    "Detection",
    "Resolved",
    "TFConfig",
    "Task",
    "build_tf_config",
    "detect",
    "from_environ",
    "local_cluster",
    "num_workers",
    "own_index",
    "parse_tf_config",
    "resolve",
]

"""Which task of which cluster this process is: by TF_CONFIG, or by what a scheduler tells. Imports no TensorFlow."""

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

"""Which task of which cluster this process is: TF_CONFIG read, checked and written. Imports no TensorFlow."""

from __future__ import annotations

from estimator_pipeline.cluster.spec import (
    DIALECTS,
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
    "TASK_TYPES",
    "ClusterSpec",
    "TFConfig",
    "Task",
    "build_tf_config",
    "from_environ",
    "local_cluster",
    "num_workers",
    "own_index",
    "parse_tf_config",
]

"""Names of files and folders in a model directory."""

from __future__ import annotations

import os
import re

from estimator_pipeline.cluster import TFConfig

__all__ = ["BEST_CHECKPOINT", "DIRECTORY", "PREFIXES", "checkpoint_step", "write_dir"]

DIRECTORY = "estimator_pipeline"
"""The folder of this package: rendezvous of the tasks, run identity, lock."""
BEST_CHECKPOINT = "best_checkpoint"
"""The folder of the best checkpoint so far, which `keep_checkpoint_max` does not delete."""
PREFIXES = {"estimator": "model.ckpt", "keras": "ckpt", "keras3": "keras3"}
"""Names of the checkpoints of each engine, without "-STEP"."""


def checkpoint_step(path: str) -> int:
    """Return 200 for `model.ckpt-200`; -1 for a path without a step, which Estimator never writes."""
    match = re.search(r"-(\d+)$", path)
    return int(match[1]) if match else -1


def write_dir(model_dir: str, tf_config: TFConfig) -> str:
    """Return the folder to which a task writes checkpoints: the model directory for the chief, else a folder in it."""
    if tf_config.is_chief or tf_config.is_single_process:
        return model_dir
    return os.path.join(model_dir, f"tmp_{tf_config.task.type}_{tf_config.task.index}")

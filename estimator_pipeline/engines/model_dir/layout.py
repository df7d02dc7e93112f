"""Names of files and folders in a model directory."""

from __future__ import annotations

import re

__all__ = ["DIRECTORY", "PREFIXES", "checkpoint_step"]

DIRECTORY = "estimator_pipeline"
"""The folder of this package: rendezvous of the tasks, run identity, lock."""
PREFIXES = {"estimator": "model.ckpt", "keras": "ckpt", "keras3": "keras3"}
"""Names of the checkpoints of each engine, without "-STEP"."""


def checkpoint_step(path: str) -> int:
    """Return 200 for `model.ckpt-200`; -1 for a path without a step, which Estimator never writes."""
    match = re.search(r"-(\d+)$", path)
    return int(match[1]) if match else -1

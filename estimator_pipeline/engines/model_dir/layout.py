"""What lies in a model directory, and under which names."""

from __future__ import annotations

import re

__all__ = ["DIRECTORY", "PREFIXES", "checkpoint_step"]

DIRECTORY = "estimator_pipeline"
"""The folder in it that is this package's: the rendezvous of the tasks, the run's identity, the lock."""
PREFIXES = {"estimator": "model.ckpt", "keras": "ckpt", "keras3": "keras3"}
"""From an engine to what its checkpoints are called, before a dash and the step."""


def checkpoint_step(path: str) -> int:
    """`model.ckpt-200` -> 200. -1 for a path without a step, which Estimator never writes."""
    match = re.search(r"-(\d+)$", path)
    return int(match[1]) if match else -1

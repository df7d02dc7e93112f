"""Events of a program without a progress file, from its log."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["log_event"]

_NUMBER = r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))"
_STEP = re.compile(rf"\bloss = {_NUMBER}, step = (\d+)\b", re.IGNORECASE)
_RATE = re.compile(rf"\bglobal_step/sec: {_NUMBER}", re.IGNORECASE)
_EVALUATION = re.compile(r"\bSaving dict for global step (\d+): (.*)$")
_CHECKPOINT = re.compile(r"\bSaving checkpoints for (\d+) into (\S+?)\.?$")


def log_event(line: str) -> dict[str, Any] | None:
    """Parse a line that `tf.estimator` logs into an event without a time; None for other lines."""
    line = line.rstrip()
    if match := _STEP.search(line):
        return {"event": "step", "step": int(match[2]), "loss": float(match[1])}
    if match := _RATE.search(line):
        return {"event": "step", "steps_per_sec": float(match[1])}
    if match := _EVALUATION.search(line):
        metrics = {}
        for pair in match[2].split(", "):
            name, _, value = pair.partition(" = ")
            if name != "global_step" and re.fullmatch(_NUMBER, value, re.IGNORECASE):
                metrics[name] = float(value)
        return {"event": "evaluation", "step": int(match[1]), "metrics": metrics}
    if match := _CHECKPOINT.search(line):
        return {"event": "checkpoint", "step": int(match[1]), "path": match[2]}
    return None

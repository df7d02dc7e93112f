"""What a program that has no progress file tells by its log."""

from __future__ import annotations

import os
import re
from typing import Any

from estimator_pipeline.progress.progress_file import Tail

__all__ = ["LogReader", "log_event"]

_NUMBER = r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))"
_STEP = re.compile(rf"\bloss = {_NUMBER}, step = (\d+)\b", re.IGNORECASE)
_RATE = re.compile(rf"\bglobal_step/sec: {_NUMBER}", re.IGNORECASE)
_EVALUATION = re.compile(r"\bSaving dict for global step (\d+): (.*)$")
_CHECKPOINT = re.compile(r"\bSaving checkpoints for (\d+) into (\S+?)\.?$")


class LogReader:
    """Makes events from the lines that `tf.estimator` has always logged, where there is no progress file.

    Args:
        path: The task's log, which need not be there yet.
        offset: Where to start, in bytes.
    """

    def __init__(self, path: str | os.PathLike[str], *, offset: int = 0) -> None:
        self._tail = Tail(path, offset=offset)

    def read(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        return [event for line in self._tail.lines() if (event := log_event(line))]


def log_event(line: str) -> dict[str, Any] | None:
    """What a line of such a log tells, as an event without its time; None where it tells nothing."""
    line = line.rstrip()
    if found := _STEP.search(line):
        return {"event": "step", "step": int(found[2]), "loss": float(found[1])}
    if found := _RATE.search(line):
        return {"event": "step", "steps_per_sec": float(found[1])}
    if found := _EVALUATION.search(line):
        metrics = {}
        for pair in found[2].split(", "):
            name, _, value = pair.partition(" = ")
            if name != "global_step" and re.fullmatch(_NUMBER, value, re.IGNORECASE):
                metrics[name] = float(value)
        return {"event": "evaluation", "step": int(found[1]), "metrics": metrics}
    if found := _CHECKPOINT.search(line):
        return {"event": "checkpoint", "step": int(found[1]), "path": found[2]}
    return None

"""The placeholder of removed statements, and hooks that Keras makes unnecessary."""

from __future__ import annotations

__all__ = ["REMOVED", "SILENT_HOOKS", "without_removed"]

REMOVED = "\x00"
"""Replacement of a removed statement; its whole line is deleted. Python source cannot contain this character."""


def without_removed(text: str) -> str:
    """Return the text of a rule without the lines of removed statements, and the blank lines around them."""
    lines: list[str] = []
    removed = False
    for line in text.split("\n"):
        if REMOVED in line:
            removed = True
            continue
        if removed and not line.strip():
            while lines and not lines[-1].strip():
                lines.pop()
        removed = False
        lines.append(line)
    return "\n".join(lines)


# Hooks that log or save what Keras logs or saves by default.
SILENT_HOOKS = ("tf.estimator.StepCounterHook", "tf.estimator.LoggingTensorHook", "tf.estimator.CheckpointSaverHook",
                 "tf.estimator.SummarySaverHook", "tf.estimator.NanTensorHook")  # fmt: skip

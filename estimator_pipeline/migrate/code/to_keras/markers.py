"""The placeholder of removed statements, and hooks that Keras makes unnecessary."""

from __future__ import annotations

__all__ = ["REMOVED", "SILENT_HOOKS"]

REMOVED = "\x00"
"""Replacement of a removed statement; its whole line is deleted."""


# Hooks that log or save what Keras logs or saves by default.
SILENT_HOOKS = ("tf.estimator.StepCounterHook", "tf.estimator.LoggingTensorHook", "tf.estimator.CheckpointSaverHook",
                 "tf.estimator.SummarySaverHook", "tf.estimator.NanTensorHook")  # fmt: skip

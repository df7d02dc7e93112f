"""What stands for what is removed, and what only logs."""

from __future__ import annotations

__all__ = ["REMOVED", "SILENT_HOOKS"]

REMOVED = "\x00"
"""What stands for a statement that is no more; its line goes."""


# Hooks that say or keep what Keras says and keeps by itself.
SILENT_HOOKS = ("tf.estimator.StepCounterHook", "tf.estimator.LoggingTensorHook", "tf.estimator.CheckpointSaverHook",
                 "tf.estimator.SummarySaverHook", "tf.estimator.NanTensorHook")  # fmt: skip

"""Every checkpoint is evaluated, unless the program sets other values.

tf.estimator skips checkpoints by time: with EvalSpec's defaults an evaluation starts at the earliest 600 s after the
previous one (`throttle_secs`) and 120 s after the start (`start_delay_secs`). Of a short run only the end is evaluated
(tensorflow#17650). Here these two defaults mean "not set"; other values apply. This patch has an effect only with the
patch `train-and-evaluate`.
"""

from __future__ import annotations

NAME = "every-checkpoint"
WHAT = "EvalSpec's default throttle_secs=600 and start_delay_secs=120 do not skip checkpoints; other values apply"


def apply() -> None:
    """Do nothing: `train_and_evaluate` checks whether this patch is applied."""

"""Every checkpoint is evaluated, unless the program asks for less.

tf.estimator skips checkpoints by time: EvalSpec's defaults let an evaluation begin no sooner than 600 s after the
last one (`throttle_secs`) and 120 s after the start (`start_delay_secs`), so that of a short run nothing but its end
is evaluated (tensorflow#17650). These two defaults are read as "not set" here; other values are kept to. A patch of
`train_and_evaluate`: without that one it does nothing.
"""

from __future__ import annotations

NAME = "every-checkpoint"
WHAT = "EvalSpec's default throttle_secs=600 and start_delay_secs=120 do not skip checkpoints; other values are kept"


def apply() -> None:
    """Nothing to patch: `train_and_evaluate` asks whether this patch is applied."""

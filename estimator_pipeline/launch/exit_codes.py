"""Exit codes of a task that decide about restarts.

`estimator_pipeline.errors` assigns them to its errors.
"""

from __future__ import annotations

from estimator_pipeline.errors import ConfigError, DivergedError, PreemptedError

__all__ = ["BAD_INPUT", "DIVERGED", "NOT_RUNNABLE", "PREEMPTED"]

BAD_INPUT = ConfigError.exit_code
DIVERGED = DivergedError.exit_code
NOT_RUNNABLE = (126, 127)
"""The shell's codes: the program is not executable, or does not exist."""
PREEMPTED = PreemptedError.exit_code
"""The task was preempted, and its training is saved in a checkpoint."""

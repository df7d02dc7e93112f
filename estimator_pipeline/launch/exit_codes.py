"""Exit codes of a task that say what another attempt is worth; `estimator_pipeline.errors` gives them to its errors."""

from __future__ import annotations

from estimator_pipeline.errors import ConfigError, DivergedError, PreemptedError

__all__ = ["BAD_INPUT", "DIVERGED", "NOT_RUNNABLE", "PREEMPTED"]

BAD_INPUT = ConfigError.exit_code
DIVERGED = DivergedError.exit_code
NOT_RUNNABLE = (126, 127)
"""Of the shell: the program may not be run, or is not there."""
PREEMPTED = PreemptedError.exit_code
"""The task was asked to end, and its training stands in a checkpoint."""

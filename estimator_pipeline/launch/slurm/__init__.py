"""Slurm: the batch script of a job file, and submitted jobs.

Only `jobs.py` calls Slurm's commands. Modules are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator_pipeline.utils import lazy

if TYPE_CHECKING:
    from estimator_pipeline.launch.slurm import history, jobs, logs, script, sweep

__all__ = ["history", "jobs", "logs", "script", "sweep"]

__getattr__, __dir__ = lazy.attach(__name__, {name: f"{__name__}.{name}" for name in __all__})

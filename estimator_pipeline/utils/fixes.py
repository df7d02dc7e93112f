"""Hints for users of a job file, which are YAML, and for users of Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from estimator_pipeline.utils.process_state import STATE

__all__ = ["fix", "of_job_file"]


@contextlib.contextmanager
def of_job_file() -> Iterator[None]:
    """Within the block, in all threads, hints are for a job file."""
    STATE.job_files += 1
    try:
        yield
    finally:
        STATE.job_files -= 1


def fix(*, python: str, yaml: str) -> str:
    """Return what to change: in Python code, or within `of_job_file` in the job file."""
    return yaml if STATE.job_files else python

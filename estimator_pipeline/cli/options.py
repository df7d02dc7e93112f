"""Callbacks of `typer.Option` for options in seconds."""

from __future__ import annotations

import typer

from estimator_pipeline.job.arguments import check_seconds

__all__ = ["above_zero", "from_zero"]


def above_zero(param: typer.CallbackParam, value: float | None) -> float | None:
    """Reject NaN and values that are not above 0; click's limits accept NaN."""
    return check_seconds(value, param.opts[0])


def from_zero(param: typer.CallbackParam, value: float | None) -> float | None:
    """Reject NaN and values below 0; 0 means none or immediately."""
    return check_seconds(value, param.opts[0], zero=True)

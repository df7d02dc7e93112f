"""Options that are a length of time; for the `callback` of `typer.Option`."""

from __future__ import annotations

import typer

from estimator_pipeline.job.arguments import check_seconds

__all__ = ["above_zero", "from_zero"]


def above_zero(param: typer.CallbackParam, value: float | None) -> float | None:
    """Refuses what is not above 0, and NaN, which click's own limits let through."""
    return check_seconds(value, param.opts[0])


def from_zero(param: typer.CallbackParam, value: float | None) -> float | None:
    """The same with 0, which means none or at once."""
    return check_seconds(value, param.opts[0], zero=True)

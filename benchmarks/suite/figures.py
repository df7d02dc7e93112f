"""Arithmetic of the benchmark: medians, spread, ratios of neighbouring runs, targets and verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from estimator_pipeline.errors import ConfigError

__all__ = ["Figure", "Target", "Verdict", "judge", "rate_of", "ratio_of", "window"]


@dataclass(frozen=True)
class Figure:
    """A value over several runs.

    Attributes:
        median: the median of all runs.
        least: the smallest value.
        most: the largest value.
        runs: the number of runs.
    """

    median: float
    least: float
    most: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Return the figure for the values of the runs.

        Raises:
            ValueError: There are no values, or a value is not finite.
        """
        if not values or not all(math.isfinite(value) for value in values):
            raise ValueError(f"a figure of {list(values)!r}")
        return cls(statistics.median(values), min(values), max(values), len(values))

    @property
    def spread(self) -> float:
        """The range from the minimum to the maximum, relative to the median; 0 for one run."""
        return (self.most - self.least) / abs(self.median) if self.median else 0.0

    def document(self) -> dict[str, float]:
        """Return the figure as plain values."""
        return {
            "median": self.median,
            "least": self.least,
            "most": self.most,
            "spread": self.spread,
            "runs": self.runs,
        }


@dataclass(frozen=True, kw_only=True)
class Target:
    """The target of a ratio.

    Attributes:
        contender: the contender of the numerator.
        against: the contender of the denominator.
        least: the minimum of the ratio, or
        most: its maximum.
        times: factor of the denominator ("0.8 of twice one worker's rate": 2).
        case: the case of the denominator, if it differs.
        metric: the compared value; None: the metric of the case.
        against_metric: the metric of the denominator, if it differs.
    """

    contender: str
    against: str
    least: float | None = None
    most: float | None = None
    times: float = 1.0
    case: str | None = None
    metric: str | None = None
    against_metric: str | None = None

    def __post_init__(self) -> None:
        if (self.least is None) == (self.most is None):
            raise ConfigError(
                f"a target of {self.contender} has least={self.least} and most={self.most}", hint="give one of the two"
            )

    @property
    def bound(self) -> str:
        """ ">= 2" or "<= 1.05"."""
        return f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"

    def is_met_by(self, ratio: float) -> bool:
        """Return whether a ratio meets the target."""
        return ratio >= self.least if self.least is not None else ratio <= (self.most or 0.0)


@dataclass(frozen=True)
class Verdict:
    """The result of a target.

    Attributes:
        case: the case of the contender.
        target: the target.
        ratio: the measured ratio; None if one of the two values was not measured.
    """

    case: str
    target: Target
    ratio: Figure | None

    @property
    def state(self) -> str:
        """ "met", "not met" or "not measured", by the median."""
        if self.ratio is None:
            return "not measured"
        return "met" if self.target.is_met_by(self.ratio.median) else "not met"


def ratio_of(above: Mapping[int, float], below: Mapping[int, float], *, times: float = 1.0) -> Figure | None:
    """Return the ratio of two contenders: the median over the runs of the ratios within each run.

    Neighbouring runs see the same speed of the machine; the medians of the two contenders may not.

    Args:
        above: Run -> numerator.
        below: Run -> denominator; runs that only one of the two has are left out.
        times: Factor of the denominators.

    Returns:
        The ratio, or None if no run has both values.
    """
    ratios = [above[run] / (times * below[run]) for run in sorted(set(above) & set(below)) if below[run]]
    return Figure.of(ratios) if ratios else None


def judge(case: str, target: Target, above: Mapping[int, float], below: Mapping[int, float]) -> Verdict:
    """Return the verdict on a target, from the values of each run."""
    return Verdict(case, target, ratio_of(above, below, times=target.times))


def window(tasks: Sequence[Sequence[Sequence[float]]], *, warm: int) -> tuple[float, float]:
    """Return the time window in which all tasks train after their warm-up.

    It begins with the latest first mark and ends with the earliest last mark.

    Args:
        tasks: The marks of each task, (seconds, step), in order, of one clock.
        warm: Warm-up steps, which are not counted.

    Raises:
        ValueError: There is no such window.
    """
    counted = [[mark for mark in marks if mark[1] >= warm] for marks in tasks]
    if not counted or any(len(marks) < 2 for marks in counted):
        raise ValueError("a task has fewer than two marks after its warm-up")
    begun, ended = max(marks[0][0] for marks in counted), min(marks[-1][0] for marks in counted)
    if ended <= begun:
        raise ValueError("the tasks did not train at the same time")
    return begun, ended


def rate_of(marks: Sequence[Sequence[float]], begun: float, ended: float) -> float:
    """Return the steps per second from the marks between two times.

    Raises:
        ValueError: There are fewer than two marks.
    """
    inside = [mark for mark in marks if begun <= mark[0] <= ended]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
        raise ValueError("fewer than two marks in the window")
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

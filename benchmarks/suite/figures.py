"""The arithmetic of the benchmark: medians, spread, ratios of neighbours, targets and their verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from estimator_pipeline.errors import ConfigError

__all__ = ["Figure", "Target", "Verdict", "judge", "rate_of", "ratio_of", "window"]


@dataclass(frozen=True)
class Figure:
    """What several runs gave.

    Attributes:
        median: of all runs.
        least: the smallest.
        most: the largest.
        runs: how many there were.
    """

    median: float
    least: float
    most: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Return the figure of one value a run, at least one.

        Raises:
            ValueError: there is none, or one is no finite number.
        """
        if not values or not all(math.isfinite(value) for value in values):
            raise ValueError(f"a figure of {list(values)!r}")
        return cls(statistics.median(values), min(values), max(values), len(values))

    @property
    def spread(self) -> float:
        """From the least to the most, as a part of the median; 0 for one run."""
        return (self.most - self.least) / abs(self.median) if self.median else 0.0

    def document(self) -> dict[str, float]:
        """As plain values."""
        return {
            "median": self.median,
            "least": self.least,
            "most": self.most,
            "spread": self.spread,
            "runs": self.runs,
        }


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a ratio should come to.

    Attributes:
        contender: whose value is above the line.
        against: whose value is below it.
        least: the ratio should be at least this; or
        most: at most this.
        times: the value below the line is taken so many times ("0.8 of twice one worker's rate": 2).
        case: of the value below the line, where it is another case's.
        metric: the value that is compared; None: the case's own.
        against_metric: the value below the line, where it is another one.
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
        """Whether a ratio is as it should be."""
        return ratio >= self.least if self.least is not None else ratio <= (self.most or 0.0)


@dataclass(frozen=True)
class Verdict:
    """What became of a target.

    Attributes:
        case: of the contender.
        target: what was aimed at.
        ratio: what was measured; None where one of the two values was not.
    """

    case: str
    target: Target
    ratio: Figure | None

    @property
    def state(self) -> str:
        """ "met", "not met" or "not measured". The median decides; the spread is told beside it."""
        if self.ratio is None:
            return "not measured"
        return "met" if self.target.is_met_by(self.ratio.median) else "not met"


def ratio_of(above: Mapping[int, float], below: Mapping[int, float], *, times: float = 1.0) -> Figure | None:
    """Return the ratio of two contenders: the median over the runs of the ratios within each run.

    Neighbours in time have the same machine; the ratio of two medians need not.

    Args:
        above: run -> value.
        below: run -> value; runs that only one of the two has are left out.
        times: what the values below are multiplied with.

    Returns:
        None where no run has both.
    """
    ratios = [above[run] / (times * below[run]) for run in sorted(set(above) & set(below)) if below[run]]
    return Figure.of(ratios) if ratios else None


def judge(case: str, target: Target, above: Mapping[int, float], below: Mapping[int, float]) -> Verdict:
    """Return the verdict on a target, from the values of each run."""
    return Verdict(case, target, ratio_of(above, below, times=target.times))


def window(tasks: Sequence[Sequence[Sequence[float]]], *, warm: int) -> tuple[float, float]:
    """Return the time in which all tasks train and none warms up: the latest first mark to the earliest last one.

    Args:
        tasks: for each task its marks, each (seconds, step), in order, of one clock.
        warm: steps that are not counted.

    Raises:
        ValueError: there is no such time.
    """
    counted = [[mark for mark in marks if mark[1] >= warm] for marks in tasks]
    if not counted or any(len(marks) < 2 for marks in counted):
        raise ValueError("a task has fewer than two marks after its warm-up")
    begun, ended = max(marks[0][0] for marks in counted), min(marks[-1][0] for marks in counted)
    if ended <= begun:
        raise ValueError("the tasks did not train at the same time")
    return begun, ended


def rate_of(marks: Sequence[Sequence[float]], begun: float, ended: float) -> float:
    """Step per second by the marks between two moments, both within reach of two marks.

    Raises:
        ValueError: fewer than two marks lie there.
    """
    inside = [mark for mark in marks if begun <= mark[0] <= ended]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
        raise ValueError("fewer than two marks in the window")
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

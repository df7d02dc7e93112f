"""Results computed from the measurements: figures of the contenders, ratios, verdicts, and one JSON document."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.suite.cases import CONTENDERS, Case
from benchmarks.suite.figures import Figure, Verdict, judge
from benchmarks.suite.running import Measurement

__all__ = ["CaseResult", "Results", "values_of"]

FORMAT = 1


@dataclass(frozen=True)
class CaseResult:
    """The results of a case.

    Attributes:
        case: the case.
        figures: contender -> figure name -> figure, for the figures that are numbers.
        verdicts: the verdicts on the targets of the case.
        of_limit: contender -> its rate relative to the limit, which for several workers is that of one worker times
            their number; empty if there is no limit.
    """

    case: Case
    figures: Mapping[str, Mapping[str, Figure]]
    verdicts: tuple[Verdict, ...]
    of_limit: Mapping[str, float]


def values_of(measurements: Sequence[Measurement], case: str, contender: str, metric: str) -> dict[int, float]:
    """Return run -> value, for the measurements that have it."""
    return {
        measurement.run: float(measurement.figures[metric])
        for measurement in measurements
        if (measurement.case, measurement.contender) == (case, contender) and metric in measurement.figures
    }


@dataclass(frozen=True)
class Results:
    """The results of a run.

    Attributes:
        conditions: machine, versions and size.
        cases: the cases with measurements.
        measurements: all measurements.
    """

    conditions: Mapping[str, Any]
    cases: tuple[CaseResult, ...]
    measurements: tuple[Measurement, ...]

    @classmethod
    def of(cls, cases: Sequence[Case], conditions: Mapping[str, Any], measurements: Sequence[Measurement]) -> Results:
        """Return the results of these cases, in their order."""
        named = {case.name: case for case in cases}
        selected = tuple(measurement for measurement in measurements if measurement.case in named)
        measured = {measurement.case for measurement in selected}
        results = tuple(_case_result(case, selected, named) for case in cases if case.name in measured)
        return cls(conditions, results, selected)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on the targets of all cases."""
        return tuple(verdict for case in self.cases for verdict in case.verdicts)

    def document(self) -> dict[str, Any]:
        """Return one JSON document: machine, cases with figures and verdicts, every measurement."""
        return {
            "format": FORMAT,
            "made_of": dict(self.conditions),
            "written": time.strftime("%Y-%m-%d", time.gmtime()),
            "cases": [_document(case) for case in self.cases],
            "measurements": [
                {"case": m.case, "contender": m.contender, "run": m.run, "load": m.load, "figures": m.figures}
                for m in self.measurements
            ],
        }


def _case_result(case: Case, measurements: Sequence[Measurement], named: Mapping[str, Case]) -> CaseResult:
    figures: dict[str, dict[str, Figure]] = {}
    for contender in case.contenders:
        runs = [m.figures for m in measurements if (m.case, m.contender) == (case.name, contender)]
        if runs:
            names = [name for name, value in runs[0].items() if _is_number(value)]
            values = {name: [float(run[name]) for run in runs if name in run] for name in names}
            figures[contender] = {name: Figure.of(numbers) for name, numbers in values.items()}
    verdicts = []
    for target in case.targets:
        metric = target.metric or case.metric
        other = named.get(target.case, None) if target.case else case
        below_metric = target.against_metric or (other.metric if other and target.metric is None else metric)
        above = values_of(measurements, case.name, target.contender, metric)
        below = values_of(measurements, other.name, target.against, below_metric) if other else {}
        verdicts.append(judge(case.name, target, above, below))
    return CaseResult(case, figures, tuple(verdicts), _of_limit(case, figures, measurements))


def _of_limit(
    case: Case, figures: Mapping[str, Mapping[str, Figure]], measurements: Sequence[Measurement]
) -> dict[str, float]:
    """Return contender -> its rate relative to the limit; for several workers that of one times their number."""
    workers = case.settings.get("workers", 1)
    if case.measure != "training":
        return {}
    single = case.name if "limit" in case.contenders else f"train-{case.settings['model']}-1"
    below = values_of(measurements, single, "limit", case.metric)
    if not below:
        return {}
    limit = Figure.of(list(below.values())).median * (1 if single == case.name else workers)
    return {name: by_name[case.metric].median / limit for name, by_name in figures.items() if case.metric in by_name}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _document(result: CaseResult) -> dict[str, Any]:
    case = result.case
    return {
        "name": case.name,
        "title": case.title,
        "metric": case.metric,
        "unit": case.unit,
        "more_is_better": case.more,
        "contenders": {
            contender: {
                "title": CONTENDERS[contender],
                "figures": {name: figure.document() for name, figure in figures.items()},
                **({"of_limit": result.of_limit[contender]} if contender in result.of_limit else {}),
            }
            for contender, figures in result.figures.items()
        },
        "targets": [verdict_document(verdict) for verdict in result.verdicts],
    }


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain values."""
    target = verdict.target
    return {
        "case": verdict.case,
        "contender": target.contender,
        "against": target.against,
        "against_case": target.case or verdict.case,
        "times": target.times,
        "target": target.bound,
        "ratio": None if verdict.ratio is None else verdict.ratio.document(),
        "state": verdict.state,
    }

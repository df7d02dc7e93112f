"""From measurements to results: a figure for each contender, ratios, verdicts; as one JSON document."""

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
    """What a case gave.

    Attributes:
        case: the case.
        figures: contender -> figure name -> figure; the names are those that are numbers in every run.
        verdicts: on the case's targets.
        of_limit: contender -> its rate as a part of the limit, which for several workers is that of one times their
            number; None where there is no limit.
    """

    case: Case
    figures: Mapping[str, Mapping[str, Figure]]
    verdicts: tuple[Verdict, ...]
    of_limit: Mapping[str, float]


def values_of(measurements: Sequence[Measurement], case: str, contender: str, metric: str) -> dict[int, float]:
    """Run -> value, where the measurements have it."""
    return {
        one.run: float(one.figures[metric])
        for one in measurements
        if (one.case, one.contender) == (case, contender) and metric in one.figures
    }


@dataclass(frozen=True)
class Results:
    """A run's results.

    Attributes:
        made_of: machine, versions and size.
        cases: those of which something was measured.
        measurements: all of them.
    """

    made_of: Mapping[str, Any]
    cases: tuple[CaseResult, ...]
    measurements: tuple[Measurement, ...]

    @classmethod
    def of(cls, cases: Sequence[Case], made_of: Mapping[str, Any], measurements: Sequence[Measurement]) -> Results:
        """Return the results of these cases, in their order."""
        named = {case.name: case for case in cases}
        kept = tuple(one for one in measurements if one.case in named)
        seen = {one.case for one in kept}
        found = tuple(_case_result(case, kept, named) for case in cases if case.name in seen)
        return cls(made_of, found, kept)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """On the targets of all cases."""
        return tuple(verdict for case in self.cases for verdict in case.verdicts)

    def document(self) -> dict[str, Any]:
        """One JSON document: machine, cases with figures and verdicts, every measurement."""
        return {
            "format": FORMAT,
            "made_of": dict(self.made_of),
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
        own = [one for one in measurements if (one.case, one.contender) == (case.name, contender)]
        if own:
            names = [name for name, value in own[0].figures.items() if _is_number(value)]
            values = {name: [float(one.figures[name]) for one in own if name in one.figures] for name in names}
            figures[contender] = {name: Figure.of(found) for name, found in values.items()}
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
    """Return the limit of several workers is that of one worker, of the same run, times their number."""
    workers = case.settings.get("workers", 1)
    if case.measure != "training":
        return {}
    single = case.name if "limit" in case.contenders else f"train-{case.settings['model']}-1"
    below = values_of(measurements, single, "limit", case.metric)
    if not below:
        return {}
    limit = Figure.of(list(below.values())).median * (1 if single == case.name else workers)
    return {name: found[case.metric].median / limit for name, found in figures.items() if case.metric in found}


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
                "figures": {name: figure.document() for name, figure in found.items()},
                **({"of_limit": result.of_limit[contender]} if contender in result.of_limit else {}),
            }
            for contender, found in result.figures.items()
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

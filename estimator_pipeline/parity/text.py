"""A comparison as text and as plain values."""

from __future__ import annotations

import dataclasses
from typing import Any

from estimator_pipeline.parity import summaries
from estimator_pipeline.parity.result import Parity
from estimator_pipeline.utils.arrays import Comparison, Difference
from estimator_pipeline.utils.text import counted

__all__ = ["document", "summary"]


def summary(parity: Parity) -> str:
    """Return lines for a terminal: the verdict, the first difference, the largest difference by kind."""
    lines = []
    fault = parity.first_fault
    if fault is None and parity.only:
        were = "was" if len(parity.only) == 1 else "were"
        lines.append(f"not equal: {counted(len(parity.only), 'step')} {were} run by only one of them")
    elif fault is None and parity.is_short:
        lines.append(f"not equal: {summaries.short(parity)}")
    elif fault is None:
        equal = [counted(len(parity.steps), "step"), *_read(parity), summaries.after_each(parity)]
        equal += [summaries.metrics(parity)] if parity.metrics.names else []
        equal += [] if parity.answers is None else [summaries.answers(parity)]
        lines.append(f"equal: {', '.join(equal)}")
    else:
        lines += [f"not equal: {summaries.parting(parity)}", f"  {fault[1].message}"]
    for finding in parity.findings:
        lines += [f"  {line}" for line in str(finding).splitlines()]
    for engine, step in parity.only[:3]:
        lines.append(f"  step {step} was run by {engine} only")
    if parity.steps:
        last = parity.steps[-1]
        lines.append("")
        lines.append(f"{'':24}{parity.initial.sides[0]:>16}{parity.initial.sides[1]:>16}")
        lines.append(f"{f'loss of step {last.step}':24}{last.losses[0]:>16.7g}{last.losses[1]:>16.7g}")
    largest = _largest(parity)
    if largest:
        lines.append("")
        lines.append(f"{'largest difference':24}{'absolute':>12}{'relative':>12}{'ULP':>14}  where")
        lines += [_row(name, worst) for name, worst in largest]
    lines.append("")
    lines += [f"note: {note}" for note in parity.notes]
    lines.append(f"runs and records: {parity.folder}")
    return "\n".join(lines)


def _read(parity: Parity) -> list[str]:
    """Return the words for the records of equal steps, where those of all steps were compared."""
    if len(parity.records) != len(parity.steps):
        return []
    each = summaries.each(parity)
    if parity.records_in_part:
        return [f"the same records (compared in part) for {each}"]
    return [f"the same records for {each}"]


def _largest(parity: Parity) -> list[tuple[str, str | tuple[int, Difference]]]:
    """Return each kind's name and its largest difference, or its state in words."""
    numbers = [(step, difference) for step, compared in parity.numbers.items() for difference in compared.differences]
    variables = [(step.step, difference) for step in parity.steps for difference in step.variables.differences]
    compared = {name for step in parity.steps for name in step.variables.names}
    recorded = {name for comparison in parity.numbers.values() for name in comparison.names}
    slots = [pair for pair in variables if " @" in pair[1].name]
    kinds: dict[str, tuple[bool, list[tuple[int, Difference]]]] = {
        "loss": ("loss" in recorded, [pair for pair in numbers if pair[1].name == "loss"]),
        "learning rate": ("learning_rate" in recorded, [pair for pair in numbers if pair[1].name == "learning_rate"]),
        "weights, statistics": (bool(compared), [pair for pair in variables if pair not in slots]),
    }
    if parity.slots_kept:
        kinds["optimizer slots"] = (any(" @" in name for name in compared), slots)
    kinds["update norm"] = ("update_norm" in recorded, [pair for pair in numbers if pair[1].name == "update_norm"])
    if not parity.steps:
        kinds = {}
    if any(parity.finals.values()) or parity.metrics.names or parity.metrics.differences:
        kinds["metrics"] = (bool(parity.metrics.names), [(0, difference) for difference in parity.metrics.differences])
    if parity.answers is not None:
        kinds["predictions"] = (bool(parity.answers.names), [(0, answer) for answer in parity.answers.differences])
    return [
        (name, max(differences, key=lambda pair: pair[1].largest_absolute))
        if differences
        else (name, "bit-equal" if was else "not compared")
        for name, (was, differences) in kinds.items()
    ]


def _row(name: str, worst: str | tuple[int, Difference]) -> str:
    if isinstance(worst, str):
        return f"{name:24}{worst:>12}"
    step, difference = worst
    where = difference.name + (f", step {step}" if step else "")
    if not difference.sized:
        return f"{name:24}{'':38}  {where}"
    ulp = "" if difference.largest_ulp is None else f"{difference.largest_ulp:.6g}"
    return f"{name:24}{difference.largest_absolute:>12.3g}{difference.largest_relative:>12.3g}{ulp:>14}  {where}"


def document(parity: Parity) -> dict[str, Any]:
    """Return plain values, ready for `json.dumps`."""
    fault = parity.first_fault
    return {
        "equal": parity.equal,
        "findings": [dataclasses.asdict(finding) for finding in parity.findings],
        "notes": list(parity.notes),
        "tolerances": dict(parity.tolerances.described()),
        "first_fault": None if fault is None else {"step": fault[0], **_difference(fault[1])},
        "initial": _comparison(parity.initial),
        "steps": [
            {
                "step": step.step,
                "losses": list(step.losses),
                "learning_rates": list(step.learning_rates),
                "update_norms": list(step.update_norms),
                "records": None if step.step not in parity.records else _comparison(parity.records[step.step]),
                "numbers": _comparison(parity.numbers[step.step]),
                "variables": _comparison(step.variables),
            }
            for step in parity.steps
        ],
        "metrics": _comparison(parity.metrics),
        "answers": None if parity.answers is None else _comparison(parity.answers),
        "asked": parity.asked,
        "only": [{"engine": engine, "step": step} for engine, step in parity.only],
        "verdict": summaries.verdict(parity),
        "variables": [dataclasses.asdict(variable) for variable in summaries.variables(parity)],
        "finals": {engine: dict(metrics) for engine, metrics in parity.finals.items()},
        "about": dict(parity.about),
        "environments": {engine: dict(facts) for engine, facts in parity.environments.items()},
        "folder": str(parity.folder),
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "equal": comparison.equal,
        "compared": len(comparison.names),
        "differences": [_difference(difference) for difference in comparison.differences],
    }


# Null where a difference has no size: 0 would mean that there is no difference.
_SIZES = ("absolute", "relative", "rtol_of_max", "ulp", "largest_absolute", "largest_relative", "largest_ulp")


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "name": difference.name,
        "kind": difference.kind,
        "message": difference.message,
        "index": list(difference.index),
        **{size: getattr(difference, size) if difference.sized else None for size in _SIZES},
        "count": difference.count,
        "size": difference.size,
        "tolerance": str(difference.tolerance),
    }

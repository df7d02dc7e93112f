"""A comparison counted up: each variable over all steps, each step over all variables, and the verdict in a sentence.

Arithmetic on what was compared; what a report, a document and a terminal show is taken from here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from estimator_pipeline.parity.result import Parity
from estimator_pipeline.utils.arrays import Comparison, Difference
from estimator_pipeline.utils.text import counted

__all__ = [
    "SLOTS", "STATES", "WEIGHTS", "Largest", "VariableSummary", "after_each", "answers", "each", "is_after_training",
    "largest_by_step", "metrics", "of_exports", "one_sided", "pair", "parting", "variables", "verdict",
]  # fmt: skip

WEIGHTS = "weights and statistics"
SLOTS = "optimizer slots"
# How a variable ended, the worst first.
STATES = ("missing", "shape", "dtype", "beyond", "within", "bit-equal", "not compared")
# Metrics that are beyond their tolerance are told in the verdict, so many of them.
_MOST_METRICS = 4
# So many units in the last place are half of a float32's digits.
_MOST_ULP = 1e6


@dataclasses.dataclass(frozen=True)
class Largest:
    """The largest error of one sort, over all steps.

    Attributes:
        value: the error; 0 for none.
        step: after which step; None for none.
    """

    value: float = 0.0
    step: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableSummary:
    """One variable over all steps; step 0 is the start.

    Attributes:
        name: its name.
        shape: on the first side that has it; None where it is not known.
        dtype: the same.
        size: elements.
        absolute: largest absolute error.
        relative: largest relative error.
        ulp: largest error in units in the last place; None for types without.
        first: first step after which it is not bit-equal; None for none.
        beyond: first step after which it is not within its tolerance; None for none.
        state: one of `STATES`.
        message: its first difference that is not allowed; empty for none.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str | None
    size: int | None
    absolute: Largest
    relative: Largest
    ulp: Largest | None
    first: int | None
    beyond: int | None
    state: str
    message: str = ""


def variables(parity: Parity) -> tuple[VariableSummary, ...]:
    """Every variable that a side has, the worst first: by state, then by the largest relative error."""
    found: dict[str, list[tuple[int, Difference]]] = {}
    for step, comparison in _after_steps(parity):
        for name in comparison.names:
            found.setdefault(name, [])
        for difference in comparison.differences:
            found.setdefault(difference.name, []).append((step, difference))
    rows = [_variable(parity, name, differences) for name, differences in found.items()]
    rows += [_left_out(parity, name) for side in parity.arrays.values() for name in side if name not in found]
    rows = list({row.name: row for row in rows}.values())
    return tuple(sorted(rows, key=lambda row: (STATES.index(row.state), -row.relative.value, -row.absolute.value)))


def _after_steps(parity: Parity) -> Iterator[tuple[int, Comparison]]:
    yield 0, parity.initial
    for one in parity.steps:
        yield one.step, one.variables


def _variable(parity: Parity, name: str, differences: Sequence[tuple[int, Difference]]) -> VariableSummary:
    known = next((side[name] for side in parity.arrays.values() if name in side), None)
    shape, dtype = (None, None) if known is None else known
    size = next((difference.size for _, difference in differences if difference.size), None)
    if shape is not None:
        size = math.prod(shape)
    faults = [pair for pair in differences if not pair[1].within]
    states = {"beyond" if difference.kind == "value" else difference.kind for _, difference in differences}
    ulps = [(step, float(d.largest_ulp)) for step, d in differences if d.largest_ulp is not None]
    counted = dtype is None or dtype.startswith("float")
    return VariableSummary(
        name=name,
        shape=shape,
        dtype=dtype,
        size=size,
        absolute=_largest((step, d.largest_absolute) for step, d in differences),
        relative=_largest((step, d.largest_relative) for step, d in differences),
        ulp=_largest(ulps) if ulps or (counted and not differences) else None,
        first=differences[0][0] if differences else None,
        beyond=faults[0][0] if faults else None,
        state=next((state for state in STATES if state in states), "bit-equal"),
        message=faults[0][1].message if faults else "",
    )


def _left_out(parity: Parity, name: str) -> VariableSummary:
    """A variable that was recorded and not compared: an optimizer's slot that means something else on either side."""
    having = {side: arrays[name] for side, arrays in parity.arrays.items() if name in arrays}
    shape, dtype = next(iter(having.values()))
    none = Largest()
    return VariableSummary(
        name=name, shape=shape, dtype=dtype, size=math.prod(shape), absolute=none, relative=none, ulp=None, first=None,
        beyond=None, state="not compared",
        message=f"{name}: {next(iter(having))} alone has it" if len(having) == 1 else "",
    )  # fmt: skip


def _largest(errors: Iterable[tuple[int, float]]) -> Largest:
    """Return the first of the largest."""
    best = Largest()
    for step, error in errors:
        if error > best.value:
            best = Largest(error, step)
    return best


def largest_by_step(parity: Parity) -> dict[str, list[tuple[int, float]]]:
    """Series -> (step, largest absolute error) for every step: the loss, weights and optimizer slots, learning rate.

    0 is bit-equal. Without size, and so left out, are names of one side alone and unequal shapes and types. Optimizer
    slots are there where the optimizer has any, the learning rate where it differs at all.
    """
    series: dict[str, list[tuple[int, float]]] = {"loss": [], WEIGHTS: [], SLOTS: [], "learning rate": []}
    for one in parity.steps:
        numbers = {difference.name: difference for difference in parity.numbers[one.step].differences}
        for name, key in (("loss", "loss"), ("learning rate", "learning_rate")):
            series[name].append((one.step, _of_values([numbers[key]] if key in numbers else [])))
        slots = [difference for difference in one.variables.differences if " @" in difference.name]
        weights = [difference for difference in one.variables.differences if " @" not in difference.name]
        series[WEIGHTS].append((one.step, _of_values(weights)))
        series[SLOTS].append((one.step, _of_values(slots)))
    if not any(" @" in name for one in parity.steps for name in one.variables.names):
        del series[SLOTS]
    if not any(error for _, error in series["learning rate"]):
        del series["learning rate"]
    return series


def _of_values(differences: Sequence[Difference]) -> float:
    return max((d.largest_absolute for d in differences if d.sized), default=0.0)


def one_sided(parity: Parity) -> tuple[str, ...]:
    """Return what one engine alone has, in sentences: variables, metrics, steps."""
    told: dict[str, None] = {}
    for what, comparisons in (
        ("variable", [comparison for _, comparison in _after_steps(parity)]),
        ("number", list(parity.numbers.values())),
        ("metric", [parity.metrics]),
    ):
        for comparison in comparisons:
            # A message names the side that has it.
            told |= {f"{what} {d.message}": None for d in comparison.differences if d.kind == "missing"}
    for engine in dict.fromkeys(engine for engine, _ in parity.only):
        made = [step for by, step in parity.only if by == engine]
        if made:
            told[f"{'step' if len(made) == 1 else 'steps'} {_ranges(made)}: made by {engine} alone"] = None
    return tuple(told)


def _ranges(steps: Sequence[int]) -> str:
    """[1, 2, 3, 7] -> "1 to 3, 7"."""
    runs: list[list[int]] = []
    for step in sorted(steps):
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in runs)


def verdict(parity: Parity) -> str:
    """Return what came of it, in one sentence."""
    fault = parity.first_fault
    if fault is None and parity.only:
        return f"Not equal: {parity.only[0][0]} alone has made {len(parity.only)} of the steps."
    if fault is None and parity.is_short:
        return f"Not equal: {short(parity)}."
    if fault is None:
        return _of_equals(parity)
    step, difference = fault
    one, other = parity.initial.sides
    if is_after_training(parity):
        what = "" if parity.metrics.faults else f": {_of_answers(parity, difference)}"
        return f"Not equal: {_of_ends(parity, f' of {one} and {other}')}{what}."
    where = "before the first step" if step == 0 else f"at step {step} of {parity.steps[-1].step}"
    told = f"Not equal: {one} and {other} part {where}"
    if difference.kind != "value":
        return f"{told}: {difference.message}."
    if _is_one_of(difference, parity.records.values()):
        return f"{told}, in the {difference.message}."
    told = f"{told}, {_place(parity, difference)}"
    if not _tells_size(difference):
        return f"{told}: {difference.first} in {one}, {difference.second} in {other}."
    return f"{told}, {_size(difference)}."


def short(parity: Parity) -> str:
    """In words, that both have made fewer steps than asked for."""
    one, other = parity.initial.sides
    made = f"{len(parity.steps)} of the {parity.asked} steps" if parity.asked else "no step"
    return f"{one} and {other} both made {made}" if parity.steps else f"{one} and {other} have made no step in common"


def is_after_training(parity: Parity) -> bool:
    """Whether all that was compared of the training is equal, and what came after it is not."""
    fault = parity.first_fault
    ends = (parity.metrics, parity.answers)
    return fault is not None and any(fault[1] is one for end in ends if end is not None for one in end.faults)


def parting(parity: Parity) -> str:
    """Where two that are not equal part first, in words."""
    fault = parity.first_fault
    if fault is None:
        return ""
    if is_after_training(parity):
        return _of_ends(parity)
    return "they part " + (f"at step {fault[0]} of {parity.steps[-1].step}" if fault[0] else "before the first step")


def _of_ends(parity: Parity, whose: str = "") -> str:
    """Return that what came after the training differs, with the values of the metrics that do."""
    steps = len(parity.steps)
    asked = f" of {parity.asked} asked for" if parity.is_short else ""
    equal = f"{counted(steps, 'step')}{whose} {'is' if steps == 1 else 'are'} equal{asked}" if steps else short(parity)
    places = ["the final evaluation"] if parity.metrics.faults else []
    if parity.answers is not None and parity.answers.faults:
        places.append("the answers of the exports" if of_exports(parity) else "the predictions")
    told = f"{equal}, they part in {' and '.join(places)}"
    return f"{told}: {_of_metrics(parity)}" if parity.metrics.faults else told


def _of_metrics(parity: Parity) -> str:
    """Return the final metrics that are not equal, the worst first, with both values."""
    one, other = parity.metrics.sides
    # In the order of `Comparison.largest_fault`.
    faults = sorted(parity.metrics.faults, key=lambda fault: (fault.kind != "value", fault.relative), reverse=True)
    told: list[str] = []
    sides_told = False
    for fault in faults[:_MOST_METRICS]:
        if fault.kind == "missing":
            has = one if fault.name in parity.finals.get(one, {}) else other
            told.append(f"{fault.name} of {has} alone")
        elif fault.kind != "value":
            told.append(f"{fault.name} of another {'type' if fault.kind == 'dtype' else fault.kind}")
        else:
            first, second = pair(fault.first, fault.second)
            at = f"[{', '.join(map(str, fault.index))}]" if fault.index else ""
            words = f"{first} and {second}" if sides_told else f"{first} in {one} and {second} in {other}"
            told.append(f"{fault.name}{at} {words}")
            sides_told = True
    more = len(faults) - len(told)
    return ", ".join(told) + (f", and {more} more" if more else "")


def pair(one: float, other: float) -> tuple[str, str]:
    """Both values, with as many digits as it takes to tell them apart."""
    pairs = [(f"{one:.{digits}g}", f"{other:.{digits}g}") for digits in (6, 9, 17)]
    return next((texts for texts in pairs if texts[0] != texts[1]), pairs[-1])


def _of_answers(parity: Parity, difference: Difference) -> str:
    """Return the worst of the answers, and how many others there are."""
    more = 0 if parity.answers is None else len(parity.answers.faults) - 1
    name = difference.name.removeprefix("predictions ")
    told = f"{name}, {_size(difference)}"
    if not _tells_size(difference):
        told = name + difference.message.removeprefix(difference.name)
    return f"{told}, and {more} more" if more else told


def _tells_size(difference: Difference) -> bool:
    return difference.sized and math.isfinite(difference.absolute) and difference.absolute > 0


def _size(difference: Difference) -> str:
    told = f"relative {difference.relative:.3g}"
    # Beyond some, and of another sign, it is no unit to count in.
    told += f", {difference.ulp:,} ULP" if difference.ulp is not None and difference.ulp < _MOST_ULP else ""
    return f"by {difference.absolute:.3g} ({told})"


def each(parity: Parity) -> str:
    """Return what stands for the steps after a preposition."""
    return "it" if len(parity.steps) == 1 else "each"


def after_each(parity: Parity) -> str:
    """How many variables were compared, in words."""
    return f"{counted(len(parity.initial.names), 'variable')} after {each(parity)}"


def _of_equals(parity: Parity) -> str:
    one, other = parity.initial.sides
    ends = [metrics(parity)] if parity.metrics.names else []
    if parity.answers is not None and parity.answers.names:
        ends += ["the answers of the exports" if of_exports(parity) else "the predictions"]
    what = f"{one} and {other} over {counted(len(parity.steps), 'step')}, with {after_each(parity)}"
    what += "".join(f", and in {end}" for end in ends)
    rows = variables(parity)
    compared = (*parity.numbers.values(), parity.metrics, *([] if parity.answers is None else [parity.answers]))
    numbers = [d for c in compared for d in c.differences]
    if not numbers and all(row.state in ("bit-equal", "not compared") for row in rows):
        return f"Bit-equal: {what}."
    told = f"Equal within the tolerances: {what}"
    worst = max(rows, key=lambda row: row.absolute.value, default=None)
    if worst is None or not worst.absolute.value:
        return f"{told}; all variables that were compared are bit-equal."
    at_most = f"{worst.absolute.value:.3g} at most ({worst.name}, step {worst.absolute.step})"
    return f"{told}; variables differ by {at_most}."


def of_exports(parity: Parity) -> bool:
    """Whether the answers are those of exported models; a program's are predictions."""
    if parity.answers is None:
        return False
    names = (*parity.answers.names, *(difference.name for difference in parity.answers.differences))
    return any(name.startswith("signature ") for name in names)


def answers(parity: Parity) -> str:
    """How many answers were compared, in words."""
    count = 0 if parity.answers is None else len(parity.answers.names)
    if of_exports(parity):
        return f"{counted(count, 'answer')} of the exports"
    return f"the predictions of {counted(count, 'output')}"


def metrics(parity: Parity) -> str:
    """Which of the final evaluation's metrics were compared, in words; what is counted is what the notes name."""
    theirs, ours = (set(parity.finals.get(side, {})) for side in parity.metrics.sides)
    compared = set(parity.metrics.names)
    # By the rule of `matching.to_compare`: what an Estimator says without a counterpart, its loss says where that is
    # compared; that an Estimator's loss was not compared is a note of its own.
    of_loss = {"loss", "average_loss"} if "loss" in compared else {"loss"}
    # What both have and what is not compared is a job's loss, beside its average_loss.
    left = (theirs - ours - of_loss) | (ours - theirs)
    told = f"{len(compared)} of {counted(len(compared | left), 'final metric')}" if left else "the final metrics"
    return f"{told} (not the loss)" if "loss" in theirs and not compared & {"loss", "average_loss"} else told


def _is_one_of(difference: Difference, comparisons: Iterable[Comparison]) -> bool:
    return any(difference is fault for comparison in comparisons for fault in comparison.faults)


def _place(parity: Parity, difference: Difference) -> str:
    if _is_one_of(difference, parity.numbers.values()):
        return f"in the {difference.name.replace('_', ' ')}"
    return f"in the variable {difference.name}"

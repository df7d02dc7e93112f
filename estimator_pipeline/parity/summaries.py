"""Summaries of a comparison: each variable over all steps, each step over all variables, and the verdict.

The report, the JSON document and the terminal take their numbers and sentences from here.
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
# States of a variable, the worst first.
STATES = ("missing", "shape", "dtype", "beyond", "within", "bit-equal", "not compared")
# The verdict lists at most this many metrics that are beyond their tolerance.
_MOST_METRICS = 4
# This many units in the last place are half of the digits of a float32.
_MOST_ULP = 1e6


@dataclasses.dataclass(frozen=True)
class Largest:
    """The largest error of one kind, over all steps.

    Attributes:
        value: the error; 0 for none.
        step: the step of that error; None for none.
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
    """Return every variable of either side, the worst first: by state, then by the largest relative error."""
    by_name: dict[str, list[tuple[int, Difference]]] = {}
    for step, comparison in _after_steps(parity):
        for name in comparison.names:
            by_name.setdefault(name, [])
        for difference in comparison.differences:
            by_name.setdefault(difference.name, []).append((step, difference))
    rows = [_variable(parity, name, differences) for name, differences in by_name.items()]
    rows += [_left_out(parity, name) for side in parity.arrays.values() for name in side if name not in by_name]
    rows = list({row.name: row for row in rows}.values())
    return tuple(sorted(rows, key=lambda row: (STATES.index(row.state), -row.relative.value, -row.absolute.value)))


def _after_steps(parity: Parity) -> Iterator[tuple[int, Comparison]]:
    yield 0, parity.initial
    for step in parity.steps:
        yield step.step, step.variables


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
    """Summarize a variable that was recorded but not compared, such as a slot with different meanings."""
    having = {side: arrays[name] for side, arrays in parity.arrays.items() if name in arrays}
    shape, dtype = next(iter(having.values()))
    none = Largest()
    return VariableSummary(
        name=name, shape=shape, dtype=dtype, size=math.prod(shape), absolute=none, relative=none, ulp=None, first=None,
        beyond=None, state="not compared",
        message=f"{name}: only {next(iter(having))} has it" if len(having) == 1 else "",
    )  # fmt: skip


def _largest(errors: Iterable[tuple[int, float]]) -> Largest:
    """Return the largest error; of equal ones the first."""
    best = Largest()
    for step, error in errors:
        if error > best.value:
            best = Largest(error, step)
    return best


def largest_by_step(parity: Parity) -> dict[str, list[tuple[int, float]]]:
    """Return series -> (step, largest absolute error) by step: loss, weights, optimizer slots, learning rate.

    0 is bit-equal. Variables of only one side and unequal shapes and types have no size and are left out. Optimizer
    slots are included if the optimizer has any, the learning rate if it differs.
    """
    series: dict[str, list[tuple[int, float]]] = {"loss": [], WEIGHTS: [], SLOTS: [], "learning rate": []}
    for step in parity.steps:
        numbers = {difference.name: difference for difference in parity.numbers[step.step].differences}
        for name, key in (("loss", "loss"), ("learning rate", "learning_rate")):
            series[name].append((step.step, _of_values([numbers[key]] if key in numbers else [])))
        slots = [difference for difference in step.variables.differences if " @" in difference.name]
        weights = [difference for difference in step.variables.differences if " @" not in difference.name]
        series[WEIGHTS].append((step.step, _of_values(weights)))
        series[SLOTS].append((step.step, _of_values(slots)))
    if not any(" @" in name for step in parity.steps for name in step.variables.names):
        del series[SLOTS]
    if not any(error for _, error in series["learning rate"]):
        del series["learning rate"]
    return series


def _of_values(differences: Sequence[Difference]) -> float:
    return max((d.largest_absolute for d in differences if d.sized), default=0.0)


def one_sided(parity: Parity) -> tuple[str, ...]:
    """Return sentences on the variables, metrics and steps that only one engine has."""
    sentences: dict[str, None] = {}
    for kind, comparisons in (
        ("variable", [comparison for _, comparison in _after_steps(parity)]),
        ("number", list(parity.numbers.values())),
        ("metric", [parity.metrics]),
    ):
        for comparison in comparisons:
            # A message names the side that has it.
            sentences |= {f"{kind} {d.message}": None for d in comparison.differences if d.kind == "missing"}
    for engine in dict.fromkeys(engine for engine, _ in parity.only):
        steps = [step for by, step in parity.only if by == engine]
        if steps:
            sentences[f"{'step' if len(steps) == 1 else 'steps'} {_ranges(steps)}: run by {engine} only"] = None
    return tuple(sentences)


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
    """Return the verdict, in one sentence."""
    fault = parity.first_fault
    if fault is None and parity.only:
        were = "was" if len(parity.only) == 1 else "were"
        return f"Not equal: {counted(len(parity.only), 'step')} {were} run by {parity.only[0][0]} only."
    if fault is None and parity.is_short:
        return f"Not equal: {short(parity)}."
    if fault is None:
        return _of_equals(parity)
    step, difference = fault
    first, second = parity.initial.sides
    if is_after_training(parity):
        end = "" if parity.metrics.faults else f": {_of_answers(parity, difference)}"
        return f"Not equal: {_of_ends(parity, f' of {first} and {second}')}{end}."
    where = "before the first step" if step == 0 else f"at step {step} of {parity.steps[-1].step}"
    sentence = f"Not equal: {first} and {second} first differ {where}"
    if difference.kind != "value":
        return f"{sentence}: {difference.message}."
    if _is_one_of(difference, parity.records.values()):
        return f"{sentence}, in the {difference.message}."
    sentence = f"{sentence}, {_place(parity, difference)}"
    if not _shows_size(difference):
        return f"{sentence}: {difference.first} in {first}, {difference.second} in {second}."
    return f"{sentence}, {_size(difference)}."


def short(parity: Parity) -> str:
    """Return, in words, how many of the requested steps both have run."""
    first, second = parity.initial.sides
    steps = f"{len(parity.steps)} of the {parity.asked} steps" if parity.asked else "no step"
    return f"{first} and {second} " + (f"both ran {steps}" if parity.steps else "have run no step in common")


def is_after_training(parity: Parity) -> bool:
    """Whether the training is equal, and only metrics or predictions after it differ."""
    fault = parity.first_fault
    ends = (parity.metrics, parity.answers)
    return fault is not None and any(fault[1] is worst for end in ends if end is not None for worst in end.faults)


def parting(parity: Parity) -> str:
    """Return, in words, where two unequal trainings first differ."""
    fault = parity.first_fault
    if fault is None:
        return ""
    if is_after_training(parity):
        return _of_ends(parity)
    where = f"at step {fault[0]} of {parity.steps[-1].step}" if fault[0] else "before the first step"
    return f"they first differ {where}"


def _of_ends(parity: Parity, whose: str = "") -> str:
    """Return a sentence for differences after the training, with the values of unequal metrics."""
    steps = len(parity.steps)
    asked = f" of {parity.asked} requested" if parity.is_short else ""
    equal = f"{counted(steps, 'step')}{whose} {'is' if steps == 1 else 'are'} equal{asked}" if steps else short(parity)
    places = ["the final evaluation"] if parity.metrics.faults else []
    if parity.answers is not None and parity.answers.faults:
        places.append("the answers of the exports" if of_exports(parity) else "the predictions")
    sentence = f"{equal}, they differ in {' and '.join(places)}"
    return f"{sentence}: {_of_metrics(parity)}" if parity.metrics.faults else sentence


def _of_metrics(parity: Parity) -> str:
    """Return the final metrics that are not equal, the worst first, with both values."""
    first_side, second_side = parity.metrics.sides
    # In the order of `Comparison.largest_fault`.
    faults = sorted(parity.metrics.faults, key=lambda fault: (fault.kind != "value", fault.relative), reverse=True)
    listed: list[str] = []
    sides_named = False
    for fault in faults[:_MOST_METRICS]:
        if fault.kind == "missing":
            has = first_side if fault.name in parity.finals.get(first_side, {}) else second_side
            listed.append(f"{fault.name} only in {has}")
        elif fault.kind != "value":
            listed.append(f"{fault.name} of different {'type' if fault.kind == 'dtype' else fault.kind}")
        else:
            first, second = pair(fault.first, fault.second)
            at = f"[{', '.join(map(str, fault.index))}]" if fault.index else ""
            words = f"{first} and {second}" if sides_named else f"{first} in {first_side} and {second} in {second_side}"
            listed.append(f"{fault.name}{at} {words}")
            sides_named = True
    more = len(faults) - len(listed)
    return ", ".join(listed) + (f", and {more} more" if more else "")


def pair(first: float, second: float) -> tuple[str, str]:
    """Return both values, with enough digits to distinguish them."""
    pairs = [(f"{first:.{digits}g}", f"{second:.{digits}g}") for digits in (6, 9, 17)]
    return next((texts for texts in pairs if texts[0] != texts[1]), pairs[-1])


def _of_answers(parity: Parity, difference: Difference) -> str:
    """Return the worst of the answers, and how many others there are."""
    more = 0 if parity.answers is None else len(parity.answers.faults) - 1
    name = difference.name.removeprefix("predictions ")
    worst = f"{name}, {_size(difference)}"
    if not _shows_size(difference):
        worst = name + difference.message.removeprefix(difference.name)
    return f"{worst}, and {more} more" if more else worst


def _shows_size(difference: Difference) -> bool:
    return difference.sized and math.isfinite(difference.absolute) and difference.absolute > 0


def _size(difference: Difference) -> str:
    measures = f"relative {difference.relative:.3g}"
    # Large counts of ULP, as between values of different sign, mean nothing to a reader.
    measures += f", {difference.ulp:,} ULP" if difference.ulp is not None and difference.ulp < _MOST_ULP else ""
    return f"by {difference.absolute:.3g} ({measures})"


def each(parity: Parity) -> str:
    """Return the pronoun for the steps."""
    return "it" if len(parity.steps) == 1 else "each"


def after_each(parity: Parity) -> str:
    """Return, in words, how many variables were compared."""
    return f"{counted(len(parity.initial.names), 'variable')} after {each(parity)}"


def _of_equals(parity: Parity) -> str:
    first, second = parity.initial.sides
    ends = [metrics(parity)] if parity.metrics.names else []
    if parity.answers is not None and parity.answers.names:
        ends += ["the answers of the exports" if of_exports(parity) else "the predictions"]
    compared_steps = f"{first} and {second} over {counted(len(parity.steps), 'step')}, with {after_each(parity)}"
    compared_steps += "".join(f", and in {end}" for end in ends)
    rows = variables(parity)
    compared = (*parity.numbers.values(), parity.metrics, *([] if parity.answers is None else [parity.answers]))
    numbers = [d for c in compared for d in c.differences]
    if not numbers and all(row.state in ("bit-equal", "not compared") for row in rows):
        return f"Bit-equal: {compared_steps}."
    sentence = f"Equal within the tolerances: {compared_steps}"
    worst = max(rows, key=lambda row: row.absolute.value, default=None)
    if worst is None or not worst.absolute.value:
        return f"{sentence}; all variables that were compared are bit-equal."
    at_most = f"{worst.absolute.value:.3g} at most ({worst.name}, step {worst.absolute.step})"
    return f"{sentence}; variables differ by {at_most}."


def of_exports(parity: Parity) -> bool:
    """Whether the answers are those of exported models; a program's are predictions."""
    if parity.answers is None:
        return False
    names = (*parity.answers.names, *(difference.name for difference in parity.answers.differences))
    return any(name.startswith("signature ") for name in names)


def answers(parity: Parity) -> str:
    """Return, in words, how many answers were compared."""
    count = 0 if parity.answers is None else len(parity.answers.names)
    if of_exports(parity):
        return f"{counted(count, 'answer')} of the exports"
    return f"the predictions of {counted(count, 'output')}"


def metrics(parity: Parity) -> str:
    """Return, in words, which metrics of the final evaluation were compared; the notes name the others."""
    theirs, ours = (set(parity.finals.get(side, {})) for side in parity.metrics.sides)
    compared = set(parity.metrics.names)
    # As in `matching.to_compare`: a compared loss covers the average_loss; a separate note covers a loss that is not
    # compared.
    of_loss = {"loss", "average_loss"} if "loss" in compared else {"loss"}
    # A job's loss is not compared where both have an average_loss.
    left = (theirs - ours - of_loss) | (ours - theirs)
    counts = f"{len(compared)} of {counted(len(compared | left), 'final metric')}" if left else "the final metrics"
    return f"{counts} (not the loss)" if "loss" in theirs and not compared & {"loss", "average_loss"} else counts


def _is_one_of(difference: Difference, comparisons: Iterable[Comparison]) -> bool:
    return any(difference is fault for comparison in comparisons for fault in comparison.faults)


def _place(parity: Parity, difference: Difference) -> str:
    if _is_one_of(difference, parity.numbers.values()):
        return f"in the {difference.name.replace('_', ' ')}"
    return f"in the variable {difference.name}"

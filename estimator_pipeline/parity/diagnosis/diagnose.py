"""The cause of a difference of two trainings, where it is certain: arithmetic on what they have recorded. NumPy only.

Every step of a record begins with the state after the step before. At the first step where two trainings part they
began it with the same state, and what they did otherwise in it tells the cause:

================== ================================================================================================
name               how it is known
================== ================================================================================================
variables          a name, a shape or a type that one side alone has; two that have each other's gradients
initial values     other values before the first step
records            other records were read; one of them twice, or in another order
BatchNorm          moving means and variances that one side does not update, or that differ after the same loss; an
                   evaluation whose loss is that of layers in training mode
optimizer options  another kind, other options, slots that begin with other values, as both are recorded
learning rate      the rates that are recorded differ; or the gradients are the same, by the slots, and every
                   weight's change is as many times as long
clipping           gradients of one direction, of which the shorter one has the length to which it is clipped
loss scaling       gradients, and with them the losses if these differ, that have one factor in common
steps              one side made more of them or counts them otherwise, or both made fewer than asked for
first difference   of all others, where the cause is not certain: the first step, what differs first, by how much
================== ================================================================================================
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from estimator_pipeline.job.tolerances import kind_of
from estimator_pipeline.parity.diagnosis.batch_norm import of_evaluation, of_statistics
from estimator_pipeline.parity.diagnosis.gradients import factor_of_changes, of_loss, of_update
from estimator_pipeline.parity.diagnosis.optimizers import HINT, of_options
from estimator_pipeline.parity.findings import Facts, ParityFinding, StepState
from estimator_pipeline.parity.step_records import StepReader, batch_of, batches_alike
from estimator_pipeline.utils.arrays import Comparison, Difference
from estimator_pipeline.utils.text import counted
from estimator_pipeline.utils.variable_names import GLOBAL_STEP

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["FIRST_DIFFERENCE", "Facts", "ParityFinding", "diagnose"]

FIRST_DIFFERENCE = "first difference"
_KINDS = {"weights": "weight", "statistics": "moving statistic", "slots": "slot", "step": "variable"}


def diagnose(parity: Parity, one: StepReader, other: StepReader, facts: Facts) -> Iterator[ParityFinding]:
    """Yield the causes of the differences, or the first difference; nothing where all is within its tolerances.

    Args:
        parity: the comparison.
        one: the record of its first side.
        other: of its second side.
        facts: what is known beside the records.
    """
    if parity.first_fault is not None:
        yield from _of_fault(parity, *parity.first_fault, (one, other), facts)
    steps = _steps(parity, (one, other))
    if steps is not None:
        yield steps


def _of_fault(
    parity: Parity, step: int, fault: Difference, readers: tuple[StepReader, StepReader], facts: Facts
) -> Iterator[ParityFinding]:
    numbers = [one.step for one in parity.steps]
    if _is_one_of(fault, parity.initial):
        yield _names(parity.initial) or _initial(parity.initial, fault)
    elif (read := parity.records.get(step)) is not None and _is_one_of(fault, read):
        yield _records(read, step, readers, parity.initial.sides, facts)
    elif _is_one_of(fault, parity.metrics):
        yield of_evaluation(parity, facts, step) or _first_difference(parity, step, fault, "metric")
    elif parity.answers is not None and _is_one_of(fault, parity.answers):
        yield _first_difference(parity, step, fault, "prediction")
    else:
        index = numbers.index(step)
        state = StepState(step, _variables(*readers, numbers[index - 1] if index else 0), _variables(*readers, step))
        yield from _of_step(parity, index, state, fault, facts)


def _is_one_of(fault: Difference, comparison: Comparison) -> bool:
    return any(fault is one for one in comparison.faults)


def _of_step(parity: Parity, index: int, state: StepState, fault: Difference, facts: Facts) -> Iterator[ParityFinding]:
    """Yield what the two did otherwise in the first step after which they are not the same."""
    step, sides = parity.steps[index], parity.initial.sides
    numbers = {one.name: one for one in parity.numbers[step.step].faults}
    alike = state.began_alike
    if "loss" in numbers and alike:
        yield of_loss(parity, index, state, facts) or _first_difference(parity, step.step, numbers["loss"], "loss")
        return
    if "learning_rate" in numbers:
        yield _rates(parity, index)
        return
    rest = list(step.variables.faults)
    if alike and (statistics := [one for one in rest if kind_of(one.name) == "statistics"]):
        yield of_statistics(sides, state, statistics)
        rest = [one for one in rest if one not in statistics]
        if not rest:
            return
        fault = max(rest, key=lambda one: (one.kind != "value", one.relative))
    # No optimizer explains counters.
    found = None
    if all(_kind(parity, one) in ("weight", "slot") for one in rest):
        found = of_options(sides, state, facts, first=index == 0)
        found = found or (of_update(parity, index, state, facts) if alike else None)
    if found is None:
        told = _is_one_of(fault, parity.numbers[step.step])
        kind = fault.name.replace("_", " ") if told else _kind(parity, fault)
        factor = factor_of_changes(state) if alike else None
        found = _first_difference(parity, step.step, fault, kind, factor)
    yield found


def _kind(parity: Parity, fault: Difference) -> str:
    """Return what a variable is; a number that is counted is no weight."""
    _, dtype = next((side[fault.name] for side in parity.arrays.values() if fault.name in side), ((), ""))
    kind = _KINDS[kind_of(fault.name)]
    return kind if dtype.startswith(("float", "bfloat")) else "variable"


def _first_difference(
    parity: Parity, step: int, fault: Difference, kind: str, factor: float | None = None
) -> ParityFinding:
    """Return what is told where no cause is certain: a measurement, and no guess.

    Args:
        parity: the comparison.
        step: the first one that is not equal.
        fault: its largest difference.
        kind: what it is, see `ParityFinding`.
        factor: how many times as long as the second side's every change of a weight is in the first side.
    """
    sides = parity.initial.sides
    sized = fault.sized and math.isfinite(fault.absolute)
    name = kind if fault.name.replace("_", " ") == kind else f"{kind} {fault.name.removeprefix('predictions ')}"
    if sized:
        at = f"[{', '.join(map(str, fault.index))}]" if fault.index else ""
        told = f"{name}{at} is {fault.first:.7g} in {sides[0]}, {fault.second:.7g} in {sides[1]}: they differ by "
        told += f"{fault.absolute:.3g} (relative {fault.relative:.3g})"
        if fault.size > 1:
            told += f"; {fault.count} of {fault.size} elements differ, by {fault.largest_absolute:.3g} at most"
    else:
        told = f"{kind} {fault.message}"
    if factor is not None:
        told += f"; every weight's change in {sides[0]} is {factor:.4g} times that in {sides[1]}"
    return ParityFinding(
        name=FIRST_DIFFERENCE,
        step=step,
        message=f"step {step}, {told}",
        variable=fault.name,
        kind=kind,
        size=fault.largest_absolute if sized else None,
    )


def _rates(parity: Parity, index: int) -> ParityFinding:
    step, sides = parity.steps[index], parity.initial.sides
    return ParityFinding(
        name="learning rate",
        step=step.step,
        message=f"at step {step.step} it is {step.learning_rates[0]:.6g} in {sides[0]}, {step.learning_rates[1]:.6g} "
        f"in {sides[1]}",
        hint="the schedule, and whether it is asked before or after the step is counted",
    )


def _variables(one: StepReader, other: StepReader, step: int) -> Any:
    return tuple(side.variables(step) if step else side.initial() for side in (one, other))


def _names(initial: Comparison) -> ParityFinding | None:
    found = [d for d in initial.faults if d.kind in ("missing", "shape", "dtype")]
    if not found:
        return None
    return ParityFinding(
        name="variables",
        message="; ".join(d.message for d in found[:4]) + (f"; and {len(found) - 4} more" if len(found) > 4 else ""),
        hint="layers' names and sizes, and the mapping of variables if one was given",
    )


def _initial(initial: Comparison, worst: Difference) -> ParityFinding:
    told = f"they start from other values: {worst.message}"
    if all(" @" in fault.name for fault in initial.faults):
        return ParityFinding(name="optimizer options", message=f"of what is kept beside the weights {told}", hint=HINT)
    return ParityFinding(name="initial values", message=told)


def _records(
    read: Comparison, step: int, readers: tuple[StepReader, StepReader], sides: tuple[str, str], facts: Facts
) -> ParityFinding:
    first = read.faults[0]
    hint = "the input functions, their seeds, and how they are sharded"
    if first.kind != "value":
        return ParityFinding(name="records", step=step, message=f"step {step}: {first.message}", hint=hint)
    task, batch = batch_of(first.name)
    mine, yours, _ = batches_alike(*readers, facts.batches_per_step)
    read_by = [Counter(batches[task][batch]) for batches in (mine, yours)]
    side = None
    if first.size == 1:
        told = "the batch is not that of the other side"
    elif read_by[0] == read_by[1]:
        told = f"the same {first.size} records in another order"
    else:
        missing = sum((read_by[0] - read_by[1]).values())
        told = f"{missing} of {first.size} are not those of the other side"
        for number in (0, 1):
            own = read_by[number] - read_by[1 - number]
            twice = sum(count for record, count in own.items() if read_by[number][record] > 1)
            if twice:
                side = sides[number]
                told = f"{side} reads {counted(twice, 'record')} twice; {told}"
    return ParityFinding(name="records", step=step, side=side, message=f"step {step}, {first.name}: {told}", hint=hint)


def _steps(parity: Parity, readers: tuple[StepReader, StepReader]) -> ParityFinding | None:
    if not (parity.only or parity.is_short) or not (parity.steps or parity.initial.alike):
        return None  # of other variables both cannot make the same steps, and that is told
    otherwise = _counted_otherwise(parity, readers)
    if otherwise is not None:
        return otherwise
    told = []
    for engine in dict.fromkeys(engine for engine, _ in parity.only):
        made = [step for by, step in parity.only if by == engine]
        several = f"{counted(len(made), 'step')}, the first of them {min(made)}"
        told.append(f"{engine} alone has made {several if len(made) > 1 else f'step {made[0]}'}")
    if parity.is_short:
        asked = f" of the {parity.asked} that were asked for" if parity.asked else ""
        both = len(parity.steps)
        told.append(f"{counted(both, 'step')}{asked} {'was' if both == 1 else 'were'} made by both")
    last = parity.steps[-1].step if parity.steps else 0
    hint = "data that end, hooks and callbacks that stop training, the steps that each side counts"
    return ParityFinding(name="steps", step=last, message="; ".join(told), hint=hint)


def _counted_otherwise(parity: Parity, readers: tuple[StepReader, StepReader]) -> ParityFinding | None:
    """Of a global step that is not one more after each step."""
    pairs = list(zip(*(reader.steps for reader in readers), strict=False))
    if all(one == other for one, other in pairs):
        return None
    told = []
    begun = [
        f"{engine} begins at step {int(at)}"
        for engine, reader in zip(parity.initial.sides, readers, strict=True)
        if (at := reader.initial().get(GLOBAL_STEP, 0))
    ]
    if begun:
        return ParityFinding(
            name="steps",
            message=f"the steps do not correspond: {', '.join(begun)}",
            hint="a model that was trained before: build and compile a new one, or set its optimizer's iterations to 0",
        )
    for engine, reader in zip(parity.initial.sides, readers, strict=True):
        some = ", ".join(map(str, reader.steps[:4])) + (", …" if len(reader.steps) > 4 else "")
        told.append(f"{some} in {engine}")
    return ParityFinding(
        name="steps",
        step=parity.steps[-1].step if parity.steps else 0,
        message=f"the steps do not correspond: the global step after each is {'; '.join(told)}",
        hint="what counts the global step: minimize and apply_gradients do so once for each call that is given "
        "global_step, a Keras optimizer in each apply_gradients",
    )

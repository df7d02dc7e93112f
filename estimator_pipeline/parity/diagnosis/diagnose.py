"""The cause of a difference of two trainings, where their records prove it. NumPy only.

Each recorded step starts with the state after the previous step. At the first step that differs, both trainings started
from the same state, and the difference in that step identifies the cause:

================== ================================================================================================
name               how it is known
================== ================================================================================================
variables          a name, a shape or a type that only one side has; two that have each other's gradients
initial values     different values before the first step
records            different records were read; a record twice, or in a different order
BatchNorm          moving means and variances that one side does not update, or that differ after the same loss; an
                   evaluation whose loss is that of layers in training mode
optimizer options  a different kind, different options, slots with different initial values, as recorded
learning rate      the recorded rates differ; or the gradients are the same, by the slots, and the changes of
                   all weights differ by one factor
clipping           gradients of one direction, the shorter one with the norm to which it is clipped
loss scaling       gradients, and the losses if these differ, that differ by one factor
steps              one side ran more steps or counts them differently, or both ran fewer than requested
first difference   all others, where no cause is certain: the first step, what differs first, by how much
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
from estimator_pipeline.utils.text import counted, few
from estimator_pipeline.utils.variable_names import GLOBAL_STEP

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["FIRST_DIFFERENCE", "Facts", "ParityFinding", "diagnose"]

FIRST_DIFFERENCE = "first difference"
_KINDS = {"weights": "weight", "statistics": "moving statistic", "slots": "slot", "step": "variable"}


def diagnose(parity: Parity, first: StepReader, second: StepReader, facts: Facts) -> Iterator[ParityFinding]:
    """Yield the causes of the differences, or the first difference; nothing if all are within tolerance.

    Args:
        parity: the comparison.
        first: the record of its first side.
        second: the record of its second side.
        facts: metadata beside the records.
    """
    if parity.first_fault is not None:
        yield from _of_fault(parity, *parity.first_fault, (first, second), facts)
    steps = _steps(parity, (first, second))
    if steps is not None:
        yield steps


def _of_fault(
    parity: Parity, step: int, fault: Difference, readers: tuple[StepReader, StepReader], facts: Facts
) -> Iterator[ParityFinding]:
    numbers = [step_parity.step for step_parity in parity.steps]
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
    return any(fault is difference for difference in comparison.faults)


def _of_step(parity: Parity, index: int, state: StepState, fault: Difference, facts: Facts) -> Iterator[ParityFinding]:
    """Yield the findings for the first step that differs."""
    step, sides = parity.steps[index], parity.initial.sides
    numbers = {difference.name: difference for difference in parity.numbers[step.step].faults}
    alike = state.began_alike
    if "loss" in numbers and alike:
        yield of_loss(parity, index, state, facts) or _first_difference(parity, step.step, numbers["loss"], "loss")
        return
    if "learning_rate" in numbers:
        yield _rates(parity, index)
        return
    rest = list(step.variables.faults)
    if alike and (statistics := [difference for difference in rest if kind_of(difference.name) == "statistics"]):
        yield of_statistics(sides, state, statistics)
        rest = [difference for difference in rest if difference not in statistics]
        if not rest:
            return
        fault = max(rest, key=lambda difference: (difference.kind != "value", difference.relative))
    # No optimizer explains counters.
    finding = None
    if all(_kind(parity, difference) in ("weight", "slot") for difference in rest):
        finding = of_options(sides, state, facts, first=index == 0)
        finding = finding or (of_update(parity, index, state, facts) if alike else None)
    if finding is None:
        is_number = _is_one_of(fault, parity.numbers[step.step])
        kind = fault.name.replace("_", " ") if is_number else _kind(parity, fault)
        factor = factor_of_changes(state) if alike else None
        finding = _first_difference(parity, step.step, fault, kind, factor)
    yield finding


def _kind(parity: Parity, fault: Difference) -> str:
    """Return the kind of a variable; an integer is never a weight."""
    _, dtype = next((side[fault.name] for side in parity.arrays.values() if fault.name in side), ((), ""))
    kind = _KINDS[kind_of(fault.name)]
    return kind if dtype.startswith(("float", "bfloat")) else "variable"


def _first_difference(
    parity: Parity, step: int, fault: Difference, kind: str, factor: float | None = None
) -> ParityFinding:
    """Return the finding where no cause is certain: a measurement, not a guess.

    Args:
        parity: the comparison.
        step: the first step that differs.
        fault: its largest difference.
        kind: its kind, see `ParityFinding`.
        factor: ratio of the changes of all weights, first side / second side.
    """
    sides = parity.initial.sides
    sized = fault.sized and math.isfinite(fault.absolute)
    name = kind if fault.name.replace("_", " ") == kind else f"{kind} {fault.name.removeprefix('predictions ')}"
    if sized:
        at = f"[{', '.join(map(str, fault.index))}]" if fault.index else ""
        message = f"{name}{at} is {fault.first:.7g} in {sides[0]}, {fault.second:.7g} in {sides[1]}: they differ by "
        message += f"{fault.absolute:.3g} (relative {fault.relative:.3g})"
        if fault.size > 1:
            message += f"; {fault.count} of {fault.size} elements differ, by {fault.largest_absolute:.3g} at most"
    else:
        message = f"{kind} {fault.message}"
    if factor is not None:
        message += f"; every weight's change in {sides[0]} is {factor:.4g} times that in {sides[1]}"
    return ParityFinding(
        name=FIRST_DIFFERENCE,
        step=step,
        message=f"step {step}, {message}",
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
        hint="the schedule, and whether it is evaluated before or after the step is counted",
    )


def _variables(first: StepReader, second: StepReader, step: int) -> Any:
    return tuple(side.variables(step) if step else side.initial() for side in (first, second))


def _names(initial: Comparison) -> ParityFinding | None:
    mismatches = [d for d in initial.faults if d.kind in ("missing", "shape", "dtype")]
    if not mismatches:
        return None
    return ParityFinding(
        name="variables",
        message=few((d.message for d in mismatches), separator="; "),
        hint="names and sizes of the layers, and the mapping of variables if there is one",
    )


def _initial(initial: Comparison, worst: Difference) -> ParityFinding:
    message = f"they start from different values: {worst.message}"
    if all(" @" in fault.name for fault in initial.faults):
        return ParityFinding(name="optimizer options", message=f"optimizer slots: {message}", hint=HINT)
    return ParityFinding(name="initial values", message=message)


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
        message = "the batch differs from that of the other side"
    elif read_by[0] == read_by[1]:
        message = f"the same {first.size} records in a different order"
    else:
        missing = sum((read_by[0] - read_by[1]).values())
        message = f"{missing} of {first.size} differ from those of the other side"
        for number in (0, 1):
            extra = read_by[number] - read_by[1 - number]
            twice = sum(count for record, count in extra.items() if read_by[number][record] > 1)
            if twice:
                side = sides[number]
                message = f"{side} reads {counted(twice, 'record')} twice; {message}"
    return ParityFinding(
        name="records", step=step, side=side, message=f"step {step}, {first.name}: {message}", hint=hint
    )


def _steps(parity: Parity, readers: tuple[StepReader, StepReader]) -> ParityFinding | None:
    if not (parity.only or parity.is_short) or not (parity.steps or parity.initial.alike):
        return None  # different variables are reported already, and prevent equal steps
    finding = _different_counts(parity, readers)
    if finding is not None:
        return finding
    messages = []
    for engine in dict.fromkeys(engine for engine, _ in parity.only):
        steps = [step for by, step in parity.only if by == engine]
        several = f"{counted(len(steps), 'step')}, the first is {min(steps)}"
        messages.append(f"only {engine} ran {several if len(steps) > 1 else f'step {steps[0]}'}")
    if parity.is_short:
        asked = f" of the {parity.asked} requested" if parity.asked else ""
        both = len(parity.steps)
        messages.append(f"{counted(both, 'step')}{asked} {'was' if both == 1 else 'were'} run by both")
    last = parity.steps[-1].step if parity.steps else 0
    hint = "data that run out, hooks and callbacks that stop training, the steps that each side counts"
    return ParityFinding(name="steps", step=last, message="; ".join(messages), hint=hint)


def _different_counts(parity: Parity, readers: tuple[StepReader, StepReader]) -> ParityFinding | None:
    """Return the finding for a global step that does not grow by one in each step."""
    pairs = list(zip(*(reader.steps for reader in readers), strict=False))
    if all(first == second for first, second in pairs):
        return None
    counts = []
    begun = [
        f"{engine} starts at step {int(at)}"
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
        counts.append(f"{some} in {engine}")
    return ParityFinding(
        name="steps",
        step=parity.steps[-1].step if parity.steps else 0,
        message=f"the steps do not correspond: the global step after each is {'; '.join(counts)}",
        hint="what increments the global step: minimize and apply_gradients do so once for each call with "
        "global_step, a Keras optimizer in each apply_gradients",
    )

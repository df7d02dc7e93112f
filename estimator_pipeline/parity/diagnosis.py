"""What a difference of two trainings comes from, by name: arithmetic on what they have recorded. NumPy only.

Every step of a record begins with the state after the step before. At the first step where two trainings part they
began it with the same state, and what they did otherwise in it tells what it was:

========================= ==========================================================================================
name                      how it shows at that step
========================= ==========================================================================================
variables                 a name, a shape or a type that one side alone has; two that have each other's gradients
initial values            other values before the first step
records                   other records were read; one of them twice, or in another order
learning rate             both tell it, and not the same; or every weight's change is as long as with the rate of the
                          step before or after
forward pass              another loss from the same weights and records: layers that were swapped, a regulariser
moving statistics         one side's moving mean and variance stand still, or move by another share (momentum); or one
                          side corrects the variance for its sample (Bessel), as Keras 2's fused kernel does and Keras 3
                          does not; or they move otherwise in the first step where they part
random numbers            another loss where one side or both draw random numbers of their own
loss scaling              the same direction; one gradient is as many times as long, such as there are replicas
clipping                  one gradient has exactly the length that clipping allows and the other is shorter, in another
                          direction: it was clipped on each replica, before the sum; or longer: it was not clipped
optimizer                 another kind, other options, slots that begin otherwise; an update that is made twice; weights
                          that are brought nearer to 0 (l1) or set to their averages; or the same gradients, as the
                          slots tell, and another use of them
rounding                  a gradient of which rounding alone is left, such as that of a bias before BatchNormalization;
                          or gradients that lack a record's share from a few units of a layer on, as at a ReLU's
                          kink; or a little that grows with each step
gradient                  none of these: other gradients from the same loss, or none for a layer
updates                   variables that no gradient moves, such as counters, change otherwise
evaluation                the same training, other metrics: one side evaluates as it trains, or averages of its weights,
                          or other records
predictions               the same training, other answers
steps                     one side made more of them or counts them otherwise, or both fewer than asked for
========================= ==========================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.launch.plan import counted
from estimator_pipeline.parity.compare import Comparison, Difference
from estimator_pipeline.parity.extra_updates import averages_among, of_averages_kept
from estimator_pipeline.parity.findings import (
    CLOSE,
    SAME,
    Facts,
    Finding,
    Step,
)  # fmt: skip
from estimator_pipeline.parity.names import GLOBAL_STEP
from estimator_pipeline.parity.rates import Later, told_rate
from estimator_pipeline.parity.records import StepReader, batch_of, batches_alike
from estimator_pipeline.parity.roundings import of_sixteen_bits, without_a_cause
from estimator_pipeline.parity.rows import other_rows
from estimator_pipeline.parity.statistics import of_statistics
from estimator_pipeline.parity.tolerances import kind_of
from estimator_pipeline.parity.updates import of_update, told_random

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["Facts", "Finding", "diagnose"]

# Of what is named one by one.
_SHOWN = 4
# Losses of two modes are two, where they differ by more than sums in another order; and a loss is that of a mode, where
# it is so many times nearer to it.
_OF_SUMS, _NEARER = 1e-5, 0.2


def diagnose(parity: Parity, one: StepReader, other: StepReader, facts: Facts) -> Iterator[Finding]:
    """What the differences come from; nothing where all is within its tolerances.

    Args:
        parity: the comparison.
        one: the record of its first side.
        other: of its second side.
        facts: what is known beside the records.
    """
    if parity.first_fault is not None:
        yield from _of_fault(parity, one, other, facts)
    steps = _steps(parity, (one, other))
    if steps is not None:
        yield steps


def _steps(parity: Parity, readers: tuple[StepReader, StepReader]) -> Finding | None:
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
    mend = "data that end, hooks and callbacks that stop training, the steps that each side counts"
    return Finding(name="steps", step=last, message="; ".join(told), mend=mend)


def _counted_otherwise(parity: Parity, readers: tuple[StepReader, StepReader]) -> Finding | None:
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
        return Finding(
            name="steps",
            message=f"the steps do not correspond: {', '.join(begun)}",
            mend="a model that was trained before: build and compile a new one, or set its optimizer's iterations to 0",
        )
    for engine, reader in zip(parity.initial.sides, readers, strict=True):
        some = ", ".join(map(str, reader.steps[:4])) + (", …" if len(reader.steps) > 4 else "")
        told.append(f"{some} in {engine}")
    return Finding(
        name="steps",
        step=parity.steps[-1].step if parity.steps else 0,
        message=f"the steps do not correspond: the global step after each is {'; '.join(told)}",
        mend="what counts the global step: minimize and apply_gradients do so once for each call that is given "
        "global_step, a Keras optimizer in each apply_gradients",
    )


def _of_fault(parity: Parity, one: StepReader, other: StepReader, facts: Facts) -> Iterator[Finding]:
    sides = parity.initial.sides
    before = [found for found in (_names(parity.initial), _initial(parity.initial)) if found is not None]
    if before:
        yield before[0]
        return
    numbers = list(parity.steps)
    first: Step | None = None
    for index, step in enumerate(numbers):
        at = step.step
        if (read := parity.records.get(at)) is not None and not read.equal:
            yield _records(read, at, (one, other), sides, facts)
            return
        state = Step(
            at,
            _variables(one, other, numbers[index - 1].step if index else 0),
            _variables(one, other, at),
        )
        first = first or state

        def later(index: int = index, state: Step = state) -> Step | None:
            if index + 1 >= len(numbers):
                return None
            following = numbers[index + 1].step
            return Step(following, state.after, _variables(one, other, following))

        def records(index: int = index) -> int:
            mine, _, count = batches_alike(one, other, facts.batches_per_step)
            return sum(len(batch) for task in mine.values() for batch in task[index * count : (index + 1) * count])

        found = list(_of_step(parity, index, state, first, facts, later, records))
        if found:
            yield from found
            return
        if not (parity.numbers[at].equal and step.variables.equal):
            yield without_a_cause(state, sides)
            return
    last = numbers[-1].step if numbers else 0
    states = [side.variables(last, averages_among) if last else {} for side in (one, other)]
    averages = of_averages_kept(sides, last, states)
    if not parity.metrics.equal:
        yield _evaluation(parity, facts, last, averages)
    worst = None if parity.answers is None else parity.answers.largest_fault
    if worst is not None:
        told = f"the trained weights are the same, the answers to the same records are not: {worst.message}"
        mend = "what PREDICT mode does: layers that were swapped, a softmax on one side, training mode"
        if worst.kind == "shape":
            mend = "the shape that each gives: an axis of one element that one side squeezes; the output that is named"
        yield Finding(
            name="predictions",
            step=last,
            side=None if averages is None else averages.side,
            message=told if averages is None else f"{told}; {averages.message}",
            mend=mend if averages is None else averages.mend,
        )


def _variables(one: StepReader, other: StepReader, step: int) -> Any:
    return tuple(side.variables(step) if step else side.initial() for side in (one, other))


def _names(initial: Comparison) -> Finding | None:
    found = [d for d in initial.faults if d.kind in ("missing", "shape", "dtype")]
    if not found:
        return None
    return Finding(
        name="variables",
        message="; ".join(d.message for d in found[:4]) + (f"; and {len(found) - 4} more" if len(found) > 4 else ""),
        mend="layers' names and sizes, and the mapping of variables if one was given",
    )


def _initial(initial: Comparison) -> Finding | None:
    worst = initial.largest_fault
    if worst is None:
        return None
    if all(" @" in fault.name for fault in initial.faults):
        return Finding(
            name="optimizer",
            message=f"what they keep beside the weights begins otherwise: {_brief(worst, initial.sides)}",
            mend="initial_accumulator_value and the like, named in both; docs/keras.md has what V1 and Keras do "
            "otherwise",
        )
    return Finding(name="initial values", message=f"they start from other values: {worst.message}")


def _records(
    read: Comparison, step: int, readers: tuple[StepReader, StepReader], sides: tuple[str, str], facts: Facts
) -> Finding:
    first = read.faults[0]
    mend = "the input functions, their seeds, and how they are sharded"
    if first.kind != "value":
        return Finding(name="records", step=step, message=f"step {step}: {first.message}", mend=mend)
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
    return Finding(name="records", step=step, side=side, message=f"step {step}, {first.name}: {told}", mend=mend)


def _of_step(
    parity: Parity, index: int, state: Step, first: Step, facts: Facts, later: Later, records: Callable[[], int]
) -> Iterator[Finding]:
    """What the two did otherwise in one step that they began alike, of so many records."""
    step = parity.steps[index]
    sides = parity.initial.sides
    numbers = {d.name: d for d in parity.numbers[step.step].faults}
    if "learning_rate" in numbers:
        yield told_rate(parity, index)
        return
    if facts.sixteen_bits and (found := of_sixteen_bits(parity, index, state)) is not None:
        yield found
        return
    if "loss" in numbers and any(facts.random):
        yield Finding(
            name="random numbers",
            step=step.step,
            message=f"from the same weights and records {sides[0]} has the loss {step.losses[0]:.7g} and {sides[1]} "
            f"{step.losses[1]:.7g}, and {told_random(sides, facts)}, other ones in each",
            mend="dropout's rate and the like: 0 in both, to compare the rest; what else differs in the forward pass "
            "shows then alone",
        )
    elif "loss" in numbers and step.variables.equal and any(map(np.any, state.changes(0, "weights").values())):
        yield Finding(
            name="forward pass",
            step=step.step,
            message=f"from the same weights and records {sides[0]} tells the loss {step.losses[0]:.7g} and {sides[1]} "
            f"{step.losses[1]:.7g} ({_ratio_told(step.losses, records())}), and both change the weights alike: what is "
            "told is not what they train by",
            mend="what each tells: a mean over the steps so far, the loss of a replica or the sum of all, a part "
            "(regularisers, penalties) that one side leaves out of it",
        )
    elif "loss" in numbers:
        yield Finding(
            name="forward pass",
            step=step.step,
            message=f"from the same weights and records {sides[0]} has the loss {step.losses[0]:.7g} and {sides[1]} "
            f"{step.losses[1]:.7g} ({_ratio_told(step.losses, records())}){other_rows(sides, state)}",
            mend="the order of the layers, activations, regularisers; how the loss is reduced (its sum or its mean "
            "over the batch), weights of records, label smoothing, what is scaled by the number of replicas; layers in "
            "training mode on one side alone, BatchNormalization's epsilon; vocabularies and their order; and the "
            "mapping of variables if one was given",
        )
    statistics = of_statistics(parity, index, state, first, same_loss="loss" not in numbers)
    if statistics is not None:
        yield statistics
    moved = _of_updates(parity, index, state, facts)
    if moved is not None:
        yield moved
        state = state.without(_unmoved(state, facts))
    of_weights = any(
        kind_of(fault.name) in ("weights", "slots") and fault.name.partition(" @")[0] in state.after[0]
        for fault in step.variables.faults
    )
    if moved is not None and not of_weights:
        return
    if "loss" in numbers or (statistics is not None and not of_weights):
        return
    found = of_update(parity, index, state, facts, later)
    if found is not None:
        yield found


def _unmoved(state: Step, facts: Facts) -> set[str]:
    """What no gradient moves: whole numbers, and what both sides call so."""
    whole = {name for name, value in state.after[0].items() if value.dtype.kind in "iub" and name != GLOBAL_STEP}
    return whole | {name for name in facts.untrained or () if kind_of(name) == "weights"}


def _of_updates(parity: Parity, index: int, state: Step, facts: Facts) -> Finding | None:
    """Counters, averages and the like that part in this step."""
    unmoved = _unmoved(state, facts)
    faults = [fault for fault in parity.steps[index].variables.faults if fault.name in unmoved]
    if not faults:
        return None
    sides = parity.initial.sides
    told = "; ".join(_brief(fault, sides) for fault in faults[:_SHOWN])
    return Finding(
        name="updates",
        step=state.step,
        message=f"{len(faults)} of {len(unmoved)} variables that no gradient moves change otherwise: {told}",
        mend="what updates them: operations that one side does not run, runs twice in a step, or with another decay",
    )


def _brief(fault: Difference, sides: tuple[str, str]) -> str:
    """A difference in a few words, without its tolerance."""
    if fault.kind != "value" or isinstance(fault.one, str | bytes):
        return fault.message
    at = f"[{', '.join(map(str, fault.index))}]" if fault.index else ""
    return f"{fault.name}{at} is {fault.one:.7g} in {sides[0]}, {fault.other:.7g} in {sides[1]}"


def _evaluation(parity: Parity, facts: Facts, step: int, averages: Finding | None) -> Finding:
    sides = parity.initial.sides
    faults = sorted(parity.metrics.faults, key=lambda fault: (fault.kind == "value", -fault.relative))
    # Their values are in the verdict.
    told = f"the trained weights are the same, the metrics are not: {', '.join(one.name for one in faults[:_SHOWN])}"
    told += f", and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    mend = "what EVAL mode does: layers in training mode, moving averages of weights, other records, other metrics"
    side = None
    if averages is not None:
        side, told, mend = averages.side, f"{told}; {averages.message}", averages.mend
    for name, (inferred, trained) in facts.losses.items():
        if not all(name in parity.finals[engine] for engine in sides):
            continue
        pair = [float(parity.finals[engine][name]) for engine in sides]
        for number in (0, 1):
            if _is_of(pair[number], trained, inferred) and not _is_of(pair[1 - number], trained, inferred):
                side = sides[number]
                values = _told_apart(pair[number], trained, inferred)
                told = (
                    f"{side} evaluates in training mode: its loss {values[0]} is that of layers that train "
                    f"({values[1]}), not that of layers that infer ({values[2]})"
                )
                mend = "`training` is True only where mode is TRAIN"
    return Finding(name="evaluation", step=step, side=side, message=told, mend=mend)


def _is_of(value: float, mode: float, other: float) -> bool:
    """Whether a loss is that of one mode, and not that of the other, however little lies between the two."""
    largest = max(abs(mode), abs(other))
    if abs(mode - other) <= _OF_SUMS * largest or abs(value - mode) > CLOSE * largest:
        return False
    return abs(value - mode) < _NEARER * abs(value - other)


def _told_apart(*values: float) -> list[str]:
    """Values with as many digits as it takes to tell the last two apart."""
    six = [f"{value:.6g}" for value in values]
    return six if six[-1] != six[-2] else [f"{value:.9g}" for value in values]


def _ratio_told(losses: tuple[float, float], records: int) -> str:
    if not losses[1]:
        return "one is 0"
    ratio = losses[0] / losses[1]
    told = f"{ratio:.4g} times" if abs(ratio - 1) > SAME else f"apart by {abs(ratio - 1):.2g} of it"
    if records > 1 and ratio and any(abs(times / records - 1) < CLOSE for times in (ratio, 1 / ratio)):
        told += ": as many as there are records in the batch, as a sum is against a mean"
    return told

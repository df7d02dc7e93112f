"""What a difference of two trainings comes from, by name: arithmetic on what they have recorded. NumPy only.

Every step of a record begins with the state after the step before. At the first step where two trainings part they
began it with the same state, and what they did otherwise in it tells what it was:

========================= ==========================================================================================
name                      how it shows at that step
========================= ==========================================================================================
variables                 a name, a shape or a type that one side alone has
initial values            other values before the first step
records                   other records were read; one of them twice, or in another order
learning rate             both tell it, and not the same; or every weight's change is as long as with the rate of the
                          step before or after
forward pass              another loss from the same weights and records: layers that were swapped, a regulariser
moving statistics         one side's moving mean and variance stand still
loss scaling              the same direction; one gradient is as many times as long as there are replicas
clipping                  one gradient has exactly the length that clipping allows and the other is shorter, in another
                          direction: it was clipped on each replica, before the sum
optimizer                 the same slots, so the same gradients, and another change of the weights: epsilon, or the rate
gradient                  none of these: other gradients from the same loss
evaluation                the same training, other metrics: one side evaluates as it trains, or other records
predictions               the same training, other answers
========================= ==========================================================================================
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.parity.compare import Comparison
from estimator_pipeline.parity.records import StepReader
from estimator_pipeline.parity.tolerances import kind_of

if TYPE_CHECKING:
    from estimator_pipeline.parity.result import Parity

__all__ = ["Facts", "Finding", "diagnose"]

# Gradients of one step, computed by both from the same state: rounding is well below, and a fault above.
SAME = 1e-4
# Lengths and ratios that are told by a fault: they are measured on changes of float32 weights.
CLOSE = 2e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the two trainings beside their records.

    Attributes:
        replicas: how many share the global batch.
        batches_per_step: how many of them read from one pipeline.
        clip_norm: the global norm to which the summed gradient is to be clipped.
        beta_1: Adam's decay of the first moment.
        losses: a metric -> what it is with Keras's final weights, by the layers as they infer and as they train.
    """

    replicas: int = 1
    batches_per_step: int = 1
    clip_norm: float | None = None
    beta_1: float = 0.9
    losses: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What a difference comes from.

    Attributes:
        name: see the table of this module.
        message: what was seen, in a sentence.
        step: where; 0 before the first.
        side: which of the two, where that can be told.
        mend: what to look at.
    """

    name: str
    message: str
    step: int = 0
    side: str | None = None
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" + (f"\n  look at: {self.mend}" if self.mend else "")


@dataclasses.dataclass(frozen=True)
class _Step:
    """One step of both sides: the state that they began it with, and the one after it."""

    step: int
    before: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]
    after: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]

    def changes(self, side: int, kind: str, ending: str = "") -> dict[str, np.ndarray]:
        """Variable -> its change, as float64, of those that both sides have."""
        both = self.after[0].keys() & self.after[1].keys()
        return {
            name: value.astype(np.float64) - self.before[side][name].astype(np.float64)
            for name, value in self.after[side].items()
            if name in both and kind_of(name) == kind and value.dtype.kind == "f" and name.endswith(ending)
        }


def diagnose(parity: Parity, one: StepReader, other: StepReader, facts: Facts) -> Iterator[Finding]:
    """What the differences come from; nothing where all is within its tolerances.

    Args:
        parity: the comparison.
        one: the record of its first side.
        other: of its second side.
        facts: what is known beside the records.
    """
    fault = parity.first_fault
    if fault is None:
        return
    sides = parity.initial.sides
    before = [found for found in (_names(parity.initial), _initial(parity.initial)) if found is not None]
    if before:
        yield before[0]
        return
    numbers = list(parity.steps)
    for index, step in enumerate(numbers):
        at = step.step
        if (read := parity.records.get(at)) is not None and not read.equal:
            yield _records(read, at, (one, other), sides)
            return
        state = _Step(
            at,
            _variables(one, other, numbers[index - 1].step if index else 0),
            _variables(one, other, at),
        )
        found = list(_of_step(parity, index, state, facts))
        if found:
            yield from found
            return
        if not (parity.numbers[at].equal and step.variables.equal):
            yield Finding(
                name="gradient",
                step=at,
                message=f"they part at step {at} by little, and more with each step: no single cause shows",
                mend="the job's tolerances; TF_DETERMINISTIC_OPS=1; random numbers, such as dropout's seeds",
            )
            return
    last = numbers[-1].step if numbers else 0
    if not parity.metrics.equal:
        yield _evaluation(parity, facts, last)
    if parity.answers is not None and not parity.answers.equal:
        worst = parity.answers.largest_fault
        yield Finding(
            name="predictions",
            step=last,
            message=f"the trained weights are the same, the exported models' answers are not: {worst.message}"
            if worst is not None
            else "",
            mend="what PREDICT mode does: layers that were swapped, a softmax on one side, training mode",
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
    return Finding(name="initial values", message=f"they start from other values: {worst.message}")


def _records(read: Comparison, step: int, readers: tuple[StepReader, StepReader], sides: tuple[str, str]) -> Finding:
    first = read.faults[0]
    mend = "the input functions, their seeds, and how they are sharded"
    if first.kind != "value":
        return Finding(name="records", step=step, message=f"step {step}: {first.message}", mend=mend)
    task, _, batch = first.name.removeprefix("records of ").partition(", batch ")
    counted = [Counter(reader.batches()[task][int(batch) - 1]) for reader in readers]
    side = None
    if counted[0] == counted[1]:
        told = f"the same {first.size} records in another order"
    else:
        missing = sum((counted[0] - counted[1]).values())
        told = f"{missing} of {first.size} are not those of the other side"
        for number in (0, 1):
            own = counted[number] - counted[1 - number]
            twice = sum(count for record, count in own.items() if counted[number][record] > 1)
            if twice:
                side = sides[number]
                told = f"{side} reads {twice} {'record' if twice == 1 else 'records'} twice; {told}"
    return Finding(name="records", step=step, side=side, message=f"step {step}, {first.name}: {told}", mend=mend)


def _of_step(parity: Parity, index: int, state: _Step, facts: Facts) -> Iterator[Finding]:
    """What the two did otherwise in one step that they began alike."""
    step = parity.steps[index]
    sides = parity.initial.sides
    numbers = {d.name: d for d in parity.numbers[step.step].faults}
    if "learning_rate" in numbers:
        yield _told_rate(parity, index)
        return
    still = _moving_statistics(state, sides)
    if "loss" in numbers:
        yield Finding(
            name="forward pass",
            step=step.step,
            message=f"from the same weights and records {sides[0]} has the loss {step.losses[0]:.7g} and {sides[1]} "
            f"{step.losses[1]:.7g} ({_ratio_told(step.losses)})",
            mend="the order of the layers, activations, regularisers, what is scaled by the number of replicas; and "
            "the mapping of variables if one was given",
        )
    if still is not None:
        yield still
    if "loss" in numbers or still is not None:
        return
    found = _of_update(parity, index, state, facts)
    if found is not None:
        yield found


def _told_rate(parity: Parity, index: int) -> Finding:
    step, sides = parity.steps[index], parity.initial.sides
    told = f"{sides[0]} {step.learning_rates[0]:.6g}, {sides[1]} {step.learning_rates[1]:.6g}"
    shift = _shift_of_rates(parity, index)
    return Finding(
        name="learning rate",
        step=step.step,
        message=f"at step {step.step} it is {told}" + (f": {shift}" if shift else ""),
        mend="the schedule, and whether it is asked before or after the step is counted" if shift else "the schedule",
    )


def _shift_of_rates(parity: Parity, index: int) -> str:
    """In words, where one side has the rate of the other's step before."""
    sides, rates = parity.initial.sides, [step.learning_rates for step in parity.steps]
    for side in (0, 1):
        known = [
            (mine[side], theirs[1 - side]) for mine, theirs in zip(rates[index + 1 :], rates[index:], strict=False)
        ]
        pairs = [(mine, theirs) for mine, theirs in known if mine is not None and theirs is not None]
        if len(pairs) >= 2 and all(np.isclose(mine, theirs, rtol=1e-6) for mine, theirs in pairs):
            return f"{sides[side]} is one step late"
    return ""


def _moving_statistics(state: _Step, sides: tuple[str, str]) -> Finding | None:
    changes = [state.changes(side, "statistics") for side in (0, 1)]
    for side in (0, 1):
        still = [
            name for name, change in changes[side].items() if not np.any(change) and np.any(changes[1 - side][name])
        ]
        if still:
            return Finding(
                name="moving statistics",
                step=state.step,
                side=sides[side],
                message=f"{sides[side]} does not update {len(still)} of {len(changes[side])} moving means and "
                f"variances ({', '.join(still[:3])}{', …' if len(still) > 3 else ''})",
                mend="the model's update operations: a model_fn has to run them with its train_op",
            )
    return None


def _of_update(parity: Parity, index: int, state: _Step, facts: Facts) -> Finding | None:
    """From the same state, loss and records: other gradients, or another use of the same."""
    sides, step = parity.initial.sides, state.step
    weights = [state.changes(side, "weights") for side in (0, 1)]
    if _distance(*weights) < SAME:
        return None
    first_moments = [
        state.changes(side, "slots", " @m") or state.changes(side, "slots", " @momentum") for side in (0, 1)
    ]
    slots = [state.changes(side, "slots") for side in (0, 1)]
    if slots[0] and _distance(*slots) < SAME:
        return _optimizer(state, sides, weights)
    gradients = first_moments if first_moments[0] and first_moments[1] else weights
    scale, rest = _scale(*gradients)
    lengths = [_length(one) for one in gradients]
    if rest < CLOSE:
        shifted = _shifted_rate(parity, index, scale) if gradients is weights else None
        if shifted:
            return Finding(
                name="learning rate",
                step=step,
                message=f"every weight's change in {sides[0]} is {scale:.4g} times that in {sides[1]}: {shifted}",
                mend="the schedule, and whether it is asked before or after the step is counted",
            )
        times = scale if scale > 1 else 1 / scale
        longer = sides[0] if scale > 1 else sides[1]
        if facts.replicas > 1 and abs(times / facts.replicas - 1) < CLOSE:
            return Finding(
                name="loss scaling",
                step=step,
                side=longer,
                message=f"{longer}'s gradient is {times:.4g} times the other's, and there are {facts.replicas} "
                "replicas",
                mend="divide the loss of a replica by the global batch, not by its own part of it",
            )
        return Finding(
            name="loss scaling",
            step=step,
            message=f"the same direction, but {longer}'s change of the weights is {times:.4g} times the other's",
            mend="what the loss is divided by (batch, replicas), and the learning rate",
        )
    clipped = _clipping(parity, index, lengths, facts)
    if clipped is not None:
        return clipped
    apart = [
        name for name in gradients[0] if _distance({name: gradients[0][name]}, {name: gradients[1][name]}) >= CLOSE
    ]
    return Finding(
        name="gradient",
        step=step,
        message=f"the same loss, other gradients: {len(apart)} of {len(gradients[0])} variables "
        f"({', '.join(name.partition(' @')[0] for name in apart[:3])}{', …' if len(apart) > 3 else ''}), "
        f"{sides[0]}'s length {lengths[0]:.5g}, {sides[1]}'s {lengths[1]:.5g}",
        mend="what is trained, clipped or left out of the gradient; random numbers, such as dropout's seeds",
    )


def _optimizer(state: _Step, sides: tuple[str, str], weights: list[dict[str, np.ndarray]]) -> Finding:
    epsilons = [_epsilon(state, side) for side in (0, 1)]
    scale, rest = _scale(*weights)
    if all(epsilon is not None for epsilon in epsilons) and rest >= SAME:
        told = f"epsilon is about {epsilons[0]:.1e} in {sides[0]} and {epsilons[1]:.1e} in {sides[1]}"
    elif rest < CLOSE:
        told = f"every change is {scale:.4g} times as long in {sides[0]}: the learning rate"
    else:
        told = "epsilon, or where it stands"
    return Finding(
        name="optimizer",
        step=state.step,
        message=f"the slots are the same, so the gradients are, and the weights change otherwise: {told}",
        mend="the optimizer's options, named in both; docs/keras.md has what V1 and Keras do otherwise",
    )


def _epsilon(state: _Step, side: int) -> float | None:
    """Adam's, from the change d = rate m / (sqrt(v) + epsilon): m / d is a line over sqrt(v), epsilon its offset."""
    after = state.after[side]
    changes = state.changes(side, "weights")
    roots, quotients = [], []
    for name, change in changes.items():
        m, v = after.get(f"{name} @m"), after.get(f"{name} @v")
        if m is None or v is None:
            continue
        # A change that is near the weight's own rounding says little.
        told = np.abs(change) > 1e3 * np.finfo(np.float32).eps * np.abs(after[name].astype(np.float64))
        # With weight decay a weight changes without a gradient too.
        told &= (change != 0) & (m != 0)
        roots.append(np.sqrt(v.astype(np.float64))[told])
        quotients.append(np.abs(m.astype(np.float64)[told] / change[told]))
    x, y = (np.concatenate(parts) if parts else np.zeros(0) for parts in (roots, quotients))
    if x.size < 8:
        return None
    # Relative errors are alike, so each is weighed by its size.
    slope, offset = np.polyfit(x, y, 1, w=1 / y)
    return max(float(offset / slope), 0.0) if slope > 0 else None


def _shifted_rate(parity: Parity, index: int, scale: float) -> str | None:
    """In words, where the changes' ratio is that of the rates of two neighbouring steps, as one side tells them."""
    sides = parity.initial.sides
    rates = [step.learning_rates for step in parity.steps]
    for side in (0, 1):
        for shift, word in ((-1, "late"), (1, "early")):
            if not 0 <= index + shift < len(rates):
                continue
            own, near = rates[index][side], rates[index + shift][side]
            if not own or not near or own == near:
                continue
            expected = near / own if side == 1 else own / near
            if abs(scale / expected - 1) < CLOSE:
                return f"{sides[1 - side]} has the learning rate of another step; it is one step {word}"
    return None


def _clipping(parity: Parity, index: int, lengths: list[float], facts: Facts) -> Finding | None:
    if facts.clip_norm is None or facts.replicas < 2 or index > 0:
        return None
    sides, step = parity.initial.sides, parity.steps[index]
    # At the first step a slot or a change is the gradient times one of these: 1 is V1's velocity, the learning rate
    # SGD's change and Keras's velocity, the last Adam's first moment.
    units = [1.0, *(rate for rate in step.learning_rates if rate), 1 - facts.beta_1]
    for unit in units:
        norms = [length / unit for length in lengths]
        for side in (0, 1):
            if abs(norms[1 - side] / facts.clip_norm - 1) < CLOSE and norms[side] < norms[1 - side] * (1 - CLOSE):
                return Finding(
                    name="clipping",
                    step=step.step,
                    side=sides[side],
                    message=f"{sides[1 - side]}'s gradient has the length {norms[1 - side]:.5g} that it is clipped to, "
                    f"{sides[side]}'s {norms[side]:.5g} and another direction: it was clipped on each of "
                    f"{facts.replicas} replicas, before the sum",
                    mend="clip after the gradients are summed",
                )
    return None


def _evaluation(parity: Parity, facts: Facts, step: int) -> Finding:
    worst = parity.metrics.largest_fault
    told = "the trained weights are the same, the metrics are not" + ("" if worst is None else f": {worst.message}")
    sides = parity.initial.sides
    mend = "what EVAL mode does: layers in training mode, other records, other metrics"
    side = None
    for name, (inferred, trained) in facts.losses.items():
        if not all(name in parity.finals[engine] for engine in sides):
            continue
        pair = [float(parity.finals[engine][name]) for engine in sides]
        for number in (0, 1):
            if (
                _near(pair[number], trained)
                and not _near(pair[number], inferred)
                and not _near(pair[1 - number], trained)
            ):
                side = sides[number]
                told = (
                    f"{side} evaluates in training mode: its loss {pair[number]:.6g} is that of layers that train "
                    f"({trained:.6g}), not that of layers that infer ({inferred:.6g})"
                )
                mend = "`training` is True only where mode is TRAIN"
    return Finding(name="evaluation", step=step, side=side, message=told, mend=mend)


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE * max(abs(one), abs(other))


def _length(values: Mapping[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(float(np.sum(value**2)) for value in values.values())))


def _distance(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """How far apart two sets of arrays are, relative to the longer one; without a unit."""
    longest = max(_length(one), _length(other))
    return _length({name: one[name] - other[name] for name in one}) / longest if longest else 0.0


def _scale(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """The factor that brings the second nearest to the first, and what is left then, relative to the first."""
    product = sum(float(np.sum(one[name] * other[name])) for name in one)
    square, length = _length(other) ** 2, _length(one)
    if not square or not length:
        return 0.0, 1.0
    factor = product / square
    rest = _length({name: one[name] - factor * other[name] for name in one}) / length
    return factor, rest


def _ratio_told(losses: tuple[float, float]) -> str:
    return f"{losses[0] / losses[1]:.4g} times" if losses[1] else "one is 0"

"""Two recorded trainings, compared step by step."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline.job.tolerances import Sizes, Tolerances, kind_of
from estimator_pipeline.parity.diagnosis import diagnose as diagnosis
from estimator_pipeline.parity.result import ENGINES, Parity, StepParity
from estimator_pipeline.parity.step_records import StepReader, are_joined, batch_name, batches_alike
from estimator_pipeline.utils.arrays import Comparison, Difference, Tolerance, compare
from estimator_pipeline.utils.text import counted

__all__ = ["compare_checksums", "compare_records"]

# A change is the difference of two rounded weights. Their rounding counts this many times among the changes, so that
# the smallest share that a named tolerance allows (1e-4) is at least the rounding.
_OF_ROUNDING = 1e4


def compare_records(
    folder: Path,
    *,
    engines: tuple[str, str] = ENGINES,
    metrics: Mapping[str, Mapping[str, Any]],
    finals: Mapping[str, Mapping[str, Any]] | None = None,
    tolerances: Tolerances | None = None,
    facts: diagnosis.Facts | None = None,
    answers: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
    notes: tuple[str, ...] = (),
    by_nature: tuple[str, ...] = (),
    slots: bool = True,
    records: bool = True,
    records_in_part: bool = False,
    steps: int | None = None,
    about: Mapping[str, Any] | None = None,
) -> Parity:
    """Compare the step records of two runs.

    Args:
        folder: holds `estimator/record` and `keras/record`, or those of other engines.
        engines: names of the two sides.
        metrics: engine -> the metrics of the final evaluation that are compared.
        finals: engine -> all metrics of the final evaluation; None: all of them are compared.
        tolerances: allowed differences.
        facts: metadata of the job beside the records, for naming the cause of a difference.
        answers: the outputs of both for the same inputs: name -> array.
        notes: copied to the result.
        by_nature: notes that are added only if anything is not bit-equal.
        slots: whether optimizer slots are compared.
        records: whether notes list records and learning rates that were not compared.
        records_in_part: whether the checksums cover only a part of each record; a note must name that part.
        steps: number of requested steps; None: as many as both have run.
        about: what was run, by name.

    Raises:
        ConfigError: a record is missing or cannot be read.
    """
    allowed, known_facts = tolerances or Tolerances(), facts or diagnosis.Facts()
    finals = {engine: dict((finals or metrics)[engine]) for engine in engines}
    first, second = (StepReader(folder / engine / "record") for engine in engines)

    def kept(variables: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in variables.items() if slots or kind_of(name) != "slots"}

    compared, numbers = [], {}
    before = [first.initial(), second.initial()]
    starts_with_slots, starts = before, [kept(side) for side in before]
    initial = compare(*starts, sides=engines)
    sizes = Sizes()
    sizes.add("loss", *first.losses.values(), *second.losses.values())
    sizes.add_variables(*before)
    # After a step that the sides number differently, equal numbers no longer mean the same step.
    common = [step for step, same in itertools.takewhile(_are_one, zip(first.steps, second.steps, strict=False))]
    for step in common:
        after = [first.variables(step), second.variables(step)]
        norms = [_update_norm(*pair) for pair in zip(before, after, strict=True)]
        sizes.add("update_norm", *norms, *(_OF_ROUNDING * _rounding_of(side) for side in after))
        sizes.add_variables(*after)
        values = [
            {"loss": side.losses[step], "learning_rate": side.learning_rates.get(step), "update_norm": norm}
            for side, norm in zip((first, second), norms, strict=True)
        ]
        known = [name for name in values[0] if all(side[name] is not None for side in values)]
        # A number that only one side has is not compared: a model_fn need not report its learning rate.
        pairs = [{name: np.float32(side[name]) for name in known} for side in values]
        numbers[step] = compare(*pairs, tolerance=lambda kind: allowed.number(kind, sizes), sides=engines)
        compared.append(
            StepParity(
                step=step,
                losses=(first.losses[step], second.losses[step]),
                learning_rates=(first.learning_rates.get(step), second.learning_rates.get(step)),
                update_norms=(norms[0], norms[1]),
                variables=compare(
                    *map(kept, after), tolerance=lambda name: allowed.variable(name, sizes), sides=engines
                ),
            )
        )
        before = after
    unused = allowed.unused(initial.names)
    read = _records(first, second, engines, common, known_facts.batches_per_step)
    only = [
        (engine, step)
        for engine, side in zip(engines, (first, second), strict=True)
        for step in side.steps
        if step not in common and (compared or initial.alike)
    ]
    omissions = _not_compared(compared, read, (first, second), engines, known_facts) if records else []
    if only and (any(metrics.values()) or answers is not None):
        # After different steps the weights differ, and so do the metrics.
        metrics, answers = {engine: {} for engine in engines}, None
        omissions.append("metrics and predictions were not compared, because the two did not run the same steps")
    result = Parity(
        steps=tuple(compared),
        initial=initial,
        records=read,
        records_in_part=records_in_part,
        metrics=_metrics(metrics, engines, allowed, shrunk=_shrunk(compared, sizes)),
        answers=None if answers is None else _answers(answers, engines, allowed),
        numbers=numbers,
        folder=folder,
        tolerances=allowed,
        notes=(
            *notes,
            *(f"the tolerance for {pattern!r} matches no variable" for pattern in unused),
            *omissions,
        ),
        asked=steps,
        only=tuple(only),
        about=about or {},
        environments=dict(zip(engines, (first.environment(), second.environment()), strict=True)),
        finals=finals,
        arrays={
            engine: {name: (value.shape, str(value.dtype)) for name, value in start.items()}
            for engine, start in zip(engines, starts_with_slots, strict=True)
        },
        slots_kept=any(kind_of(name) == "slots" for start in starts_with_slots for name in start),
    )
    notes = (*result.notes, *(by_nature if result.differs else ()))
    findings = tuple(diagnosis.diagnose(result, first, second, known_facts))
    return dataclasses.replace(result, notes=notes, findings=findings)


def _are_one(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]


def _update_norm(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> float:
    """Return the norm of the change of all weights."""
    weights = [name for name in after if kind_of(name) == "weights" and after[name].dtype.kind == "f"]
    changes = (after[name].astype(np.float64) - before[name].astype(np.float64) for name in weights if name in before)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(sum(float(np.sum(change**2)) for change in changes)))


def _rounding_of(variables: Mapping[str, np.ndarray]) -> float:
    """Return the norm of the rounding of all weights: one unit in the last place of each."""
    weights = [value for name, value in variables.items() if kind_of(name) == "weights" and value.dtype.kind == "f"]
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = [np.finfo(value.dtype).eps * np.linalg.norm(value.astype(np.float64)) for value in weights]
        return float(np.linalg.norm(lengths))


def _shrunk(compared: list[StepParity], sizes: Sizes) -> float:
    """Return largest loss / last loss; metrics may have shrunk by as much, down to rounding."""
    last = max((abs(loss) for loss in compared[-1].losses), default=0.0) if compared else sizes.of("loss")
    if not np.isfinite(last) or last >= sizes.of("loss"):
        return 1.0
    return sizes.of("loss") / last if last else np.inf


def _metrics(
    metrics: Mapping[str, Mapping[str, Any]], engines: tuple[str, str], allowed: Tolerances, *, shrunk: float
) -> Comparison:
    plain = [{name: np.asarray(value, np.float32) for name, value in metrics[engine].items()} for engine in engines]
    return compare(*plain, tolerance=_separate_tolerances(plain, allowed.number("metrics"), shrunk), sides=engines)


def _answers(
    answers: tuple[Mapping[str, Any], Mapping[str, Any]], engines: tuple[str, str], allowed: Tolerances
) -> Comparison:
    return compare(*answers, tolerance=_separate_tolerances(answers, allowed.number("predictions")), sides=engines)


def _separate_tolerances(
    sides: Sequence[Mapping[str, Any]], tolerance: Tolerance, times: float = 1.0
) -> Callable[[str], Tolerance]:
    """Return the tolerance of arrays that are each a separate series, scaled by `times`."""
    sizes = Sizes()
    for side in sides:
        for name, value in side.items():
            if np.asarray(value).dtype.kind in "fiub":
                sizes.add(name, value)
    return lambda name: tolerance.of_series(times * sizes.of(name)) if sizes.of(name) else tolerance


def _records(
    first: StepReader, second: StepReader, engines: tuple[str, str], steps: list[int], per_step: int | tuple[int, int]
) -> dict[int, Comparison]:
    """Return step -> the records of its batches, as far as both have recorded them."""
    mine, yours, count = batches_alike(first, second, per_step)
    records = {}
    for number, step in enumerate(steps):
        pair: list[dict[str, Any]] = [
            {
                batch_name(task, batch): np.array(side[task][batch], np.uint64)
                for task in side
                for batch in range(number * count, (number + 1) * count)
                # A pipeline reads ahead of the steps; one that ends early has read less.
                if batch < len(side[task])
            }
            for side in (mine, yours)
        ]
        if all(pair):
            records[step] = compare_checksums(*pair, sides=engines, joined=are_joined(per_step))
    return records


def compare_checksums(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], *, sides: tuple[str, str], joined: bool = False
) -> Comparison:
    """Compare which records were read.

    Different records are counted, not measured: similar records have unrelated checksums.

    Args:
        one, other: of each side, name -> a checksum of each record, an unsigned integer.
        sides: names of the two sides.
        joined: whether a step's batches were joined into one, see `batches_alike`.
    """
    comparison = compare(first, second, sides=sides)
    differences = []
    for difference in comparison.differences:
        name = difference.name
        if difference.kind == "shape":
            message = f"{sides[0]} reads {counted(first[name].size, 'record')} for the step, "
            message += f"{sides[1]} {second[name].size}"
            message += ", and each replica reads its own batches" if joined else ""
            difference = dataclasses.replace(difference, message=message)
        elif difference.kind == "value":
            difference = _of_checksums(name, first[name], second[name])
        differences.append(difference)
    return dataclasses.replace(comparison, differences=tuple(differences))


def _of_checksums(name: str, first: np.ndarray, second: np.ndarray) -> Difference:
    unequal = first != second
    count = int(np.count_nonzero(unequal))
    index = tuple(int(i) for i in np.argwhere(unequal)[0])
    are = "is" if count == 1 else "are"
    return Difference(
        name=name, kind="value", message=f"{name}: {count} of {first.size} {are} different", index=index,
        first=first[index].item(), second=second[index].item(), count=count, size=int(first.size), measured=False,
    )  # fmt: skip


def _not_compared(
    compared: list[StepParity],
    read: Mapping[int, Comparison],
    readers: tuple[StepReader, StepReader],
    engines: tuple[str, str],
    facts: diagnosis.Facts,
) -> list[str]:
    """Return notes on records and learning rates that one side did not record."""
    notes = []
    silent = [engine for engine, reader in zip(engines, readers, strict=True) if not reader.batches()]
    if compared and len(read) < len(compared):
        of = f"of {len(compared) - len(read)} of the {len(compared)} steps" if read else "of the steps"
        why = f"{' and '.join(silent)} did not record them" if silent else "one side recorded fewer batches"
        notes.append(f"the records {of} were not compared: {why}")
    for number, engine in enumerate(engines):
        alone = [s for s in compared if s.learning_rates[number] is not None and s.learning_rates[1 - number] is None]
        # A constant learning rate is compared as an optimizer option.
        if alone and not all("learning_rate" in options for options in facts.options):
            of = "" if len(alone) == len(compared) else f" of {len(alone)} of the {len(compared)} steps"
            notes.append(f"the learning rate{of} was not compared: only {engine} recorded it")
    return notes

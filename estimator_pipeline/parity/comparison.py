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

# A change is the difference of two weights, each rounded. What their rounding comes to counts as so many times as large
# among the changes, so that the smallest share of it that a named tolerance has (1e-4) is no less than the rounding.
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
    """Compare what two runs have recorded.

    Args:
        folder: holds `estimator/record` and `keras/record`, or those of other engines.
        engines: the two.
        metrics: engine -> the final evaluation's metrics, those that are compared.
        finals: engine -> all of them; None: they all are compared.
        tolerances: what each may differ by.
        facts: what is known of the job beside the records, for naming what a difference comes from.
        answers: the outputs of both for the same inputs: name -> array.
        notes: taken over into the result.
        by_nature: the same, where anything is not bit-equal: of what is, it explains nothing.
        slots: whether optimizer slots are compared.
        records: whether it is to be said of records that they were not compared.
        records_in_part: whether their checksums are those of a part of each record; a note is to say of which.
        steps: how many were to be made; None: as many as both have made.
        about: what was run, by name.

    Raises:
        ConfigError: a record is not there, or cannot be read.
    """
    allowed, known_facts = tolerances or Tolerances(), facts or diagnosis.Facts()
    finals = {engine: dict((finals or metrics)[engine]) for engine in engines}
    one, other = (StepReader(folder / engine / "record") for engine in engines)

    def kept(variables: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in variables.items() if slots or kind_of(name) != "slots"}

    made, numbers = [], {}
    before = [one.initial(), other.initial()]
    starts_with_slots, starts = before, [kept(side) for side in before]
    initial = compare(*starts, sides=engines)
    sizes = Sizes()
    sizes.add("loss", *one.losses.values(), *other.losses.values())
    sizes.add_variables(*before)
    # Behind a step that one side counts otherwise, those of one number are not the same.
    common = [step for step, same in itertools.takewhile(_are_one, zip(one.steps, other.steps, strict=False))]
    for step in common:
        after = [one.variables(step), other.variables(step)]
        norms = [_update_norm(*pair) for pair in zip(before, after, strict=True)]
        sizes.add("update_norm", *norms, *(_OF_ROUNDING * _rounding_of(side) for side in after))
        sizes.add_variables(*after)
        told = [
            {"loss": side.losses[step], "learning_rate": side.learning_rates.get(step), "update_norm": norm}
            for side, norm in zip((one, other), norms, strict=True)
        ]
        known = [name for name in told[0] if all(side[name] is not None for side in told)]
        # The rest is known to one of them alone: a model_fn need not tell its learning rate.
        pairs = [{name: np.float32(side[name]) for name in known} for side in told]
        numbers[step] = compare(*pairs, tolerance=lambda kind: allowed.number(kind, sizes), sides=engines)
        made.append(
            StepParity(
                step=step,
                losses=(one.losses[step], other.losses[step]),
                learning_rates=(one.learning_rates.get(step), other.learning_rates.get(step)),
                update_norms=(norms[0], norms[1]),
                variables=compare(
                    *map(kept, after), tolerance=lambda name: allowed.variable(name, sizes), sides=engines
                ),
            )
        )
        before = after
    unused = allowed.unused(initial.names)
    read = _records(one, other, engines, common, known_facts.batches_per_step)
    only = [
        (engine, step)
        for engine, side in zip(engines, (one, other), strict=True)
        for step in side.steps
        if step not in common and (made or initial.alike)
    ]
    untold = _not_compared(made, read, (one, other), engines, known_facts) if records else []
    if only and (any(metrics.values()) or answers is not None):
        # Of other steps there are other weights, and so other metrics.
        metrics, answers = {engine: {} for engine in engines}, None
        untold.append("metrics and predictions were not compared, for the two have not made the same steps")
    found = Parity(
        steps=tuple(made),
        initial=initial,
        records=read,
        records_in_part=records_in_part,
        metrics=_metrics(metrics, engines, allowed, shrunk=_shrunk(made, sizes)),
        answers=None if answers is None else _answers(answers, engines, allowed),
        numbers=numbers,
        folder=folder,
        tolerances=allowed,
        notes=(
            *notes,
            *(f"the tolerance for {pattern!r} fits no variable" for pattern in unused),
            *untold,
        ),
        asked=steps,
        only=tuple(only),
        about=about or {},
        environments=dict(zip(engines, (one.environment(), other.environment()), strict=True)),
        finals=finals,
        arrays={
            engine: {name: (value.shape, str(value.dtype)) for name, value in start.items()}
            for engine, start in zip(engines, starts_with_slots, strict=True)
        },
        slots_kept=any(kind_of(name) == "slots" for start in starts_with_slots for name in start),
    )
    notes = (*found.notes, *(by_nature if found.differs else ()))
    return dataclasses.replace(found, notes=notes, findings=tuple(diagnosis.diagnose(found, one, other, known_facts)))


def _are_one(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]


def _update_norm(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> float:
    """Return the length of the change of all weights together."""
    weights = [name for name in after if kind_of(name) == "weights" and after[name].dtype.kind == "f"]
    changes = (after[name].astype(np.float64) - before[name].astype(np.float64) for name in weights if name in before)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(sum(float(np.sum(change**2)) for change in changes)))


def _rounding_of(variables: Mapping[str, np.ndarray]) -> float:
    """Return what the rounding of all weights comes to: their length, in units in the last place."""
    weights = [value for name, value in variables.items() if kind_of(name) == "weights" and value.dtype.kind == "f"]
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = [np.finfo(value.dtype).eps * np.linalg.norm(value.astype(np.float64)) for value in weights]
        return float(np.linalg.norm(lengths))


def _shrunk(made: list[StepParity], sizes: Sizes) -> float:
    """How many times as large as the last loss the largest one was: metrics may have shrunk as far, to rounding."""
    last = max((abs(loss) for loss in made[-1].losses), default=0.0) if made else sizes.of("loss")
    if not np.isfinite(last) or last >= sizes.of("loss"):
        return 1.0
    return sizes.of("loss") / last if last else np.inf


def _metrics(
    metrics: Mapping[str, Mapping[str, Any]], engines: tuple[str, str], allowed: Tolerances, *, shrunk: float
) -> Comparison:
    plain = [{name: np.asarray(value, np.float32) for name, value in metrics[engine].items()} for engine in engines]
    return compare(*plain, tolerance=_each_by_itself(plain, allowed.number("metrics"), shrunk), sides=engines)


def _answers(
    answers: tuple[Mapping[str, Any], Mapping[str, Any]], engines: tuple[str, str], allowed: Tolerances
) -> Comparison:
    return compare(*answers, tolerance=_each_by_itself(answers, allowed.number("predictions")), sides=engines)


def _each_by_itself(
    sides: Sequence[Mapping[str, Any]], tolerance: Tolerance, times: float = 1.0
) -> Callable[[str], Tolerance]:
    """Return a tolerance for arrays of which each is a series of its own, so many times as large as it is."""
    sizes = Sizes()
    for side in sides:
        for name, value in side.items():
            if np.asarray(value).dtype.kind in "fiub":
                sizes.add(name, value)
    return lambda name: tolerance.of_series(times * sizes.of(name)) if sizes.of(name) else tolerance


def _records(
    one: StepReader, other: StepReader, engines: tuple[str, str], steps: list[int], per_step: int | tuple[int, int]
) -> dict[int, Comparison]:
    """step -> the records of its batches, as far as both have recorded them."""
    mine, yours, count = batches_alike(one, other, per_step)
    found = {}
    for number, step in enumerate(steps):
        pair: list[dict[str, Any]] = [
            {
                batch_name(task, batch): np.array(side[task][batch], np.uint32)
                for task in side
                for batch in range(number * count, (number + 1) * count)
                # A pipeline reads ahead of the steps; one that ends early has read less.
                if batch < len(side[task])
            }
            for side in (mine, yours)
        ]
        if all(pair):
            found[step] = compare_checksums(*pair, sides=engines, joined=are_joined(per_step))
    return found


def compare_checksums(
    one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], *, sides: tuple[str, str], joined: bool = False
) -> Comparison:
    """Compare which records were read.

    They are counted and not measured: the checksums of two that are nearly alike are as far apart as any.

    Args:
        one, other: of each side, name -> a checksum of each record, as uint32.
        sides: what the two are called.
        joined: whether a step's batches were joined to one, see `batches_alike`.
    """
    found = compare(one, other, sides=sides)
    told = []
    for difference in found.differences:
        name = difference.name
        if difference.kind == "shape":
            message = f"{sides[0]} reads {counted(one[name].size, 'record')} for the step, "
            message += f"{sides[1]} {other[name].size}"
            message += ", and each replica reads batches of its own" if joined else ""
            difference = dataclasses.replace(difference, message=message)
        elif difference.kind == "value":
            difference = _of_checksums(name, one[name], other[name])
        told.append(difference)
    return dataclasses.replace(found, differences=tuple(told))


def _of_checksums(name: str, one: np.ndarray, other: np.ndarray) -> Difference:
    unequal = one != other
    count = int(np.count_nonzero(unequal))
    index = tuple(int(i) for i in np.argwhere(unequal)[0])
    are = "is" if count == 1 else "are"
    return Difference(
        name=name, kind="value", message=f"{name}: {count} of {one.size} {are} not the same", index=index,
        first=one[index].item(), second=other[index].item(), count=count, size=int(one.size), measured=False,
    )  # fmt: skip


def _not_compared(
    made: list[StepParity],
    read: Mapping[int, Comparison],
    readers: tuple[StepReader, StepReader],
    engines: tuple[str, str],
    facts: diagnosis.Facts,
) -> list[str]:
    """Of records and learning rates: what was left out, for one side does not tell it."""
    notes = []
    silent = [engine for engine, reader in zip(engines, readers, strict=True) if not reader.batches()]
    if made and len(read) < len(made):
        of = f"of {len(made) - len(read)} of the {len(made)} steps" if read else "of the steps"
        why = f"{' and '.join(silent)} did not tell which" if silent else "one side tells of fewer batches"
        notes.append(f"the records {of} were not compared: {why}")
    for number, engine in enumerate(engines):
        alone = [s for s in made if s.learning_rates[number] is not None and s.learning_rates[1 - number] is None]
        # A constant rate is compared as an option of the optimizers.
        if alone and not all("learning_rate" in options for options in facts.options):
            of = "" if len(alone) == len(made) else f" of {len(alone)} of the {len(made)} steps"
            notes.append(f"the learning rate{of} was not compared: {engine} alone tells it")
    return notes

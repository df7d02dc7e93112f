"""A training's state, the same whatever wrote it: weights, optimizer slots, the step, settings, averages. NumPy only.

Weights bear the names of `estimator_pipeline.utils.variable_names`, slots the names that Keras 2 gives them.
Beside each stands the name that it has in the file, which is the one that messages, options and tables speak of.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.variable_names import AVERAGE, GLOBAL_STEP, GRADIENT_SUM, canonical

__all__ = ["AVERAGE", "StateEntry", "TrainingState", "family_of", "state_of"]

_PART = re.compile(r"(?P<whole>.+)/part_(?P<number>\d+)(?P<slot>/[^/]+)?$")
_V1_ENDINGS = re.compile(r"/(Momentum|Adam|Adam_1|Adadelta|Adadelta_1|Adagrad|RMSProp(_[12])?|Ftrl(_1)?)(:0)?$")
# Slots -> whose they are.
_FAMILIES: tuple[tuple[str, frozenset[str]], ...] = (
    ("rmsprop", frozenset({"rms"})),
    ("ftrl", frozenset({"accumulator", "linear"})),
    ("adagrad", frozenset({"accumulator"})),
    ("adadelta", frozenset({"accum_grad", "accum_var"})),
    ("adam", frozenset({"m", "v"})),
    ("momentum", frozenset({"momentum"})),
)


@dataclasses.dataclass(frozen=True)
class StateEntry:
    """One variable.

    Attributes:
        given: its name in the file, or in the target.
        value: of it.
        parts: where it was saved as variables of its own, one a partition, these; `value` joins them by rows.
    """

    given: str
    value: np.ndarray
    parts: tuple[np.ndarray, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> str:
        return str(self.value.dtype)

    def fitted(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the value; of partitions, joined along the axis that gives this shape, where there is one."""
        if self.parts and self.shape != shape:
            for axis in range(1, self.parts[0].ndim):
                try:
                    joined = np.concatenate(self.parts, axis)
                except ValueError:
                    continue
                if joined.shape == shape:
                    return joined
        return self.value


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What a checkpoint holds.

    Attributes:
        source: where it is from, as messages name it.
        kind: "name-based" (an Estimator, TensorFlow 1), "keras", "keras3", or "keras file".
        steps: name -> every count of steps that is in it.
        weights: canonical name -> variable, in the order of the file.
        slots: canonical name of the weight -> slot -> variable.
        settings: name as given -> variable: learning rates, betas and their powers.
        averages: canonical name of the weight -> its moving average.
        style: what a momentum means: "v1", "keras", or None where the names do not say it.
        optimizer: name and api of the job's optimizer, where the run wrote them down.
        seeds: of random layers, which Keras 3 alone keeps.
    """

    source: str
    kind: str
    steps: Mapping[str, int]
    weights: Mapping[str, StateEntry]
    slots: Mapping[str, Mapping[str, StateEntry]]
    settings: Mapping[str, StateEntry]
    averages: Mapping[str, StateEntry]
    style: str | None = None
    optimizer: tuple[str, str] | None = None
    seeds: Mapping[str, StateEntry] = dataclasses.field(default_factory=dict)

    @property
    def family(self) -> str:
        """Which kind of optimizer keeps such slots."""
        return family_of(slot for slots in self.slots.values() for slot in slots)


def family_of(slots: Iterable[str]) -> str:
    """Return the optimizer that keeps slots of these names; "none" without any."""
    found = set(slots) - {GRADIENT_SUM}
    for family, needed in _FAMILIES:
        if needed <= found:
            return family
    return f"one with the slots {', '.join(sorted(found))}" if found else "none"


def state_of(
    values: Mapping[str, Any],
    *,
    source: str,
    kind: str,
    style: str | None = None,
    optimizer: tuple[str, str] | None = None,
    settings: Collection[str] = (),
) -> TrainingState:
    """Return the state that variables of these names make up.

    Args:
        values: name -> value.
        source: where they are from.
        kind: see `TrainingState`.
        style: what a momentum means, where it is known; else the names tell it.
        optimizer: see `TrainingState`.
        settings: names of an optimizer's settings, where the names do not tell that they are.

    Raises:
        ConfigError: two variables are the same thing; partitions that do not belong together.
    """
    entries = _joined({name: np.asarray(value) for name, value in values.items()}, source)
    known_settings = {name: entries.pop(name) for name in settings}
    seeds = {name: entries.pop(name) for name in list(entries) if name.endswith("seed_generator_state")}
    averages = _averages(entries)
    steps = {}
    for name in [name for name in entries if _is_step(name, entries)]:
        steps[name] = int(entries.pop(name).value)
    try:
        names = canonical(entries)
    except ValueError as error:
        raise ConfigError(
            f"{source} holds one thing twice: {error}",
            code="migrate/bad-checkpoint",
            hint="it holds the slots of two optimizers, or of two runs; name one of them with --allow-leftover",
        ) from error
    weights: dict[str, StateEntry] = {}
    slots: dict[str, dict[str, StateEntry]] = {}
    for known, name in names.items():
        weight, at, slot = known.partition(" @")
        if known.endswith(f"/{AVERAGE}") and known.removesuffix(f"/{AVERAGE}") in names:
            # One of Keras, which has its optimizer's name before its weight's.
            averages[known.removesuffix(f"/{AVERAGE}")] = entries[name]
        elif at:
            slots.setdefault(weight, {})[slot] = entries[name]
        else:
            weights[known] = entries[name]
    taken = set(names.values())
    for name, one in entries.items():
        if name in taken or _is_replica(name):
            continue
        # By its name alone a setting; one that is no number is a weight all the same.
        (known_settings if one.value.shape == () else weights)[name] = one
    return TrainingState(
        source=source,
        kind=kind,
        steps=steps,
        weights=weights,
        slots=slots,
        settings=known_settings,
        averages=averages,
        style=style or _style(slots),
        optimizer=optimizer,
        seeds=seeds,
    )


def _is_step(name: str, entries: Mapping[str, StateEntry]) -> bool:
    one = entries[name]
    if one.value.shape != () or one.value.dtype.kind not in "iu":
        return False
    head, _, last = name.partition(":")[0].rpartition("/")
    return last in (GLOBAL_STEP, "iter", "iteration") and f"{head}/kernel" not in entries


def _is_replica(name: str) -> bool:
    return re.fullmatch(r"replica_\d+", name.rpartition("/")[2]) is not None


def _style(slots: Mapping[str, Mapping[str, StateEntry]]) -> str | None:
    """What a momentum means, by the names of slots: an optimizer of tf.compat.v1.train puts its name at the end."""
    for weight, of_weight in slots.items():
        for slot, one in of_weight.items():
            if _V1_ENDINGS.search(one.given):
                return "v1"
            before = one.given.partition(weight)[0].rstrip("/").rpartition("/")[2]
            if before.startswith("V1"):
                return "v1"
            if before and before != slot:
                return "keras"
    return None


def _averages(entries: dict[str, StateEntry]) -> dict[str, StateEntry]:
    """Take the moving averages out of `entries`."""
    found = {}
    for name in [name for name in entries if name.endswith(f"/{AVERAGE}")]:
        weight = name.removesuffix(f"/{AVERAGE}")
        if weight in entries:
            found[weight] = entries.pop(name)
    return found


def _joined(values: dict[str, np.ndarray], source: str) -> dict[str, StateEntry]:
    """Partitions that were saved as variables of their own, joined."""
    groups: dict[str, dict[int, tuple[str, np.ndarray]]] = {}
    whole: dict[str, StateEntry] = {}
    for name, value in values.items():
        match = _PART.fullmatch(name)
        if match is None:
            whole[name] = StateEntry(name, value)
            continue
        joined = match["whole"] + (match["slot"] or "")
        if joined not in groups:
            # Keeps its place in the order.
            whole[joined] = StateEntry(joined, value)
        groups.setdefault(joined, {})[int(match["number"])] = (name, value)
    for joined, parts in groups.items():
        if sorted(parts) != list(range(len(parts))) or joined in values:
            raise ConfigError(
                f"the partitions of {joined} in {source} are not whole",
                code="migrate/bad-checkpoint",
                found=", ".join(name for name, _ in parts.values()),
                hint="give a checkpoint that has all of them, from part_0 on, and not the whole variable beside them",
            )
        arrays = tuple(parts[number][1] for number in range(len(parts)))
        apart = [a for a in range(arrays[0].ndim) if len({one.shape[a] for one in arrays}) > 1]
        try:
            value = np.concatenate(arrays, axis=apart[0] if apart else 0)
        except ValueError as error:
            raise ConfigError(
                f"the partitions of {joined} in {source} have shapes that do not belong together",
                code="migrate/bad-checkpoint",
                found=", ".join(f"{name} {list(one.shape)}" for name, one in parts.values()),
            ) from error
        whole[joined] = StateEntry(joined, value, arrays)
    return whole

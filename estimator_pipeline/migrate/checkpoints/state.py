"""A training's state, independent of its writer: weights, optimizer slots, step, settings, averages. NumPy only.

Weights have the canonical names of `estimator_pipeline.utils.variable_names`, slots the names of Keras 2. Each entry
also has its name in the file, which messages, options and tables use.
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
# Optimizer families and their slots.
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
        name: Its name in the file, or in the target.
        value: Its value.
        parts: The partitions, if each was saved as a separate variable; `value` concatenates them.
    """

    name: str
    value: np.ndarray
    parts: tuple[np.ndarray, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> str:
        return str(self.value.dtype)

    def fitted(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the value, with partitions concatenated to this shape if possible."""
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
    """The content of a checkpoint.

    Attributes:
        source: Its origin, as named in messages.
        kind: "name-based" (an Estimator, TensorFlow 1), "keras", "keras3", or "keras file".
        steps: Name -> step count, for all step counts.
        weights: Canonical name -> variable, in the order of the file.
        slots: Canonical name of the weight -> slot -> variable.
        settings: Name in the file -> variable: learning rates, betas and their powers.
        averages: Canonical name of the weight -> its moving average.
        style: The convention of momentum: "v1", "keras", or None if the names are ambiguous.
        optimizer: Name and API of the job's optimizer, if the run recorded them.
        seeds: Seeds of random layers, which only Keras 3 stores.
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
        """The optimizer family that has these slots."""
        return family_of(slot for slots in self.slots.values() for slot in slots)

    def only_weights(self, *, averages: bool = False) -> TrainingState:
        """Return the state without its optimizer, as of an export or a file of weights."""
        kept = self.averages if averages else {}
        return TrainingState(
            source=self.source, kind=self.kind, steps={}, weights=self.weights, slots={}, settings={}, averages=kept
        )


def family_of(slots: Iterable[str]) -> str:
    """Return the optimizer family with slots of these names, or "none" without slots."""
    names = set(slots) - {GRADIENT_SUM}
    for family, needed in _FAMILIES:
        if needed <= names:
            return family
    return f"one with the slots {', '.join(sorted(names))}" if names else "none"


def state_of(
    values: Mapping[str, Any],
    *,
    source: str,
    kind: str,
    style: str | None = None,
    optimizer: tuple[str, str] | None = None,
    settings: Collection[str] = (),
) -> TrainingState:
    """Build the state from variables.

    Args:
        values: Name -> value.
        source: Their origin, for messages.
        kind: See `TrainingState`.
        style: The convention of momentum; None: derive it from the names.
        optimizer: See `TrainingState`.
        settings: Names of optimizer settings that are not recognizable as such.

    Raises:
        ConfigError: Two variables have the same canonical name, or partitions do not fit together.
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
            f"{source} has a variable twice: {error}",
            code="migrate/bad-checkpoint",
            hint="it has the slots of two optimizers or runs; skip one of them with --allow-leftover",
        ) from error
    weights: dict[str, StateEntry] = {}
    slots: dict[str, dict[str, StateEntry]] = {}
    for known, name in names.items():
        weight, at, slot = known.partition(" @")
        if known.endswith(f"/{AVERAGE}") and known.removesuffix(f"/{AVERAGE}") in names:
            # Keras puts the name of the optimizer before that of the weight.
            averages[known.removesuffix(f"/{AVERAGE}")] = entries[name]
        elif at:
            slots.setdefault(weight, {})[slot] = entries[name]
        else:
            weights[known] = entries[name]
    taken = set(names.values())
    for name, entry in entries.items():
        if name in taken or _is_replica(name):
            continue
        # The name indicates a setting, but only a scalar is one; others are weights.
        (known_settings if entry.value.shape == () else weights)[name] = entry
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
    entry = entries[name]
    if entry.value.shape != () or entry.value.dtype.kind not in "iu":
        return False
    head, _, last = name.partition(":")[0].rpartition("/")
    return last in (GLOBAL_STEP, "iter", "iteration") and f"{head}/kernel" not in entries


def _is_replica(name: str) -> bool:
    return re.fullmatch(r"replica_\d+", name.rpartition("/")[2]) is not None


def _style(slots: Mapping[str, Mapping[str, StateEntry]]) -> str | None:
    """Return the convention of momentum from the slot names, or None."""
    for weight, of_weight in slots.items():
        for slot, entry in of_weight.items():
            if _V1_ENDINGS.search(entry.name):
                return "v1"
            before = entry.name.partition(weight)[0].rstrip("/").rpartition("/")[2]
            if before.startswith("V1"):
                return "v1"
            if before and before != slot:
                return "keras"
    return None


def _averages(entries: dict[str, StateEntry]) -> dict[str, StateEntry]:
    """Take the moving averages out of `entries`."""
    averages = {}
    for name in [name for name in entries if name.endswith(f"/{AVERAGE}")]:
        weight = name.removesuffix(f"/{AVERAGE}")
        if weight in entries:
            averages[weight] = entries.pop(name)
    return averages


def _joined(values: dict[str, np.ndarray], source: str) -> dict[str, StateEntry]:
    """Concatenate partitions that were saved as separate variables."""
    groups: dict[str, dict[int, tuple[str, np.ndarray]]] = {}
    whole: dict[str, StateEntry] = {}
    for name, value in values.items():
        match = _PART.fullmatch(name)
        if match is None:
            whole[name] = StateEntry(name, value)
            continue
        joined = match["whole"] + (match["slot"] or "")
        if joined not in groups:
            # Keep the position in the order.
            whole[joined] = StateEntry(joined, value)
        groups.setdefault(joined, {})[int(match["number"])] = (name, value)
    for joined, parts in groups.items():
        if sorted(parts) != list(range(len(parts))) or joined in values:
            raise ConfigError(
                f"the partitions of {joined} in {source} are incomplete",
                code="migrate/bad-checkpoint",
                found=", ".join(name for name, _ in parts.values()),
                hint="give a checkpoint with all partitions from part_0 on, and without the whole variable",
            )
        arrays = tuple(parts[number][1] for number in range(len(parts)))
        axes = [axis for axis in range(arrays[0].ndim) if len({array.shape[axis] for array in arrays}) > 1]
        try:
            value = np.concatenate(arrays, axis=axes[0] if axes else 0)
        except ValueError as error:
            raise ConfigError(
                f"the partitions of {joined} in {source} have incompatible shapes",
                code="migrate/bad-checkpoint",
                found=", ".join(f"{name} {list(array.shape)}" for name, array in parts.values()),
            ) from error
        whole[joined] = StateEntry(joined, value, arrays)
    return whole

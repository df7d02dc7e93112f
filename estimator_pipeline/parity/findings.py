"""Findings, what they are made from, and the measures of two sets of arrays. NumPy only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from estimator_pipeline.job.tolerances import kind_of

__all__ = [
    "RATIO_RTOL", "SAME_GRADIENT_RTOL", "SCALE_RTOL", "Facts", "ParityFinding", "StepState", "distance", "factor_of",
    "length", "told_names", "variables",
]  # fmt: skip

# Two sets of arrays are the same, apart from rounding, below this distance.
SAME_GRADIENT_RTOL = 1e-4
# Lengths and factors are measured on the changes of float32 weights: they are equal within this.
RATIO_RTOL = 2e-3
# A factor that is nearer to 1 than this is none: another function of the gradient may look like it.
SCALE_RTOL = 0.02
# Where all arrays have one factor in common, a single one is no farther from it than this.
_EACH = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the two trainings beside their records.

    Attributes:
        replicas: how many share the global batch.
        batches_per_step: how many of them read from one pipeline; a pair where the sides differ.
        clip_norm: the global norm to which the summed gradient is to be clipped.
        losses: a metric -> what it is with Keras's final weights, by the layers as they infer and as they train.
        options: of each side's optimizer, see `estimator_pipeline.parity.graph_facts.GraphFacts.options`; empty
            where they are not known.
    """

    replicas: int = 1
    batches_per_step: int | tuple[int, int] = 1
    clip_norm: float | None = None
    losses: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    options: tuple[Mapping[str, Any], Mapping[str, Any]] = dataclasses.field(default_factory=lambda: ({}, {}))

    def rates(self, told: tuple[float | None, float | None]) -> list[float | None]:
        """Return the learning rate of each side at a step: as it tells it, or as its optimizer's options have it."""
        own = [one.get("learning_rate") for one in self.options]
        return [rate if rate is not None else known for rate, known in zip(told, own, strict=True)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParityFinding:
    """The cause of a difference by its name; or, where none is certain, the first difference.

    Attributes:
        name: see the table of `estimator_pipeline.parity.diagnosis.diagnose`.
        message: what was seen, in a sentence.
        step: where; 0 before the first.
        side: which of the two, where that can be told.
        hint: what to look at.
        variable: of a first difference, the name of what differs.
        kind: of a first difference: "loss", "learning rate", "update norm", "weight", "moving statistic", "slot",
            "variable" (such as a counter), "metric" or "prediction".
        size: of a first difference, the largest absolute difference; None where it has no finite size.
    """

    name: str
    message: str
    step: int = 0
    side: str | None = None
    hint: str = ""
    variable: str = ""
    kind: str = ""
    size: float | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" + (f"\n  look at: {self.hint}" if self.hint else "")


@dataclasses.dataclass(frozen=True)
class StepState:
    """One step of both sides: the state that they began it with, and the one after it."""

    step: int
    before: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]
    after: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]

    def changes(self, side: int, kind: str) -> dict[str, np.ndarray]:
        """Variable -> its change, as float64, of those that both sides have."""
        before = variables(self.before[side], kind)
        both = self.after[0].keys() & self.after[1].keys()
        return {
            name: value - before[name]
            for name, value in variables(self.after[side], kind).items()
            if name in both and name in before
        }

    @property
    def began_alike(self) -> bool:
        """Whether both had the same weights before it, apart from rounding; training does not read other variables."""
        one, other = (variables(side, "weights") for side in self.before)
        return one.keys() == other.keys() and distance(one, other) < SAME_GRADIENT_RTOL


def variables(values: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """Return the floating-point variables of a kind, as float64; see `estimator_pipeline.job.tolerances.kind_of`."""
    return {
        name: value.astype(np.float64)
        for name, value in values.items()
        if kind_of(name) == kind and value.dtype.kind == "f"
    }


def told_names(names: Iterable[str], most: int = 3) -> str:
    """Names for a message, the first of them."""
    listed = list(names)
    return ", ".join(listed[:most]) + (", …" if len(listed) > most else "")


def length(values: Mapping[str, np.ndarray]) -> float:
    """Return the Euclidean norm of all arrays together."""
    return float(np.sqrt(sum(float(np.sum(value**2)) for value in values.values())))


def distance(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """How far apart two sets of arrays are, relative to the longer one; without a unit."""
    longest = max(length(one), length(other))
    return length({name: one[name] - other[name] for name in one}) / longest if longest else 0.0


def factor_of(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float | None:
    """How many times the second set of arrays the first one is, all together and each by itself; None: it is not.

    Arrays that are nothing but rounding beside the others may differ. A negative factor is none.
    """
    square, whole = length(other) ** 2, length(one)
    if not square or not whole:
        return None
    factor = sum(float(np.sum(one[name] * other[name])) for name in one) / square
    scaled = {name: factor * value for name, value in other.items()}
    if factor <= 0 or not distance(one, scaled) < RATIO_RTOL:
        return None
    pairs = [({name: one[name]}, {name: scaled[name]}) for name in one]
    large = [pair for pair in pairs if max(map(length, pair)) > SAME_GRADIENT_RTOL * whole]
    return factor if all(distance(*pair) < _EACH for pair in large) else None

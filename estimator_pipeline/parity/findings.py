"""Findings, their inputs, and distances between two sets of arrays. NumPy only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from estimator_pipeline.job.tolerances import kind_of

__all__ = [
    "RATIO_RTOL", "SAME_GRADIENT_RTOL", "SCALE_RTOL", "Facts", "ParityFinding", "StepState", "distance", "factor_of",
    "length", "format_names", "variables",
]  # fmt: skip

# Two sets of arrays are the same, apart from rounding, below this distance.
SAME_GRADIENT_RTOL = 1e-4
# Lengths and factors are measured on the changes of float32 weights: they are equal within this.
RATIO_RTOL = 2e-3
# A factor nearer to 1 than this does not count: a different function of the gradient may look like it.
SCALE_RTOL = 0.02
# Where all arrays share a factor, each single array deviates from it by at most this.
_EACH = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Metadata of the two trainings beside their records.

    Attributes:
        replicas: number of replicas that share the global batch.
        batches_per_step: number of replicas that read from one pipeline; a pair where the sides differ.
        clip_norm: the global norm to which the summed gradient is clipped.
        losses: metric -> its values with Keras's final weights: layers in inference mode, in training mode.
        options: options of each side's optimizer, see `estimator_pipeline.parity.graph_facts.GraphFacts.options`; empty
            where they are not known.
    """

    replicas: int = 1
    batches_per_step: int | tuple[int, int] = 1
    clip_norm: float | None = None
    losses: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    options: tuple[Mapping[str, Any], Mapping[str, Any]] = dataclasses.field(default_factory=lambda: ({}, {}))

    def rates(self, recorded: tuple[float | None, float | None]) -> list[float | None]:
        """Return the learning rate of each side at a step: the recorded one, or else the optimizer's option."""
        constant = [options.get("learning_rate") for options in self.options]
        return [rate if rate is not None else known for rate, known in zip(recorded, constant, strict=True)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParityFinding:
    """The cause of a difference; or the first difference, where no cause is certain.

    Attributes:
        name: see the table of `estimator_pipeline.parity.diagnosis.diagnose`.
        message: the observation, in a sentence.
        step: the step; 0 is before the first.
        side: which of the two sides, where that is known.
        hint: what to check.
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
    """One step of both sides: the state before it and the state after it."""

    step: int
    before: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]
    after: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]

    def changes(self, side: int, kind: str) -> dict[str, np.ndarray]:
        """Return variable -> its change, as float64, for variables of both sides."""
        before = variables(self.before[side], kind)
        both = self.after[0].keys() & self.after[1].keys()
        return {
            name: value - before[name]
            for name, value in variables(self.after[side], kind).items()
            if name in both and name in before
        }

    @property
    def began_alike(self) -> bool:
        """Whether both had the same weights before the step, apart from rounding."""
        first, second = (variables(side, "weights") for side in self.before)
        return first.keys() == second.keys() and distance(first, second) < SAME_GRADIENT_RTOL


def variables(values: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """Return the floating-point variables of a kind, as float64; see `estimator_pipeline.job.tolerances.kind_of`."""
    return {
        name: value.astype(np.float64)
        for name, value in values.items()
        if kind_of(name) == kind and value.dtype.kind == "f"
    }


def format_names(names: Iterable[str], most: int = 3) -> str:
    """Return the first names, joined for a message."""
    listed = list(names)
    return ", ".join(listed[:most]) + (", …" if len(listed) > most else "")


def length(values: Mapping[str, np.ndarray]) -> float:
    """Return the Euclidean norm of all arrays."""
    return float(np.sqrt(sum(float(np.sum(value**2)) for value in values.values())))


def distance(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> float:
    """Return the distance of two sets of arrays, relative to the larger norm."""
    longest = max(length(first), length(second))
    return length({name: first[name] - second[name] for name in first}) / longest if longest else 0.0


def factor_of(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> float | None:
    """Return the factor by which all of the first arrays are multiples of the second; None: there is no such factor.

    Arrays that are only rounding compared to the others may deviate. A negative factor does not count.
    """
    square, whole = length(second) ** 2, length(first)
    if not square or not whole:
        return None
    factor = sum(float(np.sum(first[name] * second[name])) for name in first) / square
    scaled = {name: factor * value for name, value in second.items()}
    if factor <= 0 or not distance(first, scaled) < RATIO_RTOL:
        return None
    pairs = [({name: first[name]}, {name: scaled[name]}) for name in first]
    large = [pair for pair in pairs if max(map(length, pair)) > SAME_GRADIENT_RTOL * whole]
    return factor if all(distance(*pair) < _EACH for pair in large) else None

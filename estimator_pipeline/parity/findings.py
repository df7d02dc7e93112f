"""Findings, what they are made from, and the measures of two sets of arrays. NumPy only."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline.parity.tolerances import kind_of

__all__ = [
    "CLOSE", "NEAR", "SAME", "SCALED", "Facts", "Finding", "Step", "distance", "length", "rms", "scale_of",
    "told_by_part", "told_names",
]  # fmt: skip

# Gradients of one step, computed by both from the same state: rounding is well below, and a fault above.
SAME = 1e-4
# What Bessel's correction leaves of a moving variance is near its rounding.
NEAR = 0.1
# Lengths and ratios that are told by a fault: they are measured on changes of float32 weights.
CLOSE = 2e-3
# A rate, or what a loss is divided by, is another one by more than this; less is no factor, but another function.
SCALED = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the two trainings beside their records.

    Attributes:
        replicas: how many share the global batch.
        batches_per_step: how many of them read from one pipeline; a pair where the sides differ.
        clip_norm: the global norm to which the summed gradient is to be clipped.
        losses: a metric -> what it is with Keras's final weights, by the layers as they infer and as they train.
        options: of each side's optimizer, see :attr:`estimator_pipeline.parity.graph_facts.GraphFacts.options`; empty
            where they are not known.
        random: of each side, what draws random numbers of its own in training.
        untrained: variables that no gradient moves on either side, such as counters; None: it is not known which.
        sixteen_bits: whether the layers compute in 16 bits.
        constrained: of each side, weight -> what its values are held to after each step.
    """

    replicas: int = 1
    batches_per_step: int | tuple[int, int] = 1
    clip_norm: float | None = None
    losses: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    options: tuple[Mapping[str, Any], Mapping[str, Any]] = dataclasses.field(default_factory=lambda: ({}, {}))
    random: tuple[Sequence[str], Sequence[str]] = ((), ())
    untrained: frozenset[str] | None = None
    sixteen_bits: bool = False
    constrained: tuple[Mapping[str, str], Mapping[str, str]] = dataclasses.field(default_factory=lambda: ({}, {}))

    def rates(self, told: tuple[float | None, float | None]) -> list[float | None]:
        """The learning rate of each side at a step: as it tells it, or as its optimizer's options have it."""
        own = [one.get("learning_rate") for one in self.options]
        return [rate if rate is not None else known for rate, known in zip(told, own, strict=True)]


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
class Step:
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

    def without(self, weights: Collection[str]) -> Step:
        """The same, less these weights and their slots."""

        def kept(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: value for name, value in values.items() if name.partition(" @")[0] not in weights}

        return Step(self.step, (kept(self.before[0]), kept(self.before[1])), (kept(self.after[0]), kept(self.after[1])))


def told_names(names: Iterable[str], most: int = 3) -> str:
    """Names for a message, the first of them."""
    listed = list(names)
    return ", ".join(listed[:most]) + (", …" if len(listed) > most else "")


def rms(values: np.ndarray) -> float:
    """The root of the mean square: an element's size."""
    return float(np.sqrt(np.mean(values.astype(np.float64) ** 2))) if values.size else 0.0


def length(values: Mapping[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(float(np.sum(value**2)) for value in values.values())))


def distance(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """How far apart two sets of arrays are, relative to the longer one; without a unit."""
    longest = max(length(one), length(other))
    return length({name: one[name] - other[name] for name in one}) / longest if longest else 0.0


def scale_of(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """The factor that brings the second nearest to the first, and what is left then, relative to the first."""
    product = sum(float(np.sum(one[name] * other[name])) for name in one)
    square, whole = length(other) ** 2, length(one)
    if not square or not whole:
        return 0.0, 1.0
    factor = product / square
    rest = length({name: one[name] - factor * other[name] for name in one}) / whole
    return factor, rest


def told_by_part(
    one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], sides: tuple[str, str], *, beyond: float = 0.0
) -> str:
    """In words, where each array of one side is as many times the other's, at least one of them by more than so much.

    Args:
        one, other: the sides' arrays.
        sides: what they are called.
        beyond: less than that is no factor.
    """
    apart = [name for name in one if distance({name: one[name]}, {name: other[name]}) >= SAME]
    scales = {name: scale_of({name: one[name]}, {name: other[name]}) for name in apart}
    if not any(abs(scale - 1) > beyond for scale, _ in scales.values()):
        return ""
    if any(rest >= CLOSE or scale <= 0 for scale, rest in scales.values()):
        return ""
    factors = ", ".join(f"{name} {scale:.4g} times" for name, (scale, _) in list(scales.items())[:3])
    return f"each has the same direction in both, {factors} as long in {sides[0]}"

"""Two sets of named arrays, compared: names, then shapes, then types, then values. NumPy only.

A value's error is told in three ways: absolute, relative to the larger of the two, and in units in the last place
(ULP): how many numbers of the type lie between the two. A tolerance is met where any of its limits is; its
reason is told beside it, for a limit without a reason is a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

# Integer type of the same width, for counting the numbers between two.
_INTEGERS: dict[int, Any] = {2: np.int16, 4: np.int32, 8: np.int64}
_LIMITS = ("rtol", "rtol_of_max", "atol")
# Rounding of an array's large values may be so much more of a small column's than of their own; a fault is all of it.
_OF_COLUMN = 100.0


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far apart two values may be.

    Attributes:
        ulp: numbers of their type between them.
        rtol: error relative to the larger of the two.
        rtol_of_max: error relative to the largest value of the array: of a sum that comes near 0, what is left is the
            rounding of its terms, however small it is itself. Columns (places in the last axis) may have other units:
            of the largest value of a column it may be a hundred times as much, and no more.
        atol: absolute error.
        reason: why they need not be the same.
        atol_share: atol is no more than so much of the largest value of the series that a number is one of, see
            :meth:`of_series`: what is nothing beside numbers of 1 is all of those of 1e-9. None: it is absolute.

    Raises:
        ValueError: a limit below 0, or one without a reason.
    """

    ulp: int = 0
    rtol: float = 0.0
    rtol_of_max: float = 0.0
    atol: float = 0.0
    reason: str = ""
    atol_share: float | None = None

    def __post_init__(self) -> None:
        for name in ("ulp", *_LIMITS):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; 0 or more")
        if not self.bit_equal and not self.reason:
            raise ValueError("a tolerance other than bit-equal needs its reason")

    @property
    def bit_equal(self) -> bool:
        """Whether only the same bits will do."""
        return not any(getattr(self, name) for name in ("ulp", *_LIMITS))

    def of_series(self, largest: float) -> Tolerance:
        """The same for numbers of a series: its absolute part is bounded by their size.

        Args:
            largest: the largest absolute value of the series, of both sides. One value's own size would say nothing: a
                loss that began at 1 may come to 0 on one side and to 1e-12 on the other.
        """
        if self.atol_share is None or self.atol_share * largest >= self.atol:
            return self
        return replace(self, atol=self.atol_share * largest)

    def __str__(self) -> str:
        if self.bit_equal:
            return "bit-equal"
        limits = [f"{self.ulp} ULP"] if self.ulp else []
        limits += [f"{name} {getattr(self, name):g}" for name in _LIMITS if getattr(self, name)]
        return f"{' or '.join(limits)}: {self.reason}"


BIT_EQUAL = Tolerance()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One name, and how the two sides differ there.

    Attributes:
        name: of the array.
        kind: "missing" (on one side), "shape", "dtype", "value" (beyond the tolerance) or "within" (inside of it).
        message: what is told.
        index: of the worst element.
        one: its value on the first side.
        other: its value on the second side.
        absolute: its absolute error.
        relative: its error relative to the larger of the two.
        rtol_of_max: the largest absolute error of the array, relative to its largest value.
        ulp: its error in units in the last place; None for types without.
        largest_absolute: the largest absolute error of any element; the worst element need not be the one that has it.
        largest_relative: the largest relative error of any element.
        largest_ulp: the largest error of any element in units in the last place.
        count: elements beyond the tolerance.
        size: elements of the array.
        tolerance: what was allowed.
        measured: whether it says anything how far apart the two values are: of checksums and texts it does not.
    """

    name: str
    kind: str
    message: str
    index: tuple[int, ...] = ()
    one: Any = None
    other: Any = None
    absolute: float = 0.0
    relative: float = 0.0
    rtol_of_max: float = 0.0
    ulp: int | None = None
    largest_absolute: float = 0.0
    largest_relative: float = 0.0
    largest_ulp: int | None = None
    count: int = 0
    size: int = 0
    tolerance: Tolerance = BIT_EQUAL
    measured: bool = True

    @property
    def within(self) -> bool:
        """Whether it is allowed."""
        return self.kind == "within"

    @property
    def sized(self) -> bool:
        """Whether it has a size, absolute and relative."""
        return self.measured and self.kind in ("value", "within")


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two sets of arrays.

    Attributes:
        names: those that both sides have, in the first side's order.
        differences: every name that is not bit-equal, names first, then in order; the allowed ones too.
        sides: what the two are called.
    """

    names: tuple[str, ...]
    differences: tuple[Difference, ...]
    sides: tuple[str, str] = field(default=("the first", "the second"))

    @property
    def equal(self) -> bool:
        """Whether all differences are within their tolerances."""
        return not self.faults

    @property
    def faults(self) -> tuple[Difference, ...]:
        """The differences that are not allowed."""
        return tuple(d for d in self.differences if not d.within)

    def less(self, *names: str) -> Comparison:
        """The same, without these."""
        return Comparison(
            tuple(name for name in self.names if name not in names),
            tuple(d for d in self.differences if d.name not in names),
            self.sides,
        )

    @property
    def alike(self) -> bool:
        """Whether both have the same names, with the same shapes and types."""
        return not any(d.kind in ("missing", "shape", "dtype") for d in self.differences)

    @property
    def largest_fault(self) -> Difference | None:
        """The difference that is told first: names and shapes before values, then the largest."""
        return max(self.faults, key=lambda fault: (fault.kind != "value", fault.relative), default=None)

    @property
    def worst(self) -> Difference | None:
        """The largest difference of a value, by its relative error."""
        values = [d for d in self.differences if d.kind in ("value", "within")]
        return max(values, key=lambda d: (d.kind == "value", d.relative), default=None)

    def __str__(self) -> str:
        if not self.differences:
            return "1 array is bit-equal" if len(self.names) == 1 else f"{len(self.names)} arrays are bit-equal"
        lines = [d.message for d in (self.faults or self.differences)]
        return "\n".join(lines[:20] + ([f"… and {len(lines) - 20} more"] if len(lines) > 20 else []))


def compare(
    one: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    tolerance: Tolerance | Callable[[str], Tolerance] = BIT_EQUAL,
    sides: tuple[str, str] = ("the first", "the second"),
) -> Comparison:
    """Compares two mappings name -> array.

    Args:
        one: the first side.
        other: the second side.
        tolerance: for all names, or a function of the name.
        sides: what the two are called in messages.
    """
    allowed = tolerance if callable(tolerance) else lambda name: tolerance
    found = [_missing(name, sides[0], sides[1]) for name in one if name not in other]
    found += [_missing(name, sides[1], sides[0]) for name in other if name not in one]
    names = tuple(name for name in one if name in other)
    for name in names:
        difference = _difference(name, np.asarray(one[name]), np.asarray(other[name]), allowed(name), sides)
        if difference is not None:
            found.append(difference)
    return Comparison(names, tuple(found), sides)


def _missing(name: str, has: str, lacks: str) -> Difference:
    return Difference(name=name, kind="missing", message=f"{name}: {has} has it, {lacks} has not")


def _difference(
    name: str, one: np.ndarray, other: np.ndarray, tolerance: Tolerance, sides: tuple[str, str]
) -> Difference | None:
    for kind in ("shape", "dtype"):
        first, second = getattr(one, kind), getattr(other, kind)
        # Texts of any length are of one type.
        texts = kind == "dtype" and first.kind == second.kind and first.kind in "US"
        if first != second and not texts:
            message = f"{name}: {kind} {first} in {sides[0]}, {second} in {sides[1]}"
            return Difference(name=name, kind=kind, message=message, size=int(one.size))
    if one.size == 0 or one.tobytes() == other.tobytes():
        return None
    if one.dtype.kind not in "fiub":
        return _of_other_types(name, one, other, sides)
    return _of_numbers(name, one, other, tolerance, sides)


def _of_other_types(name: str, one: np.ndarray, other: np.ndarray, sides: tuple[str, str]) -> Difference | None:
    """Texts, complex numbers and the like: the same or not."""
    unequal = np.atleast_1d(one != other)
    count = int(np.count_nonzero(unequal))
    if not count:
        return None
    index = tuple(int(i) for i in np.argwhere(unequal)[0][: one.ndim])
    # As Python's: NumPy shows the types of its own.
    first, second = (side.item() if isinstance(side, np.generic) else side for side in (one[index], other[index]))
    message = f"{name}{_at(index)}: {first!r} in {sides[0]}, {second!r} in {sides[1]}"
    return Difference(
        name=name, kind="value", message=message, index=index, one=first, other=second, count=count,
        size=int(one.size), measured=False,
    )  # fmt: skip


def _of_numbers(
    name: str, one: np.ndarray, other: np.ndarray, tolerance: Tolerance, sides: tuple[str, str]
) -> Difference | None:
    first, second = one.astype(np.float64), other.astype(np.float64)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    if same.all():
        # Zeros of both signs, and NaNs of several kinds, are the same number.
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        absolute = np.where(same, 0.0, np.abs(first - second))
        # A NaN or an infinity on one side alone is as far as can be.
        absolute = np.where(np.isnan(absolute), np.inf, absolute)
        largest = np.maximum(np.abs(first), np.abs(second))
        relative = np.where(same, 0.0, np.where(np.isfinite(largest), absolute / np.where(same, 1.0, largest), np.inf))
    between = ulps(one, other) if one.dtype.kind == "f" else None
    finite = largest[np.isfinite(largest)]
    scale = float(finite.max()) if finite.size else 0.0
    rtol_of_max = np.float64(scale)
    if one.ndim > 1:
        columns = np.where(np.isfinite(largest), largest, 0.0).max(axis=tuple(range(one.ndim - 1)), keepdims=True)
        rtol_of_max = np.minimum(rtol_of_max, _OF_COLUMN * columns)
    beyond = ~same & (absolute > np.maximum(tolerance.atol, tolerance.rtol_of_max * rtol_of_max))
    beyond &= relative > tolerance.rtol
    if between is not None:
        beyond &= between > tolerance.ulp
    count = int(np.count_nonzero(beyond))
    # The worst of those that are not allowed, if there are any.
    flat = int(np.argmax(np.where(beyond if count else ~same, relative, -1.0)))
    index = tuple(int(i) for i in np.unravel_index(flat, one.shape))
    ulp = None if between is None else int(between[index])
    told = f"absolute {absolute[index]:.3g}, relative {relative[index]:.3g}" + ("" if ulp is None else f", {ulp} ULP")
    limit = "not bit-equal" if tolerance.bit_equal else f"beyond what is allowed ({tolerance})"
    part = limit if count else "within tolerance"
    if one.size > 1:
        part = f"{count} of {one.size} elements {limit}" if count else part
        part += f"; the worst {_at(index)}".rstrip()
    message = f"{name}: {part}: {one[index]} in {sides[0]}, {other[index]} in {sides[1]} ({told})"
    return Difference(
        name=name,
        kind="value" if count else "within",
        message=message,
        index=index,
        one=one[index].item(),
        other=other[index].item(),
        absolute=float(absolute[index]),
        relative=float(relative[index]),
        rtol_of_max=float(absolute.max() / scale) if scale else 0.0,
        ulp=ulp,
        largest_absolute=float(absolute.max()),
        largest_relative=float(relative.max()),
        largest_ulp=None if between is None else int(between.max()),
        count=count,
        size=int(one.size),
        tolerance=tolerance,
    )


def ulps(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How many numbers of their floating-point type lie between two arrays' elements, one of the two counted: int64.

    Between -x and +x are all the numbers around 0. NaN and anything else: the largest int64.

    Source: Dawson, "Comparing Floating Point Numbers, 2012 Edition": the bits of floats of one sign, read as integers,
    are in the floats' order.
    """
    integer = _INTEGERS[one.dtype.itemsize]
    lowest = np.iinfo(integer).min

    def ordered(values: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(values).view(integer).reshape(values.shape)
        # Negative floats run the other way.
        return np.where(bits < 0, np.subtract(lowest, bits, dtype=integer), bits)

    first, second = ordered(one), ordered(other)
    low, high = np.minimum(first, second), np.maximum(first, second)
    with np.errstate(over="ignore"):
        # The distance of two int64 may need the 64th bit.
        apart = high.astype(np.uint64) - low.astype(np.uint64)
    largest = np.iinfo(np.int64).max
    apart = np.where(apart > np.uint64(largest), np.uint64(largest), apart).astype(np.int64)
    nan = np.isnan(one) | np.isnan(other)
    return np.where(nan & ~(np.isnan(one) & np.isnan(other)), largest, np.where(nan, 0, apart))


def _at(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""

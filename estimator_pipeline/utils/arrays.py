"""Comparison of two sets of named arrays: names, shapes, dtypes, values.

The error of a value is reported in three ways: absolute, relative to the larger of the two, and in units in the last
place (ULP): the number of values of the dtype between the two. A value is within a tolerance if it meets any of its
limits. Each tolerance has a reason, which is reported with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

# Integer dtype of the same width, to count the values between two floats.
_INTEGERS: dict[int, Any] = {2: np.int16, 4: np.int32, 8: np.int64}
_LIMITS = ("rtol", "rtol_of_max", "atol")
# Limit of `rtol_of_max` for a column with small values, as a multiple of the column's largest value.
_OF_COLUMN = 100.0


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Allowed difference of two values.

    Attributes:
        ulp: Error in units in the last place.
        rtol: Error relative to the larger of the two.
        rtol_of_max: Error relative to the largest value of the array: for a sum near 0, the rounding of its terms may
            be large relative to the sum. Columns (indices of the last axis) may have different units: relative to the
            largest value of a column, the error may be at most a hundred times as large.
        atol: Absolute error.
        reason: Why the values may differ.
        atol_share: Limits atol to this share of the largest value of a series, see `of_series`: an error that is
            negligible for values of 1 is not negligible for values of 1e-9. None: atol is absolute.

    Raises:
        ValueError: A limit is below 0, or has no reason.
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
        """Whether the values must be bit-identical."""
        return not any(getattr(self, name) for name in ("ulp", *_LIMITS))

    def of_series(self, largest: float) -> Tolerance:
        """Return the tolerance for values of a series, with atol bounded by their size.

        Args:
            largest: The largest absolute value of the series on both sides. A single value is not enough: a loss that
                starts at 1 may reach 0 on one side and 1e-12 on the other.
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
    """The difference of one array between the two sides.

    Attributes:
        name: The name of the array.
        kind: "missing" (on one side), "shape", "dtype", "value" (beyond the tolerance) or "within" (the tolerance).
        message: The difference as text.
        index: The index of the worst element.
        first: The value of that element on the first side.
        second: Its value on the second side.
        absolute: Its absolute error.
        relative: Its error relative to the larger of the two.
        rtol_of_max: The largest absolute error of the array, relative to its largest value.
        ulp: The error of the worst element in units in the last place; None for dtypes without.
        largest_absolute: The largest absolute error of any element, which need not be the worst element.
        largest_relative: The largest relative error of any element.
        largest_ulp: The largest error of any element in units in the last place.
        count: The number of elements beyond the tolerance.
        size: The number of elements of the array.
        tolerance: The tolerance.
        measured: Whether the errors are meaningful; not for checksums and strings.
    """

    name: str
    kind: str
    message: str
    index: tuple[int, ...] = ()
    first: Any = None
    second: Any = None
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
        """Whether it is within the tolerance."""
        return self.kind == "within"

    @property
    def sized(self) -> bool:
        """Whether it has an absolute and a relative error."""
        return self.measured and self.kind in ("value", "within")


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two sets of arrays.

    Attributes:
        names: The names that both sides have, in the first side's order.
        differences: The arrays that are not bit-equal, also those within their tolerances; missing names come first.
        sides: The names of the two sides.
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
        """The differences beyond their tolerances."""
        return tuple(d for d in self.differences if not d.within)

    def less(self, *names: str) -> Comparison:
        """Return the comparison without these names."""
        return Comparison(
            tuple(name for name in self.names if name not in names),
            tuple(d for d in self.differences if d.name not in names),
            self.sides,
        )

    @property
    def alike(self) -> bool:
        """Whether both sides have the same names, shapes and dtypes."""
        return not any(d.kind in ("missing", "shape", "dtype") for d in self.differences)

    @property
    def largest_fault(self) -> Difference | None:
        """The difference to report first: names, then shapes, then the largest value."""
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
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    *,
    tolerance: Tolerance | Callable[[str], Tolerance] = BIT_EQUAL,
    sides: tuple[str, str] = ("the first", "the second"),
) -> Comparison:
    """Compare two mappings name -> array.

    Args:
        first: The first side.
        second: The second side.
        tolerance: The tolerance for all names, or a function of the name.
        sides: The names of the two sides in messages.
    """
    allowed = tolerance if callable(tolerance) else lambda name: tolerance
    differences = [_missing(name, sides[0], sides[1]) for name in first if name not in second]
    differences += [_missing(name, sides[1], sides[0]) for name in second if name not in first]
    names = tuple(name for name in first if name in second)
    for name in names:
        difference = _difference(name, np.asarray(first[name]), np.asarray(second[name]), allowed(name), sides)
        if difference is not None:
            differences.append(difference)
    return Comparison(names, tuple(differences), sides)


def _missing(name: str, has: str, lacks: str) -> Difference:
    return Difference(name=name, kind="missing", message=f"{name}: {has} has it, {lacks} has not")


def _difference(
    name: str, first: np.ndarray, second: np.ndarray, tolerance: Tolerance, sides: tuple[str, str]
) -> Difference | None:
    for kind in ("shape", "dtype"):
        left, right = getattr(first, kind), getattr(second, kind)
        # Strings of different lengths have the same dtype here.
        strings = kind == "dtype" and left.kind == right.kind and left.kind in "US"
        if left != right and not strings:
            message = f"{name}: {kind} {left} in {sides[0]}, {right} in {sides[1]}"
            return Difference(name=name, kind=kind, message=message, size=int(first.size))
    if first.size == 0 or first.tobytes() == second.tobytes():
        return None
    if first.dtype.kind not in "fiub":
        return _of_other_types(name, first, second, sides)
    return _of_numbers(name, first, second, tolerance, sides)


def _of_other_types(name: str, first: np.ndarray, second: np.ndarray, sides: tuple[str, str]) -> Difference | None:
    """Compare strings, complex numbers and the like for equality."""
    unequal = np.atleast_1d(first != second)
    count = int(np.count_nonzero(unequal))
    if not count:
        return None
    index = tuple(int(i) for i in np.argwhere(unequal)[0][: first.ndim])
    # As Python values, since NumPy's include the dtype when they are formatted.
    left, right = (side.item() if isinstance(side, np.generic) else side for side in (first[index], second[index]))
    message = f"{name}{_at(index)}: {left!r} in {sides[0]}, {right!r} in {sides[1]}"
    return Difference(
        name=name, kind="value", message=message, index=index, first=left, second=right, count=count,
        size=int(first.size), measured=False,
    )  # fmt: skip


def _of_numbers(
    name: str, first: np.ndarray, second: np.ndarray, tolerance: Tolerance, sides: tuple[str, str]
) -> Difference | None:
    left, right = first.astype(np.float64), second.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    if same.all():
        # Zeros of both signs, and different NaNs, are equal.
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        absolute = np.where(same, 0.0, np.abs(left - right))
        # A NaN or an infinity on only one side is an infinite error.
        absolute = np.where(np.isnan(absolute), np.inf, absolute)
        largest = np.maximum(np.abs(left), np.abs(right))
        relative = np.where(same, 0.0, np.where(np.isfinite(largest), absolute / np.where(same, 1.0, largest), np.inf))
    between = ulps(first, second) if first.dtype.kind == "f" else None
    finite = largest[np.isfinite(largest)]
    scale = float(finite.max()) if finite.size else 0.0
    rtol_of_max = np.float64(scale)
    if first.ndim > 1:
        columns = np.where(np.isfinite(largest), largest, 0.0).max(axis=tuple(range(first.ndim - 1)), keepdims=True)
        rtol_of_max = np.minimum(rtol_of_max, _OF_COLUMN * columns)
    beyond = ~same & (absolute > np.maximum(tolerance.atol, tolerance.rtol_of_max * rtol_of_max))
    beyond &= relative > tolerance.rtol
    if between is not None:
        beyond &= between > tolerance.ulp
    count = int(np.count_nonzero(beyond))
    # The worst element beyond the tolerance, if there is any.
    flat = int(np.argmax(np.where(beyond if count else ~same, relative, -1.0)))
    index = tuple(int(i) for i in np.unravel_index(flat, first.shape))
    ulp = None if between is None else int(between[index])
    errors = f"absolute {absolute[index]:.3g}, relative {relative[index]:.3g}" + ("" if ulp is None else f", {ulp} ULP")
    limit = "not bit-equal" if tolerance.bit_equal else f"beyond the tolerance ({tolerance})"
    part = limit if count else "within tolerance"
    if first.size > 1:
        part = f"{count} of {first.size} elements {limit}" if count else part
        part += f"; the worst {_at(index)}".rstrip()
    message = f"{name}: {part}: {first[index]} in {sides[0]}, {second[index]} in {sides[1]} ({errors})"
    return Difference(
        name=name,
        kind="value" if count else "within",
        message=message,
        index=index,
        first=first[index].item(),
        second=second[index].item(),
        absolute=float(absolute[index]),
        relative=float(relative[index]),
        rtol_of_max=float(absolute.max() / scale) if scale else 0.0,
        ulp=ulp,
        largest_absolute=float(absolute.max()),
        largest_relative=float(relative.max()),
        largest_ulp=None if between is None else int(between.max()),
        count=count,
        size=int(first.size),
        tolerance=tolerance,
    )


def ulps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the distances of two arrays' elements in ULP, as int64.

    The distance of adjacent floats is 1; that of -x and +x counts all floats between them. The distance of NaN and any
    other value is the largest int64.

    Source: Dawson, "Comparing Floating Point Numbers, 2012 Edition": the bits of floats of one sign, read as integers,
    are in the floats' order.
    """
    integer = _INTEGERS[first.dtype.itemsize]
    lowest = np.iinfo(integer).min

    def ordered(values: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(values).view(integer).reshape(values.shape)
        # The bits of negative floats are in the reverse order.
        return np.where(bits < 0, np.subtract(lowest, bits, dtype=integer), bits)

    left, right = ordered(first), ordered(second)
    low, high = np.minimum(left, right), np.maximum(left, right)
    with np.errstate(over="ignore"):
        # The distance of two int64 may need the 64th bit.
        apart = high.astype(np.uint64) - low.astype(np.uint64)
    largest = np.iinfo(np.int64).max
    apart = np.where(apart > np.uint64(largest), np.uint64(largest), apart).astype(np.int64)
    nan = np.isnan(first) | np.isnan(second)
    return np.where(nan & ~(np.isnan(first) & np.isnan(second)), largest, np.where(nan, 0, apart))


def _at(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""

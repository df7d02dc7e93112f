"""Comparing named arrays: names, shapes, types, values; errors in ULP, relative and absolute."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.parity import Tolerance, compare, ulps

F = np.float32


def arrays(**values):
    return {name: np.array(value, F) for name, value in values.items()}


def test_equal_to_the_bit():
    one = {"a": np.arange(6, dtype=F).reshape(2, 3), "b": np.array(b"x"), "c": np.array(3), "d": np.zeros((0, 2), F)}
    found = compare(one, {name: value.copy() for name, value in one.items()})
    assert found.equal and not found.differences and found.names == ("a", "b", "c", "d")
    assert str(found) == "4 arrays are bit-equal"


def test_names_come_first():
    found = compare(arrays(a=1, b=2), arrays(b=3, c=4), sides=("estimator", "keras"))
    assert [(d.name, d.kind) for d in found.faults] == [("a", "missing"), ("c", "missing"), ("b", "value")]
    assert str(found).splitlines()[:2] == ["a: estimator has it, keras has not", "c: keras has it, estimator has not"]


def test_then_shapes_then_types():
    found = compare(
        {"a": np.zeros((2, 3), F), "b": np.zeros(2, F)}, {"a": np.zeros((3, 2), F), "b": np.zeros(2, np.float64)}
    )
    assert [(d.name, d.kind) for d in found.faults] == [("a", "shape"), ("b", "dtype")]
    assert "shape (2, 3) in the first, (3, 2) in the second" in str(found)


@pytest.mark.parametrize(("small", "equal"), [(0.5, False), (1e-5, True)])
def test_a_small_column_beside_a_large_one_is_not_waived(small, equal):
    """A price and a score: what is little for the one is all of the other."""
    allowed = Tolerance(rtol_of_max=1e-4, reason="sums in another order")
    one = np.array([[9e3, 0.2], [1e4, 0.9]], F)
    other = one + np.array([[0.0, small], [0.0, 0.0]], F)
    assert compare({"answers": one}, {"answers": other}, tolerance=allowed).equal == equal
    # Nor is what lies behind further axes.
    assert compare({"kernel": one[None]}, {"kernel": other[None]}, tolerance=allowed).equal == equal
    # What comes near 0 in a column is measured by the rest of it; so it is in a vector.
    assert compare({"bias": np.array([1.0, 1e-7], F)}, {"bias": np.array([1.0, -1e-7], F)}, tolerance=allowed).equal


def test_the_worst_element_is_named():
    one = np.array([[1.0, 2.0], [4.0, 1000.0]], F)
    other = one + np.array([[0.0, 0.001], [0.5, 1.0]], F)
    (found,) = compare({"w": one}, {"w": other}, tolerance=Tolerance(atol=0.01, reason="a test")).faults
    assert (found.index, found.first, found.second, found.count, found.size) == ((1, 0), 4.0, 4.5, 2, 4)
    assert (found.absolute, found.relative) == (0.5, pytest.approx(0.5 / 4.5))
    assert found.message.startswith(
        "w: 2 of 4 elements beyond the tolerance (atol 0.01: a test); the worst [1, 0]: 4.0 in the first"
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulps_count_the_numbers_between(dtype):
    values = np.array([1.0, -1.0, 1000.0, 0.0, -np.finfo(dtype).max, np.finfo(dtype).tiny], dtype)
    up = np.nextafter(values, np.array(np.inf, dtype))
    assert ulps(values, values).tolist() == [0] * 6
    assert ulps(values, up).tolist() == [1] * 6 == ulps(up, values).tolist()
    smallest = np.nextafter(np.array([0.0], dtype), np.array(1.0, dtype))
    assert ulps(-smallest, smallest).tolist() == [2]
    assert ulps(np.array([-0.0], dtype), np.array([0.0], dtype)).tolist() == [0]
    largest = np.finfo(dtype).max
    assert ulps(np.array([-largest], dtype), np.array([largest], dtype))[0] > 2**14


@pytest.mark.parametrize(
    ("tolerance", "equal"),
    [
        (Tolerance(), False),
        (Tolerance(ulp=1, reason="r"), False),
        (Tolerance(ulp=2, reason="r"), True),
        (Tolerance(rtol=1e-6, reason="r"), True),
        (Tolerance(rtol=1e-8, reason="r"), False),
        (Tolerance(atol=1e-6, reason="r"), True),
        (Tolerance(atol=1e-8, reason="r"), False),
        (Tolerance(rtol_of_max=1e-9, reason="r"), True),
        (Tolerance(rtol_of_max=1e-11, reason="r"), False),
    ],
)
def test_any_limit_that_is_met_will_do(tolerance, equal):
    one = np.array([1.0, 1000.0], F)
    other = np.array([np.nextafter(np.nextafter(F(1), F(2)), F(2)), 1000.0], F)
    found = compare({"w": one}, {"w": other}, tolerance=tolerance)
    assert found.equal is equal and len(found.differences) == 1
    assert found.worst.ulp == 2 and found.worst.within is equal


@pytest.mark.parametrize(("value", "equal"), [(np.nan, True), (np.inf, True), (1.0, False)])
def test_numbers_that_are_none(value, equal):
    """The same on both sides is equal; NaN beside a number is as far as can be, whatever is allowed."""
    wide = Tolerance(rtol=0.5, atol=1e30, reason="wide")
    one, other = arrays(w=[0.0, np.nan if value != np.inf else np.inf]), arrays(w=[-0.0, value])
    assert compare(one, other, tolerance=wide).equal is equal
    assert compare(one, other).equal is equal
    if not equal:
        assert compare(one, other, tolerance=wide).faults[0].relative == np.inf


def test_infinities_of_either_sign():
    assert not compare(arrays(w=np.inf), arrays(w=-np.inf), tolerance=Tolerance(rtol=9, atol=9, reason="r")).equal


def test_integers_truths_and_texts():
    found = compare(
        {"i": np.array([1, 2]), "t": np.array([True, False]), "s": np.array([b"a", b"b"], object)},
        {"i": np.array([1, 5]), "t": np.array([True, True]), "s": np.array([b"a", b"c"], object)},
    )
    assert [(d.name, d.index, d.ulp) for d in found.faults] == [("i", (1,), None), ("t", (1,), None), ("s", (1,), None)]
    assert found.faults[2].message == "s[1]: b'b' in the first, b'c' in the second"


def test_a_tolerance_for_each_name():
    loose = Tolerance(atol=1.0, reason="sums in another order")
    one, other = arrays(a=1.0, b=1.0), arrays(a=1.5, b=1.5)
    found = compare(one, other, tolerance=lambda name: loose if name == "a" else Tolerance())
    assert [d.name for d in found.faults] == ["b"] and [d.within for d in found.differences] == [True, False]
    assert str(loose) == "atol 1: sums in another order"
    assert str(Tolerance(ulp=4, rtol=1e-6, reason="r")) == "4 ULP or rtol 1e-06: r"


@pytest.mark.parametrize("limits", [{"rtol": 1e-3}, {"atol": -1.0, "reason": "r"}, {"ulp": -1, "reason": "r"},
                                    {"rtol": float("nan"), "reason": "r"}])  # fmt: skip
def test_a_limit_has_a_reason_and_is_no_less_than_0(limits):
    with pytest.raises(ValueError, match=r"reason|0 or more"):
        Tolerance(**limits)

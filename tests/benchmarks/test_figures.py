"""The arithmetic of the benchmark: medians, spread, ratios of neighbours, verdicts, windows of time."""

from __future__ import annotations

import math

import pytest

from benchmarks.suite.figures import Figure, Target, Verdict, judge, rate_of, ratio_of, window
from estimator_pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "median", "spread"),
    [
        ([4.0], 4.0, 0.0),
        ([1.0, 2.0, 9.0], 2.0, 4.0),
        ([9.0, 1.0, 2.0], 2.0, 4.0),
        ([1.0, 2.0, 3.0, 6.0], 2.5, 2.0),
        ([0.0, 0.0], 0.0, 0.0),
    ],
)
def test_median_and_spread(values, median, spread):
    figure = Figure.of(values)
    assert (figure.median, figure.spread) == (median, spread)
    assert (figure.least, figure.most, figure.runs) == (min(values), max(values), len(values))
    assert figure.document()["median"] == median


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_figure_is_made_of_no_numbers(values):
    with pytest.raises(ValueError, match="a figure of"):
        Figure.of(values)


def test_a_ratio_is_of_neighbours():
    """A machine that is half as fast in the second run changes no ratio; the ratio of the medians would differ."""
    above, below = {0: 20.0, 1: 10.0, 2: 24.0}, {0: 10.0, 1: 5.0, 2: 8.0}
    found = ratio_of(above, below)
    assert (found.median, found.least, found.most, found.runs) == (2.0, 2.0, 3.0, 3)
    assert Figure.of([*above.values()]).median / Figure.of([*below.values()]).median == 2.5
    assert ratio_of(above, below, times=2).median == 1.0


def test_a_ratio_takes_the_runs_that_both_have():
    assert ratio_of({0: 8.0, 1: 9.0}, {0: 4.0, 2: 1.0}).runs == 1
    assert ratio_of({0: 8.0}, {1: 4.0}) is None
    assert ratio_of({0: 8.0}, {0: 0.0}) is None


@pytest.mark.parametrize(
    ("bounds", "ratio", "state"),
    [
        ({"least": 2.0}, 2.0, "met"),
        ({"least": 2.0}, 1.99, "not met"),
        ({"most": 0.5}, 0.5, "met"),
        ({"most": 0.5}, 0.51, "not met"),
    ],
)
def test_verdict(bounds, ratio, state):
    target = Target(contender="estimator", against="plain_estimator", **bounds)
    assert judge("a", target, {0: ratio}, {0: 1.0}).state == state
    assert target.bound in (">= 2", "<= 0.5")


def test_the_median_decides():
    target = Target(contender="estimator", against="plain_estimator", least=1.0)
    verdict = judge("a", target, {0: 0.5, 1: 1.1, 2: 1.2}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert verdict.state == "met" and verdict.ratio.least == 0.5


def test_what_was_not_measured_is_not_met():
    target = Target(contender="estimator", against="plain_estimator", least=1.0)
    assert Verdict("a", target, None).state == "not measured"
    assert judge("a", target, {}, {0: 1.0}).state == "not measured"


@pytest.mark.parametrize("bounds", [{}, {"least": 1.0, "most": 2.0}])
def test_a_target_has_one_bound(bounds):
    with pytest.raises(ConfigError, match="give one of the two"):
        Target(contender="a", against="b", **bounds)


def test_the_window_is_when_all_are_warm_and_none_has_ended():
    first = [(0.0, 0), (1.0, 10), (2.0, 20), (3.0, 30), (4.0, 40)]
    second = [(2.1, 15), (2.5, 22), (3.5, 35), (6.0, 50)]
    assert window([first, second], warm=10) == (2.1, 4.0)
    assert rate_of(first, 2.1, 4.0) == 10.0
    # What comes before the warm-up's end counts for nothing, however slow it is.
    assert window([[(0.0, 0), (100.0, 10), (101.0, 30)]], warm=10) == (100.0, 101.0)


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([], "fewer than two marks"),
        ([[(0.0, 5), (1.0, 9)]], "fewer than two marks"),
        ([[(0.0, 10), (1.0, 20)], [(2.0, 10), (3.0, 20)]], "not train at the same time"),
    ],
)
def test_no_window(tasks, says):
    with pytest.raises(ValueError, match=says):
        window(tasks, warm=10)


def test_a_rate_needs_two_marks():
    with pytest.raises(ValueError, match="fewer than two marks"):
        rate_of([(0.0, 0), (5.0, 50)], 1.0, 6.0)

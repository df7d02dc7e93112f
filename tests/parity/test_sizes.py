"""The absolute part of a named tolerance is bounded by the size of the series: numbers of 1e-9 are compared as well.

What is equal stays so: what has come to 0, or to rounding, is measured by where it came from.
"""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.job.tolerances import NAMED, Sizes, Tolerances
from estimator_pipeline.parity.result import ENGINES
from estimator_pipeline.utils.arrays import Tolerance, compare
from tests.support.trainings_by_hand import SHAPES, START, comparing, only, trained

F = np.float32
SMALL = [1e-9, 9e-10, 8e-10, 7e-10, 6e-10, 5e-10]
CONVERGED = [1.0, 1e-2, 1e-4, 1e-8, 1e-12, 1e-12]


@pytest.fixture
def compared(tmp_path):
    return comparing(tmp_path)


def times(factor, values):
    return [factor * value for value in values]


# The tolerance itself ------------------------------------------------------------------------------------------------


def test_an_absolute_part_is_bounded_by_the_series():
    named = NAMED["rounding"]
    assert named.of_series(1.0) is named and named.of_series(np.inf) is named
    assert named.of_series(1e-6).atol == pytest.approx(1e-10) and named.of_series(0.0).atol == 0
    assert (named.of_series(1e-6).rtol, named.of_series(1e-6).reason) == (named.rtol, named.reason)
    assert NAMED["amplified"].of_series(1e-6).atol == pytest.approx(2e-8)


def test_what_a_person_writes_is_absolute():
    own = Tolerance(atol=1e-5, reason="rounding alone")
    assert own.of_series(1e-9) is own
    assert Tolerances.of({"loss": {"atol": 1e-5, "reason": "r"}}).number("loss", Sizes()).atol == 1e-5


def test_the_bound_is_told():
    found = compare({"loss": F(1e-9)}, {"loss": F(5e-9)}, tolerance=NAMED["rounding"].of_series(5e-9), sides=ENGINES)
    assert "or atol 5e-13: the same sums in a different order" in found.faults[0].message


def test_sizes():
    sizes = Sizes()
    sizes.add("loss", 0.5, -2.0, np.nan, np.array([1.0, np.inf]), np.zeros(0))
    assert sizes.of("loss") == 2.0 and sizes.of("none") == 0.0
    variables = {"a/kernel": F([3, -4]), "b/bias": F([1e-9]), "a/kernel @m": F([0.5]), "b/bias @v": F([0.25]),
                 "norm/moving_mean": F([7]), "seen": np.int64(10**6)}  # fmt: skip
    sizes.add_variables(variables, {"b/bias @m": F([0.75])})
    # A single one of the weights may be rounding alone; slots of other names have other units.
    assert [sizes.of(one) for one in ("weights", "slots m", "slots v", "statistics")] == [4.0, 0.75, 0.25, 7.0]
    allowed = Tolerances.of(None)
    assert allowed.variable("b/bias", sizes).atol == 1e-7 and allowed.variable("b/bias").atol == 1e-7
    small = Sizes()
    small.add_variables({"b/bias @v": F([1e-9])})
    assert allowed.variable("a/kernel @v", small).atol == pytest.approx(1e-13)


# Losses --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [5, 1.001])
def test_small_losses(compared, factor):
    finding = only(compared(trained(), trained(), losses=(times(factor, SMALL), SMALL)))
    assert (finding.name, finding.step, finding.kind) == ("first difference", 1, "loss")
    assert finding.size == pytest.approx((factor - 1) * SMALL[0], rel=1e-3)


@pytest.mark.parametrize(
    "losses",
    [
        (CONVERGED, [*CONVERGED[:4], 3e-12, 0.0]),
        (CONVERGED[::-1], [0.0, 3e-12, *CONVERGED[3::-1]]),
        (SMALL, times(1 + 5e-5, SMALL)),
        ([0.0] * 6, [-0.0] * 6),
    ],
    ids=["to rounding", "from rounding", "by little", "always 0"],
)
def test_losses_that_are_equal(compared, losses):
    assert compared(trained(), trained(), losses=losses).equal


# Metrics and predictions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("losses", [None, SMALL, times(2, SMALL), [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]])
def test_small_metrics(compared, losses):
    metrics = ({"mse": 1e-9, "auc": 0.5, "at": [0.5, 1e-9]}, {"mse": 5e-9, "auc": 0.5, "at": [0.5, 5e-9]})
    found = compared(trained(), trained(), losses=(losses, losses), metrics=metrics)
    # The elements of an array are one series.
    assert [fault.name for fault in found.metrics.faults] == ["mse"] and only(found).kind == "metric"


@pytest.mark.parametrize("last", [1e-12, 0.0])
def test_metrics_that_have_come_to_rounding(compared, last):
    """As the loss has: they are measured by what they may have begun with."""
    losses = [*CONVERGED[:5], last]
    metrics = ({"mse": 1e-12, "mae": 1e-8, "zero": 0.0}, {"mse": 4e-12, "mae": 2e-8, "zero": 0.0})
    assert compared(trained(), trained(), losses=(losses, losses), metrics=metrics).equal


def test_losses_that_are_no_numbers_bound_nothing(compared):
    losses = [*CONVERGED[:5], float("nan")]
    found = compared(trained(), trained(), losses=(losses, losses), metrics=({"mse": 1e-9}, {"mse": 5e-9}))
    assert not found.metrics.equal


def test_small_predictions(compared):
    small, other = F([1e-9, 5e-10]), F([5e-9, 5e-10])
    answers = tuple({"predictions a": one, "text": np.array([b"x"])} for one in (small, other))
    assert only(compared(trained(), trained(), answers=answers)).kind == "prediction"


def test_small_predictions_beside_large_ones(compared):
    answers = ({"predictions a": F([[1.0, 1e-9]])}, {"predictions a": F([[1.0, 5e-9]])})
    assert compared(trained(), trained(), answers=answers).equal


# Weights, slots and the length of a change ---------------------------------------------------------------------------


def scaled(size, factor=1.0, kind="sgd", **options):
    """Weights that begin with 0 and gradients of such a size."""
    zeros = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    return trained(kind, gradient=lambda name, step, g: factor * size * g, start_weights=zeros, **options)


def test_small_weights(compared):
    finding = only(compared(scaled(1e-7, 5), scaled(1e-7)))
    assert finding.step == 1 and "5 times" in finding.message


def test_small_slots(compared):
    """@v of another decay, where the squares of the gradients are far below what is allowed among numbers of 1."""
    options = {"rate": 0.01, "epsilon": 1e-12}
    finding = only(compared(scaled(1e-4, kind="adam", beta_2=0.99, **options), scaled(1e-4, kind="adam", **options)))
    assert (finding.name, finding.step, finding.kind) == ("first difference", 1, "slot")


def test_small_changes(compared):
    """Each within what is allowed of the weights, and together five times as long."""
    small = {name: 1e-5 * value for name, value in START.items()}
    pair = [trained(gradient=lambda _, step, g, by=by: by * 2e-8 * g, start_weights=small) for by in (5, 1)]
    found = compared(*pair)
    assert not found.equal and found.first_fault[0] == 1 and found.first_fault[1].name == "update_norm"
    assert not [fault for step in found.steps[:1] for fault in step.variables.faults]


def test_changes_of_the_weights_rounding_are_equal(compared):
    """Steps so short that rounding says which weights change at all."""

    def rounded(seed):
        random = np.random.default_rng(seed)
        weights = {name: F(0.003 * value) for name, value in START.items()}
        for _ in range(7):
            yield dict(weights)
            up = {name: np.where(random.uniform(size=value.shape) < 0.5, np.nextafter(value, F(1)), value)
                  for name, value in weights.items()}  # fmt: skip
            weights = up

    assert compared(rounded(1), rounded(2)).equal


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adagrad"])
def test_a_weight_of_rounding_alone_is_equal(compared, kind):
    """A bias before BatchNormalization, in a model of small weights: what it is beside the others is nothing."""
    small = {name: 1e-2 * value if "kernel" in name else 0.0 * value for name, value in START.items()}

    def noisy(seed):
        random = np.random.default_rng(seed)

        def gradient(name, step, g):
            return 1e-10 * random.normal(size=g.shape) if name == "hidden/bias" else 1e-2 * g

        return trained(kind, gradient=gradient, start_weights=small, rate=0.1, start=0.1 * (kind == "adagrad"))

    assert compared(noisy(1), noisy(2)).equal


def test_weights_that_have_come_to_rounding_are_equal(compared):
    """They are measured by what they began with, too."""

    def shrunk(left):
        for step in range(7):
            yield {name: F(left * value if step else value) for name, value in START.items()}

    assert compared(shrunk(1e-9), shrunk(3e-9), tolerances={"update_norm": "amplified"}).equal

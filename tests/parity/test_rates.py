"""Learning rates of another step, seen in the changes and velocities: what is one, and what only looks like one."""

from __future__ import annotations

import numpy as np
import pytest
from trainings_by_hand import CONSTANT, DROPPING, comparing, only, trained

from estimator_pipeline.parity.result import ENGINES

LATE, EARLY = "it is one step late", "it is one step early"
# Half the rate, and then a little less in each step.
FALLING = [0.1, 0.1 / 1.5, 0.1 / 1.5 / 1.25, 0.04, 0.03, 0.02]


@pytest.fixture
def compared(tmp_path):
    return comparing(tmp_path)


def pairs(side, mine, other):
    """Both sides as :func:`comparing` takes them, of which one is named."""
    return (mine, other) if side == ENGINES[0] else (other, mine)


def off(rates, shift):
    return [rates[min(max(step - shift, 0), 5)] for step in range(6)]


def from_step(first, times, *, last=6):
    """Gradients that are so many times as long in some steps, counted from 1."""
    return lambda name, step, g: g * (times if first <= step + 1 <= last else 1)


def turned(name, step, g):
    return g[::-1] if name.startswith("logits") else g


# Seen in the changes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ENGINES)
@pytest.mark.parametrize(("shift", "says", "step"), [(1, LATE, 3), (-1, EARLY, 2)])
def test_a_schedule_of_stairs(compared, side, shift, says, step):
    """The step after it has no neighbour of another rate, and so nothing to say against it."""
    sides = pairs(side, trained(rates=off(DROPPING, shift)), trained(rates=DROPPING))
    finding = only(compared(*sides, rates=pairs(side, None, DROPPING)))
    assert (finding.name, finding.step) == ("learning rate", step) and says in finding.message


@pytest.mark.parametrize("side", ENGINES)
def test_in_the_last_step(compared, side):
    """There is none after it that could say otherwise."""
    late = [*FALLING[:5], FALLING[4]]
    finding = only(
        compared(*pairs(side, trained(rates=late), trained(rates=FALLING)), rates=pairs(side, None, FALLING))
    )
    assert (finding.name, finding.step) == ("learning rate", 6)
    assert f"{side} has the learning rate of another step; {LATE}" in finding.message


def test_the_step_after_it_may_have_other_gradients(compared):
    """From other weights: then it says nothing."""

    def gradient(name, step, g):
        return -np.sin(np.arange(g.size)).reshape(g.shape) if step == 2 else g

    sides = trained(rates=off(FALLING, 1), gradient=gradient), trained(rates=FALLING)
    finding = only(compared(*sides, rates=(None, FALLING)))
    assert (finding.name, finding.step) == ("learning rate", 2) and LATE in finding.message


@pytest.mark.parametrize(
    ("times", "first", "rates"),
    [
        # As in the step before, and in the next step still so many times as long.
        (1.5, 2, FALLING),
        # As in the last step, which is no neighbour of the first.
        (0.25, 1, DROPPING),
        # In the last step, behind which there is none.
        (2.0, 6, FALLING),
        # A rate of 0 has no ratio.
        (2.0, 3, [0.1, 0.0, 0.1, 0.0, 0.1, 0.1]),
    ],
    ids=["always", "first", "last", "of nothing"],
)
@pytest.mark.parametrize("side", ENGINES)
def test_changes_that_are_longer_by_something_else(compared, times, first, rates, side):
    sides = pairs(side, trained(rates=rates, gradient=from_step(first, times)), trained(rates=rates))
    finding = only(compared(*sides, rates=pairs(side, None, rates)))
    assert (finding.name, finding.step) == ("learning rate", first)
    assert LATE not in finding.message and EARLY not in finding.message, finding


def test_a_rate_that_stays_explains_nothing(compared):
    """That of the step before is the same, and so is no cause of what is little longer."""
    sides = trained(gradient=from_step(1, 1.001)), trained()
    finding = only(compared(*sides, rates=(None, CONSTANT), tolerances={"weights": "bit_equal"}))
    assert "another step" not in finding.message


@pytest.mark.parametrize("told", [2, 3])
def test_two_rates_are_no_schedule(compared, told):
    """Of what both tell: one step that has the other's rate of before is no shift."""
    one = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6][:told]
    other = [0.3, 0.1, 0.2][:told]
    sides = (list(trained(rates=[*rates, *CONSTANT][:6]))[: told + 1] for rates in (one, other))
    finding = only(compared(*sides, rates=(one, other)))
    assert finding.name == "learning rate" and ("is one step late" in finding.message) == (told == 3)


# Seen in the velocities ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ENGINES)
@pytest.mark.parametrize(("shift", "says"), [(1, LATE), (-1, EARLY)])
@pytest.mark.parametrize("mu", [0.5, 0.9])
def test_velocities(compared, side, shift, says, mu):
    sides = pairs(
        side, trained("velocity", mu=mu, rates=off(DROPPING, shift)), trained("velocity", mu=mu, rates=DROPPING)
    )
    finding = only(compared(*sides, rates=pairs(side, None, DROPPING)))
    assert (
        finding.name == "learning rate" and f"{side} has the learning rate of another step; {says}" in finding.message
    )


@pytest.mark.parametrize("mu", [1.5, -0.5])
def test_what_is_no_momentum(compared, mu):
    """A velocity keeps a share of the one before."""
    sides = trained("velocity", mu=mu, rates=off(DROPPING, 1)), trained("velocity", mu=mu, rates=DROPPING)
    assert "another step" not in only(compared(*sides, rates=(None, DROPPING))).message


@pytest.mark.parametrize("step", [3, 5])
def test_velocities_of_other_gradients(compared, step):
    """What is left of them is no share of the one before."""

    def gradient(name, number, g):
        return turned(name, number, g) if number + 1 == step else g

    sides = trained("velocity", rates=DROPPING, gradient=gradient), trained("velocity", rates=DROPPING)
    finding = only(compared(*sides, rates=(None, DROPPING)))
    assert (finding.name, finding.step) == ("gradient", step) and "another step" not in finding.message


def test_velocities_that_one_side_alone_has(compared):
    """Of a weight that stands still on both sides."""

    def still(name, step, g):
        return 0 * g if name == "more/bias" else turned(name, step, g) if step == 2 else g

    def plain(name, step, g):
        return 0 * g if name == "more/bias" else g

    sides = (trained("velocity", rates=DROPPING, gradient=still),
             trained("velocity", rates=DROPPING, gradient=plain, frozen=["more/bias"]))  # fmt: skip
    finding = only(compared(*sides, rates=(None, DROPPING), slots=False))
    assert (finding.name, finding.step) == ("gradient", 3)


# Velocities of two meanings ------------------------------------------------------------------------------------------

MEANING = "a velocity with the learning rate in it (Keras) against one without"


@pytest.mark.parametrize("rates", [(None, CONSTANT), (CONSTANT, None), (CONSTANT, CONSTANT)])
def test_a_rate_that_stays_makes_them_the_same(compared, rates):
    """What the third step does otherwise has another cause."""
    sides = trained("momentum", gradient=from_step(3, 2)), trained("velocity")
    finding = only(compared(*sides, slots=False, rates=rates))
    assert finding.step == 3 and MEANING not in finding.message


@pytest.mark.parametrize(
    ("told", "options"),
    [
        ((None, None), ({}, {})),
        ((None, [0.1, None, 0.05, 0.05, 0.025, 0.025]), ({}, {})),
        ((None, DROPPING), ({}, {})),
        # One side has a rate that stays among its options.
        ((None, DROPPING), ({"kind": "momentum", "learning_rate": 0.1}, {"kind": "momentum"})),
        ((DROPPING, None), ({"kind": "momentum"}, {"kind": "momentum", "learning_rate": 0.1})),
    ],
)
def test_a_rate_that_does_not_stay(compared, told, options):
    """Or of which nothing is known."""
    sides = trained("momentum", rates=DROPPING), trained("velocity", rates=DROPPING)
    finding = only(compared(*sides, slots=False, rates=told, options=options))
    assert (finding.name, finding.step) == ("optimizer", 3) and MEANING in finding.message


@pytest.mark.parametrize("at", [2, 5])
def test_a_rate_that_drops_in_an_estimator_alone_whose_velocities_are_without_it(compared, at):
    """What the velocities add is the same; a change of the weights is as much less as the rate."""
    dropping = [0.1] * at + [0.03] * (6 - at)
    sides = trained("momentum", rates=dropping), trained("velocity", rates=CONSTANT)
    finding = only(compared(*sides, slots=False, rates=(None, CONSTANT)))
    assert (finding.name, finding.step) == ("learning rate", at + 1)
    assert "the gradients are the same, and every weight's change in estimator is 0.3 times that" in finding.message


@pytest.mark.parametrize("kinds", [("momentum", "momentum"), ("momentum", "velocity")])
def test_changes_that_no_rate_explains(compared, kinds):
    """The velocities add the same, and each element of the weights changes by a share of its own."""
    random = np.random.default_rng(3)

    def by_shares():
        before = kept = None
        for values in trained(kinds[0]):
            told = dict(values)
            for name in () if before is None else [name for name in values if " @" not in name]:
                share = random.uniform(0.2, 0.6, values[name].shape)
                told[name] = np.float32(kept[name] + share * (values[name] - before[name]))
            before, kept = values, told
            yield told

    finding = only(compared(by_shares(), trained(kinds[1]), slots=kinds[0] == kinds[1], rates=(None, CONSTANT)))
    assert finding.step == 1 and finding.name != "learning rate", finding

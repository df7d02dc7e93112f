"""What a difference comes from, each cause by its own name: from the records of optimizers that are made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from trainings_by_hand import CONSTANT, DROPPING, GRADIENTS, SHAPES, START, comparing, only, trained

from estimator_pipeline.parity import text
from estimator_pipeline.parity.result import ENGINES


@pytest.fixture
def compared(tmp_path):
    return comparing(tmp_path)


# Optimizers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "keras", "says"),
    [
        (trained("sgd"), trained("adam", rate=0.01), "as plain SGD does, keras keeps @m, @v for each weight, as Adam"),
        (trained("rmsprop", rate=0.01), trained("adagrad", start=0.1), "@rms for each weight, as RMSprop does, keras"),
        (trained("momentum"), trained("sgd"), "estimator keeps @momentum for each weight, as SGD with momentum does"),
        (trained("adadelta"), trained("sgd"), "estimator keeps @accum_grad, @accum_var for each weight, as Adadelta"),
        (trained("dual"), trained("adam"), "estimator keeps @dual_sum for each weight, keras keeps @m, @v"),
    ],
    ids=["sgd-adam", "rmsprop-adagrad", "momentum-sgd", "adadelta-sgd", "unknown-adam"],
)
def test_optimizers_of_different_kinds(compared, estimator, keras, says):
    finding = only(compared(estimator, keras, slots=False))
    assert finding.name == "optimizer" and says in finding.message and "gradient" not in finding.message


@pytest.mark.parametrize("options", [({}, {}), ({"kind": "adam"}, {"kind": "adamax"})], ids=["by slots", "by kind"])
def test_adam_and_adamax(compared, options):
    """They keep slots of the same names, of which the first moments are the same."""
    finding = only(compared(trained("adam", rate=0.01), trained("adamax", rate=0.01), options=options))
    assert (finding.name, finding.step) == ("optimizer", 1)
    if options[0]:
        assert "as Adam does, keras keeps @m, @v for each weight, as Adamax does" in finding.message
    else:
        assert "@m is the same, so the gradients are, and @v is not: @v has the length" in finding.message


def amsgrad(after=3):
    """Adam's steps, and beside them what AMSGrad keeps; from a step on they are a little shorter."""
    for step, values in enumerate(trained("adam", rate=1e-4)):
        off = np.float32(1 + 1e-5 * (step > after))
        kept = {f"{name} @vhat": values[f"{name} @v"] for name in SHAPES}
        yield {name: value * off if name in SHAPES else value for name, value in {**values, **kept}.items()}


def test_little_that_has_a_known_cause(compared):
    finding = only(compared(trained("adam", rate=1e-4), amsgrad(), slots=False, tolerances={"weights": "bit_equal"}))
    assert (finding.name, finding.step) == ("optimizer", 4)
    assert "keras keeps @vhat for each weight, and the other does not: amsgrad" in finding.message


def overwritten(every=2):
    """Weights of plain gradient descent, which are set to their moving averages every so many steps."""
    weights = {name: np.float32(value) for name, value in START.items()}
    average = dict(weights)
    yield {**weights, **{f"{name} @average": value for name, value in average.items()}}
    for step in range(6):
        weights = {name: np.float32(value - 0.1 * GRADIENTS[step][name]) for name, value in weights.items()}
        average = {name: np.float32(0.9 * value + 0.1 * weights[name]) for name, value in average.items()}
        if (step + 1) % every == 0:
            weights = dict(average)
        yield {**weights, **{f"{name} @average": value for name, value in average.items()}}


def test_weights_that_are_set_to_their_averages(compared):
    finding = only(compared(trained("sgd"), overwritten(), slots=False))
    assert (finding.name, finding.side, finding.step) == ("optimizer", "keras", 2)
    assert "keras sets its weights to their moving averages (use_ema)" in finding.message


@pytest.mark.parametrize("side", ENGINES)
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_a_decay_in_the_gradient(compared, side, kind):
    """As of an L2 regulariser that is not told by the loss; kernels alone have it."""
    weights = {}

    def decayed(name, step, gradient):
        return gradient + (0.03 * weights["before"][name] if "kernel" in name else 0.0)

    def with_decay():
        made = trained(kind, gradient=decayed, rate=0.01)
        weights["before"] = START
        for values in made:
            yield values
            weights["before"] = {name: np.float64(values[name]) for name in SHAPES}

    other = next(engine for engine in ENGINES if engine != side)
    finding = only(compared(**{side: with_decay(), other: trained(kind, rate=0.01)}, rates=([0.01] * 6, [0.01] * 6)))
    assert (finding.name, finding.step) == ("gradient", 1)
    assert f"{side}'s is larger by 0.03 times the weights themselves" in finding.message
    assert "L2 regulariser" in finding.mend


def test_rates_by_layer_behind_the_same_slots(compared):
    def by_layer():
        fast, slow = list(trained("adam", rate=0.01)), list(trained("adam", rate=0.001))
        for pair in zip(fast, slow, strict=True):
            yield {name: pair["hidden" in name][name] for name in pair[0]}

    finding = only(compared(by_layer(), trained("adam", rate=0.01)))
    assert finding.name == "learning rate"
    assert "hidden/kernel 0.1 times, hidden/bias 0.1 times as long in estimator" in finding.message
    assert "an optimizer for each part" in finding.mend


def test_little_other_gradients_are_not_clipped_by_variable(compared):
    """Each nearly as long as the other one's: no factor, but another function."""
    finding = only(compared(trained(gradient=lambda name, step, g: g * (1 + 1e-3 * len(name))), trained()))
    assert finding.name == "gradient" and "clipnorm" not in finding.mend


@pytest.mark.parametrize("side", ENGINES)
def test_an_output_of_small_numbers_that_one_side_does_not_train(compared, side):
    def gradient(trained):
        scales = np.array([1e6, 1.0, 1.0, 1.0 if trained else 0.0])
        return lambda name, step, g: g * (scales if name == "logits/kernel" else 1e-3)

    other = next(engine for engine in ENGINES if engine != side)
    sides = {side: trained(gradient=gradient(False)), other: trained(gradient=gradient(True))}
    finding = only(compared(**sides))
    assert (finding.name, finding.step) == ("gradient", 2)
    assert "column 3 of logits/kernel changes by " in finding.message and f"by 0 in {side}" in finding.message


@pytest.mark.parametrize("side", ENGINES)
def test_constraints_are_named(compared, side):
    def held(values):
        return {name: np.abs(value) if name == "hidden/kernel" else value for name, value in values.items()}

    other = next(engine for engine in ENGINES if engine != side)
    told = {"hidden/kernel": "NonNeg", "logits/kernel": "MaxNorm"}
    sides = {side: (one if not number else held(one) for number, one in enumerate(trained())), other: trained()}
    constrained = tuple(told if engine == side else {} for engine in ENGINES)
    finding = only(compared(**sides, constrained=constrained))
    assert finding.name == "gradient" and f"{side} constrains hidden/kernel (NonNeg)" in finding.message
    assert "MaxNorm" not in finding.message and finding.mend == "constraints of weights, in both"


def test_slots_that_begin_with_another_value(compared):
    """As RMSProp of V1 against that of Keras."""
    finding = only(compared(trained("rmsprop", start=1.0, rate=0.01), trained("rmsprop", rate=0.01), slots=False))
    assert (finding.name, finding.step) == ("optimizer", 1)
    assert "@rms begins with 1 in estimator and with 0 in keras" in finding.message


def test_velocities_that_mean_something_else(compared):
    """V1's momentum against Keras's: the same until the rate changes."""
    found = compared(
        trained("momentum", rates=DROPPING), trained("velocity", rates=DROPPING), rates=(None, DROPPING), slots=False
    )
    finding = only(found)
    assert (finding.name, finding.step) == ("optimizer", 3)
    assert "is -10 times that in keras: a velocity with the learning rate in it (Keras)" in finding.message


@pytest.mark.parametrize(
    ("beta", "slots", "step", "says"),
    [
        ({"beta_1": 0.8}, True, 1, "every @m is 2 times as long in estimator as in keras"),
        # The first step is the same, for Adam corrects for it.
        ({"beta_1": 0.8}, False, 2, "@m in estimator is 2 times that in keras"),
        ({"beta_2": 0.99}, True, 1, "every @v is 10 times as long in estimator as in keras"),
    ],
)
def test_another_decay_of_adams_moments(compared, beta, slots, step, says):
    finding = only(compared(trained("adam", rate=0.01, **beta), trained("adam", rate=0.01), slots=slots))
    assert (finding.name, finding.step) == ("optimizer", step)
    assert says in finding.message and next(iter(beta)) in finding.mend


@pytest.mark.parametrize("kind", ["momentum", "velocity"])
def test_another_momentum(compared, kind):
    finding = only(compared(trained(kind, mu=0.8), trained(kind)))
    assert (finding.name, finding.step) == ("optimizer", 2)
    assert "the velocities differ by -0.1 times those before the step" in finding.message


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("kind", ["momentum", "velocity"])
def test_nesterovs_momentum_against_the_plain_one(compared, kind, side):
    pair = [trained(kind), trained(kind)]
    pair[side] = trained(kind, nesterov=True)
    finding = only(compared(*pair))
    assert (finding.name, finding.step) == ("optimizer", 1)
    assert f"{ENGINES[side]} takes Nesterov's momentum, the other the plain one" in finding.message


def test_epsilons_that_are_the_same_are_no_cause(compared):
    """Another use of the same moments, that no option explains."""

    def rounded():
        for values in trained("adam", rate=0.01):
            noise = np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
            yield {
                **values,
                "hidden/kernel": values["hidden/kernel"] + 0.05 * noise * (values["logits/bias @v"][0] > 0),
            }

    finding = only(compared(rounded(), trained("adam", rate=0.01)))
    assert finding.name == "optimizer" and "epsilon is about" not in finding.message


@pytest.mark.parametrize("side", [0, 1])
def test_epsilon(compared, side):
    pair = [trained("adam"), trained("adam")]
    pair[side] = trained("adam", epsilon=1e-3)
    finding = only(compared(*pair))
    assert finding.name == "optimizer" and f"1.0e-03 in {ENGINES[side]}" in finding.message
    assert "epsilon is about" in finding.message


@pytest.mark.parametrize("kind", ["adam", "momentum"])
def test_a_weight_decay_of_one_side(compared, kind):
    finding = only(compared(trained(kind), trained(kind, decay=0.01)))
    assert finding.name == "optimizer" and "keras's weights lose 0.01 of themselves more" in finding.message


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [("sgd", {}, "learning rate"), ("momentum", {}, "learning rate"), ("adam", {}, "learning rate"),
     ("velocity", {}, "learning rate"), ("velocity", {"rates": (CONSTANT, CONSTANT)}, "loss scaling")],
)  # fmt: skip
def test_a_rate_that_is_another_one(compared, kind, options, name):
    """Where one side does not tell its rate; and where both tell the same, it is not the rate."""
    finding = only(compared(trained(kind, rate=0.2), trained(kind, rate=0.1), **options))
    assert finding.name == name and " 2 times " in finding.message and finding.step == 1


def test_options_that_are_known(compared):
    """Read from the graph and from the Keras optimizer: epsilon alone may be too small to matter."""
    options = ({"kind": "sgd", "learning_rate": 0.2}, {"kind": "sgd", "learning_rate": 0.1})
    finding = only(compared(trained(rate=0.2), trained(rate=0.1), options=options))
    assert finding.name == "learning rate" and "learning_rate 0.2 in estimator, 0.1 in keras" in finding.message


def test_known_epsilons_do_not_hide_another_cause(compared):
    options = ({"kind": "adam", "epsilon": 1e-8}, {"kind": "adam", "epsilon": 1e-7})
    finding = only(compared(trained("adam", frozen=["hidden/bias"]), trained("adam"), slots=False, options=options))
    assert finding.name == "gradient" and "epsilon" not in finding.message


# What is told of it ------------------------------------------------------------------------------------------------


def test_the_headline_names_a_variable(compared):
    found = compared(trained(rate=0.2), trained())
    assert found.first_fault[1].name in SHAPES
    assert text.summary(found).splitlines()[1].strip().startswith(found.first_fault[1].name)


def test_what_was_not_compared_is_not_called_equal(compared):
    found = compared(trained("adam"), trained("adam"), rates=(None, CONSTANT), slots=False)
    rows = {line[:24].strip(): line[24:].strip() for line in text.summary(found).splitlines()}
    assert found.equal and rows["weights, statistics"] == rows["loss"] == "bit-equal"
    assert rows["optimizer slots"] == rows["learning rate"] == "not compared"


# Found by trying it on two hundred programs ------------------------------------------------------------------------


def test_a_velocity_that_is_kept_and_not_used(compared):
    """The newer SGD of Keras 2 has one whatever its momentum is."""
    kept = (
        {**values, **{f"{n} @momentum": np.zeros(s, np.float32) for n, s in SHAPES.items()}} for values in trained()
    )
    options = ({"kind": "sgd", "learning_rate": 0.1}, {"kind": "sgd", "learning_rate": 0.1})
    double = trained(gradient=lambda _, step, g: 2 * g)
    finding = only(compared(double, kept, slots=False, options=options))
    assert finding.name == "loss scaling" and "estimator's gradient is 2 times the other's" in finding.message


@pytest.mark.parametrize(
    ("times", "name", "says"),
    [(2, "loss scaling", "gradient is 2 times the other's"), (-1, "gradient", "in the opposite direction")],
)
def test_gradients_behind_velocities_of_two_meanings(compared, times, name, says):
    """V1's against Keras's, which has the rate in it."""
    scaled = trained("momentum", gradient=lambda _, step, g: times * g)
    finding = only(compared(scaled, trained("velocity"), slots=False, rates=(None, CONSTANT)))
    assert finding.name == name and says in finding.message, finding


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_a_clipping_by_value(compared, kind):
    finding = only(compared(trained(kind, gradient=lambda _, step, g: np.clip(g, -0.05, 0.05)), trained(kind)))
    assert (finding.name, finding.side) == ("clipping", "keras") and "clipped by value" in finding.message


def test_another_decay_of_a_mean_square(compared):
    finding = only(compared(trained("rmsprop", rate=0.01, rho=0.95), trained("rmsprop", rate=0.01)))
    assert finding.name == "optimizer" and "1 - rho is as many times as large" in finding.message


def test_one_that_changes_nothing(compared):
    finding = only(compared(trained(rate=0.0), trained()))
    assert (finding.name, finding.side) == ("gradient", "estimator")
    assert "estimator changes none of its 5 variables" in finding.message


def test_a_factor_near_1_is_no_rate(compared):
    finding = only(compared(trained(gradient=lambda _, step, g: 1.005 * g), trained()))
    assert finding.name == "gradient" and "times as long" in finding.message


def test_an_optimizer_for_each_part(compared):
    """Slots of one part say nothing of the other."""

    def mixed(rate):
        for plain, adam in zip(trained(rate=rate), trained("adam", rate=0.01), strict=True):
            of_part = {name: value for name, value in adam.items() if name.startswith("logits")}
            yield {**{name: value for name, value in plain.items() if not name.startswith("logits")}, **of_part}

    finding = only(compared(mixed(0.2), mixed(0.1)))
    assert "the slots are the same" not in finding.message and finding.name == "gradient"

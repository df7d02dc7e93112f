"""What a difference comes from, each cause by its own name: from the records of optimizers that are made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.parity import text
from estimator_pipeline.parity.findings import Facts
from estimator_pipeline.parity.records import StepWriter
from estimator_pipeline.parity.result import ENGINES, compare_records
from estimator_pipeline.parity.tolerances import Tolerances

RANDOM = np.random.default_rng(0)
SHAPES = {"hidden/kernel": (6, 5), "hidden/bias": (5,), "logits/kernel": (5, 4), "logits/bias": (4,), "more/bias": (4,)}
START = {name: RANDOM.normal(size=shape) for name, shape in SHAPES.items()}
GRADIENTS = [{name: RANDOM.normal(size=shape) * 0.1 for name, shape in SHAPES.items()} for _ in range(6)]
SLOTS = {"sgd": (), "momentum": ("momentum",), "velocity": ("momentum",), "adam": ("m", "v"), "rmsprop": ("rms",),
         "adagrad": ("accumulator",), "adamax": ("m", "v"), "adadelta": ("accum_grad", "accum_var"),
         "dual": ("dual_sum",)}  # fmt: skip


def trained(kind="sgd", *, gradient=None, rate=0.1, rates=None, start=0.0, decay=0.0, frozen=(), **options):
    """Name -> value, before the first step and after each: V1's momentum, Keras's velocity, Adam, RMSprop, Adagrad.

    Args:
        kind: of optimizer.
        gradient: makes another gradient of name, step and the true one.
        rate: of each step.
        rates: one for each.
        start: of the slots.
        decay: the share of itself that a weight loses in each step.
        frozen: weights that are not trained, and have no slots.
    """
    beta_1, beta_2, epsilon = options.get("beta_1", 0.9), options.get("beta_2", 0.999), options.get("epsilon", 1e-7)
    mu, nesterov, rho = options.get("mu", 0.9), options.get("nesterov", False), options.get("rho", 0.9)
    weights = dict(START)
    kept = {(name, slot): np.full(SHAPES[name], start) for name in SHAPES if name not in frozen for slot in SLOTS[kind]}

    def state():
        told = {f"{name} @{slot}": value for (name, slot), value in kept.items()}
        return {name: np.float32(value) for name, value in {**weights, **told}.items()}

    yield state()
    for step in range(6):
        lr = rates[step] if rates else rate
        for name in SHAPES:
            if name in frozen:
                continue
            g = GRADIENTS[step][name]
            g = g if gradient is None else gradient(name, step, g)
            if kind == "sgd":
                change = -lr * g
            elif kind == "momentum":
                kept[name, "momentum"] = v = mu * kept[name, "momentum"] + g
                change = -lr * (g + mu * v if nesterov else v)
            elif kind == "velocity":
                kept[name, "momentum"] = v = mu * kept[name, "momentum"] - lr * g
                change = mu * v - lr * g if nesterov else v
            elif kind == "adam":
                kept[name, "m"] = m = beta_1 * kept[name, "m"] + (1 - beta_1) * g
                kept[name, "v"] = v = beta_2 * kept[name, "v"] + (1 - beta_2) * g * g
                corrected = lr * np.sqrt(1 - beta_2 ** (step + 1)) / (1 - beta_1 ** (step + 1))
                change = -corrected * m / (np.sqrt(v) + epsilon)
            elif kind == "adamax":
                kept[name, "m"] = m = beta_1 * kept[name, "m"] + (1 - beta_1) * g
                kept[name, "v"] = u = np.maximum(beta_2 * kept[name, "v"], np.abs(g))
                change = -lr / (1 - beta_1 ** (step + 1)) * m / (u + epsilon)
            elif kind == "adadelta":
                kept[name, "accum_grad"] = a = rho * kept[name, "accum_grad"] + (1 - rho) * g * g
                change = -lr * np.sqrt(kept[name, "accum_var"] + 1e-6) / np.sqrt(a + 1e-6) * g
                kept[name, "accum_var"] = rho * kept[name, "accum_var"] + (1 - rho) * change * change
            elif kind == "dual":
                kept[name, "dual_sum"] = kept[name, "dual_sum"] + g
                change = -lr * g
            elif kind == "rmsprop":
                kept[name, "rms"] = v = rho * kept[name, "rms"] + (1 - rho) * g * g
                change = -lr * g / (np.sqrt(v) + epsilon)
            else:
                kept[name, "accumulator"] = v = kept[name, "accumulator"] + g * g
                change = -lr * g / (np.sqrt(v) + epsilon)
            weights[name] = weights[name] + change - decay * weights[name]
        yield state()


@pytest.fixture
def compared(tmp_path):
    def record(engine, states, rates):
        writer = StepWriter(tmp_path / engine / "record")
        first, *after = states
        writer.initial({**first, "global_step": np.int64(0)})
        for step, values in enumerate(after, 1):
            rate = None if rates is None else rates[step - 1]
            writer.step(step, loss=0.5, learning_rate=rate, variables={**values, "global_step": np.int64(step)})

    def compared(estimator, keras, *, rates=(None, None), slots=True, tolerances=None, **facts):
        for engine, states, told in zip(ENGINES, (estimator, keras), rates, strict=True):
            record(engine, list(states), told)
        none = {engine: {} for engine in ENGINES}
        allowed = Tolerances.of(tolerances)
        return compare_records(tmp_path, metrics=none, facts=Facts(**facts), slots=slots, tolerances=allowed)

    return compared


def only(parity):
    assert not parity.equal
    (finding,) = parity.findings
    return finding


CONSTANT = [0.1] * 6
DROPPING = [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


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


# Gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("kind", ["sgd", "adam", "momentum"])
def test_a_layer_that_one_side_does_not_train(compared, kind, side):
    """Without slots for it, as in Keras: what the others say of it is no reason."""
    pair = [trained(kind), trained(kind)]
    pair[side] = trained(kind, frozen=["hidden/kernel", "hidden/bias"])
    finding = only(compared(*pair, slots=False))
    assert (finding.name, finding.side, finding.step) == ("gradient", ENGINES[side], 1)
    assert "does not change 2 of 5 variables (hidden/kernel, hidden/bias)" in finding.message


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_two_biases_that_are_mixed_up(compared, kind):
    """Both begin with 0, so that the first loss is the same."""

    def mapped(states):
        turned = {"logits/bias": "more/bias", "more/bias": "logits/bias"}
        for values in states:
            yield {
                turned.get(weight, weight) + at + slot: value
                for (weight, at, slot), value in ((name.partition(" @"), value) for name, value in values.items())
            }

    zeros = {name: START[name] for name in ("logits/bias", "more/bias")}
    START.update({name: np.zeros(4) for name in zeros})
    try:
        found = compared(mapped(trained(kind, rate=0.01)), trained(kind, rate=0.01))
    finally:
        START.update(zeros)
    finding = only(found)
    assert finding.name == "variables" and finding.mend == "the mapping of variables"
    assert "logits/bias and more/bias are mixed up" in finding.message


def noisy(kind, seed, size=1e-7, **options):
    """A bias before BatchNormalization: rounding is all that is left of its gradient."""
    random = np.random.default_rng(seed)

    def gradient(name, step, g):
        return random.normal(size=g.shape) * size if name == "hidden/bias" else g

    return trained(kind, gradient=gradient, **options)


@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize(("kind", "rate"), [("adam", 0.01), ("rmsprop", 0.01)])
def test_a_gradient_of_rounding_alone(compared, kind, rate, slots):
    finding = only(compared(noisy(kind, 1, rate=rate), noisy(kind, 2, rate=rate), slots=slots))
    assert (finding.name, finding.step) == ("rounding", 1)
    assert "the gradient of hidden/bias is rounding alone" in finding.message and "use_bias=False" in finding.mend
    assert "divides a gradient by its own size" in finding.message


def test_a_gradient_of_rounding_under_momentum(compared):
    """It stays small, and is beyond what is allowed in the slots at times."""
    finding = only(compared(noisy("momentum", 1, size=1e-6), noisy("momentum", 2, size=1e-6)))
    assert finding.name == "rounding" and "divides" not in finding.message


def test_rounding_does_not_hide_another_cause(compared):
    finding = only(compared(noisy("adam", 1, epsilon=1e-3), noisy("adam", 2)))
    assert finding.name == "optimizer" and "epsilon is about 1.0e-03 in estimator" in finding.message


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_gradients_of_one_direction_by_variable(compared, kind):
    """clipnorm, which clips each by itself."""

    def clipped(name, step, g):
        return g * min(1.0, 0.2 / np.linalg.norm(g))

    finding = only(compared(trained(kind, gradient=clipped, rate=0.01), trained(kind, rate=0.01)))
    assert finding.name == "gradient" and "each has the same direction in both" in finding.message
    assert "clipnorm" in finding.mend


@pytest.mark.parametrize("kind", ["adam", "momentum"])
def test_a_clipping_that_one_side_forgets(compared, kind):
    def clipped(name, step, g):
        whole = np.sqrt(sum(np.sum(one**2) for one in GRADIENTS[step].values()))
        return g * 0.05 / whole

    finding = only(compared(trained(kind), trained(kind, gradient=clipped), clip_norm=0.05))
    assert (finding.name, finding.side) == ("clipping", "estimator") and "it is not clipped" in finding.message


def test_a_clipping_that_nobody_has_told(compared):
    """Of plain gradient descent the lengths of all steps say it."""

    def clipped(name, step, g):
        whole = np.sqrt(sum(np.sum(one**2) for one in GRADIENTS[step].values()))
        return g * 0.05 / whole

    options = ({"kind": "sgd", "learning_rate": 0.1},) * 2
    finding = only(compared(trained(gradient=clipped), trained(), options=options))
    assert (finding.name, finding.side) == ("clipping", "keras")
    assert "estimator's gradient has the length 0.05 in each step" in finding.message


def test_a_little_that_grows(compared):
    def drifting():
        for step, values in enumerate(trained()):
            yield {name: value * np.float32(1 + 1e-7 * step) for name, value in values.items()}

    finding = only(compared(drifting(), trained(), tolerances="bit_equal"))
    assert finding.name == "rounding" and "no single cause shows" in finding.message


@pytest.mark.parametrize(
    ("kind", "times", "replicas", "name", "says"),
    [
        ("sgd", 2, 2, "loss scaling", "estimator's gradient is 2 times the other's, and there are 2 replicas"),
        ("sgd", 0.5, 2, "loss scaling", "keras's gradient is 2 times the other's, and there are 2 replicas"),
        ("sgd", 1.5, 2, "learning rate", "estimator's change of the weights is 1.5 times the other's"),
        # V1's velocities and Adam's moments are without the rate.
        ("momentum", 1.5, 1, "loss scaling", "the same direction, but estimator's gradient is 1.5 times the other's"),
        ("velocity", 1.5, 1, "learning rate", "estimator's change of the weights is 1.5 times"),
        ("adam", 1.5, 1, "loss scaling", "the same direction, but estimator's gradient is 1.5 times the other's"),
    ],
)
def test_gradients_of_another_length(compared, kind, times, replicas, name, says):
    found = compared(trained(kind, gradient=lambda _, step, g: times * g), trained(kind), replicas=replicas)
    finding = only(found)
    assert finding.name == name and says in finding.message, finding


def test_a_length_to_which_nothing_is_clipped(compared):
    """Both are to be clipped to 5, which neither comes to: what is twice as long has another reason."""
    finding = only(compared(trained(gradient=lambda _, step, g: 2 * g), trained(), clip_norm=5.0, replicas=4))
    assert finding.name == "learning rate"


def test_a_gradient_that_is_another_one(compared):
    """Of some variables; which they are, and how long all are together."""

    def other(name, step, g):
        return g[::-1] if name.startswith("logits") else g

    finding = only(compared(trained(gradient=other), trained()))
    assert finding.name == "gradient" and "2 of 5 variables (logits/kernel, logits/bias)" in finding.message
    assert "change of the weights has the length" in finding.message and "direction" not in finding.message
    assert "random" not in finding.message


@pytest.mark.parametrize(
    ("random", "says"),
    [((["drop"], ["drop"]), "both draw random numbers in drop"), ((["a"], []), "estimator draws random numbers in a"),
     ((["a"], ["b"]), "estimator draws random numbers in a, keras draws random numbers in b")],
)  # fmt: skip
def test_random_numbers_are_named_where_the_loss_does_not_show_them(compared, random, says):
    other = trained(gradient=lambda name, step, g: g[::-1] if name.startswith("logits") else g)
    finding = only(compared(other, trained(), random=random))
    assert finding.name == "gradient" and finding.message.endswith(says)


def test_one_gradient_of_another_variable_is_no_mapping(compared):
    """Two that are mixed up have each the other's."""

    def other(name, step, g):
        return GRADIENTS[step]["more/bias"] if name == "logits/bias" else -2 * g if name == "more/bias" else g

    finding = only(compared(trained(gradient=other), trained()))
    assert finding.name == "gradient"


@pytest.mark.parametrize(("shift", "says"), [(1, "keras is one step late"), (0, None)])
def test_rates_that_both_tell(compared, shift, says):
    told = [DROPPING[max(step - shift, 0)] * (1 if shift else 1.5) for step in range(6)]
    finding = only(compared(trained(rates=DROPPING), trained(rates=told), rates=(DROPPING, told)))
    assert finding.name == "learning rate" and finding.step == (3 if shift else 1)
    assert says in finding.message if says else "late" not in finding.message


@pytest.mark.parametrize("shift", [0, 1])
def test_a_late_rate_in_velocities_of_any_momentum(compared, shift):
    """Of a momentum that nobody has told; and rates that are others, and not late."""
    late = [DROPPING[max(step - shift, 0)] * (1 if shift else 1.5) for step in range(6)]
    finding = only(compared(trained("velocity", mu=0.6, rates=DROPPING), trained("velocity", mu=0.6, rates=late),
                            rates=(DROPPING, None)))  # fmt: skip
    assert finding.name == "learning rate" and finding.step == (3 if shift else 1)
    assert ("keras has the learning rate of another step; it is one step late" in finding.message) == bool(shift)


def test_clipped_on_each_replica(compared):
    """Before the sum: it is shorter than the length that the other has come to, and has another direction."""

    def clipped(each):
        def of(name, step, g):
            away = {n: np.sin(np.arange(value.size)).reshape(value.shape) for n, value in GRADIENTS[step].items()}
            parts = {n: (1.8 * value + each * away[n], 0.2 * value - each * away[n])
                     for n, value in GRADIENTS[step].items()}  # fmt: skip
            if not each:
                return g * 0.05 / np.sqrt(sum(np.sum(one**2) for one in GRADIENTS[step].values()))
            norms = [np.sqrt(sum(np.sum(pair[side] ** 2) for pair in parts.values())) for side in (0, 1)]
            return sum(parts[name][side] * 0.025 / norms[side] for side in (0, 1))

        return of

    found = compared(trained(gradient=clipped(0.2)), trained(gradient=clipped(0)), clip_norm=0.05, replicas=2,
                     rates=(None, CONSTANT))  # fmt: skip
    finding = only(found)
    assert (finding.name, finding.side) == ("clipping", "estimator") and "before the sum" in finding.message


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

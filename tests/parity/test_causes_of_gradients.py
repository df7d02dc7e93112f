"""Gradients that are others, from the records of optimizers that are made by hand: what made them so, by its name."""

from __future__ import annotations

import numpy as np
import pytest
from trainings_by_hand import CONSTANT, DROPPING, GRADIENTS, SHAPES, START, comparing, only, trained

from estimator_pipeline.parity.findings import Step
from estimator_pipeline.parity.result import ENGINES
from estimator_pipeline.parity.roundings import without_a_cause


@pytest.fixture
def compared(tmp_path):
    return comparing(tmp_path)


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
        return g[..., ::-1] if name.startswith("logits") else g

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
    other = trained(gradient=lambda name, step, g: g[..., ::-1] if name.startswith("logits") else g)
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


# What is nearly one of these, and is not ----------------------------------------------------------------------------


def clipped_to(limit):
    return lambda name, step, g: np.clip(g, -limit, limit)


def sizes(step):
    """Of all elements of a step's gradients, the largest first."""
    return np.sort(np.abs(np.concatenate([np.ravel(value) for value in GRADIENTS[step].values()])))[::-1]


def test_one_element_that_is_shorter_is_not_clipped_by_value(compared):
    """Several have the value that all are clipped to."""
    largest, second, *_ = sizes(0)
    finding = only(compared(trained(gradient=clipped_to((largest + second) / 2)), trained()))
    assert finding.name == "gradient" and "clipped" not in finding.message


@pytest.mark.parametrize("side", ENGINES)
def test_values_that_both_are_clipped_to(compared, side):
    """What differs besides is little, and no element is beyond them."""

    def little_else(name, step, g):
        clipped = np.clip(g, -0.05, 0.05)
        return np.where(np.abs(clipped) < 0.05, clipped * (1 + 5e-3 * np.cos(np.arange(g.shape[-1]))), clipped)

    other = next(engine for engine in ENGINES if engine != side)
    sides = {side: trained(gradient=little_else), other: trained(gradient=clipped_to(0.05))}
    finding = only(compared(**sides, tolerances={"weights": "bit_equal", "update_norm": "bit_equal"}))
    assert finding.name == "gradient" and "clipped by value" not in finding.message, finding


def test_other_gradients_that_are_clipped_by_value(compared):
    """It does not explain what else is in them."""

    def turned(name, step, g):
        return np.clip(g[..., ::-1] if name.startswith("logits") else g, -0.05, 0.05)

    finding = only(compared(trained(gradient=turned), trained()))
    assert finding.name == "gradient" and "clipped by value" not in finding.message


@pytest.mark.parametrize("sign", [1, -1])
def test_a_clipping_by_value_of_one_sign(compared, sign):
    def of(limit):
        return lambda name, step, g: np.clip(sign * np.abs(g), -limit, limit)

    finding = only(compared(trained(gradient=of(0.05)), trained(gradient=of(np.inf))))
    assert (finding.name, finding.side) == ("clipping", "keras")
    beyond = int(np.count_nonzero(sizes(0) > 0.05))
    size = sizes(0).size
    assert f"where {beyond} of {size} elements of keras's are beyond it" in finding.message


# Gradients as velocities and moments tell them -----------------------------------------------------------------------


def from_the_third(times):
    return lambda name, step, g: g * (times if step >= 2 else 1)


def elsewhere(name, step, g):
    """Other gradients of some variables, all of them as long."""
    return g[..., ::-1] if name.startswith("logits") else g


@pytest.mark.parametrize(
    ("kind", "options", "known"),
    [
        ("momentum", {"mu": 0.5}, {"kind": "momentum", "momentum": 0.5}),
        ("adam", {"beta_1": 0.5}, {"kind": "adam", "beta_1": 0.5}),
        ("rmsprop", {"rho": 0.5}, {"kind": "rmsprop", "rho": 0.5}),
    ],
)
def test_a_gradient_is_what_a_known_decay_leaves_of_a_slot(compared, kind, options, known):
    """From slots that are not 0."""
    pair = [trained(kind, rate=0.01, gradient=from_the_third(times), **options) for times in (2, 1)]
    finding = only(compared(*pair, options=(known, known)))
    assert (finding.name, finding.step) == ("loss scaling", 3)
    assert "estimator's gradient is 2 times the other's" in finding.message


@pytest.mark.parametrize("sides", [(0, 1), (1, 0)])
def test_velocities_of_two_meanings_without_a_rate_tell_no_gradients(compared, sides):
    """V1's are sums of gradients, Keras's have a rate in them that is not told: the changes are compared."""
    pair = [trained("momentum", gradient=lambda _, step, g: 2 * g), trained("velocity")]
    finding = only(compared(*(pair[side] for side in sides), slots=False))
    assert finding.name == "learning rate"
    assert f"{ENGINES[sides[0]]}'s change of the weights is 2 times the other's" in finding.message


def test_velocities_that_neither_uses_say_nothing(compared):
    """The newer SGD of Keras 2 keeps them, whatever its momentum is."""

    def kept(times):
        for values in trained(gradient=lambda _, step, g: times * g):
            yield {**values, **{f"{name} @momentum": np.zeros(shape, np.float32) for name, shape in SHAPES.items()}}

    known = {"kind": "sgd", "learning_rate": 0.1}
    finding = only(compared(kept(2), kept(1), options=(known, known)))
    assert finding.name == "loss scaling" and "estimator's gradient is 2 times the other's" in finding.message


def test_a_rate_that_one_side_alone_tells(compared):
    finding = only(compared(trained(gradient=lambda _, step, g: 2 * g), trained(), rates=(None, CONSTANT)))
    assert finding.name == "learning rate" and "change of the weights is 2 times" in finding.message


def test_changes_by_two_optimizers_are_no_gradients(compared):
    """Those of Adam are not the rate times the gradient, though both tell the same rate."""

    def parts(gradient):
        for plain, adam in zip(trained(gradient=gradient), trained("adam", gradient=gradient), strict=True):
            of_part = {name: value for name, value in adam.items() if name.startswith("hidden")}
            yield {**{name: value for name, value in plain.items() if not name.startswith("hidden")}, **of_part}

    finding = only(compared(parts(elsewhere), parts(None), rates=(CONSTANT, CONSTANT)))
    assert finding.name == "gradient" and "estimator's change of the weights has the length" in finding.message


# Lengths to which something may be clipped ---------------------------------------------------------------------------


def length_of(step):
    return float(np.sqrt(sum(np.sum(value**2) for value in GRADIENTS[step].values())))


def clipped(length, *, turned=False):
    def of(name, step, g):
        return (elsewhere(name, step, g) if turned else g) * length / length_of(step)

    return of


@pytest.mark.parametrize(
    ("estimator", "keras", "facts"),
    [
        # One replica clips nothing before a sum.
        (clipped(0.04, turned=True), clipped(0.05), {"clip_norm": 0.05, "replicas": 1}),
        # Both have that length.
        (clipped(0.05, turned=True), clipped(0.05), {"clip_norm": 0.05, "replicas": 2}),
        # Neither has.
        (clipped(0.04, turned=True), clipped(0.05), {"clip_norm": 0.5, "replicas": 2}),
        (clipped(0.04, turned=True), clipped(0.05), {"clip_norm": None, "replicas": 2}),
    ],
    ids=["one replica", "both", "neither", "no clipping"],
)
def test_what_is_not_clipped_on_each_replica(compared, estimator, keras, facts):
    finding = only(compared(trained(gradient=estimator), trained(gradient=keras), rates=(CONSTANT, CONSTANT), **facts))
    assert finding.name == "gradient" and "replicas" not in finding.message


@pytest.mark.parametrize("kind", ["sgd", "momentum", "velocity", "adam"])
@pytest.mark.parametrize("side", ENGINES)
def test_clipped_on_each_replica_by_any_optimizer(compared, kind, side):
    other = next(engine for engine in ENGINES if engine != side)
    gradients = {side: clipped(0.04, turned=True), other: clipped(0.05)}
    made = {engine: trained(kind, gradient=gradient) for engine, gradient in gradients.items()}
    finding = only(compared(**made, rates=(CONSTANT, CONSTANT), clip_norm=0.05, replicas=2))
    assert (finding.name, finding.side) == ("clipping", side)
    assert f"{other}'s gradient has the length 0.05" in finding.message and f"{side}'s 0.04" in finding.message


@pytest.mark.parametrize(
    ("kind", "rates"),
    [("sgd", (None, CONSTANT)), ("sgd", (CONSTANT, CONSTANT)), ("momentum", (None, None)), ("adam", (None, None)),
     ("velocity", (CONSTANT, CONSTANT))],
)  # fmt: skip
@pytest.mark.parametrize("side", ENGINES)
def test_a_clipping_that_does_nothing_in_the_first_steps(compared, kind, rates, side):
    """Their gradients are shorter than what is allowed."""
    short = [length_of(0) * times for times in (0.5, 0.6, 2.0, 3.0, 0.5, 0.7)]

    def gradient(limit):
        return lambda name, step, g: g / length_of(step) * min(short[step], limit)

    other = next(engine for engine in ENGINES if engine != side)
    made = {side: trained(kind, gradient=gradient(np.inf)), other: trained(kind, gradient=gradient(length_of(0)))}
    finding = only(compared(**made, clip_norm=length_of(0), rates=rates))
    assert (finding.name, finding.side, finding.step) == ("clipping", side, 3)
    assert f"{side}'s has the same direction and is 2 times as long" in finding.message


SGD = {"kind": "sgd", "learning_rate": 0.1}


@pytest.mark.parametrize(
    ("first", "same", "rates", "known", "told"),
    [
        # The length of the shorter one is that of all steps from where they part on, of three at least.
        (4, 6, CONSTANT, SGD, True),
        (5, 6, CONSTANT, SGD, False),
        (1, 5, CONSTANT, SGD, False),
        # A rate of 0 says nothing of a gradient.
        (1, 6, [0.1, 0.1, 0.1, 0.1, 0.0, 0.1], {"kind": "sgd"}, True),
        (3, 6, [0.1, 0.1, 0.1, 0.0, 0.0, 0.1], {"kind": "sgd"}, False),
        # Where a change is not the rate times the gradient, its length is none; nor where it is not known.
        (1, 6, CONSTANT, {"kind": "lion", "learning_rate": 0.1}, False),
        (1, 6, CONSTANT, {}, False),
    ],
)
def test_a_length_that_stays_is_clipped_to(compared, first, same, rates, known, told):
    def gradient(times):
        def of(name, step, g):
            length = 0.05 if step + 1 <= same else 0.04
            return g * length / length_of(step) * (times if step + 1 >= first else 1)

        return of

    made = [trained(gradient=gradient(times), rates=rates) for times in (2, 1)]
    finding = only(compared(*made, rates=(rates, rates), options=(known, known)))
    assert finding.step == first
    assert finding.name == ("clipping" if told else "loss scaling"), finding
    assert ("keras's gradient has the length 0.05 in each step" in finding.message) == told


@pytest.mark.parametrize("turned", [True, False])
def test_a_length_behind_the_first_step_need_not_be_that_of_a_gradient(compared, turned):
    """Of a momentum that is not known, what a velocity adds is none: that it is as long as a limit says nothing."""

    def changed(name, step, g):
        return g if step < 2 else 0.5 * (elsewhere(name, step, g) if turned else g)

    kept = [np.concatenate([np.ravel(v) for name, v in values.items() if "@" in name])
            for values in trained("momentum", mu=0.5)]  # fmt: skip
    limit = float(np.linalg.norm(kept[3] - 0.9 * kept[2]))
    pair = [trained("momentum", mu=0.5, gradient=changed), trained("momentum", mu=0.5)]
    finding = only(compared(*pair, clip_norm=limit, replicas=4))
    assert finding.step == 3 and finding.name != "clipping"


@pytest.mark.parametrize("kind", ["adagrad", "rmsprop"])
def test_the_opposite_gradient_has_the_same_square(compared, kind):
    """Slots that add up squares are the same then, and say nothing of an epsilon."""

    def turned(name, step, g):
        return -g if name == "hidden/kernel" else g

    finding = only(compared(trained(kind, start=0.1), trained(kind, start=0.1, gradient=turned)))
    assert (finding.name, finding.step) == ("gradient", 1) and "(hidden/kernel)" in finding.message
    assert "the mapping of variables" in finding.mend


@pytest.mark.parametrize(("share", "name"), [(1e-3, "rounding"), (0.2, "weights")])
def test_much_without_a_cause_is_no_rounding(share, name):
    before = {weight: np.float32(value) for weight, value in START.items()}
    changes = {weight: np.float32(gradient) for weight, gradient in GRADIENTS[0].items()}
    after = [
        {weight: value - times * changes[weight] for weight, value in before.items()} for times in (1.0, 1.0 - share)
    ]
    finding = without_a_cause(Step(2, (before, before), (after[0], after[1])), ENGINES)
    assert (finding.name, finding.step) == (name, 2) and "no single cause shows" in finding.message
    assert ("by little" in finding.message) is (name == "rounding")
    assert ("0.2 of the step's length" in finding.message) is (name == "weights")
    assert ("estimator's change is about 1.25 times keras's" in finding.message) is (name == "weights")


# 16 bits -----------------------------------------------------------------------------------------------------------


def rounded(name, step, gradient):
    """To the 8 bits of mantissa that bfloat16 has."""
    bits = gradient.astype(np.float32).view(np.uint32) + np.uint32(0x8000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(gradient.dtype)


def test_sixteen_bits(compared):
    """By little in each weight, it is what they leave; float32 shows whether there is more."""
    finding = only(compared(trained(gradient=rounded), trained(), sixteen_bits=True, tolerances="bit_equal"))
    assert finding.name == "rounding" and "16 bits" in finding.message and "mixed_precision=false" in finding.mend


def test_little_without_sixteen_bits(compared):
    finding = only(compared(trained(gradient=rounded), trained(), tolerances="bit_equal"))
    assert "16 bits" not in finding.message


@pytest.mark.parametrize("off", [1.2, -1.0])
def test_more_than_sixteen_bits_leave(compared, off):
    def other(name, step, gradient):
        return gradient * (off if name == "logits/kernel" else 1.0)

    finding = only(compared(trained(gradient=other), trained(), sixteen_bits=True))
    assert finding.name == "gradient" and "16 bits" not in finding.message


def test_another_loss_in_sixteen_bits(compared):
    losses = ([0.5] * 6, [0.6] * 6)
    finding = only(compared(trained(gradient=rounded), trained(), losses=losses, sixteen_bits=True))
    assert finding.name == "forward pass"


# Kinks -------------------------------------------------------------------------------------------------------------


def off_in(units, *, by=0.05, also=(), factor=False, elsewhere=1e-6):
    """A record's share in these units of the first layer is there in the fourth step, or not; all else is rounded.

    Args:
        units: of the layer.
        by: the share's length, relative to the unit's gradient.
        also: variables of which the same is true.
        factor: the unit's gradient is longer by so much in place of a share.
        elsewhere: how far the others' are off, relative to themselves.
    """

    def gradient(name, step, true):
        if step != 3 or name not in ("hidden/kernel", "hidden/bias", *also):
            return true
        changed = true * (1 + elsewhere * np.arange(true.shape[-1]))
        changed[..., units] = true[..., units]
        share = true if factor else np.random.default_rng(7).normal(size=true.shape)
        lengths = [np.linalg.norm(values.reshape(-1, values.shape[-1]), axis=0) for values in (true, share)]
        changed[..., units] += (by * lengths[0] / lengths[1] * share)[..., units]
        return changed

    return gradient


@pytest.mark.parametrize("by", [0.05, 1.0])
@pytest.mark.parametrize("kind", ["sgd", "momentum", "velocity", "adam", "rmsprop"])
def test_a_kink(compared, kind, by):
    """From one unit of a layer on gradients differ, and what comes after it has the same; by much in small batches."""
    finding = only(compared(trained(kind, gradient=off_in([2], by=by)), trained(kind), tolerances="rounding"))
    assert (finding.name, finding.step) == ("rounding", 4)
    assert "2 of 5 variables (hidden/kernel, hidden/bias), hidden/" in finding.message
    assert "in 1 of 5 units alone, as where a value at a ReLU's kink" in finding.message
    assert "a smooth activation" in finding.mend and "amplified for loss, update_norm, weights" in finding.mend


def behind_another(*names):
    """In one of four units of these variables; all of the layer before them differs, and the others have the same."""

    def gradient(name, step, true):
        if step != 3:
            return true
        if name.startswith("hidden"):
            return true + 0.02 * np.random.default_rng(8).normal(size=true.shape)
        changed = true.copy()
        if name in names:
            changed[..., 1] += 0.05 * (1 + np.arange(5) if name == "logits/kernel" else 1 + names.index(name))
        return changed

    return gradient


@pytest.mark.parametrize("names", [("logits/kernel", "logits/bias"), ("logits/bias", "more/bias")])
def test_a_kink_behind_another_layer(compared, names):
    """One of a layer's own weights, or of the gamma and beta before its ReLU."""
    finding = only(compared(trained(gradient=behind_another(*names)), trained(), tolerances="rounding"))
    assert (finding.name, finding.step) == ("rounding", 4)
    assert "4 of 5 variables" in finding.message and f"{names[0]} in 1 of 4 units alone, as where" in finding.message


def test_a_kink_is_in_the_layer_with_fewer_units(compared):
    """Of the one before it no more than a few may be off by more than rounding."""
    both = off_in([2], also=["logits/kernel", "logits/bias"])
    finding = only(compared(trained(gradient=both), trained(), tolerances="rounding"))
    assert finding.name == "rounding" and "hidden/kernel in 1 of 5 units alone" in finding.message


def one_element(name, step, true):
    changed = true.copy()
    if step == 3 and name == "hidden/kernel":
        changed[3, 2] *= 1.5
    return changed


def in_a_unit_of_two_biases(name, step, true):
    changed = true.copy()
    if step == 3 and name in ("logits/bias", "more/bias"):
        changed[1 if name == "logits/bias" else 2] *= 1.5
    return changed


ALL_BUT_IT = [name for name in SHAPES if not name.startswith("hidden")]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    "gradient",
    [off_in([2, 4]), off_in([2], by=3.0), off_in([2], also=ALL_BUT_IT), off_in([4], by=-1.0, factor=True),
     off_in([2], by=0.05, factor=True), off_in([2], elsewhere=5e-4), one_element,
     in_a_unit_of_two_biases],
    ids=["two of five units", "much", "every layer", "none of a unit's", "a unit's is longer", "other units as well",
         "one element", "of two biases"],
)  # fmt: skip
def test_what_is_no_kink(compared, gradient, side):
    pair = [trained(), trained()]
    pair[side] = trained(gradient=gradient)
    finding = only(compared(*pair, tolerances="rounding"))
    assert (finding.name, finding.step) == ("gradient", 4) and "kink" not in finding.message


def test_random_numbers_are_told_before_a_kink(compared):
    finding = only(compared(trained(gradient=off_in([2])), trained(), random=(["drop"], [])))
    assert finding.name == "gradient" and "estimator draws random numbers in drop" in finding.message


# Rows of embeddings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sgd", "adam", "adagrad"])
def test_rows_in_another_order(compared, kind):
    """As where a vocabulary is."""
    order = [2, 0, 1, 3, 5, 4]
    start = {**START, "hidden/kernel": np.zeros(SHAPES["hidden/kernel"])}

    def moved(name, step, gradient):
        return gradient[order] if name == "hidden/kernel" else gradient

    options = {"start_weights": start, "start": 0.1 if kind == "adagrad" else 0.0}
    finding = only(compared(trained(kind, gradient=moved, **options), trained(kind, **options)))
    assert finding.name == "variables" and "the rows of hidden/kernel are in another order" in finding.message
    assert "estimator changes row 0 as row 2, row 1 as row 0, row 2 as row 1 of keras" in finding.message
    assert "vocabulary" in finding.mend


def looked_up(rows, *, times=1.0):
    """Of the kernel some rows alone have a gradient."""

    def gradient(name, step, true):
        if name != "hidden/kernel":
            return true * times
        kept = np.zeros_like(true)
        kept[rows] = true[rows] * times
        return kept

    return gradient


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([0, 2], "the rows 0 change in estimator alone, 1 in keras alone"),
        ([0, 1, 2], None),
        ([1, 2], None),
        ([], None),
    ],
)
def test_other_rows_behind_another_loss(compared, rows, told):
    """As many, and other ones: it is no layer's unit that is dead on one side."""
    one, other = trained(gradient=looked_up(rows)), trained(gradient=looked_up([1, 2]))
    finding = only(compared(one, other, losses=([0.5] * 6, [0.6] * 6)))
    assert finding.name == "forward pass"
    assert (told in finding.message) if told else ("rows" not in finding.message)


@pytest.mark.parametrize(
    ("rows", "clip", "name"),
    [([1, 2], 1.2, "clipping"), ([1, 2], 5.0, "loss scaling"), ([*range(6)], 1.2, "loss scaling")],
    ids=["near it", "far from it", "no embedding"],
)
def test_clipping_of_rows_that_are_looked_up_twice(compared, rows, clip, name):
    """The norm counts each look-up by itself, so that the sum's is not the one it is clipped to."""
    short = looked_up(rows)
    norm = np.sqrt(sum(np.sum(short(n, 0, g) ** 2) for n, g in GRADIENTS[0].items()))
    facts = {"clip_norm": float(clip * norm)}
    finding = only(
        compared(trained("adam", gradient=looked_up(rows, times=6.05)), trained("adam", gradient=short), **facts)
    )
    assert finding.name == name and "estimator's" in finding.message and "6.05 times" in finding.message

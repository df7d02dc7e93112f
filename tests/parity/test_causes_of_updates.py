"""What one side does beside one update of its optimizer, from records made by hand: twice, a threshold, averages."""

from __future__ import annotations

import numpy as np
import pytest
from trainings_by_hand import CONSTANT, SHAPES, START, comparing, only, trained

from estimator_pipeline.parity import tally, text
from estimator_pipeline.parity.result import ENGINES

OTHER = dict(zip(ENGINES, ENGINES[::-1], strict=True))
# Weights of zeros, as biases begin.
BIASES = {name: np.zeros(shape) if "bias" in name else START[name] for name, shape in SHAPES.items()}


@pytest.fixture
def compared(tmp_path):
    return comparing(tmp_path)


# Twice -------------------------------------------------------------------------------------------------------------

TWICE = [
    ("adam", {"rate": 0.01}, "@m, @v are"),
    ("momentum", {}, "@momentum is"),
    ("momentum", {"nesterov": True}, "@momentum is"),
    ("velocity", {}, "@momentum is"),
    ("velocity", {"nesterov": True}, "@momentum is"),
    ("rmsprop", {"rate": 0.01}, "@rms is"),
    ("adagrad", {"rate": 0.01, "start": 0.1}, "@accumulator is"),
]


@pytest.mark.parametrize("side", ENGINES)
@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize(("kind", "options", "says"), TWICE, ids=[f"{kind}{'N' * (len(o) and 'nesterov' in o)}"
                                                                    for kind, o, _ in TWICE])  # fmt: skip
def test_an_optimizer_that_is_applied_twice(compared, kind, options, says, slots, side):
    sides = {side: trained(kind, times=2, **options), OTHER[side]: trained(kind, **options)}
    finding = only(compared(**sides, slots=slots))
    assert (finding.name, finding.side, finding.step) == ("optimizer", side, 1), finding
    told = f"{side} applies the optimizer twice in the step: {says} what the gradients of {OTHER[side]} come to in two"
    assert told in finding.message and "apply_gradients" in finding.mend


@pytest.mark.parametrize("kind", ["adam", "momentum", "rmsprop"])
def test_twice_from_a_later_step_on(compared, kind):
    """From slots that are not 0, with decays of one's own."""
    once, twice = (trained(kind, rate=0.01, times=times, beta_1=0.8, beta_2=0.99, mu=0.7, rho=0.8)
                   for times in (1, [1, 1, 2, 2, 2, 2]))  # fmt: skip
    options = {"adam": {"beta_1": 0.8, "beta_2": 0.99}, "momentum": {"momentum": 0.7}, "rmsprop": {"rho": 0.8}}[kind]
    known = {"kind": kind, **options}
    finding = only(compared(once, twice, options=(known, known)))
    assert (finding.name, finding.side, finding.step) == ("optimizer", "keras", 3)
    assert "twice in the step" in finding.message


def test_a_weight_that_no_gradient_comes_to_says_nothing(compared):
    """It decays, on both sides."""

    def gradient(name, step, g):
        return 0 * g if name == "more/bias" else g

    pair = [trained("adam", gradient=gradient, rate=0.01, decay=1e-4, times=times) for times in (2, 1)]
    finding = only(compared(*pair))
    assert (finding.name, finding.side) == ("optimizer", "estimator") and "twice in the step" in finding.message


@pytest.mark.parametrize("used", [True, False])
def test_slots_of_two_kinds(compared, used):
    """What two updates make of a weight by both of them is not known; one that is not used says nothing."""

    def both(times):
        for one, other in zip(
            trained("rmsprop", rate=0.01, times=times), trained("momentum", times=times), strict=True
        ):
            yield {**{name: value * used for name, value in other.items() if " @" in name}, **one}

    assert ("twice in the step" in only(compared(both(2), both(1))).message) == (not used)


def test_late_in_a_training(compared):
    """@v hardly moves there; @m tells it."""
    known = {"kind": "adam", "beta_1": 0.9, "beta_2": 0.9999}
    pair = [trained("adam", rate=0.01, times=times, start=0.01, beta_2=0.9999) for times in ([1, 1, 1, 1, 1, 2], 1)]
    finding = only(compared(*pair, options=(known, known)))
    assert (finding.name, finding.side, finding.step) == ("optimizer", "estimator", 6)
    assert "twice in the step" in finding.message


@pytest.mark.parametrize("times", [1.9, 1.999, 2.0, np.sqrt(1.9), np.sqrt(2)])
@pytest.mark.parametrize("kind", ["adam", "momentum", "velocity", "rmsprop", "adagrad"])
def test_a_longer_gradient_is_not_taken_for_it(compared, kind, times):
    """One slot may be as long: 1.9 times as two updates of momentum leave it."""
    finding = only(compared(trained(kind, gradient=lambda _, step, g: times * g, rate=0.01), trained(kind, rate=0.01)))
    assert "twice in the step" not in finding.message


@pytest.mark.parametrize("kind", ["adam", "momentum", "rmsprop", "adagrad"])
def test_another_rate_is_not_taken_for_it(compared, kind):
    """The weights change as by two updates, and the slots as by one."""
    finding = only(compared(trained(kind, rate=0.02), trained(kind, rate=0.01)))
    assert finding.name == "learning rate" and "twice in the step" not in finding.message


def test_other_decays_are_not_taken_for_it(compared):
    """beta_1 and beta_2 squared leave the moments of two updates, and the weights change as by one."""
    squared = {"beta_1": 0.81, "beta_2": 0.998001}
    finding = only(compared(trained("adam", rate=0.01, **squared), trained("adam", rate=0.01)))
    assert "twice in the step" not in finding.message


def test_one_layer_that_is_trained_twice_is_not_all_of_it(compared):
    def one_layer():
        for once, twice in zip(trained("adam", rate=0.01), trained("adam", rate=0.01, times=2), strict=True):
            yield {name: (twice if name.startswith("logits") else once)[name] for name in once}

    assert "twice in the step" not in only(compared(one_layer(), trained("adam", rate=0.01))).message


def test_of_plain_gradient_descent_it_is_only_spoken_of(compared):
    finding = only(compared(trained(times=2), trained()))
    assert finding.name == "learning rate" and "updates that are made twice in a step" in finding.mend


# Proximal optimizers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ENGINES)
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize(("kind", "told"), [("sgd", "by 0.02,"), ("adagrad", "by 0.02 over the root of @accumulator,")])
def test_a_soft_threshold(compared, kind, told, l2, side):
    """Biases stay at 0, where a step is shorter than the threshold: no layer that is not trained."""
    options = {"start_weights": BIASES, "rate": 0.1, "start": 0.1 if kind == "adagrad" else 0.0}
    sides = {side: trained(kind, l1=0.2, l2=l2, **options), OTHER[side]: trained(kind, **options)}
    finding = only(compared(**sides))
    assert (finding.name, finding.side, finding.step) == ("optimizer", side, 1), finding
    assert told in finding.message and "l1 of a proximal optimizer" in finding.message
    assert "l1_regularization_strength" in finding.mend


def test_a_threshold_that_sets_nothing_to_0(compared):
    """It may as well be an L1 regulariser."""
    far = {name: np.sign(value) * (np.abs(value) + 1) for name, value in START.items()}
    finding = only(compared(trained(l1=0.2, start_weights=far), trained(start_weights=far)))
    assert (finding.name, finding.side) == ("gradient", "estimator")
    assert "brings every element of the weights nearer to 0 than keras, by 0.02" in finding.message
    assert "L1 regulariser" in finding.mend


@pytest.mark.parametrize("fault", ["a zero too many", "another sign", "one that is off", "all of them", "grown"])
def test_what_is_no_soft_threshold(compared, fault):
    def other():
        l2 = -0.3 if fault == "grown" else 0.0
        for step, values in enumerate(trained(l1=0.2, l2=l2, start_weights=BIASES)):
            kernel = values["hidden/kernel"].copy()
            largest = np.unravel_index(np.argmax(np.abs(kernel)), kernel.shape)
            if step:
                factor = {"a zero too many": 0, "another sign": -1, "one that is off": 1.01}.get(fault, 1)
                kernel[largest] *= factor
            zeros = fault == "all of them" and step
            values = {**values, "hidden/kernel": kernel}
            yield {name: np.zeros_like(value) if zeros else value for name, value in values.items()}

    finding = only(compared(other(), trained(start_weights=BIASES)))
    assert "nearer to 0" not in finding.message, finding


ALIKE = {name: np.where(value > 0, 1.0, -1.0) for name, value in START.items()}


@pytest.mark.parametrize(
    ("kind", "options", "start"),
    [("sgd", {"decay": 0.01}, START), ("sgd", {"decay": 0.01}, ALIKE), ("adam", {"beta_2": 0.99}, BIASES),
     ("momentum", {"l1": 0.2}, START)],
    ids=["a decay", "of weights of one size", "adam from zeros", "after a momentum"],
)  # fmt: skip
def test_what_brings_weights_nearer_to_0_otherwise(compared, kind, options, start):

    def gradient(name, step, g):
        return 1e-4 * (np.sign(ALIKE[name]) if start is ALIKE else g)

    pair = [trained(kind, rate=0.01, start_weights=start, gradient=gradient, **more) for more in (options, {})]
    finding = only(compared(*pair, tolerances={"weights": "bit_equal"}))
    assert "nearer to 0" not in finding.message, finding


# Averages ------------------------------------------------------------------------------------------------------------


def averaged(*, same=False, kept=True):
    """Plain gradient descent, with the moving averages of its weights beside them."""
    average = dict(START)
    for values in trained():
        average = {name: values[name] if same else 0.9 * average[name] + 0.1 * values[name] for name in SHAPES}
        yield {**values, **{f"{name} @average": np.float32(value) for name, value in average.items() if kept}}


METRICS = ({"mae": 0.5}, {"mae": 0.75})
ANSWERS = ({"predictions a": np.zeros(2, np.float32)}, {"predictions a": np.ones(2, np.float32)})
USE_EMA = "with use_ema these take the weights' place when the training has ended"


@pytest.mark.parametrize("side", ENGINES)
def test_averages_that_are_evaluated(compared, side):
    sides = {side: averaged(), OTHER[side]: trained()}
    found = compared(**sides, slots=False, metrics=METRICS, answers=ANSWERS)
    evaluation, predictions = found.findings
    for finding, name in ((evaluation, "evaluation"), (predictions, "predictions")):
        assert (finding.name, finding.side, finding.step) == (name, side, 6)
        assert f"{side} keeps moving averages of its weights (hidden/kernel, hidden/bias" in finding.message
        assert f"and {OTHER[side]} none: {USE_EMA}" in finding.message and finding.mend.startswith("use_ema")


@pytest.mark.parametrize(
    "pair",
    [(averaged(), averaged()), (averaged(same=True), trained()), (trained(), trained())],
    ids=["both", "the weights themselves", "none"],
)
def test_averages_that_explain_nothing(compared, pair):
    found = compared(*pair, slots=False, metrics=METRICS, answers=ANSWERS)
    for finding in found.findings:
        assert finding.side is None and "use_ema" not in finding.message + finding.mend


def test_a_metric_is_told_once(compared):
    found = compared(trained(), trained(), metrics=METRICS)
    said = text.summary(found)
    assert "mae 0.5 in estimator and 0.75 in keras" in said and said.count("0.75 in keras") == 2, "and the worst of all"
    assert only(found).message == "the trained weights are the same, the metrics are not: mae"
    assert tally.verdict(found).endswith("mae 0.5 in estimator and 0.75 in keras.")


# What is not trained -------------------------------------------------------------------------------------------------


def with_average(moves, kind):
    """Beside the weights a float variable that no gradient moves, as an average made by hand."""
    for step, values in enumerate(trained(kind, rate=0.01)):
        yield {**values, "level": np.float32(0.01 * step * moves)}


UNDECIDED = "a frozen layer, or variables that no gradient moves"


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("untrained", [None, frozenset(), frozenset({"level"})], ids=["not known", "trained", "not"])
def test_a_variable_that_one_side_does_not_change(compared, kind, untrained):
    """A job does not tell which variables no gradient moves; a program's graph does."""
    finding = only(compared(with_average(False, kind), with_average(True, kind), untrained=untrained))
    if untrained:
        assert finding.name == "updates" and "no gradient moves change otherwise" in finding.message
        return
    assert (finding.name, finding.side) == ("gradient", "estimator")
    assert finding.message.startswith("a frozen layer: " if untrained is not None else f"{UNDECIDED} (averages, ...): ")
    assert ("operations that update variables" in finding.mend) == (untrained is None)


@pytest.mark.parametrize(("kind", "decided"), [("sgd", False), ("momentum", True), ("adam", True)])
def test_slots_decide_what_is_a_layer(compared, kind, decided):
    """The side that changes it keeps slots for it, as for what a gradient moves alone."""
    frozen = ["hidden/kernel", "hidden/bias"]
    finding = only(compared(trained(kind, frozen=frozen), trained(kind), slots=False))
    assert finding.message.startswith("a frozen layer: " if decided else UNDECIDED)
    assert finding.name == "gradient" and "does not change 2 of 5 variables" in finding.message


def test_an_average_of_a_weight_is_no_slot(compared):
    """It is kept for what is trained and for what is not."""

    def kept(frozen):
        for values in trained(frozen=frozen):
            yield {**values, **{f"{name} @average": values[name] for name in SHAPES}}

    finding = only(compared(kept(["hidden/bias"]), kept([]), slots=False, rates=(CONSTANT, CONSTANT)))
    assert finding.message.startswith(UNDECIDED)


def test_slots_of_one_of_them_decide_nothing(compared):
    """Of a weight that has slots and of a variable that has none."""

    def of(moves):
        made = trained("momentum", frozen=[] if moves else ["hidden/bias"])
        for step, values in enumerate(made):
            yield {**values, "level": np.float32(0.1 * step * moves)}

    finding = only(compared(of(False), of(True), slots=False))
    assert finding.message.startswith(UNDECIDED) and "(hidden/bias, level)" in finding.message


def test_one_weight_that_is_its_average_is_not_set_to_it(compared):
    """It stands still."""

    def kept():
        for values in trained(gradient=lambda name, step, g: 2 * g if "kernel" in name else 0 * g):
            averages = {name: values[name] * np.float32(1 if "bias" in name else 0.5) for name in SHAPES}
            yield {**values, **{f"{name} @average": value for name, value in averages.items()}}

    plain = trained(gradient=lambda name, step, g: g if "kernel" in name else 0 * g)
    assert "use_ema" not in only(compared(kept(), plain, slots=False)).message

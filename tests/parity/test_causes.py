"""What a difference comes from: a planted fault in records of trainings by hand, and the finding that it has.

A cause is named where arithmetic proves it. Of all else the first difference is told, with its size and no guess.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from estimator_pipeline.job.tolerances import Tolerances
from estimator_pipeline.parity import summaries, text
from estimator_pipeline.parity.findings import factor_of
from estimator_pipeline.parity.result import ENGINES
from estimator_pipeline.parity.step_records import BatchWriter
from tests.support.trainings_by_hand import CONSTANT, GRADIENTS, SHAPES, START, comparing, only, trained

FIRST = "first difference"
SGD = {"kind": "sgd", "learning_rate": 0.1}
MOMENTUM = {"kind": "momentum", "momentum": 0.9, "learning_rate": 0.1}
ADAM = {"kind": "adam", "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "learning_rate": 0.1}
OPTIONS = {"sgd": SGD, "momentum": MOMENTUM, "velocity": MOMENTUM, "adam": ADAM}
# Optimizers whose gradients the records tell: V1's momentum, and Keras's velocity with the rate in it.
KINDS = ("sgd", "momentum", "velocity", "adam")
DECAYING = [0.1, 0.09, 0.08, 0.07, 0.06, 0.05]
LATE, EARLY = [0.1, *DECAYING[:-1]], [*DECAYING[1:], 0.04]


POSITIVE = {**START, "hidden/kernel": np.abs(START["hidden/kernel"])}


def made(*given, **options):
    return lambda: trained(*given, **options)


def both(kind):
    return {"options": (OPTIONS[kind],) * 2}


def other(kind, **options):
    return {"options": ({**OPTIONS[kind], **options}, OPTIONS[kind])}


def evaluated(loss, trains=0.8):
    """A loss beside one of 0.5, which layers that infer have."""
    return {"metrics": ({"loss": loss}, {"loss": 0.5}), "of_modes": (0.5, trains)}


def silent(kind):
    """Options of an optimizer that does not tell its rate."""
    return {name: value for name, value in OPTIONS[kind].items() if name != "learning_rate"}


def times(factor, *names):
    return lambda name, step, g: factor * g if not names or name in names else g


def clipped(to, times=1):
    def gradient(name, step, g):
        norm = np.sqrt(sum(np.sum(one**2) for one in GRADIENTS[step].values()))
        return times * g * min(1, to / norm)

    return gradient


def replaced(states, change):
    """States of a training, each changed by a function of its step and its values."""
    for step, values in enumerate(states):
        yield {**values, **{name: np.asarray(value) for name, value in change(step, values).items()}}


def averaged(momentum=0.9, *, off=0.0, from_step=1, still=False, states=None):
    """A training with the moving mean and variance of a layer; `off` is added to what is averaged from a step on."""
    random = np.random.default_rng(1)
    mean, variance = np.zeros(8), np.ones(8)
    for step, values in enumerate(states or trained()):
        if step and not still:
            more = off * (step >= from_step)
            mean = momentum * mean + (1 - momentum) * (random.normal(size=8) + more)
            variance = momentum * variance + (1 - momentum) * (random.uniform(0.1, 2.0, 8) + more)
        yield {**values, "norm/moving_mean": np.float32(mean), "norm/moving_variance": np.float32(variance)}


def mixed_up(one, other):
    def gradient(name, step, g):
        return GRADIENTS[step][{one: other, other: one}.get(name, name)]

    return gradient


def counting(by, states=None):
    return replaced(states or trained(), lambda step, values: {"seen": np.int64(by * step)})


def flat(values, sign):
    """Two biases more, whose gradients have other signs: Adam's first step is as long for both."""
    step = np.float32(0.1 * (values["logits/bias @v"].max() > 0))
    m = {f"{name} @m": np.float32([sign * g * 10 * step]) for name, g in (("a", 0.01), ("b", -0.03))}
    v = {f"{name} @v": np.float32([abs(value[0]) ** 2 / 10]) for name, value in (("a", m["a @m"]), ("b", m["b @m"]))}
    return {"a": np.float32([-sign * step]), "b": np.float32([sign * step]), **m, **v}


def held():
    """A kernel that is held to positive values."""
    states = trained(start_weights=POSITIVE, rate=5)
    return replaced(states, lambda step, values: {"hidden/kernel": np.abs(values["hidden/kernel"])})


def decayed(kind):
    """With a weight decay of its own, which no option tells."""
    return trained(kind, decay=0.01)


def with_vhat(states):
    return replaced(states, lambda step, values: {f"{name} @vhat": values[f"{name} @v"] for name in SHAPES})


# Planted fault -> the two trainings, what is known of them, the finding. The engine whose training has the fault comes
# first; `who` says whether the finding names that one (1), the other one (2) or none (0).
CAUSES = {
    # variables, initial values
    "a variable of one side": (
        lambda: replaced(trained(), lambda step, values: {"more": np.float32(1)}), trained, {}, "variables", 0, 0,
        "more: ",
    ),
    "a shape": (
        lambda: replaced(trained(), lambda step, values: {"hidden/bias": np.zeros(6, np.float32)}), trained, {},
        "variables", 0, 0, "hidden/bias: shape",
    ),
    "other values": (
        made(start_weights={**START, "hidden/bias": np.ones(5)}), trained, {}, "initial values", 0, 0,
        "they start from different values: hidden/bias",
    ),
    **{
        f"mixed-up biases, {kind}": (
            made(kind, gradient=mixed_up("logits/bias", "more/bias")), made(kind),
            {}, "variables", 1, 0, "logits/bias and more/bias are swapped",
        )
        for kind in ("sgd", "adam")
    },
    # learning rate
    "a rate that both tell": (
        made(rates=LATE), made(rates=DECAYING), {"rates": (LATE, DECAYING)}, "learning rate", 2,
        0, "at step 2 it is ",
    ),
    "a constant rate": (
        made(rate=0.2), trained, other("sgd", learning_rate=0.2), "learning rate", 1, 0,
        "learning_rate 0.",
    ),
    **{
        f"a {word} rate, {kind}": (
            made(kind, rates=rates), made(kind, rates=DECAYING),
            {"rates": (None, DECAYING), "options": (silent(kind),) * 2}, "learning rate", 2, 0,
            f" has the learning rate of the step {told}",
        )
        for kind in ("sgd", "velocity", "adam")
        for word, told, rates in (("late", "before", LATE), ("early", "after", [0.1, *EARLY[1:]]))
    },
    "an untold rate, adam": (
        made("adam", rate=0.2), made("adam"), {"options": (silent("adam"),) * 2}, "learning rate",
        1, 0, "the gradients are the same, and every weight's change",
    ),
    "an untold rate, V1's momentum against Keras's": (
        made("momentum", rate=0.2), made("velocity"),
        {"options": ({**MOMENTUM, "learning_rate": 0.2}, silent("velocity")), "rates": (None, CONSTANT),
         "slots": False}, "learning rate", 1, 0, "the gradients are the same",
    ),
    # loss scaling
    **{
        f"a scaled loss, {kind}": (
            made(kind, gradient=times(3.5)), made(kind),
            both(kind), "loss scaling", 1, 1, "gradient is 3.5 times ",
        )
        for kind in KINDS
    },
    **{
        f"two replicas, {kind}": (
            made(kind, gradient=times(2)), made(kind),
            {**both(kind), "replicas": 2}, "loss scaling", 1, 1, ", and there are 2 replicas",
        )
        for kind in KINDS
    },
    "a scaled loss that is told": (
        made(gradient=times(16)), trained, {**both("sgd"), "losses": ([8.0] * 6, None)},
        "loss scaling", 1, 1, "loss and gradient are 16 times ",
    ),
    # clipping
    **{
        f"clipped by one side, {kind}": (
            made(kind), made(kind, gradient=clipped(0.05)),
            {**both(kind), "clip_norm": 0.05}, "clipping", 1, 1,
            "gradient has the norm 0.05 to which it is clipped",
        )
        for kind in ("momentum", "velocity", "adam")
    },
    "clipped to what nobody tells": (
        trained, made(gradient=clipped(0.05)), both("sgd"), "clipping", 1, 1, " to which it is clipped",
    ),
    # optimizer options
    "another kind": (
        made("adam"), trained, {"options": (ADAM, SGD), "slots": False}, "optimizer options", 1, 0, "adam in ",
    ),
    "another kind, by its slots": (
        made("adam"), trained, {"slots": False}, "optimizer options", 1, 0, "keeps @m, @v",
    ),
    "amsgrad": (
        lambda: with_vhat(trained("adam", epsilon=1e-3)), made("adam"),
        {**both("adam"), "slots": False}, "optimizer options", 1, 0, "keeps @m, @v, @vhat",
    ),
    "another momentum": (
        made("momentum", mu=0.8), made("momentum"), other("momentum", momentum=0.8),
        "optimizer options", 2, 0, "momentum 0.",
    ),
    "a rate and a momentum": (
        made("momentum", mu=0.8, rate=0.2), made("momentum"),
        other("momentum", momentum=0.8, learning_rate=0.2), "optimizer options", 1, 0, "momentum 0.",
    ),
    "epsilon": (
        made("adam", epsilon=1e-3), made("adam"), other("adam", epsilon=1e-3),
        "optimizer options", 1, 0, "epsilon is ",
    ),
    "epsilons larger than all that they are added to": (
        made("adam", epsilon=100.0, rate=1e3), made("adam", epsilon=50.0, rate=1e3),
        {"options": ({**silent("adam"), "epsilon": 100.0}, {**silent("adam"), "epsilon": 50.0})}, "optimizer options",
        1, 0, "epsilon is ",
    ),
    "slots that begin otherwise": (
        made("rmsprop", start=1.0), made("rmsprop"), {}, "optimizer options", 0, 0, "@rms",
    ),
    "slots that begin otherwise and are not compared": (
        made("rmsprop", start=1.0), made("rmsprop"), {"slots": False}, "optimizer options", 1, 0,
        "hidden/kernel @rms starts with ",
    ),
    # BatchNorm
    "updates that are missing": (
        lambda: averaged(still=True), averaged, {}, "BatchNorm", 1, 1, "does not update 2 of 2",
    ),
    "another momentum of the statistics": (
        lambda: averaged(0.99), averaged, {}, "BatchNorm", 1, 0, "moves 10 times as far in keras as in estimator",
    ),
    "statistics that move otherwise": (
        lambda: averaged(off=0.5, from_step=3), averaged, {}, "BatchNorm", 3, 0, "2 of 2 moving means",
    ),
    "evaluates in training mode": (
        averaged, averaged, evaluated(0.8),
        "BatchNorm", 6, 1, "evaluates in training mode: its loss 0.8 matches layers in training mode",
    ),
}  # fmt: skip

# What no rule is certain of -> the same; then the kind of value and its name in the place of the side.
NO_CAUSE = {
    "an update twice, plain SGD": (
        made(times=2), trained, both("sgd"), 1, "weight", "hidden/kernel",
        "every weight's change in ",
    ),
    **{
        f"an update twice, {kind}": (
            made(kind, times=2), made(kind), both(kind), 1,
            None, None, "",
        )
        for kind in ("momentum", "velocity", "adam")
    },
    "another loss": (
        trained, trained, {"losses": ([0.6] * 6, None)}, 1, "loss", "loss", "they differ by 0.1",
    ),
    "another loss than the gradients have": (
        made(gradient=times(3.5)), trained, {**both("sgd"), "losses": ([0.6] * 6, None)}, 1, "loss",
        "loss", "",
    ),
    "another loss, whatever the rates are": (
        made(rates=LATE), made(rates=DECAYING),
        {"rates": (LATE, DECAYING), "losses": ([0.6] * 6, None)}, 1, "loss", "loss", "",
    ),
    "another loss and other statistics": (
        lambda: averaged(0.99), averaged, {"losses": ([0.6] * 6, None)}, 1, "loss", "loss", "",
    ),
    "a layer that is not trained": (
        made(frozen=["hidden/bias"]), trained, both("sgd"), 1, "weight", "hidden/bias", "",
    ),
    "a layer that is scaled by itself": (
        made(gradient=times(3.5, "more/bias")), trained, both("sgd"), 1, "weight", "more/bias", "",
    ),
    "the opposite gradient": (
        made(gradient=times(-1)), trained, both("sgd"), 1, "weight", None, "",
    ),
    "a rate of which nothing is known": (
        made(rate=0.2), trained, {}, 1, "weight", None, "every weight's change in ",
    ),
    "a rate that both tell alike": (
        made("adam", rate=0.2), made("adam"), both("adam"), 1, "weight", None,
        "every weight's change in ",
    ),
    "a first step by the rate of the second": (
        made(rates=EARLY), made(rates=DECAYING),
        {"rates": (None, DECAYING), "options": (silent("sgd"),) * 2}, 1, "weight", None, "",
    ),
    "a factor near 1": (
        made(gradient=times(1.01)), trained, both("sgd"), 1, "weight", None, "",
    ),
    "both clipped, to other lengths": (
        made(gradient=clipped(0.05)), made(gradient=clipped(0.05, times=1.7)),
        both("sgd"), 1, "weight", None, "",
    ),
    "clipped on each replica": (
        made(gradient=lambda name, step, g: 0.5 * np.clip(clipped(0.05)(name, step, g), -0.01, 0.01)),
        made(gradient=clipped(0.05)), {**both("sgd"), "clip_norm": 0.05, "replicas": 2}, 1, "weight",
        None, "",
    ),
    "epsilons that do not explain it": (
        lambda: decayed("adam"), made("adam"), other("adam", epsilon=1e-8), 1, "weight",
        None, "",
    ),
    "the opposite gradient of two biases of one element, adam": (
        lambda: replaced(trained("adam", gradient=times(-1)), lambda step, values: flat(values, -1)),
        lambda: replaced(trained("adam"), lambda step, values: flat(values, 1)),
        {**both("adam"), "slots": False}, 1, "weight", None, "",
    ),
    "a weight decay": (
        lambda: decayed("momentum"), made("momentum"), both("momentum"), 1, "weight", None, "",
    ),
    "a constraint": (held, made(start_weights=POSITIVE, rate=5), both("sgd"), 1, "weight", "hidden/kernel", ""),
    "a gradient of rounding alone": (
        made("adam", gradient=times(1e-6, "hidden/bias")), made("adam", gradient=times(-1e-6, "hidden/bias")),
        {"options": (ADAM, {**ADAM, "epsilon": 1e-8})}, 1, None, None, "",
    ),
    "a counter": (lambda: counting(2), lambda: counting(1), {}, 1, "variable", "seen", "seen is "),
    "a counter beside a rate": (
        lambda: counting(2, trained(rate=0.2)), lambda: counting(1),
        other("sgd", learning_rate=0.2), 1, None, None, "",
    ),
    "a metric": (
        trained, trained, {"metrics": ({"auc": 0.8}, {"auc": 0.5})}, 6, "metric", "auc", "they differ by 0.3 ",
    ),
    "a loss of the training's mode without statistics": (
        trained, trained, evaluated(0.8), 6, "metric", "loss", "",
    ),
    "a loss of no mode": (
        averaged, averaged, evaluated(0.7), 6, "metric", "loss", "",
    ),
    "modes that come to the same": (
        averaged, averaged, evaluated(0.8, trains=0.5), 6, "metric", "loss", "",
    ),
    "a prediction": (
        trained, trained, {"answers": ({"predictions p": np.zeros(3)}, {"predictions p": np.full(3, 0.5)})}, 6,
        "prediction", "predictions p", "prediction p[0] is ",
    ),
}  # fmt: skip

_BOTH_SIDES = ("rates", "losses", "metrics", "answers", "options")


@pytest.fixture
def compared(tmp_path):
    """Compares two trainings, the faulty one first, as estimator and Keras or the other way round."""
    number = itertools.count()

    def compared(faulty, right, facts, *, turned=False):
        facts = dict(facts)
        if "of_modes" in facts:
            facts["modes"] = {"loss": facts.pop("of_modes")}
        states = [faulty(), right()]
        if turned:
            states.reverse()
            facts |= {name: facts[name][::-1] for name in _BOTH_SIDES if name in facts}
        return comparing(tmp_path / str(next(number)))(*states, **facts)

    return compared


@pytest.mark.parametrize("fault", CAUSES)
def test_a_planted_fault_has_its_name(compared, fault):
    faulty, right, facts, name, step, who, says = CAUSES[fault]
    finding = only(compared(faulty, right, facts))
    assert (finding.name, finding.step) == (name, step), finding
    assert finding.side == {0: None, 1: "estimator", 2: "keras"}[who] and says in finding.message, finding


@pytest.mark.parametrize("fault", NO_CAUSE)
def test_of_all_else_the_first_difference_is_told(compared, fault):
    faulty, right, facts, step, kind, variable, says = NO_CAUSE[fault]
    finding = only(compared(faulty, right, facts))
    assert (finding.name, finding.step, finding.hint) == (FIRST, step, ""), finding
    assert kind in (None, finding.kind) and variable in (None, finding.variable) and says in finding.message, finding
    assert finding.message.startswith(f"step {step}, {finding.kind}") and finding.size > 0


def test_which_engine_is_which_does_not_matter(compared):
    """The same finding at the same step, of the other side."""
    causes = [(faulty, right, facts, name, step, who) for faulty, right, facts, name, step, who, _ in CAUSES.values()]
    others = [(faulty, right, facts, FIRST, step, 0) for faulty, right, facts, step, *_ in NO_CAUSE.values()]
    for faulty, right, facts, *expected in (*causes, *others):
        finding = only(compared(faulty, right, facts, turned=True))
        who = {None: 0, "keras": 1, "estimator": 2}[finding.side]
        assert [finding.name, finding.step, who] == expected, finding


def test_weights_are_told_beside_moving_statistics(compared):
    found = compared(lambda: averaged(0.99, states=trained(rate=0.2)), averaged, {})
    assert [finding.name for finding in found.findings] == ["BatchNorm", FIRST]
    assert found.findings[1].kind == "weight"


@pytest.mark.parametrize("pair", [lambda: (averaged(0.9), averaged(0.99)), lambda: (averaged(), averaged(still=True))])
def test_statistics_that_are_allowed_are_no_cause_of_something_else(tmp_path, pair):
    one, other = pair()
    moved = replaced(
        one, lambda step, values: {"hidden/bias": values["hidden/bias"] * np.float32(1 + (step > 2) * 0.1)}
    )
    allowed = Tolerances.of({"statistics": {"atol": 9.0, "reason": "they are known to differ"}})
    finding = only(comparing(tmp_path)(moved, other, tolerances=allowed))
    assert (finding.name, finding.step, finding.variable) == (FIRST, 3, "hidden/bias")


def test_from_other_weights_nothing_is_concluded(tmp_path):
    """What is allowed has grown from step to step: the last one does not tell where it began."""
    allowed = {
        "weights": {"atol": 0.1, "reason": "for the time being"},
        "update_norm": {"atol": 9, "reason": "as well"},
    }
    finding = only(comparing(tmp_path)(
        averaged(states=trained(gradient=times(1.9))), averaged(off=1e-2), options=(SGD, SGD),
        tolerances={**allowed, "statistics": {"atol": 4e-3, "reason": "as well"}},
    ))  # fmt: skip
    assert finding.name == FIRST and finding.step > 1 and "every weight's change" not in finding.message


@pytest.mark.parametrize(("value", "side"), [(0.5004, "estimator"), (0.5002, None), (0.50000001, None)])
def test_an_evaluation_in_training_mode_that_makes_little_difference(compared, value, side):
    """0.5 by layers that infer, 0.5004 by layers that train."""
    metrics = {"metrics": ({"loss": value, "other": 1.0}, {"loss": 0.5, "other": 2.0}), "of_modes": (0.5, 0.5004)}
    finding = only(compared(averaged, averaged, metrics))
    assert finding.side == side and ("its loss 0.5004 " in finding.message) == (side is not None)


@pytest.mark.parametrize(
    ("batch", "side", "says"),
    [
        ([3, 2, 1, 0], None, "the same 4 records in a different order"),
        ([0, 0, 2, 3], "keras", "keras reads 1 record twice; 1 of 4 differ from those of the other side"),
        ([0, 1, 2, 9], None, "1 of 4 differ from those of the other side"),
        ([0, 1, 2], None, "estimator reads 4 records for the step, keras 3"),
    ],
)
def test_records_that_are_others(tmp_path, batch, side, says):
    """Whatever follows from them."""
    for engine, second in zip(ENGINES, ([0, 1, 2, 3], batch), strict=True):
        writer = BatchWriter(tmp_path / engine / "record", "worker:0")
        for records in ([0, 1, 2, 3], second):
            writer.batch(records)
    gradient = lambda name, step, g: g * (1 + (step > 0))  # noqa: E731
    finding = only(comparing(tmp_path)(trained(gradient=gradient), trained(), losses=([0.5, *[0.6] * 5], None)))
    assert (finding.name, finding.step, finding.side) == ("records", 2, side) and says in finding.message


def test_factors():
    one = {"a": np.array([1.0, 2.0]), "b": np.array([1e-6])}
    assert factor_of({"a": 3 * one["a"], "b": -one["b"]}, one) == pytest.approx(3)  # what is nothing beside the rest
    for other in ({"a": -one["a"]}, {"a": one["a"][::-1]}, {"a": 0 * one["a"]}):
        assert factor_of({"a": one["a"]}, other) is None
    assert factor_of({"a": one["a"], "b": np.array([0.006])}, {"a": one["a"], "b": np.array([0.005])}) is None


# What is told of it ------------------------------------------------------------------------------------------------


def test_the_summary_names_step_variable_and_size(compared):
    found = compared(lambda: trained(rate=0.2), trained, {})
    lines = text.summary(found).splitlines()
    assert lines[0] == "not equal: they first differ at step 1 of 6" and lines[1].strip().startswith("hidden/kernel")
    assert lines[2].startswith(f"  {FIRST}: step 1, weight hidden/kernel[") and "look at" not in lines[3]
    (told,) = text.document(found)["findings"]
    assert (told["kind"], told["variable"], told["step"]) == ("weight", "hidden/kernel", 1)
    assert told["size"] == found.first_fault[1].largest_absolute


def test_what_has_no_size_is_told_in_words(tmp_path):
    def broken(step, values):
        return {"hidden/bias": values["hidden/bias"] * np.float32(np.inf if step else 1)}

    finding = only(comparing(tmp_path)(replaced(trained(), broken), trained()))
    assert (finding.name, finding.size) == (FIRST, None) and "step 1, weight hidden/bias: 5 of 5" in finding.message


def test_what_was_not_compared_is_not_called_equal(compared):
    pair = (lambda: trained("adam"), lambda: trained("adam"))
    found = compared(*pair, {"rates": (None, CONSTANT), "slots": False})
    rows = {line[:24].strip(): line[24:].strip() for line in text.summary(found).splitlines()}
    assert found.equal and rows["weights, statistics"] == rows["loss"] == "bit-equal"
    assert rows["optimizer slots"] == rows["learning rate"] == "not compared"
    assert summaries.verdict(found).startswith("Bit-equal")

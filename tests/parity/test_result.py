"""Comparing what two runs have recorded, from records made by hand: what is not compared is told, nothing passes by
itself, and what a difference comes from has its name."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.parity import tally, text
from estimator_pipeline.parity.findings import Facts
from estimator_pipeline.parity.records import BatchWriter, StepWriter
from estimator_pipeline.parity.result import ENGINES, compare_records
from estimator_pipeline.parity.tolerances import Tolerances

RANDOM = np.random.default_rng(0)
RATES = [0.1, 0.09, 0.08, 0.07, 0.06, 0.05]
KERNEL = RANDOM.normal(size=(4, 3)).astype(np.float32)
GRADIENTS = [RANDOM.normal(size=(4, 3)) for _ in RATES]


def sgd(rates=RATES):
    """Kernel by kernel, of plain gradient descent."""
    kernel = KERNEL.astype(np.float64)
    yield {"dense/kernel": KERNEL}
    for rate, gradient in zip(rates, GRADIENTS, strict=True):
        kernel = kernel - rate * gradient
        yield {"dense/kernel": kernel.astype(np.float32)}


def momentum(rates=RATES, *, by_keras=True, nesterov=False):
    """Of the velocities that Keras keeps, with the rate in them, or those of V1, without."""
    kernel, velocity = KERNEL.astype(np.float64), np.zeros((4, 3))
    yield {"dense/kernel": KERNEL, "dense/kernel @momentum": velocity.astype(np.float32)}
    for rate, gradient in zip(rates, GRADIENTS, strict=True):
        velocity = 0.9 * velocity - rate * gradient if by_keras else 0.9 * velocity + gradient
        step = velocity if by_keras else -rate * velocity
        if nesterov:
            step = 0.9 * velocity - rate * gradient if by_keras else -rate * (gradient + 0.9 * velocity)
        kernel = kernel + step
        yield {
            "dense/kernel": kernel.astype(np.float32), "dense/kernel @momentum": velocity.astype(np.float32)
        }  # fmt: skip


def adam(rates=RATES):
    kernel, m, v = KERNEL.astype(np.float64), np.zeros((4, 3)), np.zeros((4, 3))
    for step, (rate, gradient) in enumerate(zip([None, *rates], [None, *GRADIENTS], strict=True)):
        if gradient is not None:
            m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
            rate *= np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            kernel = kernel - rate * m / (np.sqrt(v) + 1e-7)
        values = {"dense/kernel": kernel, "dense/kernel @m": m, "dense/kernel @v": v}
        yield {name: value.astype(np.float32) for name, value in values.items()}


@pytest.fixture
def compared(tmp_path):
    """Writes both records and compares them."""

    def record(engine, states, *, rates=RATES, batches=RATES, loss=0.5):
        writer = StepWriter(tmp_path / engine / "record")
        first, *after = states
        writer.initial({**first, "global_step": np.int64(0)})
        for step, values in enumerate(after, 1):
            rate = None if rates is None else rates[step - 1]
            writer.step(step, loss=loss, learning_rate=rate, variables={**values, "global_step": np.int64(step)})
        reader = BatchWriter(tmp_path / engine / "record", "worker:0")
        for batch, _ in enumerate(batches or []):
            reader.batch([10 * batch + record for record in range(4)])

    def compared(estimator, keras, *, of_estimator=None, of_keras=None, **options):
        record("estimator", list(estimator), **(of_estimator or {}))
        record("keras", list(keras), **(of_keras or {}))
        options.setdefault("metrics", {engine: {"accuracy": 0.5} for engine in ENGINES})
        return compare_records(tmp_path, **options)

    return compared


def names(parity):
    return [finding.name for finding in parity.findings]


# Nothing passes by itself ----------------------------------------------------------------------------------------


def test_equal(compared):
    found = compared(sgd(), sgd(), steps=6)
    assert found.equal and not found.notes and not found.findings
    assert tally.verdict(found) == (
        "Bit-equal: estimator and keras over 6 steps, with 2 variables after each, and in the final metrics."
    )


def test_no_step_is_no_proof(compared, tmp_path):
    with pytest.raises(ConfigError, match="holds no record of a run"):
        compare_records(tmp_path, metrics={engine: {} for engine in ENGINES})
    found = compared(list(sgd())[:1], list(sgd())[:1])
    assert not found.equal and names(found) == ["steps"]
    for engine in ENGINES:  # a step whose variables were not kept
        StepWriter(tmp_path / engine / "record").step(1, loss=0.5)
    found = compare_records(tmp_path, metrics={engine: {} for engine in ENGINES})
    assert not found.equal and names(found) == ["steps"]
    assert tally.verdict(found) == "Not equal: estimator and keras have made no step in common."
    assert text.summary(found).startswith("not equal: estimator and keras have made no step in common")


def test_of_other_variables_no_step_is_asked_for(compared):
    """One side could not begin: that is told, and no steps that the other made alone, nor a table of nothing."""
    found = compared([{"hidden/kernel": KERNEL}], sgd(), steps=6, metrics={engine: {} for engine in ENGINES})
    assert not found.equal and names(found) == ["variables"] and not found.only
    said = text.summary(found)
    assert said.startswith(
        "not equal: they part before the first step\n  hidden/kernel: estimator has it, keras has not"
    )
    assert "largest difference" not in said and "alone" not in said


def test_fewer_steps_than_asked(compared):
    found = compared(list(sgd())[:4], list(sgd())[:4], steps=6)
    assert not found.equal and names(found) == ["steps"]
    assert tally.verdict(found) == "Not equal: estimator and keras both made 3 of the 6 steps."
    assert "3 steps of the 6 that were asked for were made by both" in found.findings[0].message


@pytest.mark.parametrize("asked", [6, None])
def test_steps_of_one_side_alone(compared, asked):
    found = compared(list(sgd())[:4], sgd(), steps=asked)  # None: as many as both have made
    assert not found.equal and names(found) == ["steps"]
    assert found.only == (("keras", 4), ("keras", 5), ("keras", 6))
    assert "keras alone has made 3 steps, the first of them 4" in found.findings[0].message


def test_after_other_steps_nothing_is_said_of_metrics(compared):
    metrics = {"estimator": {"accuracy": 0.5}, "keras": {"accuracy": 0.6}}
    answers = ({"predictions logits": np.zeros(2, np.float32)}, {"predictions logits": np.ones(2, np.float32)})
    found = compared(list(sgd())[:4], sgd(), metrics=metrics, answers=answers)
    assert names(found) == ["steps"] and not found.metrics.names and found.answers is None
    assert found.finals == metrics
    assert "metrics and predictions were not compared, for the two have not made the same steps" in found.notes


@pytest.mark.parametrize(
    ("counts", "made", "told"),
    [
        ([2, 4, 6], 0, "2, 4, 6 in estimator; 1, 2, 3, 4, … in keras"),
        ([0], 0, "0 in estimator; 1, 2, 3, 4, … in keras"),
        ([1, 2, 4, 6], 2, "1, 2, 4, 6 in estimator; 1, 2, 3, 4, … in keras"),
    ],
    ids=["twice", "never", "twice from the third"],
)
def test_steps_that_are_counted_otherwise(tmp_path, counts, made, told):
    """Those of one number are not the same then, and are not held against each other."""
    first, *after = sgd()
    for engine, steps in zip(ENGINES, (counts, range(1, 7)), strict=True):
        writer = StepWriter(tmp_path / engine / "record")
        writer.initial({**first, "global_step": np.int64(0)})
        for step, values in zip(steps, after, strict=False):
            writer.step(step, loss=0.5, learning_rate=0.1, variables={**values, "global_step": np.int64(step)})
    found = compare_records(tmp_path, metrics={engine: {"loss": 0.5} for engine in ENGINES}, steps=6)
    assert [step.step for step in found.steps] == [*range(1, made + 1)] and not found.metrics.names
    assert names(found)[-1] == "steps" and not found.equal
    assert f"the steps do not correspond: the global step after each is {told}" in found.findings[-1].message


def test_a_rate_that_is_told_otherwise(compared):
    """With the same steps made: one side tells another rate than it trains with."""
    found = compared(sgd(), sgd(), of_keras={"rates": [*RATES[:3], RATES[3] * 1.5, *RATES[4:]]})
    assert not found.equal
    step, fault = found.first_fault
    assert (step, fault.name) == (4, "learning_rate")


@pytest.mark.parametrize(
    ("of_keras", "note"),
    [
        ({"batches": None}, "the records of the steps were not compared: keras did not tell which"),
        ({"batches": RATES[:4]}, "the records of 2 of the 6 steps were not compared: one side tells of fewer batches"),
        ({"rates": None}, "the learning rate was not compared: estimator alone tells it"),
        (
            {"rates": [*RATES[:5], None]},
            "the learning rate of 1 of the 6 steps was not compared: estimator alone tells it",
        ),
    ],
)  # fmt: skip
def test_what_one_side_alone_tells_is_named(compared, of_keras, note):
    found = compared(sgd(), sgd(), of_keras=of_keras)
    assert found.equal and list(found.notes) == [note]


@pytest.mark.parametrize("other", [0.1, 0.2])
def test_a_rate_that_one_side_tells_by_its_graph_is_compared(compared, other):
    """As an option: that it was not compared would be wrong."""
    facts = Facts(options=({"kind": "sgd", "learning_rate": 0.1}, {"kind": "sgd", "learning_rate": other}))
    assert not compared(sgd(), sgd(), of_keras={"rates": None}, facts=facts).notes


def test_without_metrics_none_are_spoken_of(compared):
    found = compared(sgd(), sgd(), metrics={engine: {} for engine in ENGINES})
    assert found.equal and "metric" not in tally.verdict(found) + text.summary(found).splitlines()[0]


# What a difference comes from ------------------------------------------------------------------------------------

LATE = [RATES[0], *RATES[:-1]]
EARLY = [*RATES[1:], 0.04]


@pytest.mark.parametrize("rates", [LATE, EARLY], ids=["late", "early"])
@pytest.mark.parametrize("side", ENGINES)
@pytest.mark.parametrize(
    "optimizer",
    [
        sgd,
        momentum,
        lambda rates=RATES: momentum(rates, nesterov=True),
        lambda rates=RATES: momentum(rates, by_keras=False),
        lambda rates=RATES: momentum(rates, by_keras=False, nesterov=True),
        adam,
    ],
    ids=["sgd", "momentum", "nesterov", "V1's momentum", "V1's nesterov", "adam"],
)
def test_a_rate_one_step_off(compared, optimizer, side, rates):
    """The other side tells its rates, as a legacy model_fn does not."""
    sides = {"estimator": optimizer(), "keras": optimizer()} | {side: optimizer(rates)}
    found = compared(**sides, **{f"of_{side}": {"rates": None}})
    assert not found.equal and names(found) == ["learning rate"]
    word = "late" if rates is LATE else "early"
    assert f"{side} has the learning rate of another step; it is one step {word}" in found.findings[0].message
    assert found.findings[0].step == (2 if rates is LATE else 1)


def test_another_gradient_is_no_rate(compared):
    def other():
        for step, values in enumerate(momentum()):
            shift = 1e-2 * step * np.eye(4, 3, dtype=np.float32)
            yield {name: value - shift for name, value in values.items()}

    assert names(compared(other(), momentum())) == ["gradient"]


def test_initial_values(compared):
    def other():
        for values in sgd():
            yield {name: value + np.float32(0.5) for name, value in values.items()}

    found = compared(other(), sgd())
    assert names(found) == ["initial values"] and found.first_fault[0] == 0


def test_variables(compared):
    def renamed():
        for values in sgd():
            yield {"fc/kernel": values["dense/kernel"]}

    found = compared(renamed(), sgd())
    assert names(found) == ["variables"]
    assert "fc/kernel: estimator has it, keras has not" in found.findings[0].message


def test_slots_that_begin_otherwise_are_an_option(compared):
    def other():
        for values in momentum():
            yield {name: value + np.float32(0.5 * ("@" in name)) for name, value in values.items()}

    (finding,) = compared(other(), momentum()).findings
    assert (finding.name, finding.step) == ("optimizer", 0)
    assert finding.message.endswith("begins otherwise: dense/kernel @momentum[0, 0] is 0.5 in estimator, 0 in keras")


def test_each_metric_that_differs_is_named(compared):
    one = {f"metric_{number}": 0.5 for number in range(6)}
    other = {**{name: 0.5 + 0.1 * number for number, name in enumerate(one)}, "alone": 1.0}
    found = compared(sgd(), sgd(), metrics={"estimator": one, "keras": other})
    (finding,) = found.findings
    assert finding.name == "evaluation"
    assert finding.message.endswith("the metrics are not: alone, metric_5, metric_4, metric_3, and 2 more")
    # Both values are told once, by the verdict; below it stands the worst of all with what was allowed.
    told = "alone of keras alone, metric_5 0.5 in estimator and 1 in keras, metric_4 0.5 and 0.9"
    said = text.summary(found)
    assert told in tally.verdict(found) and told in said
    assert said.count("metric_4 0.5 and 0.9") == 1 and "metric_4 is 0.5" not in said


@pytest.mark.parametrize("kept", ["int64", "float32"])
def test_variables_that_no_gradient_moves(compared, kept):
    """A counter that one side counts twice, an average with another decay: no rounding, and no frozen layer."""

    def counting(times):
        for step, values in enumerate(sgd()):
            yield {**values, "seen": np.array(times * step * (0.37 if kept == "float32" else 1), kept)}

    facts = Facts(untrained=frozenset({"seen"}) if kept == "float32" else frozenset())
    (finding,) = compared(counting(2), counting(1), facts=facts).findings
    assert (finding.name, finding.step) == ("updates", 1)
    assert "1 of 1 variables that no gradient moves change otherwise: seen is " in finding.message


def test_weights_are_named_beside_counters(compared):
    def counting(times, states):
        for step, values in enumerate(states):
            yield {**values, "seen": np.int64(times * step)}

    half = sgd([rate / 2 for rate in RATES])
    found = compared(counting(2, half), counting(1, sgd()), of_estimator={"rates": None})
    assert names(found) == ["updates", "learning rate"]


def test_another_loss_that_changes_nothing_is_only_told(compared):
    (finding,) = compared(sgd(), sgd(), of_estimator={"loss": 0.6}).findings
    assert finding.name == "forward pass" and "both change the weights alike" in finding.message
    assert "layers" not in finding.mend


def test_a_side_that_was_trained_before(tmp_path):
    first, *after = sgd()
    for engine, start in zip(ENGINES, (0, 3), strict=True):
        writer = StepWriter(tmp_path / engine / "record")
        writer.initial({**first, "global_step": np.int64(start)})
        for step, values in enumerate(after, start + 1):
            writer.step(step, loss=0.5, variables={**values, "global_step": np.int64(step)})
    found = compare_records(tmp_path, metrics={engine: {} for engine in ENGINES}, steps=6)
    assert "keras begins at step 3" in found.findings[-1].message and "trained before" in found.findings[-1].mend


def test_a_loss_that_differs_by_little(compared):
    """By how much, where it is not some times the other."""
    (finding,) = compared(
        sgd(), sgd(), of_estimator={"loss": 0.5 * (1 + 5e-5)}, tolerances=Tolerances.of("bit_equal")
    ).findings
    assert finding.name == "forward pass" and "(apart by 5e-05 of it)" in finding.message


@pytest.mark.parametrize(("times", "told"), [(4, True), (0.25, True), (3, False)])
def test_a_sum_against_a_mean(compared, times, told):
    (finding,) = compared(sgd(), sgd(), of_estimator={"loss": 0.5 * times}).findings
    assert finding.name == "forward pass" and f"({times:.4g} times" in finding.message
    assert ("as many as there are records in the batch, as a sum is against a mean" in finding.message) == told


def test_another_loss_is_named_before_what_follows_from_it(compared):
    half = sgd([rate / 2 for rate in RATES])
    found = compared(half, sgd(), of_estimator={"loss": 0.25, "rates": None})
    assert names(found) == ["forward pass"]


@pytest.mark.parametrize(
    ("estimator", "keras", "side"),
    [
        (0.8, 0.5, "estimator"),
        (0.5, 0.8, "keras"),
        (0.65, 0.5, None),  # neither
        (0.8, 0.8001, None),  # both
        (0.8, None, None),  # one alone tells it
    ],
)
def test_an_evaluation_in_training_mode(compared, estimator, keras, side):
    """Layers as they infer come to 0.5, as they train to 0.8."""
    metrics = {"estimator": {"loss": estimator, "other": 1.0}, "keras": {"loss": keras, "other": 2.0}}
    metrics = {engine: {name: v for name, v in one.items() if v is not None} for engine, one in metrics.items()}
    (finding,) = compared(sgd(), sgd(), metrics=metrics, facts=Facts(losses={"loss": (0.5, 0.8)})).findings
    assert (finding.name, finding.side) == ("evaluation", side)
    assert (finding.message == f"{side} evaluates in training mode: its loss 0.8 is that of layers that train (0.8), "
            "not that of layers that infer (0.5)") == (side is not None)  # fmt: skip


@pytest.mark.parametrize(("value", "side"), [(0.5004, "estimator"), (0.5002, None), (0.50000001, None)])
def test_an_evaluation_in_training_mode_that_makes_little_difference(compared, value, side):
    """0.5 by layers that infer, 0.5004 by layers that train."""
    metrics = {"estimator": {"loss": value, "other": 1.0}, "keras": {"loss": 0.5, "other": 2.0}}
    facts = Facts(losses={"loss": (0.5, 0.5004)})
    (finding,) = compared(sgd(), sgd(), metrics=metrics, facts=facts).findings
    assert finding.side == side and ("in training mode: its loss 0.5004 " in finding.message) == (side is not None)


def test_modes_that_sums_tell_apart_are_one(compared):
    metrics = {"estimator": {"loss": 0.500001, "other": 1.0}, "keras": {"loss": 0.5, "other": 2.0}}
    facts = Facts(losses={"loss": (0.5, 0.500001)})
    (finding,) = compared(sgd(), sgd(), metrics=metrics, facts=facts).findings
    assert finding.side is None


def test_a_mode_that_does_not_matter_is_not_named(compared):
    """Layers come to the same as they infer and as they train: then the mode explains nothing."""
    metrics = {"estimator": {"loss": 0.5}, "keras": {"loss": 0.7}}
    (finding,) = compared(sgd(), sgd(), metrics=metrics, facts=Facts(losses={"loss": (0.5, 0.5)})).findings
    assert finding.side is None and finding.message.endswith("the metrics are not: loss")


@pytest.mark.parametrize(
    ("batch", "side", "says"),
    [
        ([3, 2, 1, 0], None, "the same 4 records in another order"),
        ([0, 0, 2, 3], "keras", "keras reads 1 record twice; 1 of 4 are not those of the other side"),
        ([0, 0, 2, 2], "keras", "keras reads 2 records twice; 2 of 4 are not those of the other side"),
        ([0, 1, 2, 9], None, "1 of 4 are not those of the other side"),
    ],
)
def test_records_that_are_others(compared, tmp_path, batch, side, says):
    BatchWriter(tmp_path / "keras" / "record", "worker:0").batch(batch)
    found = compared(sgd(), sgd(), of_keras={"batches": RATES[1:]})
    (finding,) = found.findings
    assert (finding.name, finding.step, finding.side) == ("records", 1, side)
    assert finding.message == f"step 1, records of worker-0, batch 1: {says}"


def test_predictions(compared):
    answers = [
        {"predictions logits": np.zeros((2, 3), np.float32)},
        {"predictions logits": np.ones((2, 3), np.float32)},
    ]
    found = compared(sgd(), sgd(), answers=tuple(answers))
    assert names(found) == ["predictions"] and not found.equal
    assert tally.verdict(found) == (
        "Not equal: 6 steps of estimator and keras are equal, they part in the predictions: logits, by 1 (relative 1)."
    )


def test_records_are_counted_and_not_measured(compared, tmp_path):
    BatchWriter(tmp_path / "keras" / "record", "worker:0").batch([4_000_000_000, 1, 2, 3])
    found = compared(sgd(), sgd())
    assert names(found) == ["records"]
    assert tally.verdict(found).endswith("in the records of worker-0, batch 1: 1 of 4 is not the same.")


def normalised(corrected, samples=(32, 2048)):
    """Moving means and variances of two layers, whose batches have so many values each."""
    random = np.random.default_rng(1)
    mean, variance = [np.zeros(8)] * 2, [np.ones(8)] * 2
    for step in range(7):
        if step:
            for layer, size in enumerate(samples):
                batch = random.uniform(0.1, 2.0, 8)
                mean[layer] = 0.9 * mean[layer] + 0.1 * random.normal(size=8)
                variance[layer] = 0.9 * variance[layer] + 0.1 * batch * (size / (size - 1) if corrected else 1)
        values = {"dense/kernel": KERNEL}
        for layer in (0, 1):
            values[f"norm_{layer}/moving_mean"] = mean[layer].astype(np.float32)
            values[f"norm_{layer}/moving_variance"] = variance[layer].astype(np.float32)
        yield values


@pytest.mark.parametrize("corrected", ENGINES)
def test_variances_that_are_corrected_for_their_sample(compared, corrected):
    found = compared(normalised(corrected == "estimator"), normalised(corrected == "keras"))
    (finding,) = found.findings
    assert (finding.name, finding.side, finding.step) == ("moving statistics", corrected, 1)
    assert "(Bessel: times n / (n - 1), n about 32)" in finding.message and "fused=False" in finding.mend


@pytest.mark.parametrize("seed", range(8))
def test_rounding_of_variances_is_not_taken_for_it(compared, seed):
    """Batches of little variance move all variances nearly alike; what the two differ by is noise."""
    random = np.random.default_rng(seed)

    def other(noise):
        variance = np.ones(8)
        for step, values in enumerate(sgd()):
            if step:
                variance = 0.9 * variance + 0.1 * np.linspace(0.01, 0.02, 8)
            shift = noise * random.normal(size=8) * bool(step)
            # The layer's weights part at the second step, by another cause.
            kernel = values["dense/kernel"] * (1 + (noise > 0) * 0.1 * (step > 1))
            yield {
                "dense/kernel": kernel.astype(np.float32),
                "norm/moving_mean": np.zeros(8, np.float32),
                "norm/moving_variance": (variance + shift * (1 + 1e4 * (step > 1))).astype(np.float32),
            }

    found = compared(other(1e-7), other(0.0))
    assert not found.equal and not any("Bessel" in finding.message for finding in found.findings)


def averaged(momentum=0.9, *, off=0.0, from_step=1, parts=("mean", "variance"), kernels=None):
    """Moving means and variances of one layer; `off` is added to what is averaged of `parts` from a step on."""
    random = np.random.default_rng(1)
    mean, variance = np.zeros(8), np.ones(8)
    for step, values in enumerate(kernels or sgd()):
        if step:
            more = dict.fromkeys(parts, off * (step >= from_step))
            mean = momentum * mean + (1 - momentum) * (random.normal(size=8) + more.get("mean", 0.0))
            variance = momentum * variance + (1 - momentum) * (random.uniform(0.1, 2.0, 8) + more.get("variance", 0.0))
        yield {
            **values,
            "norm/moving_mean": mean.astype(np.float32),
            "norm/moving_variance": variance.astype(np.float32),
        }


def still():
    for values in averaged(0.9):
        yield {**values, "norm/moving_mean": np.zeros(8, np.float32)}


@pytest.mark.parametrize(
    "pair",
    [lambda: (normalised(True), normalised(False)), lambda: (averaged(0.9), averaged(0.99)),
     lambda: (averaged(0.9), still())],
    ids=["Bessel's correction", "momentum", "not updated"],
)  # fmt: skip
def test_statistics_that_are_allowed_are_no_cause_of_something_else(compared, pair):
    """Of them nothing is beyond what they may differ by; the kernel is, from the third step on."""

    def moved(states):
        for step, values in enumerate(states):
            yield {**values, "dense/kernel": values["dense/kernel"] * np.float32(1 + (step > 2) * 0.1)}

    one, other = pair()
    allowed = Tolerances.of({"statistics": {"rtol": 0.1, "atol": 9.0, "reason": "they are known to differ"}})
    found = compared(moved(one), other, tolerances=allowed)
    assert not found.equal and found.findings[0].step == 3
    assert not any(finding.name == "moving statistics" for finding in found.findings)


@pytest.mark.parametrize(("side", "other"), [ENGINES, ENGINES[::-1]])
def test_another_momentum_of_moving_statistics(compared, side, other):
    (finding,) = compared(**{side: averaged(0.9), other: averaged(0.99)}).findings
    assert (finding.name, finding.side, finding.step) == ("moving statistics", side, 1)
    assert f"moves 10 times as far in {side} as in {other}: 1 - momentum" in finding.message
    assert "momentum (decay), named in both" in finding.mend


@pytest.mark.parametrize("momentum", [0.99, 0.9005])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_momentum_of_some_layers(compared, layers, momentum):
    """Of one among two, or by so little that what else differs must be less."""

    def two(*momenta):
        for one, other in zip(*map(averaged, momenta), strict=True):
            yield {**one, **{f"second/{name}": value for name, value in other.items() if "moving" in name}}

    own = (momentum, 0.9) if layers == 1 else (momentum, momentum)
    found = compared(two(*own), two(0.9, 0.9), tolerances=Tolerances.of({"statistics": "bit_equal"}))
    (finding,) = found.findings
    assert finding.name == "moving statistics" and finding.side == "keras"
    times = "10" if momentum == 0.99 else "1.005"
    if layers == 1:
        assert f"of 1 of 2 layers move by another share of the way: of norm {times} times" in finding.message
    else:
        assert f"every moving mean and variance moves {times} times as far in keras" in finding.message


def test_a_mean_that_stays_where_it_is_says_nothing_of_the_momentum(compared):
    """What is averaged of a layer is 0 but for noise: all others say by how much."""

    def with_a_still_one(momentum, seed):
        random = np.random.default_rng(seed)
        mean = np.zeros(8)
        for values in averaged(momentum):
            yield {**values, "still/moving_mean": mean.astype(np.float32)}
            mean = mean + 1e-9 * random.normal(size=8)

    (finding,) = compared(with_a_still_one(0.99, 1), with_a_still_one(0.9, 2)).findings
    assert finding.name == "moving statistics" and "every moving mean and variance moves 10 times" in finding.message


def moved(values, *, mean=1.0, variance=1.0, off=0.0, layer="norm"):
    """One layer's statistics by another share of the way from where they begin, and by so much in other directions."""
    random, first = np.random.default_rng(2), None
    for one in values:
        first = first or one
        found = dict(one)
        for part, times in (("mean", mean), ("variance", variance)):
            name = f"{layer}/moving_{part}"
            change = one[name] - first[name]
            noise = off * times * np.sqrt(np.mean(change**2)) * random.normal(size=8)
            found[name] = (first[name] + times * change + noise).astype(np.float32)
        yield found


@pytest.mark.parametrize(
    ("options", "is_momentum"),
    [
        ({"mean": 3.0, "variance": 3.0}, True),
        ({"mean": 3.0, "variance": 5.0}, False),
        ({"mean": 3.0, "variance": 3.0, "off": 0.05}, False),
    ],
    ids=["both as far", "the variance further", "other directions"],
)
def test_what_is_another_momentum(compared, options, is_momentum):
    (finding,) = compared(moved(averaged(), **options), averaged()).findings
    assert finding.name == "moving statistics"
    told = "moves 3 times as far in estimator" if is_momentum else "2 of 2 moving means and variances move otherwise"
    assert told in finding.message


def test_other_directions_of_a_variance_alone(compared):
    """The mean stays where it is, and has nothing to say against it."""
    (finding,) = compared(moved(averaged(), mean=0.0, variance=3.0, off=0.05), moved(averaged(), mean=0.0)).findings
    assert finding.name == "moving statistics" and "1 of 2 moving means and variances move otherwise" in finding.message


def of_two_layers(values):
    for one in values:
        yield {**one, **{f"second/{name}": value for name, value in one.items() if "moving" in name}}


def test_the_momentum_of_one_layer_does_not_explain_another_one(compared):
    """Which moves in other directions."""
    one = moved(moved(of_two_layers(averaged()), mean=3.0, variance=3.0), off=0.5, layer="second/norm")
    (finding,) = compared(one, of_two_layers(averaged())).findings
    assert finding.name == "moving statistics" and "4 of 4" in finding.message and "move otherwise" in finding.message


@pytest.mark.parametrize("layers", [1, 2])
def test_another_momentum_behind_another_loss(compared, layers):
    """What a layer averages may be other values there, unless all layers say the same."""
    one = moved(of_two_layers(averaged()), mean=3.0, variance=3.0)
    if layers == 2:
        one = moved(one, mean=3.0, variance=3.0, layer="second/norm")
    found = compared(one, of_two_layers(averaged()), of_keras={"loss": 0.6})
    assert names(found) == ["forward pass", *["moving statistics"] * (layers - 1)]


def test_a_little_of_all_layers_behind_another_loss_is_no_momentum(compared):
    one = of_two_layers(averaged())
    for layer in ("norm", "second/norm"):
        one = moved(one, mean=1.01, variance=1.01, layer=layer)
    assert names(compared(one, of_two_layers(averaged()), of_keras={"loss": 0.6})) == ["forward pass"]


@pytest.mark.parametrize(("parts", "count"), [(("mean", "variance"), 2), (("mean",), 1), (("variance",), 1)])
def test_moving_statistics_that_move_otherwise(compared, parts, count):
    (finding,) = compared(averaged(off=0.5, from_step=3, parts=parts), averaged()).findings
    assert (finding.name, finding.step) == ("moving statistics", 3)
    assert f"{count} of 2 moving means and variances move otherwise (norm/moving_{parts[0]}" in finding.message


def test_little_of_moving_statistics_is_rounding(compared):
    """More than a moving average may differ by, and no more than sums in another order leave of it."""
    (finding,) = compared(averaged(off=1e-4), averaged()).findings
    assert finding.name == "rounding" and "by little" in finding.message


def test_weights_are_named_beside_moving_statistics(compared):
    half = sgd([rate / 2 for rate in RATES])
    found = compared(averaged(0.99, kernels=half), averaged(), of_estimator={"rates": None})
    assert names(found) == ["moving statistics", "learning rate"]


def test_other_variances_are_not_taken_for_it(compared):
    def other():
        for step, values in enumerate(normalised(False)):
            off = np.linspace(-0.1, 0.1, 8, dtype=np.float32) * step
            yield {name: value + off if "variance" in name else value for name, value in values.items()}

    assert not any("Bessel" in finding.message for finding in compared(other(), normalised(False)).findings)

"""What differs by nature is told by name, with the setting that makes the two equal."""

from __future__ import annotations

import pytest

from estimator_pipeline.job import load_job
from estimator_pipeline.parity import known_differences as known
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()


@pytest.mark.parametrize(
    ("slot", "keras", "says"),
    [
        ("Adam", "Adam", ["AdamOptimizer (tf.compat.v1.train) against Adam", "1e-8", "1e-7"]),
        ("Momentum", "SGD", ["MomentumOptimizer", "once a schedule changes the rate"]),
        ("Adagrad", "Adagrad", ["AdagradOptimizer", "epsilon=1e-30"]),
        ("RMSProp", "RMSprop", ["RMSPropOptimizer", "no argument makes them equal"]),
    ],
)
def test_optimizers(slot, keras, says):
    (note,) = known.of_optimizers(["dense/kernel:0", f"dense/kernel/{slot}:0"], keras)
    assert all(text in note for text in says) and "api: v1" in note
    assert known.of_optimizers(["dense/kernel:0"], keras) == []
    assert known.of_optimizers([f"dense/kernel/{slot}:0"], "Nadam") == []


@pytest.mark.parametrize(("epsilon", "told"), [(1e-30, False), (1e-7, True)])
def test_adagrad_without_an_epsilon(epsilon, told):
    """Whoever has set it as the note asks is not asked again, and has the slots compared."""
    options = ({"kind": "adagrad"}, {"kind": "adagrad", "epsilon": epsilon})
    assert bool(known.of_optimizers(["dense/kernel/Adagrad:0"], "Adagrad", options)) is told


def test_an_epsilon_that_is_the_same():
    of = ["dense/kernel/Adam:0"]
    assert known.of_optimizers(of, "Adam", ({"epsilon": 1e-7}, {"epsilon": 1e-7})) == []
    assert known.of_optimizers(of, "Adam", ({"epsilon": 1e-8}, {"epsilon": 1e-7}))
    assert known.of_optimizers(of, "Adam", ({}, {"epsilon": 1e-7}))


def test_random_numbers():
    layers = [f"dropout_{i}" for i in range(6)]
    (note,) = known.of_random(("estimator", "keras"), (layers, layers))
    assert "(dropout_0, dropout_1, dropout_2, dropout_3, …): a session and a tf.function" in note
    (note,) = known.of_random(("estimator", "keras"), (["dropout"], []))
    assert "(dropout, only in estimator)" in note
    (note,) = known.of_random(("keras", "keras3"), (["a"], ["a"]))
    assert "Keras 3 draws different numbers" in note and "session" not in note
    assert known.of_random(("estimator", "keras"), ([], [])) == []


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        ([], "model.params.dropout=0"),
        (["model.name=null", "model.function=own.py:layers", "model.params={drop_rate: 0.3}"],
         "model.params.drop_rate=0"),
        (["model.name=null", "model.function=own.py:layers", "model.params={}"], None),
    ],
)  # fmt: skip
def test_the_setting_that_turns_random_numbers_off(overrides, setting):
    """It is offered where there is one."""
    job = load_job(ROOT / "legacy_configs" / "single.yaml", overrides=overrides)
    (note,) = known.of_job(job, engines=("keras", "keras3"), random=(["drop"], ["drop"]))
    assert "--set" not in note if setting is None else note.endswith(f"(--set {setting})")


def test_how_a_session_rewrites_its_graph():
    proto = tf.compat.v1.ConfigProto
    once = proto(graph_options={"rewrite_options": {"meta_optimizer_iterations": "ONE"}})
    for config in (None, tf.estimator.RunConfig().session_config, once):
        (note,) = known.of_session(config)
        assert "once" in note and "ConfigProto(allow_soft_placement=True)" in note
    assert known.of_session(proto(allow_soft_placement=True)) == []


@pytest.mark.parametrize(
    ("optimizer", "engines", "says"),
    [
        ("{name: rmsprop, learning_rate: 0.01, api: keras}", ("keras", "keras3"), "under the root of the mean square"),
        ("{name: adagrad, learning_rate: 0.01, api: keras}", ("keras", "keras3"), "under the root of the accumulator"),
        ("{name: adagrad, learning_rate: 0.01, api: keras}", ("estimator", "keras"), None),
        ("{name: adagrad, learning_rate: 0.01, api: v1}", ("keras", "keras3"), None),
        ("{name: adam, learning_rate: 0.01, api: keras}", ("keras", "keras3"), None),
    ],
)
def test_optimizers_of_keras_3(optimizer, engines, says):
    job = load_job(ROOT / "legacy_configs" / "single.yaml", overrides=[f"model.optimizer={optimizer}"])
    notes = known.of_job(job, engines=engines)
    assert (says is None) == (notes == [])
    assert says is None or (says in notes[0] and "--set model.optimizer.api=v1" in notes[0])


def test_16_bits():
    job = load_job(ROOT / "legacy_configs" / "single.yaml", overrides=["model.mixed_precision=true"])
    (note,) = known.of_job(job, engines=("estimator", "keras"))
    assert "mixed_precision=false" in note

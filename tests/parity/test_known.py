"""What differs by nature is told by name, with the setting that makes the two equal."""

from __future__ import annotations

import pytest
from conftest import ROOT, tensorflow_with_three_cpus

from estimator_pipeline.job import load_job
from estimator_pipeline.parity import known

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


@pytest.mark.parametrize(
    ("metric", "setting"),
    [
        ("auc_precision_recall", "careful_interpolation"),
        ("precision", "precision_at_thresholds with [0.5]"),
        ("my_recall", "recall_at_thresholds with [0.5]"),
    ],
)
def test_metrics(metric, setting):
    assert any(setting in note for note in known.of_metrics([metric]))
    assert known.of_metrics(["accuracy", "average_loss"]) == []


def test_how_a_session_rewrites_its_graph():
    proto = tf.compat.v1.ConfigProto
    once = proto(graph_options={"rewrite_options": {"meta_optimizer_iterations": "ONE"}})
    for config in (None, tf.estimator.RunConfig().session_config, once):
        (note,) = known.of_session(config)
        assert "once" in note and "ConfigProto(allow_soft_placement=True)" in note
    assert known.of_session(proto(allow_soft_placement=True)) == []


def test_random_layers():
    (note,) = known.of_random_layers([f"dropout_{i}" for i in range(6)])
    assert "dropout_0, dropout_1, dropout_2, dropout_3, …" in note and "model.params.dropout=0" in note
    assert known.of_random_layers([]) == []


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
    notes = known.of_job(job, engines=engines, random_layers=[])
    assert (says is None) == (notes == [])
    assert says is None or (says in notes[0] and "--set model.optimizer.api=v1" in notes[0])


def test_16_bits():
    job = load_job(ROOT / "legacy_configs" / "single.yaml", overrides=["model.mixed_precision=true"])
    (note,) = known.of_job(job, engines=("estimator", "keras"), random_layers=[])
    assert "mixed_precision=false" in note

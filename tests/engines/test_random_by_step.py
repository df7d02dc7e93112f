"""Dropout and noise of Keras layers, drawn by the seed, the step and the replica."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.compat.internals.stateless_random import drawn_by_step
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.job import load_job
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
JOB = ROOT / "legacy_configs" / "digits_cnn_two_workers.yaml"
LAYERS = {
    "Dropout": lambda: tf.keras.layers.Dropout(0.5),
    "Dropout with a seed": lambda: tf.keras.layers.Dropout(0.5, seed=3),
    "SpatialDropout1D": lambda: tf.keras.layers.SpatialDropout1D(0.5),
    "GaussianNoise": lambda: tf.keras.layers.GaussianNoise(1.0),
    "GaussianDropout": lambda: tf.keras.layers.GaussianDropout(0.5),
    "AlphaDropout": lambda: tf.keras.layers.AlphaDropout(0.5),
    "RandomFlip": lambda: tf.keras.layers.RandomFlip("horizontal"),
    "RandomRotation": lambda: tf.keras.layers.RandomRotation(0.4),
    "GRU": lambda: tf.keras.layers.GRU(5, dropout=0.5, recurrent_dropout=0.5, kernel_initializer="ones",
                                       recurrent_initializer="ones"),
    "MultiHeadAttention": lambda: Attends(),
}  # fmt: skip


class Attends(tf.keras.layers.Layer):
    """Attention of a sequence to itself."""

    def __init__(self):
        super().__init__()
        self.inner = tf.keras.layers.MultiHeadAttention(1, 4, dropout=0.5, kernel_initializer="ones")

    def call(self, x, training=None):
        return self.inner(x, x, training=training)


def given(name):
    shape = (40, 6, 6, 1) if name.startswith("Random") else (8, 6, 4)
    return np.random.default_rng(1).random(shape, np.float32)


def in_a_function(name, places, seed=1):
    """What the layer gives at each (step, replica), in one compiled function."""
    layer, x = LAYERS[name](), given(name)
    layer(x)

    @tf.function
    def call(step, replica):
        with drawn_by_step(tf, seed=seed, step=step, replica=replica):
            return layer(x, training=True)

    return [call(tf.constant(step), tf.constant(replica)).numpy() for step, replica in places]


def in_a_session(name, places, seed=1):
    """The same in a graph of TensorFlow 1, as an Estimator has it."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        layer, x = LAYERS[name](), given(name)
        step, replica = tf.compat.v1.placeholder(tf.int64, []), tf.compat.v1.placeholder(tf.int32, [])
        with drawn_by_step(tf, seed=seed, step=step, replica=replica):
            made = layer(x, training=True)
        session.run(tf.compat.v1.global_variables_initializer())
        return [session.run(made, {step: one, replica: other}) for one, other in places]


@pytest.mark.gate(*(name for name in LAYERS if name != "GRU"))
@pytest.mark.parametrize("name", LAYERS)
def test_what_a_layer_draws(name):
    """Another draw at each step and on each replica, the same whenever it is that step again, in a session too."""
    places = [(0, 0), (1, 0), (0, 1), (0, 0), (2**40, 0)]
    drawn = in_a_function(name, places)
    np.testing.assert_array_equal(drawn[0], drawn[3])
    for one, other in ((0, 1), (0, 2), (1, 2), (0, 4)):
        assert not np.array_equal(drawn[one], drawn[other]), (places[one], places[other])
    np.testing.assert_allclose(in_a_session(name, places), drawn, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(in_a_function(name, places[:1], seed=2)[0], drawn[0])


def test_two_layers_draw_each_for_itself_and_all_is_as_ever_outside():
    x, layers = tf.ones([50]), [tf.keras.layers.Dropout(0.5) for _ in range(2)]
    with drawn_by_step(tf, seed=1, step=0):
        one, other = (layer(x, training=True).numpy() for layer in layers)
    assert not np.array_equal(one, other)
    seeded = tf.keras.layers.Dropout(0.5, seed=1)
    with drawn_by_step(tf, seed=1, step=0):
        assert not np.array_equal(seeded(x, training=True), one)
    tf.random.set_seed(5)
    before = [layers[0](x, training=True).numpy() for _ in range(2)]
    assert not np.array_equal(*before)
    dense = []
    for _ in range(2):
        tf.keras.utils.set_random_seed(3)
        layer = tf.keras.layers.Dense(3)
        with drawn_by_step(tf, seed=len(dense), step=len(dense)):
            layer.build([None, 4])
        dense.append(layer.kernel.numpy())
    np.testing.assert_array_equal(*dense)


@pytest.fixture
def run(tmp_path):
    def run(*settings, folder):
        changes = ["run.train_distribute=none", "cluster={}", "run.save_checkpoints_steps=10", "train.max_steps=20",
                   "model.name=dnn", "model.params={dropout: 0.4}", "run.seed=3", f"input.data_dir={tmp_path}/tfds",
                   f"run.model_dir={tmp_path / folder}", *settings]  # fmt: skip
        run_job(load_job(JOB, overrides=changes), environ={})
        reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path / folder)))
        weights = [
            reader.get_tensor(name)
            for name, shape in sorted(reader.get_variable_to_shape_map().items())
            if shape and "global_step" not in name and "CHECKPOINTABLE" not in name
        ]
        return sorted((w for w in weights if w.dtype == np.float32), key=lambda w: (w.shape, w.ravel()[0]))

    return run


TWO = ("run.train_distribute=mirrored", "run.num_devices=2")


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", [(), TWO], ids=["one", "two"])
def test_both_engines_train_alike_with_dropout(run, strategy):
    theirs = run(*strategy, folder="estimator")
    ours = run(*strategy, "run.engine=keras", folder="keras")
    assert len(theirs) == len(ours) >= 4
    for one, other in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    without = run(*strategy, "model.params={}", folder="without")
    assert max(np.abs(one - other).max() for one, other in zip(theirs, without, strict=True)) > 1e-3


@pytest.mark.gate("estimator")
@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_a_resumed_run_drops_on(run, engine):
    """Stopped at 10 and gone on to 20: the bits of 20 at once."""
    whole = run(f"run.engine={engine}", folder="whole")
    run(f"run.engine={engine}", "train.max_steps=10", folder="parts")
    parts = run(f"run.engine={engine}", folder="parts")
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(other, one)


@pytest.mark.gate("estimator")
@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_several_steps_at_a_time_draw_the_same(run, engine):
    single = run(f"run.engine={engine}", folder="single")
    several = run(f"run.engine={engine}", "train.steps_per_execution=8", folder="several")
    for one, other in zip(single, several, strict=True):
        np.testing.assert_array_equal(other, one)

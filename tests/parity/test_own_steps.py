"""Keras models with steps of their own, and data that go by a seed: what they tell by themselves counts."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import tensorflow_with_three_cpus

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.parity import compare_models, summary
from estimator_pipeline.parity.feeds import Feed

tf = tensorflow_with_three_cpus()
v1, keras = tf.compat.v1, tf.keras
legacy = keras.optimizers.legacy

pytestmark = pytest.mark.filterwarnings("ignore:.tf.layers:UserWarning")

RANDOM = np.random.RandomState(5)
X = RANDOM.uniform(0, 1, [48, 6]).astype("float32")
Y = (X.sum(1, keepdims=True) > 3).astype("float32")
MAPPING = {"one/kernel": "fc1/kernel", "one/bias": "fc1/bias"}


def data(*parts, shuffled=False):
    def input_fn():
        dataset = tf.data.Dataset.from_tensor_slices(parts or (X, Y))
        return (dataset.shuffle(48, seed=4) if shuffled else dataset).repeat().batch(16)

    return input_fn


def evaluated(*parts, batch=16):
    return lambda: tf.data.Dataset.from_tensor_slices(parts or (X, Y)).batch(batch)


def model_fn(features, labels, mode, params):
    if params.get("table") is not None:
        table = v1.get_variable("table", initializer=np.float32(params["table"]), trainable=False)
        features = features * table
    logits = v1.layers.dense(features, 1, name="fc1")
    found = tf.sigmoid(logits)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"p": params.get("answer", tf.identity)(found)})
    if params.get("unlabelled"):
        loss = tf.reduce_mean(tf.square(logits))
    else:
        loss = tf.reduce_mean(v1.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss * params.get("times", 1.0))
    step = v1.train.get_or_create_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def model(kind=keras.Model, *, layers=None, compiled=True):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    layers = [keras.layers.Dense(1, "sigmoid", name="one")] if layers is None else layers
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    made = kind(inputs, outputs)
    made.compile(legacy.SGD(0.1), *(["binary_crossentropy"] if compiled else []))
    return made


@pytest.fixture
def compared(tmp_path):
    def compared(ours, *, input_fn=None, eval_input_fn=None, steps=2, **options):
        params = options.pop("params", {})
        estimator = tf.estimator.Estimator(model_fn, params=params, config=options.pop("config", None))
        given = {"input_fn": input_fn or data(), "mapping": MAPPING, "steps": steps, "folder": tmp_path, **options}
        return compare_models(estimator, ours, eval_input_fn=eval_input_fn, **given)

    return compared


# Evaluation ---------------------------------------------------------------------------------------------------------


class Twice(keras.Model):
    """Its evaluation tells twice the loss."""

    def test_step(self, batch):
        found = super().test_step(batch)
        # Of the same names as its metrics, Keras would give these.
        return {**found, "loss": 2 * found["loss"], "times": 2.0}


@pytest.mark.parametrize("batch", [16, 20])
def test_what_a_model_evaluates_by_itself_counts(compared, batch):
    found = compared(model(Twice), eval_input_fn=evaluated(batch=batch))
    assert [finding.name for finding in found.findings] == ["evaluation"], summary(found)
    assert found.finals["keras"]["loss"] == pytest.approx(2 * found.finals["estimator"]["loss"], rel=0.05)


def test_the_same_by_both_is_equal(compared):
    found = compared(model(Twice), eval_input_fn=evaluated(), params={"times": 2.0})
    assert found.equal and found.metrics.names == ("loss",)


class OwnLoop(keras.Model):
    """Compiled with an optimizer alone."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.told = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.told]

    def _loss(self, batch, training):
        x, y = batch
        return tf.reduce_mean(keras.losses.binary_crossentropy(y, self(x, training=training)))

    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss = self._loss(batch, True)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.told.update_state(loss)
        return {"loss": self.told.result()}

    def test_step(self, batch):
        self.told.update_state(self._loss(batch, False))
        return {"loss": self.told.result()}


@pytest.mark.parametrize(("batch", "known"), [(16, True), (20, False)])
def test_a_loop_of_ones_own(compared, batch, known):
    """Of batches of several sizes nobody knows whether what it tells is a mean of records or of batches."""
    found = compared(model(OwnLoop, compiled=False), eval_input_fn=evaluated(batch=batch))
    assert found.equal and bool(found.metrics.names) == known, summary(found)
    assert any("the loss of the evaluation was not compared" in note for note in found.notes) != known


def test_data_without_labels(compared):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(1, name="one")(inputs)
    ours = keras.Model(inputs, outputs)
    ours.add_loss(tf.reduce_mean(tf.square(outputs)))
    ours.compile(legacy.SGD(0.1))
    found = compared(
        ours,
        input_fn=lambda: tf.data.Dataset.from_tensor_slices(X).repeat().batch(16),
        eval_input_fn=lambda: tf.data.Dataset.from_tensor_slices(X).batch(20),
        params={"unlabelled": True},
    )
    assert found.equal and found.metrics.names == ("loss",), summary(found)


# Predictions --------------------------------------------------------------------------------------------------------


class Rounded(keras.Model):
    def predict_step(self, batch):
        return tf.round(super().predict_step(batch))


def test_a_predict_step_of_ones_own(compared):
    found = compared(model(Rounded), predictions="p")
    assert [finding.name for finding in found.findings] == ["predictions"]


def test_the_same_predict_step_by_both(compared):
    assert compared(model(Rounded), predictions="p", params={"answer": tf.round}).equal


class Named(keras.Model):
    def predict_step(self, batch):
        return {"probability": super().predict_step(batch)}


def test_a_predict_step_that_names_its_outputs_anew(compared, tmp_path):
    with pytest.raises(ConfigError, match=r"does not predict one\n.*its predict_step gives probability"):
        compared(model(Named), predictions="p")


def test_outputs_by_names_that_are_not_those_of_layers(compared):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    ours = keras.Model(inputs, {"probability": keras.layers.Dense(1, "sigmoid", name="one")(inputs)})
    ours.compile(legacy.SGD(0.1), {"probability": "binary_crossentropy"})
    found = compared(ours, input_fn=data(), predictions={"probability": "p"})
    assert found.equal and found.answers.names == ("predictions probability",)


# Training -----------------------------------------------------------------------------------------------------------


class Lazy(keras.Model):
    """Makes a variable in its first step."""

    seen = None

    def train_step(self, batch):
        if self.seen is None:
            with tf.init_scope():
                self.seen = tf.Variable(0, trainable=False, name="seen")
        self.seen.assign_add(1)
        return super().train_step(batch)


def test_variables_that_training_makes(compared):
    ours = model(Lazy)
    before = ours.get_weights()
    assert compared(ours).equal
    assert all(np.array_equal(*pair) for pair in zip(before, ours.get_weights(), strict=False))


def test_a_step_that_does_not_tell_its_loss(compared):
    class Silent(keras.Model):
        def train_step(self, batch):
            super().train_step(batch)
            return {"done": 1.0}

    with pytest.raises(ConfigError, match="does not tell its loss\n  found: it tells: done"):
        compared(model(Silent))


def test_a_model_that_was_trained_before(compared):
    ours = model()
    ours.fit(evaluated()(), verbose=0)
    found = compared(ours)
    assert "keras begins at step 3" in summary(found) and "a model that was trained before" in summary(found)


def test_a_loss_scale_is_no_other_optimizer(compared):
    ours = model()
    ours.compile(keras.mixed_precision.LossScaleOptimizer(legacy.SGD(0.1)), "binary_crossentropy")
    found = compared(ours)
    assert all(step.learning_rates[1] == pytest.approx(0.1) for step in found.steps)


# Data ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 7])
def test_data_shuffled_by_a_seed_are_the_same(compared, seed):
    """Whatever seed the program has set for its Keras model, here 3."""
    config = None if seed is None else tf.estimator.RunConfig(tf_random_seed=seed)
    ours = model()
    keras.utils.set_random_seed(3)
    found = compared(ours, input_fn=data(shuffled=True), config=config)
    assert found.equal and len(found.records) == 2, summary(found)


def test_a_programs_own_seed_stays(compared):
    def drawn(between):
        keras.utils.set_random_seed(3)
        before = tf.random.uniform([2]).numpy()
        between()
        return [*before, *tf.random.uniform([2]).numpy()]

    feed = Feed(data(shuffled=True), name="input_fn", estimator=tf.estimator.Estimator(model_fn), mode="train")
    assert drawn(feed.for_keras()) == drawn(lambda: None)


@pytest.mark.parametrize("values", [np.ones(6), np.arange(6)], ids=["the same", "others"])
def test_values_that_neither_trains_are_told_where_they_were_others(compared, values):
    class Table(keras.layers.Layer):
        def build(self, shape):
            self.table = self.add_weight("table", [6], initializer="ones", trainable=False)

        def call(self, inputs):
            return inputs * self.table

    ours = model(layers=[Table(name="rows"), keras.layers.Dense(1, "sigmoid", name="one")])
    found = compared(ours, params={"table": values}, mapping={**MAPPING, "rows/table": "table"})
    notes = [note for note in found.notes if "neither side trains" in note]
    assert found.equal and bool(notes) == (values[0] == 0)
    assert all(note.startswith("neither side trains rows/table, and they did not begin alike") for note in notes)

"""Keras models with steps of their own, and data that go by a seed: what they tell by themselves counts."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.parity import compare_models, summary
from estimator_pipeline.parity.models.input_fns import ComparedInputFn
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
v1, keras = tf.compat.v1, tf.keras
legacy = keras.optimizers.legacy

pytestmark = pytest.mark.filterwarnings("ignore:.tf.layers:UserWarning")

nightly = pytest.mark.nightly
RANDOM = np.random.RandomState(5)
X = RANDOM.uniform(0, 1, [48, 6]).astype("float32")
Y = (X.sum(1, keepdims=True) > 3).astype("float32")
# The first fills each batch of the evaluation, the second leaves a smaller last one.
BATCHES = [pytest.param(16, marks=nightly), 20]
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


@pytest.mark.parametrize("batch", BATCHES)
def test_what_a_model_evaluates_by_itself_counts(compared, batch):
    found = compared(model(Twice), eval_input_fn=evaluated(batch=batch))
    assert [finding.kind for finding in found.findings] == ["metric"], summary(found)
    assert found.finals["keras"]["loss"] == pytest.approx(2 * found.finals["estimator"]["loss"], rel=0.05)


@nightly
@pytest.mark.parametrize("batch", BATCHES)
def test_the_same_by_both_is_equal(compared, batch):
    found = compared(model(Twice), eval_input_fn=evaluated(batch=batch), params={"times": 2.0})
    assert found.equal and found.metrics.names == ("loss",), summary(found)


class Evaluating(keras.Model):
    """Its loss is another one in evaluation alone."""

    evaluates = False

    def test_step(self, batch):
        self.evaluates = True
        try:
            return super().test_step(batch)
        finally:
            self.evaluates = False


class Forgetful(Evaluating):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return 0 * tf.reduce_mean(y_pred) if self.evaluates else super().compute_loss(x, y, y_pred, sample_weight)


class Halved(Evaluating):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return super().compute_loss(x, y, y_pred * (0.5 if self.evaluates else 1.0), sample_weight)


class Counted(Evaluating):
    """Counts its loss by itself."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.counted = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.counted]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, y_pred)) * (0.0 if self.evaluates else 1.0)
        self.counted.update_state(loss)
        return loss


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("kind", "compiled", "tells"),
    [
        (Forgetful, True, 0.0),
        pytest.param(Halved, True, None, marks=nightly),
        pytest.param(Counted, True, 0.0, marks=nightly),
        pytest.param(Counted, False, 0.0, marks=nightly),
    ],
)
def test_a_loss_that_is_another_one_in_evaluation_alone(compared, kind, compiled, tells, batch):
    ours = model(kind, compiled=compiled)
    found = compared(ours, eval_input_fn=evaluated(batch=batch))
    assert [finding.kind for finding in found.findings] == ["metric"], summary(found)
    if tells is not None:
        assert found.finals["keras"]["loss"] == tells, "what `evaluate` tells, and nothing worked out of it"


class Returned(Evaluating):
    """What it returns goes nowhere in evaluation: `evaluate` tells what was compiled."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return super().compute_loss(x, y, y_pred, sample_weight) * (0.0 if self.evaluates else 1.0)


def two():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())


@nightly
@pytest.mark.parametrize(("shared", "batch"), [(False, 20), (True, 12)], ids=["evaluated on one", "evaluated on both"])
def test_the_loss_of_an_evaluation_on_two_replicas(compared, tmp_path, shared, batch):
    config = tf.estimator.RunConfig(train_distribute=two(), eval_distribute=two() if shared else None)
    for kind, equal in ((keras.Model, True), (Halved, False)):
        with two().scope():
            ours = model(kind)
        found = compared(ours, eval_input_fn=evaluated(batch=batch), config=config, folder=tmp_path / kind.__name__)
        assert found.equal is equal and found.metrics.names == ("loss",), summary(found)
        assert [finding.kind for finding in found.findings] == ([] if equal else ["metric"])


@nightly
def test_rounds_that_two_replicas_cannot_share(compared):
    """Three batches: TensorFlow would lose the last one in some of the runs."""
    config = tf.estimator.RunConfig(train_distribute=two(), eval_distribute=two())
    with two().scope():
        ours = model()
    found = compared(ours, eval_input_fn=evaluated(batch=20), config=config)
    assert found.equal and not found.metrics.names
    assert any("the same records in different batches" in note for note in found.notes), found.notes


@nightly
@pytest.mark.parametrize("batch", BATCHES)
def test_a_loss_that_evaluate_tells_rightly(compared, batch):
    found = compared(model(Returned), eval_input_fn=evaluated(batch=batch))
    assert found.equal and found.metrics.names == ("loss",), summary(found)


class Last(keras.Model):
    """Its evaluation tells the last batch's loss."""

    def test_step(self, batch):
        x, y = batch
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, self(x, training=False)))
        return {"loss": loss, "last": 1.0}


@nightly
def test_an_evaluation_that_is_no_mean_of_batches_is_compared_as_it_is(compared):
    found = compared(model(Last), eval_input_fn=evaluated(batch=20))
    assert not found.equal
    assert found.finals["keras"]["loss"] != pytest.approx(found.finals["estimator"]["loss"], rel=1e-3)


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


@pytest.mark.parametrize("batch", BATCHES)
def test_a_loop_of_ones_own(compared, batch):
    """Whether it tells a mean of records or of batches, its batches say; what its layers do by themselves, nobody."""
    found = compared(model(OwnLoop, compiled=False), eval_input_fn=evaluated(batch=batch))
    assert found.equal and found.metrics.names == ("loss",), summary(found)
    (note,) = [note for note in found.notes if "unknown" in note]
    assert note.endswith("ValueError: it is compiled without a loss, and its layers add no loss")


class Within(keras.Model):
    """Its layers can be called in its own steps alone."""

    within = False

    def call(self, inputs, training=None, mask=None):
        if not self.within:
            raise RuntimeError("not within a step")
        return super().call(inputs, training=training, mask=mask)

    def _step(self, step, batch):
        self.within = True
        try:
            return step(batch)
        finally:
            self.within = False

    def train_step(self, batch):
        return self._step(super().train_step, batch)

    def test_step(self, batch):
        return self._step(super().test_step, batch)


@nightly
def test_what_is_not_known_says_why(compared):
    found = compared(model(Within), eval_input_fn=evaluated(batch=20))
    assert found.equal and found.metrics.names == ("loss",), summary(found)
    notes = [note for note in found.notes if "unknown" in note]
    assert notes == [
        "whether the Keras model draws random numbers is unknown: RuntimeError: not within a step",
        "the losses by the Keras model's layers are unknown, and so is whether it evaluates in training mode: "
        "RuntimeError: not within a step",
    ]


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
    assert [finding.kind for finding in found.findings] == ["prediction"]


@nightly
def test_the_same_predict_step_by_both(compared):
    assert compared(model(Rounded), predictions="p", params={"answer": tf.round}).equal


class Named(keras.Model):
    def predict_step(self, batch):
        return {"probability": super().predict_step(batch)}


def test_a_predict_step_that_names_its_outputs_anew(compared, tmp_path):
    with pytest.raises(ConfigError, match=r"does not predict one .*\n.*its predict_step returns probability"):
        compared(model(Named), predictions="p")


@nightly
def test_outputs_by_names_that_are_not_those_of_layers(compared):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    ours = keras.Model(inputs, {"probability": keras.layers.Dense(1, "sigmoid", name="one")(inputs)})
    ours.compile(legacy.SGD(0.1), {"probability": "binary_crossentropy"})
    found = compared(ours, input_fn=data(), predictions={"probability": "p"})
    assert found.equal and found.answers.names == ("predictions probability",)


# Training -----------------------------------------------------------------------------------------------------------


class Lazy(keras.Model):
    """Its layer has a variable more once it has trained."""

    def train_step(self, batch):
        (layer,) = (one for one in self.layers if one.name == "one")
        if not hasattr(layer, "seen"):
            with tf.init_scope():
                layer.seen = layer.add_weight("seen", [3], initializer="ones", trainable=False)
        layer.seen.assign_add([1.0, 1.0, 1.0])
        return super().train_step(batch)


def test_variables_that_training_makes(compared):
    """They stand between the model's and the optimizer's: what was before the comparison is known by the variable."""
    ours = model(Lazy)
    ours.compile(legacy.SGD(0.1, momentum=0.9), "binary_crossentropy")
    before = ours.get_weights()
    found = compared(ours, slots=False)
    assert len(ours.weights) == len(before) + 1 and len(found.steps) == 2
    assert all(np.array_equal(*pair) for pair in zip(before, ours.get_weights(), strict=False))
    assert not any(variable.numpy().any() for variable in ours.optimizer.variables()), "slots and step are as before"
    assert "variables that the Keras model creates in training were not compared: seen" in found.notes


class Training(keras.layers.Layer):
    """Has a variable once it was called to train."""

    seen = None

    def call(self, inputs, training=None):
        if training and self.seen is None:
            with tf.init_scope():
                self.seen = self.add_weight("seen", [], trainable=False)
        return inputs


@nightly
def test_variables_that_a_look_at_the_training_makes(compared):
    ours = model(layers=[Training(name="look"), keras.layers.Dense(1, "sigmoid", name="one")])
    found = compared(ours)
    assert found.equal and set(found.initial.names) == {"one/kernel", "one/bias", "global_step"}, summary(found)
    assert any("creates in training were not compared: " in note for note in found.notes)


def test_a_step_that_does_not_tell_its_loss(compared):
    class Silent(keras.Model):
        def train_step(self, batch):
            super().train_step(batch)
            return {"done": 1.0}

    with pytest.raises(ConfigError, match=r"does not return its loss .*\n  found: it returns: done"):
        compared(model(Silent))


@nightly
def test_a_model_that_was_trained_before(compared):
    ours = model()
    ours.fit(evaluated()(), verbose=0)
    found = compared(ours)
    assert "keras starts at step 3" in summary(found) and "a model that was trained before" in summary(found)


@nightly
def test_a_loss_scale_is_no_other_optimizer(compared):
    ours = model()
    ours.compile(keras.mixed_precision.LossScaleOptimizer(legacy.SGD(0.1)), "binary_crossentropy")
    found = compared(ours)
    assert all(step.learning_rates[1] == pytest.approx(0.1) for step in found.steps)


# Data ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [pytest.param(None, marks=nightly), 7])
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

    feed = ComparedInputFn(
        data(shuffled=True), name="input_fn", estimator=tf.estimator.Estimator(model_fn), mode="train"
    )
    assert drawn(feed.for_keras()) == drawn(lambda: None)


@pytest.mark.parametrize("values", [pytest.param(np.ones(6), marks=nightly), np.arange(6)], ids=["the same", "others"])
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
    assert all(note.startswith("neither side trains rows/table, and their initial values differed") for note in notes)

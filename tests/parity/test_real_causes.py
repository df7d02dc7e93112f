"""Causes by their names where a legacy model_fn and a Keras model really train: optimizers, random numbers, metrics."""

from __future__ import annotations

import re

import numpy as np
import pytest
from conftest import tensorflow_with_three_cpus

from estimator_pipeline.parity import compare_models, text

tf = tensorflow_with_three_cpus()
v1, legacy = tf.compat.v1, tf.keras.optimizers.legacy

pytestmark = pytest.mark.filterwarnings("ignore:.tf.layers:UserWarning")
RANDOM = np.random.RandomState(5)
X = RANDOM.uniform(0, 1, [96, 6]).astype("float32")
Y = (X.sum(axis=1, keepdims=True) + RANDOM.normal(0, 0.3, [96, 1]) > 3).astype("float32")
MAPPING = {"one/kernel": "fc1/kernel", "one/bias": "fc1/bias", "two/kernel": "fc2/kernel", "two/bias": "fc2/bias",
           "three/kernel": "fc3/kernel", "three/bias": "fc3/bias"}  # fmt: skip


def model_fn(features, labels, mode, params):
    dense, modes = v1.layers.dense, tf.estimator.ModeKeys
    found = tf.nn.relu(dense(features, 4, name="fc1") + params.get("beside", 0.0))
    if params.get("drop") and mode == modes.TRAIN:
        found = tf.nn.dropout(found, rate=params["drop"])
    if "norm" in params:
        found = v1.layers.batch_normalization(
            found, momentum=params["norm"], training=mode == modes.TRAIN, name="norm", center=False, scale=False
        )
    logits = dense(dense(found, 4, tf.nn.tanh, name="fc2"), 1, name="fc3")
    each = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(each)
    if mode == modes.EVAL:
        of = params.get("metrics", lambda labels, found: {"average_loss": v1.metrics.mean(each)})
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=of(labels, tf.sigmoid(logits)))
    step = v1.train.get_or_create_global_step()
    optimizer = params["optimizer"](step)
    pairs = optimizer.compute_gradients(loss)
    if params.get("clip"):
        gradients, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], params["clip"])
        pairs = [(gradient, weight) for gradient, (_, weight) in zip(gradients, pairs, strict=True)]
    counts = params.get("counts", 1)
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.apply_gradients(pairs, step if counts else None)
    if params.get("twice"):
        with tf.control_dependencies([train_op]):
            train_op = optimizer.apply_gradients(pairs)
    if counts == 2:
        with tf.control_dependencies([train_op]):
            train_op = v1.assign_add(step, 1)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def keras_model(optimizer, metrics=(), more=None):
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(3)
    layers = tf.keras.layers
    stack = [layers.InputLayer((6,)), layers.Dense(4, "relu", name="one")]
    stack += [] if more is None else [more]
    stack += [layers.Dense(4, "tanh", name="two"), layers.Dense(1, "sigmoid", name="three")]
    model = tf.keras.Sequential(stack)
    model.compile(optimizer, "binary_crossentropy", list(metrics))
    return model


def sgd(step):
    return v1.train.GradientDescentOptimizer(0.1)


@pytest.fixture
def compared(tmp_path):
    def data(batch):
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch)

    def compared(
        optimizer=sgd, keras=None, *, keras_metrics=(), keras_layer=None, mapping=MAPPING, steps=4, keras_records=None,
        kernel=None, **params,
    ):  # fmt: skip
        model = keras_model(legacy.SGD(0.1) if keras is None else keras, keras_metrics, keras_layer)
        if kernel is not None:
            model.get_layer("one").kernel.assign(kernel)
        given = {"optimizer": optimizer, **params}
        estimator = tf.estimator.Estimator(model_fn, tmp_path / "theirs", params=given)
        ends = None if keras_records is None else lambda: data(16).take(keras_records // 16)
        return compare_models(
            estimator, model, input_fn=lambda: data(16).repeat(), eval_input_fn=lambda: data(40), mapping=mapping,
            steps=steps, folder=tmp_path / "parity", keras_input_fn=ends,
        )  # fmt: skip

    return compared


def schedule():
    return tf.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


@pytest.mark.parametrize(
    ("optimizer", "keras", "name", "says"),
    [
        (lambda step: v1.train.RMSPropOptimizer(0.01), lambda: legacy.RMSprop(0.01), "optimizer",
         "@rms begins with 1 in estimator and with 0 in keras"),
        (
            lambda step: v1.train.MomentumOptimizer(v1.train.exponential_decay(0.1, step, 2, 0.5), 0.9),
            lambda: legacy.SGD(schedule(), momentum=0.9),
            "optimizer",
            "a velocity with the learning rate in it (Keras) against one without",
        ),
        (sgd, lambda: legacy.Adam(0.01), "optimizer", "as plain SGD does, keras keeps @m, @v for each weight, as Adam"),
        (lambda step: v1.train.AdamOptimizer(0.01, beta1=0.8), lambda: legacy.Adam(0.01, epsilon=1e-8), "optimizer",
         "beta_1 0.8 in estimator, 0.9 in keras"),
        (
            lambda step: v1.train.MomentumOptimizer(0.1, 0.9),
            lambda: legacy.SGD(0.1, momentum=0.9, nesterov=True),
            "optimizer",
            "nesterov False in estimator, True in keras",
        ),
        (lambda step: v1.train.GradientDescentOptimizer(0.2), lambda: legacy.SGD(0.1), "learning rate",
         "learning_rate 0.2 in estimator, 0.1 in keras"),
        (lambda step: v1.train.GradientDescentOptimizer(v1.train.exponential_decay(0.2, step, 2, 0.5)),
         lambda: legacy.SGD(0.1), "learning rate", "estimator's change of the weights is 2 times the other's"),
        (lambda step: v1.train.AdamOptimizer(0.01), lambda: legacy.Adamax(0.01, epsilon=1e-8), "optimizer",
         "as Adam does, keras keeps @m, @v for each weight, as Adamax does"),
        (lambda step: v1.train.AdamOptimizer(0.01), lambda: legacy.Adam(0.01, epsilon=1e-8, amsgrad=True), "optimizer",
         "keras keeps @vhat for each weight, and the other does not: amsgrad"),
        (lambda step: v1.train.AdadeltaOptimizer(0.1, rho=0.9, epsilon=1e-7), lambda: legacy.Adadelta(0.1, rho=0.95),
         "optimizer", "rho 0.9 in estimator, 0.95 in keras"),
        (lambda step: v1.train.AdadeltaOptimizer(0.1, rho=0.95), lambda: legacy.Adadelta(0.1), "optimizer",
         "@accum_grad is the same, so the gradients are, and @accum_var is not"),
        (lambda step: v1.train.AdamOptimizer(0.01), lambda: tf.keras.optimizers.Lion(0.01), "optimizer",
         "as Adam does, keras keeps @momentum for each weight, as Lion does"),
        (lambda step: v1.train.AdamOptimizer(0.01), lambda: tf.keras.optimizers.Nadam(0.01, epsilon=1e-8), "optimizer",
         "as Nadam does"),
    ],
    ids=["rmsprop", "momentum by a schedule", "sgd-adam", "beta1", "nesterov", "a rate", "a schedule's rate", "adamax",
         "amsgrad", "adadelta", "adadelta's epsilon", "lion", "nadam"],
)  # fmt: skip
def test_optimizers(compared, optimizer, keras, name, says):
    found = compared(optimizer, keras())
    (finding,) = found.findings
    assert finding.name == name and says in finding.message, finding
    assert "gradient" not in finding.name and not found.equal


def test_adams_epsilon_is_spoken_of_where_it_differs(compared, tmp_path):
    found = compared(lambda step: v1.train.AdamOptimizer(0.01), legacy.Adam(0.01, epsilon=1e-8))
    assert found.equal and not any("epsilon" in note for note in found.notes)


def test_a_constraint_of_keras(compared, monkeypatch):
    held = tf.keras.layers.Dense
    monkeypatch.setattr(
        tf.keras.layers,
        "Dense",
        lambda *given, name, **more: held(
            *given, name=name, kernel_constraint=tf.keras.constraints.NonNeg() if name == "two" else None, **more
        ),
    )
    (finding,) = compared().findings
    assert (finding.name, finding.step) == ("gradient", 1)
    assert "keras constrains two/kernel (NonNeg)" in finding.message


def test_another_momentum_of_batch_normalization(compared):
    layer = tf.keras.layers.BatchNormalization(name="norm", center=False, scale=False)
    (finding,) = compared(norm=0.9, keras_layer=layer).findings
    assert (finding.name, finding.side, finding.step) == ("moving statistics", "estimator", 1)
    assert "every moving mean and variance moves 10 times as far in estimator as in keras" in finding.message


@pytest.mark.parametrize(
    ("optimizer", "keras", "says"),
    [
        (lambda step: v1.train.AdamOptimizer(0.01), lambda: legacy.Adam(0.01, epsilon=1e-8), "@m, @v are what"),
        (lambda step: v1.train.MomentumOptimizer(0.1, 0.9), lambda: legacy.SGD(0.1, momentum=0.9), None),
    ],
    ids=["adam", "momentum"],
)
def test_an_optimizer_that_is_applied_twice(compared, optimizer, keras, says):
    """Of velocities that mean something else on either side nothing tells it."""
    (finding,) = compared(optimizer, keras(), twice=True).findings
    assert finding.step == 1
    if says is not None:
        assert (finding.name, finding.side) == ("optimizer", "estimator")
        assert f"estimator applies the optimizer twice in the step: {says}" in finding.message
    else:
        assert "twice in a step" in finding.mend


def test_a_proximal_optimizer(compared):
    def proximal(step):
        return v1.train.ProximalGradientDescentOptimizer(0.1, l1_regularization_strength=0.05)

    (finding,) = compared(proximal, legacy.SGD(0.1)).findings
    assert (finding.name, finding.side, finding.step) == ("optimizer", "estimator", 1)
    assert "nearer to 0 than keras, by 0.005, " in finding.message and "proximal" in finding.message


def test_averages_that_keras_evaluates(compared):
    """They stand beside the weights while it trains, and in their place when it has ended."""
    keras = tf.keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
    found = compared(sgd, keras, keras_metrics=[tf.keras.metrics.BinaryCrossentropy(name="average_loss")])
    assert all(step.variables.equal for step in found.steps)
    (finding,) = found.findings
    assert (finding.name, finding.side) == ("evaluation", "keras") and "(use_ema)" not in finding.message
    assert "keras keeps moving averages of its weights" in finding.message and finding.mend.startswith("use_ema")


# When an Estimator sees that it is beyond its last step is no matter here.
@pytest.mark.parametrize(("counts", "told"), [(2, "2, 4(, 6)?"), (0, "0")])
def test_a_global_step_that_counts_otherwise(compared, counts, told):
    """One that never counts would let an Estimator train for ever."""
    found = compared(counts=counts)
    (finding,) = found.findings
    assert finding.name == "steps"
    assert re.search(f"the global step after each is {told} in estimator; 1, 2, 3, 4 in keras", finding.message)
    assert not found.metrics.names and not found.equal


def test_one_side_that_ends_early(compared):
    found = compared(keras_records=32)
    (finding,) = found.findings
    assert (finding.name, finding.step) == ("steps", 2)
    assert "estimator alone has made 2 steps, the first of them 3" in finding.message
    assert not found.metrics.names and found.finals["keras"] and "the same" not in text.summary(found).split("\n\n")[0]


@pytest.mark.parametrize("side", ["estimator", "keras"])
def test_a_clipping_that_one_side_forgets(compared, side):
    options = {"clip": 0.05} if side == "keras" else {}
    keras = legacy.SGD(0.1, **({"global_clipnorm": 0.05} if side == "estimator" else {}))
    (finding,) = compared(sgd, keras, **options).findings
    assert (finding.name, finding.side) == ("clipping", side) and "the length 0.05 in each step" in finding.message


@pytest.mark.parametrize(("seed", "beside"), [(0, 0.0), (0, 1e-12), (3, 1e-12), (6, 1e-12)])
def test_a_value_at_the_kink_of_a_relu(compared, monkeypatch, seed, beside):
    """A record has 0 before the ReLU of a unit; what is less than rounding beside other values is there to see then.

    In a batch of 16 its share of the gradient may be small or a fifth of it.
    """
    records, kernel = X.copy(), np.random.default_rng(seed).normal(0, 0.5, [6, 4]).astype("float32")
    records[5] = [1, 0, 0, 0, 0, 0]
    kernel[0, 2] = 0
    # Other records reach the unit as well, whatever the seed: of one that none reaches nothing can be said.
    kernel[1, 2] = 1
    monkeypatch.setitem(globals(), "X", records)
    found = compared(kernel=kernel, beside=np.float32([0, 0, beside, 0]))
    assert found.equal is not bool(beside)
    if beside:
        finding = found.findings[0]
        assert (finding.name, finding.step) == ("rounding", 1) and found.steps[0].losses[0] == found.steps[0].losses[1]
        assert re.search(r"differ by \S+ of their length: 2 of 6 variables \(one/", finding.message)
        assert "in 1 of 4 units alone, as where a value at a ReLU's kink" in finding.message


def test_biases_that_the_mapping_mixes_up(compared):
    turned = {**MAPPING, "one/bias": "fc2/bias", "two/bias": "fc1/bias"}
    (finding,) = compared(mapping=turned).findings
    assert (finding.name, finding.mend) == ("variables", "the mapping of variables")
    assert "one/bias and two/bias are mixed up" in finding.message


@pytest.mark.parametrize(
    ("theirs", "ours", "told"),
    [(0.5, None, "estimator draws random numbers in dropout"), (None, 0.5, "keras draws random numbers in own/dropout"),
     (0.5, 0.5, "estimator draws random numbers in dropout, keras draws random numbers in own/dropout")],
)  # fmt: skip
def test_random_numbers_of_any_layer(compared, theirs, ours, told):
    drop = (
        None
        if ours is None
        else tf.keras.layers.Lambda(lambda x, training=None: tf.nn.dropout(x, rate=ours) if training else x, name="own")
    )
    found = compared(keras_layer=drop, **({} if theirs is None else {"drop": theirs}))
    (finding,) = found.findings
    assert (finding.name, finding.step) == ("random numbers", 1) and told in finding.message
    assert any(note.startswith("random numbers are drawn in training") for note in found.notes)


def of_metrics(labels, found):
    return {
        "area": v1.metrics.auc(labels, found, num_thresholds=20),
        "r": v1.metrics.recall(labels, found),
        "hits": v1.metrics.accuracy(labels, found),
    }


def test_metrics_by_what_they_count(compared):
    metrics = tf.keras.metrics
    ours = [metrics.AUC(name="area"), metrics.Recall(name="r"), metrics.BinaryAccuracy(name="hits")]
    found = compared(keras_metrics=ours, metrics=of_metrics)
    assert [finding.name for finding in found.findings] == ["evaluation"]
    notes = dict(note.split(": ", 1) for note in found.notes if ": " in note)
    assert notes["area"].startswith("num_thresholds is 20 in the Estimator and 200 in Keras")
    assert "recall_at_thresholds with [0.5]" in notes["r"] and "tf.round(probabilities)" in notes["hits"]
    assert "optimizer slots" not in text.summary(found), "there are none"

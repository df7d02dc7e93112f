"""Causes by their names where a legacy model_fn and a Keras model really train: optimizers, random numbers, metrics."""

from __future__ import annotations

import re

import numpy as np
import pytest

from estimator_pipeline.parity import compare_models, text
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
v1, legacy = tf.compat.v1, tf.keras.optimizers.legacy

pytestmark = pytest.mark.filterwarnings("ignore:.tf.layers:UserWarning")
nightly = pytest.mark.nightly
RANDOM = np.random.RandomState(5)
X = RANDOM.uniform(0, 1, [96, 6]).astype("float32")
Y = (X.sum(axis=1, keepdims=True) + RANDOM.normal(0, 0.3, [96, 1]) > 3).astype("float32")
MAPPING = {"one/kernel": "fc1/kernel", "one/bias": "fc1/bias", "two/kernel": "fc2/kernel", "two/bias": "fc2/bias",
           "three/kernel": "fc3/kernel", "three/bias": "fc3/bias"}  # fmt: skip


def model_fn(features, labels, mode, params):
    dense, modes = v1.layers.dense, tf.estimator.ModeKeys
    found = tf.nn.relu(dense(features, 4, name="fc1"))
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
        **params,
    ):  # fmt: skip
        model = keras_model(legacy.SGD(0.1) if keras is None else keras, keras_metrics, keras_layer)
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


OPTIMIZERS = {
    "another kind": (
        sgd, lambda: legacy.Adam(0.01), "optimizer options", "of different kinds: sgd in estimator, adam in keras"
    ),
    "beta_1": (
        lambda step: v1.train.AdamOptimizer(0.01, beta1=0.8), lambda: legacy.Adam(0.01, epsilon=1e-8),
        "optimizer options", "beta_1 0.8 in estimator, 0.9 in keras",
    ),
    "a rate": (
        lambda step: v1.train.GradientDescentOptimizer(0.2), lambda: legacy.SGD(0.1), "learning rate",
        "learning_rate 0.2 in estimator, 0.1 in keras",
    ),
    "nesterov": (
        lambda step: v1.train.MomentumOptimizer(0.1, 0.9), lambda: legacy.SGD(0.1, momentum=0.9, nesterov=True),
        "optimizer options", "nesterov False in estimator, True in keras",
    ),
    "epsilon": (
        lambda step: v1.train.AdamOptimizer(0.01, epsilon=1e-3), lambda: legacy.Adam(0.01), "optimizer options",
        "epsilon is 0.001 in estimator, 1e-07 in keras",
    ),
    "amsgrad": (
        lambda step: v1.train.AdamOptimizer(0.01), lambda: legacy.Adam(0.01, epsilon=1e-8, amsgrad=True),
        "optimizer options", "keras keeps @m, @v, @vhat: amsgrad",
    ),
    "rmsprop": (
        lambda step: v1.train.RMSPropOptimizer(0.01), lambda: legacy.RMSprop(0.01), "optimizer options",
        "@rms starts with 1 in estimator, 0 in keras",
    ),
    "adadelta's rho": (
        lambda step: v1.train.AdadeltaOptimizer(0.1, rho=0.9, epsilon=1e-7), lambda: legacy.Adadelta(0.1, rho=0.95),
        "optimizer options", "rho 0.9 in estimator, 0.95 in keras",
    ),
    "adadelta's epsilon": (
        lambda step: v1.train.AdadeltaOptimizer(0.1, rho=0.95), lambda: legacy.Adadelta(0.1), "first difference",
        "step 1, ",
    ),
    "a schedule's rate": (
        lambda step: v1.train.GradientDescentOptimizer(v1.train.exponential_decay(0.2, step, 2, 0.5)),
        lambda: legacy.SGD(0.1), "first difference", "every weight's change in estimator is 2 times that in keras",
    ),
    "momentum by a schedule": (
        lambda step: v1.train.MomentumOptimizer(v1.train.exponential_decay(0.1, step, 2, 0.5), 0.9),
        lambda: legacy.SGD(schedule(), momentum=0.9), "first difference", "step 2, ",
    ),
}  # fmt: skip
_IN_THE_GATE = ("beta_1", "a rate")


@pytest.mark.parametrize(
    "case", [name if name in _IN_THE_GATE else pytest.param(name, marks=nightly) for name in OPTIMIZERS]
)
def test_optimizers(compared, case):
    optimizer, keras, name, says = OPTIMIZERS[case]
    found = compared(optimizer, keras())
    (finding,) = found.findings
    assert finding.name == name and says in finding.message and not found.equal, finding


@nightly
def test_adams_epsilon_is_spoken_of_where_it_differs(compared, tmp_path):
    found = compared(lambda step: v1.train.AdamOptimizer(0.01), legacy.Adam(0.01, epsilon=1e-8))
    assert found.equal and not any("epsilon" in note for note in found.notes)


@nightly
def test_another_momentum_of_batch_normalization(compared):
    layer = tf.keras.layers.BatchNormalization(name="norm", center=False, scale=False)
    (finding,) = compared(norm=0.9, keras_layer=layer).findings
    assert (finding.name, finding.side, finding.step) == ("BatchNorm", None, 1)
    assert "every moving mean and variance moves 10 times as far in estimator as in keras" in finding.message


@nightly
def test_an_update_that_is_made_twice_is_no_scaled_loss(compared):
    adam = legacy.Adam(0.01, epsilon=1e-8)
    (finding,) = compared(lambda step: v1.train.AdamOptimizer(0.01), adam, twice=True).findings
    assert (finding.name, finding.step) == ("first difference", 1)


# When an Estimator sees that it is beyond its last step is no matter here.
@pytest.mark.parametrize(("counts", "told"), [(2, "2, 4(, 6)?"), pytest.param(0, "0", marks=nightly)])
def test_a_global_step_that_counts_otherwise(compared, counts, told):
    """One that never counts would let an Estimator train for ever."""
    found = compared(counts=counts)
    (finding,) = found.findings
    assert finding.name == "steps"
    assert re.search(f"the global step after each is {told} in estimator; 1, 2, 3, 4 in keras", finding.message)
    assert not found.metrics.names and not found.equal


@nightly
def test_one_side_that_ends_early(compared):
    found = compared(keras_records=32)
    (finding,) = found.findings
    assert (finding.name, finding.step) == ("steps", 2)
    assert "only estimator ran 2 steps, the first is 3" in finding.message
    assert not found.metrics.names and found.finals["keras"] and "the same" not in text.summary(found).split("\n\n")[0]


@pytest.mark.parametrize("side", ["estimator", pytest.param("keras", marks=nightly)])
def test_a_clipping_that_one_side_forgets(compared, side):
    options = {"clip": 0.05} if side == "keras" else {}
    keras = legacy.SGD(0.1, **({"global_clipnorm": 0.05} if side == "estimator" else {}))
    (finding,) = compared(sgd, keras, **options).findings
    assert (finding.name, finding.side) == (
        "clipping",
        side,
    ) and "has the norm 0.05 to which it is clipped" in finding.message


def test_biases_that_the_mapping_mixes_up(compared):
    turned = {**MAPPING, "one/bias": "fc2/bias", "two/bias": "fc1/bias"}
    (finding,) = compared(mapping=turned).findings
    assert (finding.name, finding.hint) == ("variables", "the mapping of variables")
    assert "one/bias and two/bias are swapped" in finding.message


@nightly
@pytest.mark.parametrize(("theirs", "ours"), [(0.5, None), (None, 0.5), (0.5, 0.5)])
def test_random_numbers_of_any_layer(compared, theirs, ours):
    """They are known to differ: a note says where they are drawn."""
    drop = (
        None
        if ours is None
        else tf.keras.layers.Lambda(lambda x, training=None: tf.nn.dropout(x, rate=ours) if training else x, name="own")
    )
    found = compared(keras_layer=drop, **({} if theirs is None else {"drop": theirs}))
    (finding,) = found.findings
    assert (finding.name, finding.step, finding.kind) == ("first difference", 1, "loss")
    (note,) = [note for note in found.notes if note.startswith("random numbers are drawn in training")]
    assert ("own/dropout" in note) == (ours is not None)

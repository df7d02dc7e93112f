"""A warning where train_op leaves out moving statistics or the global step; and none where it does not."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline import compat
from tests.support import one_weight

tf = compat.install()
v1 = tf.compat.v1


def keras_layer(features):
    layer = tf.keras.layers.BatchNormalization()
    return layer(features, training=True), lambda: layer.updates


def tf_layer(features):
    with pytest.warns(UserWarning, match="deprecated"):
        output = v1.layers.batch_normalization(features, training=True)
    return output, lambda: v1.get_collection(v1.GraphKeys.UPDATE_OPS)


def trained(folder, told, normalised=keras_layer, *, run_updates, strategy=None, hooks=()):
    """The warnings of a training of two steps, and the moving mean after it."""

    def model_fn(features, labels, mode):
        hidden, updates = normalised(features)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(hidden, 1) - labels))
        train_op = one_weight.train_op(tf, loss)
        if run_updates:
            train_op = tf.group(train_op, *updates())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = tf.estimator.Estimator(model_fn, config=tf.estimator.RunConfig(str(folder), train_distribute=strategy))
    estimator.train(one_weight.input_fn(tf, (4, 3)), hooks=hooks, max_steps=2)
    names = [name for name in estimator.get_variable_names() if name.endswith("moving_mean")]
    return [one for one in told if "train_op" in one], estimator.get_variable_value(names[0])


@pytest.mark.parametrize("normalised", [keras_layer, tf_layer])
def test_moving_statistics_that_train_op_leaves_out(tmp_path, warnings, normalised):
    told, mean = trained(tmp_path, warnings, normalised, run_updates=False)
    assert len(told) == 1
    assert "does not run the updates of moving statistics (batch_normalization): evaluation" in told[0]
    np.testing.assert_array_equal(mean, np.zeros(3))


@pytest.mark.parametrize("normalised", [keras_layer, tf_layer])
def test_nothing_is_said_of_updates_that_run(tmp_path, warnings, normalised):
    told, mean = trained(tmp_path, warnings, normalised, run_updates=True)
    assert told == []
    # Of ones, with the default momentum of 0.99.
    np.testing.assert_allclose(mean, np.full(3, 1 - 0.99**2), rtol=1e-5)


@pytest.mark.parametrize("run_updates", [False, True])
def test_under_a_strategy(tmp_path, warnings, run_updates):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    told, _ = trained(tmp_path, warnings, run_updates=run_updates, strategy=strategy)
    assert len(told) == (not run_updates)


def test_hooks_of_the_program_may_run_them(tmp_path, warnings):
    class Own(tf.estimator.SessionRunHook):
        pass

    assert trained(tmp_path, warnings, run_updates=False, hooks=[Own()])[0] == []


@pytest.mark.parametrize("use_resource", [True, False])
def test_a_global_step_that_nothing_advances(tmp_path, warnings, use_resource):
    def model_fn(features, labels, mode):
        weight = v1.get_variable("weight", initializer=0.0)
        loss = tf.reduce_mean(tf.square(weight * features - labels))
        # A summary of it, and a rate that depends on it, only look at it.
        v1.summary.scalar("step", v1.train.get_global_step())
        rate = v1.train.exponential_decay(0.1, v1.train.get_global_step(), 10, 0.9)
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=v1.train.GradientDescentOptimizer(rate).minimize(loss)
        )

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    if not use_resource:
        estimator._create_global_step = lambda graph: v1.get_variable(
            v1.GraphKeys.GLOBAL_STEP,
            shape=[],
            dtype=tf.int64,
            initializer=v1.zeros_initializer(),
            trainable=False,
            use_resource=False,
            collections=[v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.GLOBAL_STEP],
        )
    # Its end is that of the data.
    estimator.train(one_weight.input_fn(tf, batches=3))
    told = [one for one in warnings if "increments the global step" in one]
    assert len(told) == 1
    assert estimator.get_variable_value("global_step") == 0


def test_nothing_is_said_of_a_step_that_advances(tmp_path, warnings):
    estimator = tf.estimator.Estimator(one_weight.model_fn(tf), str(tmp_path))
    estimator.train(one_weight.input_fn(tf, batches=3))
    assert not [one for one in warnings if "global step" in one]
    assert estimator.get_variable_value("global_step") == 3

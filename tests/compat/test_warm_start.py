"""A warning names what a warm start leaves at its initial values; and no other variable."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline import compat

tf = compat.install()
v1 = tf.compat.v1

STATISTICS = ["batch_normalization/moving_mean", "batch_normalization/moving_variance"]


def input_fn():
    features = np.arange(12, dtype=np.float32).reshape(4, 3)
    return tf.data.Dataset.from_tensors((features, features[:, 0])).repeat()


def model_fn(features, labels, mode, params):
    """With slots, hyperparameters and powers of an optimizer, and a moving average."""
    norm = tf.keras.layers.BatchNormalization(name="batch_normalization")
    net = norm(features, training=True)
    net = net @ v1.get_variable("dense/kernel", [3, params.get("units", 1)])
    loss = tf.reduce_mean(tf.square(net[:, 0] - labels))
    step = v1.train.get_global_step()
    if params.get("keras_optimizer"):
        optimizer = tf.keras.optimizers.legacy.Adam()
        optimizer.iterations = step
        train_op = tf.group(optimizer.get_updates(loss, v1.trainable_variables()))
    else:
        train_op = v1.train.AdamOptimizer().minimize(loss, step)
    with tf.control_dependencies([train_op]):
        averages = v1.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.group(averages, *norm.updates))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Folders of a training with each kind of optimizer."""
    folders = {}
    for keras_optimizer in (False, True):
        folders[keras_optimizer] = str(tmp_path_factory.mktemp("first"))
        params = {"keras_optimizer": keras_optimizer}
        tf.estimator.Estimator(model_fn, folders[keras_optimizer], params=params).train(input_fn, max_steps=2)
    return folders


def started(folder, warm, **params):
    tf.estimator.Estimator(model_fn, str(folder), params=params, warm_start_from=warm).train(input_fn, max_steps=3)


@pytest.mark.parametrize("keras_optimizer", [False, True])
def test_moving_statistics_that_are_left(tmp_path, checkpoints, warnings, keras_optimizer):
    started(tmp_path, checkpoints[keras_optimizer], keras_optimizer=keras_optimizer)
    (warning,) = warnings
    assert f"leaves {', '.join(STATISTICS)} at their initial values" in warning
    assert "vars_to_warm_start=['.*']" in warning
    # Neither in a training that resumes.
    started(tmp_path, checkpoints[keras_optimizer], keras_optimizer=keras_optimizer)
    assert warnings == [warning]


@pytest.mark.parametrize("pattern", [[".*"], [".*kernel", "batch_normalization"], "dense", None])
def test_nothing_is_left_that_the_program_asks_for(tmp_path, checkpoints, warnings, pattern):
    started(tmp_path, tf.estimator.WarmStartSettings(checkpoints[False], pattern))
    assert warnings == []


def test_variables_of_other_shapes_are_not_named(tmp_path, checkpoints, warnings):
    """Nor those that the checkpoint does not have: the settings are of the kernel's pattern and of all others."""

    def more(features, labels, mode):
        v1.get_variable("counts", [3], trainable=False)
        v1.get_variable("batch_normalization/moving_mean", [5], trainable=False)
        kernel = v1.get_variable("dense/kernel", [3, 1])
        loss = tf.reduce_mean(features @ kernel)
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    tf.estimator.Estimator(more, str(tmp_path), warm_start_from=checkpoints[False]).train(input_fn, max_steps=1)
    assert warnings == []

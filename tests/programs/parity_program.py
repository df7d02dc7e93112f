"""A legacy program's functions and the Keras model that its people made of it, for `estimator-pipeline parity`."""

import numpy as np
import tensorflow as tf

RANDOM = np.random.RandomState(0)
X = RANDOM.uniform(-1, 1, [128, 6]).astype("float32")
Y = (X @ RANDOM.uniform(-1, 1, [6, 1])).astype("float32")


def train_input_fn():
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat().batch(32)


def eval_input_fn():
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(48)


def model_fn(features, labels, mode, params):
    weights = tf.compat.v1.get_variable("fc/weights", [6, 1])
    bias = tf.compat.v1.get_variable("fc/biases", [1], initializer=tf.compat.v1.zeros_initializer())
    found = tf.matmul(features["x"], weights) + bias
    if params.get("twice"):
        found = found * 2
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": found})
    loss = tf.reduce_mean(tf.square(found - labels))
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {"mae": tf.compat.v1.metrics.mean_absolute_error(labels, found)}
        if params.get("threshold"):
            metrics["recall"] = tf.compat.v1.metrics.recall(labels > 0, tf.sigmoid(found))
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.AdamOptimizer(0.05).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def make_estimator():
    return tf.estimator.Estimator(model_fn, params={})


def make_wrong_estimator():
    return tf.estimator.Estimator(model_fn, params={"twice": True})


def make_estimator_with_recall():
    return tf.estimator.Estimator(model_fn, params={"threshold": True})


def make_model_with_recall():
    model = make_model()
    recall = tf.keras.metrics.Recall(name="recall")

    def of_logits(labels, outputs):
        return recall(labels > 0, tf.sigmoid(outputs))

    of_logits.__name__ = "recall"
    model.compile(model.optimizer, "mse", [of_logits])
    return model


def make_model():
    tf.keras.utils.set_random_seed(1)
    inputs = {"x": tf.keras.Input([6], name="x")}
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="dense")(inputs["x"]))
    model.compile(tf.keras.optimizers.Adam(0.05, epsilon=1e-8), "mse", [tf.keras.metrics.MeanAbsoluteError("mae")])
    return model

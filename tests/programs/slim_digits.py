"""A model_fn of tf-slim's layers on digits: arguments by scope, batch normalization, its train_op. One line of JSON.

    python slim_digits.py WORK_DIR
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf
import tf_slim as slim
from sklearn.datasets import load_digits

TRAINING = 1437
PIXELS, LABELS = load_digits(return_X_y=True)
PIXELS = (PIXELS / 16).astype(np.float32).reshape(-1, 8, 8, 1)
LABELS = LABELS.astype(np.int32)


def model_fn(features, labels, mode):
    training = mode == tf.estimator.ModeKeys.TRAIN
    normal = {"is_training": training, "decay": 0.9, "scale": True}
    with slim.arg_scope(
        [slim.conv2d],
        normalizer_fn=slim.batch_norm,
        normalizer_params=normal,
        weights_regularizer=slim.l2_regularizer(1e-4),
    ):
        net = slim.conv2d(features, 16, [3, 3], scope="first")
        net = slim.max_pool2d(net, [2, 2], scope="pool")
        net = slim.conv2d(net, 32, [3, 3], scope="second")
    net = slim.dropout(slim.flatten(net), 0.8, is_training=training)
    logits = slim.fully_connected(net, 10, activation_fn=None, scope="logits")
    classes = tf.argmax(logits, 1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"class": classes})
    tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    loss = tf.compat.v1.losses.get_total_loss()
    optimizer = tf.compat.v1.train.AdamOptimizer(0.003)
    # It runs the updates of the moving averages, which the layers left in a collection.
    train_op = slim.learning.create_train_op(loss, optimizer, clip_gradient_norm=1.0)
    metrics = {"accuracy": tf.compat.v1.metrics.accuracy(labels, classes)}
    return tf.estimator.EstimatorSpec(mode, {"class": classes}, loss, train_op, metrics)


def read(part, training):
    def input_fn():
        data = tf.data.Dataset.from_tensor_slices((PIXELS[part], LABELS[part]))
        return data.shuffle(TRAINING, seed=1).repeat().batch(64) if training else data.batch(90)

    return input_fn


def main(work_dir):
    config = tf.estimator.RunConfig(os.path.join(work_dir, "slim"), tf_random_seed=1)
    estimator = tf.estimator.Estimator(model_fn, config=config)
    training, test = slice(0, TRAINING), slice(TRAINING, None)
    estimator.train(read(training, True), steps=150)
    found = estimator.evaluate(read(test, False))
    moved = estimator.get_variable_value("first/BatchNorm/moving_mean")
    said = {"accuracy": float(found["accuracy"]), "step": int(found["global_step"])}
    print(json.dumps({**said, "moving_mean": float(np.abs(moved).max())}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

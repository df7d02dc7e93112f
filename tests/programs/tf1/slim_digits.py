"""A network of 2017 by slim: arg_scope, batch normalization, slim's losses and train_op, in an Estimator.

    slim_digits.py MODEL_DIR
"""

import json
import sys

import tensorflow as tf
import tensorflow.contrib.slim as slim
from sklearn.datasets import load_digits

pixels, labels = load_digits(return_X_y=True)
pixels = (pixels / 16.0).astype("float32").reshape(-1, 8, 8, 1)


def arg_scope(is_training, weight_decay=0.0005):
    batch_norm_params = {"is_training": is_training, "decay": 0.9, "scale": True}
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        activation_fn=tf.nn.relu,
        weights_regularizer=slim.l2_regularizer(weight_decay),
        weights_initializer=slim.variance_scaling_initializer(),
        normalizer_fn=slim.batch_norm,
        normalizer_params=batch_norm_params,
    ):
        with slim.arg_scope([slim.conv2d, slim.max_pool2d], padding="SAME") as scope:
            return scope


def model_fn(features, labels, mode):
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    with slim.arg_scope(arg_scope(is_training)):
        net = slim.repeat(features, 2, slim.conv2d, 16, [3, 3], scope="conv1")
        net = slim.max_pool2d(net, [2, 2], scope="pool1")
        net = slim.flatten(net)
        net = slim.fully_connected(net, 32, scope="fc1")
        net = slim.dropout(net, keep_prob=0.8, is_training=is_training)
        logits = slim.fully_connected(net, 10, activation_fn=None, normalizer_fn=None, scope="logits")
    predictions = tf.argmax(logits, 1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    slim.losses.softmax_cross_entropy(logits, slim.one_hot_encoding(labels, 10))
    loss = slim.losses.get_total_loss()
    train_op = None
    if is_training:
        optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
        train_op = slim.learning.create_train_op(loss, optimizer, global_step=slim.get_or_create_global_step())
    names_to_values, names_to_updates = slim.metrics.aggregate_metric_map(
        {"accuracy": slim.metrics.streaming_accuracy(predictions, labels)}
    )
    return tf.estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        eval_metric_ops={name: (names_to_values[name], names_to_updates[name]) for name in names_to_values},
    )


def input_fn(first, last, epochs):
    def fn():
        data = tf.data.Dataset.from_tensor_slices((pixels[first:last], labels[first:last].astype("int64")))
        data = data.shuffle(2000, seed=1).repeat(epochs).apply(tf.contrib.data.batch_and_drop_remainder(50))
        return data.make_one_shot_iterator().get_next()

    return fn


tf.set_random_seed(1)
estimator = tf.estimator.Estimator(model_fn, sys.argv[1], tf.estimator.RunConfig(tf_random_seed=1))
estimator.train(input_fn(0, 1500, None), steps=150)
found = estimator.evaluate(input_fn(1500, 1750, 1))
variables = [name for name, _ in tf.contrib.framework.list_variables(sys.argv[1])]
print(
    json.dumps(
        {
            "accuracy": float(found["accuracy"]),
            "step": int(found["global_step"]),
            "averages": "conv1/conv1_1/BatchNorm/moving_mean" in variables,
        }
    )
)

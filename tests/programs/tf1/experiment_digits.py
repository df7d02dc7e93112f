"""A program of 2017: Experiment, learn_runner, HParams and RunConfig of tf.contrib.learn, MNIST's own file format.

    experiment_digits.py MODEL_DIR DATA_DIR [HPARAMS]

In a cluster of TF_CONFIG with a master, workers and parameter servers each task does what learn_runner gives it.
"""

import json
import sys

import tensorflow as tf
from tensorflow.contrib.learn.python.learn import learn_runner
from tensorflow.contrib.learn.python.learn.utils import saved_model_export_utils
from tensorflow.contrib.training.python.training import hparam
from tensorflow.examples.tutorials.mnist import input_data

tf.logging.set_verbosity(tf.logging.INFO)
digits = input_data.read_data_sets(sys.argv[2], one_hot=False, validation_size=300)


def get_input_fn(part, num_epochs, shuffle):
    return tf.estimator.inputs.numpy_input_fn(
        {"pixels": part.images}, part.labels.astype("int32"), batch_size=64, num_epochs=num_epochs, shuffle=shuffle
    )


def model_fn(features, labels, mode, params):
    pixels = features["pixels"]
    image = tf.reshape(pixels, [-1, 8, 8, 1])
    training = mode == tf.contrib.learn.ModeKeys.TRAIN
    net = tf.layers.conv2d(image, params.filters, 3, padding="same", activation=tf.nn.relu)
    net = tf.layers.max_pooling2d(net, 2, 2)
    net = tf.contrib.layers.flatten(net)
    net = tf.contrib.layers.fully_connected(
        net, params.units, weights_regularizer=tf.contrib.layers.l2_regularizer(1e-4), scope="hidden"
    )
    net = tf.layers.dropout(net, 0.2, training=training)
    logits = tf.layers.dense(net, 10, kernel_initializer=tf.contrib.layers.xavier_initializer())
    predictions = {"classes": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits, dim=-1)}
    if mode == tf.contrib.learn.ModeKeys.INFER:
        return tf.estimator.EstimatorSpec(
            mode, predictions, export_outputs={"classes": tf.estimator.export.PredictOutput(predictions)}
        )
    tf.losses.sparse_softmax_cross_entropy(labels, logits)
    loss = tf.losses.get_total_loss()
    train_op = tf.contrib.layers.optimize_loss(
        loss=loss,
        global_step=tf.contrib.framework.get_global_step(),
        learning_rate=params.learning_rate,
        optimizer="Adam",
        clip_gradients=5.0,
        summaries=["learning_rate", "loss"],
    )
    metrics = {"accuracy": tf.metrics.accuracy(labels, predictions["classes"])}
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op, metrics)


def serving_input_fn():
    pixels = tf.placeholder(tf.float32, [None, 64])
    return tf.estimator.export.ServingInputReceiver({"pixels": pixels}, {"pixels": pixels})


def experiment_fn(run_config, hparams):
    estimator = tf.estimator.Estimator(model_fn=model_fn, params=hparams, config=run_config)
    return tf.contrib.learn.Experiment(
        estimator=estimator,
        train_input_fn=get_input_fn(digits.train, None, True),
        eval_input_fn=get_input_fn(digits.validation, 1, False),
        train_steps=hparams.train_steps,
        eval_steps=None,
        min_eval_frequency=1,
        export_strategies=[saved_model_export_utils.make_export_strategy(serving_input_fn, exports_to_keep=1)],
    )


def main(argv):
    hparams = hparam.HParams(filters=8, units=32, learning_rate=0.01, train_steps=150)
    hparams.parse(argv[3] if len(argv) > 3 else "units=48")
    config = tf.contrib.learn.RunConfig(model_dir=argv[1], save_checkpoints_steps=50, tf_random_seed=1)
    result = learn_runner.run(experiment_fn, run_config=config, hparams=hparams)
    if isinstance(result, tuple) and result[0] is not None:
        evaluation, exports = result
        predictor = tf.contrib.predictor.from_saved_model(exports[0].decode("utf-8"))
        answer = predictor({"pixels": digits.test.images[:100]})
        print(
            json.dumps(
                {
                    "accuracy": float(evaluation["accuracy"]),
                    "step": int(evaluation["global_step"]),
                    "units": hparams.units,
                    "served": float((answer["classes"] == digits.test.labels[:100]).mean()),
                }
            )
        )


if __name__ == "__main__":
    tf.app.run(main=main)

"""Next hour's demand from a day of varying length: stacked recurrent cells and dynamic_rnn."""

import os

import numpy as np
import tensorflow as tf

if __name__ == "__main__":
    tf.compat.v1.disable_v2_behavior()

FLAGS = tf.compat.v1.flags.FLAGS
tf.compat.v1.flags.DEFINE_string("data_path", "", "demand.npz")
tf.compat.v1.flags.DEFINE_string("save_path", "", "model directory")
tf.compat.v1.flags.DEFINE_integer("max_steps", 500, "")
tf.compat.v1.flags.DEFINE_integer("num_units", 24, "")
tf.compat.v1.flags.DEFINE_integer("num_layers", 1, "")
tf.compat.v1.flags.DEFINE_float("keep_prob", 1.0, "")
tf.compat.v1.flags.DEFINE_enum("cell", "lstm", ["lstm", "gru"], "")


def make_cell(units, keep_prob):
    if FLAGS.cell == "gru":
        cell = tf.compat.v1.nn.rnn_cell.GRUCell(units)
    else:
        cell = tf.compat.v1.nn.rnn_cell.LSTMCell(units, forget_bias=1.0)
    if keep_prob < 1:
        cell = tf.compat.v1.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=keep_prob)
    return cell


def last_output(outputs, lengths):
    """[batch, time, units] -> [batch, units], of each sequence's own last step."""
    rows = tf.range(tf.shape(outputs)[0])
    return tf.gather_nd(outputs, tf.stack([rows, lengths - 1], axis=1))


def rnn_model_fn(features, labels, mode, params):
    inputs, lengths = features["sequence"], features["length"]
    keep_prob = params["keep_prob"] if mode == tf.estimator.ModeKeys.TRAIN else 1.0
    with tf.compat.v1.variable_scope("rnn", initializer=tf.compat.v1.random_uniform_initializer(-0.1, 0.1)):
        cells = [make_cell(params["num_units"], keep_prob) for _ in range(params["num_layers"])]
        outputs, _ = tf.compat.v1.nn.dynamic_rnn(
            tf.compat.v1.nn.rnn_cell.MultiRNNCell(cells), inputs, sequence_length=lengths, dtype=tf.float32)
    net = tf.compat.v1.layers.dense(last_output(outputs, lengths), 16, activation=tf.nn.relu)
    predicted = tf.compat.v1.layers.dense(net, 1)

    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(
            mode, predictions={"demand": predicted},
            export_outputs={"predict": tf.estimator.export.RegressionOutput(predicted)})

    loss = tf.compat.v1.losses.mean_squared_error(labels, predicted)
    tf.compat.v1.summary.scalar("rmse", tf.sqrt(loss))
    metrics = {
        "rmse": tf.compat.v1.metrics.root_mean_squared_error(labels, predicted),
        "mae": tf.compat.v1.metrics.mean_absolute_error(labels, predicted),
    }
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

    tvars = tf.compat.v1.trainable_variables()
    grads, _ = tf.clip_by_global_norm(tf.compat.v1.gradients(loss, tvars), params["max_grad_norm"])
    optimizer = tf.compat.v1.train.AdamOptimizer(params["learning_rate"])
    train_op = optimizer.apply_gradients(zip(grads, tvars), global_step=tf.compat.v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def get_input_fn(part, batch_size=64):
    with np.load(FLAGS.data_path) as data:
        split = int(len(data["targets"]) * 0.8)
        chosen = slice(0, split) if part == "train" else slice(split, None)
        arrays = {"sequence": data["sequences"][chosen], "length": data["lengths"][chosen]}, data["targets"][chosen]

    def input_fn():
        dataset = tf.compat.v1.data.Dataset.from_tensor_slices(arrays)
        if part == "train":
            dataset = dataset.shuffle(buffer_size=5000, seed=33).repeat()
        dataset = dataset.batch(batch_size)
        # As one did before input functions could return a dataset.
        return tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()

    return input_fn


def main(unused_argv):
    if not FLAGS.data_path:
        raise ValueError("Must set --data_path")
    params = tf.compat.v1.flags.FLAGS.flag_values_dict()
    params.update(learning_rate=0.01, max_grad_norm=5)
    config = tf.estimator.RunConfig().replace(tf_random_seed=33, save_checkpoints_steps=250)
    model = tf.compat.v1.estimator.Estimator(
        rnn_model_fn, model_dir=os.path.expanduser(FLAGS.save_path), config=config, params=params)
    model.train(get_input_fn("train"), max_steps=FLAGS.max_steps)
    results = model.evaluate(get_input_fn("test"))
    spread = np.load(FLAGS.data_path)["targets"].std()
    tf.compat.v1.logging.info("Results: %s", results)
    print("rmse=%.4f of %.4f" % (results["rmse"], spread))


if __name__ == "__main__":
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    tf.compat.v1.app.run()

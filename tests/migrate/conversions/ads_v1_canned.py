"""The advert log again, by the canned V1 classifier and by a model_fn over input_layer, as it was written for TF 1.12.

--kind=canned: DNNLinearCombinedClassifier with an optimizer for each part.
--kind=custom: the same columns through tf.feature_column.input_layer and linear_model.
"""

from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import functools
import glob
import os

import tensorflow as tf

if __name__ == "__main__":
    tf.compat.v1.disable_v2_behavior()

flags = tf.compat.v1.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("data", "", "folder with train/ and eval/")
flags.DEFINE_string("model_dir", "", "")
flags.DEFINE_string("kind", "canned", "canned or custom")
flags.DEFINE_integer("max_steps", 400, "")
flags.DEFINE_string("hidden_units", "32,16", "")

CSV = ["click", "user", "ad", "site", "position", "price"]
CSV_DEFAULTS = [[0], ["?"], ["?"], ["?"], [1], [0.0]]


def my_columns():
    user = tf.feature_column.categorical_column_with_hash_bucket("user", 500)
    ad = tf.feature_column.categorical_column_with_hash_bucket("ad", 200)
    site = tf.feature_column.categorical_column_with_vocabulary_list("site", ["site%d" % i for i in range(10)])
    position = tf.feature_column.categorical_column_with_identity("position", 8, default_value=0)
    price = tf.feature_column.numeric_column("price")
    wide = [site, position, ad, tf.feature_column.crossed_column(["site", "ad"], 1000)]
    deep = [tf.feature_column.embedding_column(user, 8), tf.feature_column.embedding_column(ad, 8),
            tf.feature_column.indicator_column(site), price]
    return wide, deep


def input_fn(part, batch_size=100):
    def decode(lines):
        columns = tf.compat.v1.decode_csv(lines, record_defaults=CSV_DEFAULTS)
        features = dict(zip(CSV, columns))
        return features, features.pop("click")

    dataset = tf.compat.v1.data.TextLineDataset(glob.glob(os.path.join(FLAGS.data, part, "*.csv")))
    if part == "train":
        dataset = dataset.shuffle(5000, seed=2).repeat()
    iterator = dataset.batch(batch_size).map(decode).make_one_shot_iterator()
    return iterator.get_next()


def add_columns_to_graph(features, labels, mode, params, hidden_units):
    """A model_fn of the columns, when hidden_units is bound."""
    with tf.compat.v1.variable_scope("deep"):
        net = tf.compat.v1.feature_column.input_layer(features, params["deep"])
        for units in hidden_units:
            net = tf.compat.v1.layers.dense(net, units, tf.nn.relu)
        logits = tf.compat.v1.layers.dense(net, 1)
    with tf.compat.v1.variable_scope("wide"):
        logits += tf.compat.v1.feature_column.linear_model(features, params["wide"])

    head = tf.estimator.BinaryClassHead()
    optimizer = tf.compat.v1.train.AdamOptimizer(0.01)
    return head.create_estimator_spec(
        features, mode, logits, labels,
        train_op_fn=lambda loss: optimizer.minimize(loss, tf.compat.v1.train.get_or_create_global_step()))


def with_ctr(labels, predictions):
    clicks = tf.cast(labels, tf.float32)
    return {"ctr_error": tf.compat.v1.metrics.mean_absolute_error(clicks, tf.squeeze(predictions["logistic"], -1))}


def build():
    wide, deep = my_columns()
    hidden_units = [int(each) for each in FLAGS.hidden_units.split(",")]
    config = tf.estimator.RunConfig(tf_random_seed=2, model_dir=FLAGS.model_dir)
    if FLAGS.kind == "custom":
        return tf.compat.v1.estimator.Estimator(
            functools.partial(add_columns_to_graph, hidden_units=hidden_units),
            params={"wide": wide, "deep": deep}, config=config)
    estimator = tf.compat.v1.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        linear_optimizer=tf.compat.v1.train.FtrlOptimizer(0.1, l2_regularization_strength=0.1),
        dnn_feature_columns=deep,
        dnn_hidden_units=hidden_units,
        dnn_optimizer=tf.compat.v1.train.ProximalAdagradOptimizer(0.1, l2_regularization_strength=1e-4),
        dnn_dropout=0.1,
        input_layer_partitioner=tf.compat.v1.fixed_size_partitioner(1),
        config=config)
    return tf.estimator.add_metrics(estimator, with_ctr)


def main(_):
    estimator = build()
    counter = tf.estimator.StepCounterHook(every_n_steps=100, output_dir=FLAGS.model_dir)
    estimator.train(input_fn=lambda: input_fn("train"), max_steps=FLAGS.max_steps, hooks=[counter])
    metrics = estimator.evaluate(input_fn=lambda: input_fn("eval"))
    print("%s: auc %.4f" % (FLAGS.kind, metrics["auc"]))


if __name__ == "__main__":
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.WARN)
    tf.compat.v1.app.run()

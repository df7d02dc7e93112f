"""The advert log again, by the canned V1 classifier and by a model_fn over input_layer, as it was written for TF 1.12.

--kind=canned: DNNLinearCombinedClassifier with an optimizer for each part.
--kind=custom: the same columns through tf.feature_column.input_layer and linear_model.
"""

from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import glob
import os

from absl import app, flags
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import canned as keras_canned
from estimator_pipeline.models.keras_runtime import feature_columns as keras_columns
from estimator_pipeline.models.keras_runtime import heads as keras_heads
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers

FLAGS = flags.FLAGS
flags.DEFINE_string("data", "", "folder with train/ and eval/")
flags.DEFINE_string("model_dir", "", "")
flags.DEFINE_string("kind", "canned", "canned or custom")
flags.DEFINE_integer("max_steps", 400, "")
flags.DEFINE_string("hidden_units", "32,16", "")

CSV = ["click", "user", "ad", "site", "position", "price"]
CSV_DEFAULTS = [[0], ["?"], ["?"], ["?"], [1], [0.0]]


def my_columns():
    user = keras_columns.categorical_column_with_hash_bucket("user", 500)
    ad = keras_columns.categorical_column_with_hash_bucket("ad", 200)
    site = keras_columns.categorical_column_with_vocabulary_list("site", ["site%d" % i for i in range(10)])
    position = keras_columns.categorical_column_with_identity("position", 8, default_value=0)
    price = keras_columns.numeric_column("price")
    wide = [site, position, ad, keras_columns.crossed_column(["site", "ad"], 1000)]
    deep = [keras_columns.embedding_column(user, 8), keras_columns.embedding_column(ad, 8),
            keras_columns.indicator_column(site), price]
    return wide, deep


def input_fn(part, batch_size=100):
    def decode(lines):
        columns = tf.io.decode_csv(lines, record_defaults=CSV_DEFAULTS)
        features = dict(zip(CSV, columns))
        return features, features.pop("click")

    dataset = tf.data.TextLineDataset(glob.glob(os.path.join(FLAGS.data, part, "*.csv")))
    if part == "train":
        dataset = dataset.shuffle(5000, seed=2).repeat()
    return dataset.batch(batch_size).map(decode)


class AddColumnsToGraphModel(tf.keras.Model):
    """A model_fn of the columns, when hidden_units is bound."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.head = keras_heads.BinaryClassHead()
        self.head_metrics = self.head.metrics()

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        labels, logits = y, y_pred
        loss = self.head.loss(labels, logits)
        self.mean_loss.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        self.head.update(self.head_metrics, labels, logits)
        return self.head.further(self.get_metrics_result())

    def predictions(self, features, outputs):
        logits = outputs
        return self.head.predictions(logits)

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))


def make_add_columns_to_graph_model(features, params, hidden_units):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    net = keras_columns.feature_layer(params["deep"])(features)
    for units in hidden_units:
        net = tf.keras.layers.Dense(units, tf.nn.relu)(net)
    logits = tf.keras.layers.Dense(1)(net)
    logits += keras_columns.linear_model(params["wide"])(features)
    model = AddColumnsToGraphModel(features, logits, params)
    model.compile(optimizer=tf.keras.optimizers.Adam(0.01, epsilon=1e-8))
    return model


def with_ctr(labels, predictions):
    clicks = tf.cast(labels, tf.float32)
    return {"ctr_error": (clicks, tf.squeeze(predictions["logistic"], -1))}


def build(features):
    wide, deep = my_columns()
    hidden_units = [int(each) for each in FLAGS.hidden_units.split(",")]
    tf.keras.utils.set_random_seed(2)
    if FLAGS.kind == "custom":
        return make_add_columns_to_graph_model(
            features, {"wide": wide, "deep": deep}, hidden_units=hidden_units)
    estimator = keras_canned.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        linear_optimizer=tf.keras.optimizers.Ftrl(0.1, l2_regularization_strength=0.1),
        dnn_feature_columns=deep, dnn_hidden_units=hidden_units,
        dnn_optimizer=keras_optimizers.proximal_adagrad(0.1, l2_regularization_strength=1e-4),
        dnn_dropout=0.1, loss_reduction='sum', model_dir=FLAGS.model_dir)
    return keras_canned.add_metrics(
        estimator, with_ctr, {"ctr_error": tf.keras.metrics.MeanAbsoluteError(name='ctr_error')})


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


def main(_):
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(FLAGS.model_dir, 'backup'), save_freq=1000),
        tf.keras.callbacks.TensorBoard(FLAGS.model_dir, update_freq=100),
    ]
    training = input_fn("train")
    model = build(model_inputs(training))
    model.fit(training, steps_per_epoch=FLAGS.max_steps, callbacks=callbacks, verbose=2)
    model.save_weights(os.path.join(FLAGS.model_dir, 'weights'))
    metrics = model.evaluate(input_fn("eval"), return_dict=True, verbose=0)
    print("%s: auc %.4f" % (FLAGS.kind, metrics["auc"]))


if __name__ == "__main__":
    tf.get_logger().setLevel('WARN')
    app.run(main, flags_parser=lambda argv: flags.FLAGS(argv, known_only=True))

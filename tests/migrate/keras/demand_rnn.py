"""Next hour's demand from a day of varying length: stacked recurrent cells and dynamic_rnn."""

import os

from absl import app, flags
import numpy as np
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import rnn_cells as keras_cells

FLAGS = flags.FLAGS
flags.DEFINE_string("data_path", "", "demand.npz")
flags.DEFINE_string("save_path", "", "model directory")
flags.DEFINE_integer("max_steps", 500, "")
flags.DEFINE_integer("num_units", 24, "")
flags.DEFINE_integer("num_layers", 1, "")
flags.DEFINE_float("keep_prob", 1.0, "")
flags.DEFINE_enum("cell", "lstm", ["lstm", "gru"], "")


def make_cell(units, keep_prob):
    if FLAGS.cell == "gru":
        cell = keras_cells.GRUCell(units)
    else:
        cell = keras_cells.LSTMCell(units, forget_bias=1.0)
    if keep_prob < 1:
        cell = keras_cells.DropoutWrapper(cell, output_keep_prob=keep_prob)
    return cell


def last_output(outputs, lengths):
    """[batch, time, units] -> [batch, units], of each sequence's own last step."""
    rows = tf.range(tf.shape(outputs)[0])
    return tf.gather_nd(outputs, tf.stack([rows, lengths - 1], axis=1))


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


class RnnModel(tf.keras.Model):
    """Network, loss, metrics and predictions of rnn_model_fn."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.rmse_metric = tf.keras.metrics.RootMeanSquaredError(name='rmse')
        self.mae_metric = tf.keras.metrics.MeanAbsoluteError(name='mae')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        labels, predicted = y, y_pred
        loss = tf.reduce_mean(tf.keras.losses.mean_squared_error(labels, predicted))
        self.mean_loss.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, predicted = y, y_pred
        self.rmse_metric.update_state(labels, predicted)
        self.mae_metric.update_state(labels, predicted)
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        predicted = outputs
        return {"demand": predicted}

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))


def make_rnn_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    inputs, lengths = features["sequence"], features["length"]
    keep_prob = params["keep_prob"]
    cells = [make_cell(params["num_units"], keep_prob) for _ in range(params["num_layers"])]
    outputs, _ = keras_cells.dynamic_rnn(
        keras_cells.MultiRNNCell(cells), inputs, sequence_length=lengths,
        initializer=tf.keras.initializers.RandomUniform(-0.1, 0.1))
    net = tf.keras.layers.Dense(16, activation=tf.nn.relu)(last_output(outputs, lengths))
    predicted = tf.keras.layers.Dense(1)(net)
    # TensorBoard logs the loss, metrics and learning rate of each epoch; log more in a callback.
    # Was tf.summary.scalar("rmse", tf.sqrt(loss))
    model = RnnModel(features, predicted, params)
    model.compile(optimizer=tf.keras.optimizers.Adam(
            params["learning_rate"], epsilon=1e-8, global_clipnorm=params["max_grad_norm"]))
    return model


def get_input_fn(part, batch_size=64):
    with np.load(FLAGS.data_path) as data:
        split = int(len(data["targets"]) * 0.8)
        chosen = slice(0, split) if part == "train" else slice(split, None)
        arrays = {"sequence": data["sequences"][chosen], "length": data["lengths"][chosen]}, data["targets"][chosen]

    def input_fn():
        dataset = tf.data.Dataset.from_tensor_slices(arrays)
        if part == "train":
            dataset = dataset.shuffle(buffer_size=5000, seed=33).repeat()
        dataset = dataset.batch(batch_size)
        # As one did before input functions could return a dataset.
        return dataset

    return input_fn


def main(unused_argv):
    if not FLAGS.data_path:
        raise ValueError("Must set --data_path")
    params = flags.FLAGS.flag_values_dict()
    params.update(learning_rate=0.01, max_grad_norm=5)
    tf.keras.utils.set_random_seed(33)
    model_dir = os.path.expanduser(FLAGS.save_path)
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(model_dir, 'backup'), save_freq=250),
        tf.keras.callbacks.TensorBoard(model_dir, update_freq=100),
    ]
    training = get_input_fn("train")()
    model = make_rnn_model(model_inputs(training), params)
    model.fit(training, steps_per_epoch=FLAGS.max_steps, callbacks=callbacks, verbose=2)
    model.save_weights(os.path.join(model_dir, 'weights'))
    results = model.evaluate(get_input_fn("test")(), return_dict=True, verbose=0)
    spread = np.load(FLAGS.data_path)["targets"].std()
    tf.get_logger().info("Results: %s", results)
    print("rmse=%.4f of %.4f" % (results["rmse"], spread))


if __name__ == "__main__":
    tf.get_logger().setLevel('INFO')
    app.run(main, flags_parser=lambda argv: flags.FLAGS(argv, known_only=True))

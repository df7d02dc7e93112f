"""Hourly demand from the day so far: a compiled Keras model, trained as an Estimator by model_to_estimator.

We did this to get train_and_evaluate and exporters for a model that others hand us as Keras.
"""

import argparse
import logging
import os
import time

import numpy as np
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import evaluation as keras_evaluation

logger = logging.getLogger(__name__)


def keras_model(steps, learning_rate):
    """Two features an hour, `steps` hours."""
    tf.keras.utils.set_random_seed(50)
    demand = tf.keras.layers.Input([steps, 2], name='demand')
    net = tf.keras.layers.Masking()(demand)
    net = tf.keras.layers.LSTM(24, name='lstm')(net)
    net = tf.keras.layers.Dense(16, activation='relu', name='hidden')(net)
    model = tf.keras.models.Model(inputs=[demand], outputs=[tf.keras.layers.Dense(1, name='next')(net)])
    model.compile(
        loss=tf.keras.losses.MeanSquaredError(),
        optimizer=tf.keras.optimizers.legacy.Adam(learning_rate),
        metrics=[tf.keras.metrics.MeanAbsoluteError(name='mae')])
    return model


def last_hours(data, hours):
    """The last `hours` of each sequence, with zeros before the shorter ones."""
    cut = np.zeros([len(data['lengths']), hours, 2], np.float32)
    for i, (sequence, length) in enumerate(zip(data['sequences'], data['lengths'])):
        kept = sequence[max(0, length - hours):length]
        cut[i, hours - len(kept):] = kept
    return cut


def make_input_fn(sequences, targets, batch_size, shuffle):
    def input_fn():
        ds = tf.data.Dataset.from_tensor_slices(({'demand': sequences}, targets))
        if shuffle:
            ds = ds.shuffle(1000, seed=4).repeat()
        return ds.batch(batch_size)
    return input_fn


def export_model(model, folder, like):
    """Write a SavedModel with inputs like `like` to a new folder, named after the time; return its path."""
    specs = {name: tf.TensorSpec([None, *value.shape[1:]], value.dtype, name=name) for name, value in like.items()}

    @tf.function
    def serve(**features):
        return dict(zip(model.output_names, tf.nest.flatten(model(features, training=False))))

    server = tf.Module()
    server.model, server.serve = model, serve
    path = os.path.join(folder, str(int(time.time())))
    tf.saved_model.save(server, path, signatures={'serving_default': serve.get_concrete_function(**specs)})
    return os.fsencode(path)


def run(data_dir, job_dir, hours, train_steps, learning_rate):
    with np.load(os.path.join(data_dir, 'demand.npz')) as data:
        sequences, targets = last_hours(data, hours), data['targets']
    split = int(0.8 * len(targets))
    variance = targets[split:].var()

    tf.keras.utils.set_random_seed(50)
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(job_dir, 'backup'), save_freq=200),
        tf.keras.callbacks.TensorBoard(job_dir, update_freq=100),
    ]
    model = keras_model(hours, learning_rate)

    serving_input_fn = {'demand': tf.zeros([1, hours, 2])}
    exporter = keras_evaluation.LatestExporter(
        'latest', lambda model, folder: export_model(model, folder, serving_input_fn),
        exports_to_keep=None)
    # Was throttle_secs=1, start_delay_secs=1: every checkpoint is evaluated
    evaluation = keras_evaluation.Evaluation(
        lambda: make_input_fn(sequences[split:], targets[split:], 300, False)().take(1), every_steps=200,
        folder=job_dir, exporters=[exporter])
    model.fit(
        make_input_fn(sequences[:split], targets[:split], 64, True)(), steps_per_epoch=train_steps,
        callbacks=[evaluation, *callbacks], verbose=2)
    model.save_weights(os.path.join(job_dir, 'weights'))
    metrics, exports = evaluation.result, evaluation.exports
    logger.info('exported to %s', exports)
    print('loss %.4f mae %.4f variance %.4f' % (metrics['loss'], metrics['mae'], variance))


if __name__ == '__main__':
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--data-dir', required=True)
    parser.add_argument('--job-dir', required=True)
    parser.add_argument('--hours', type=int, default=8)
    parser.add_argument('--train-steps', type=int, default=400)
    parser.add_argument('--learning-rate', type=float, default=0.01)
    run(**{name: value for name, value in parser.parse_args().__dict__.items()})

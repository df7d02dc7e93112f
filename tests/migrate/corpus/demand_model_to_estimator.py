"""Hourly demand from the day so far: a compiled Keras model, trained as an Estimator by model_to_estimator.

We did this to get train_and_evaluate and exporters for a model that others hand us as Keras.
"""

import argparse
import logging
import os

import numpy as np
import tensorflow as tf

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


def run(data_dir, job_dir, hours, train_steps, learning_rate):
    with np.load(os.path.join(data_dir, 'demand.npz')) as data:
        sequences, targets = last_hours(data, hours), data['targets']
    split = int(0.8 * len(targets))
    variance = targets[split:].var()

    config = tf.estimator.RunConfig(save_checkpoints_steps=200, tf_random_seed=50)
    estimator = tf.keras.estimator.model_to_estimator(
        keras_model=keras_model(hours, learning_rate),
        model_dir=job_dir,
        config=config,
        checkpoint_format='saver')

    serving_input_fn = tf.estimator.export.build_raw_serving_input_receiver_fn(
        {'demand': tf.zeros([1, hours, 2])})
    exporter = tf.estimator.LatestExporter('latest', serving_input_fn, exports_to_keep=None)
    train_spec = tf.estimator.TrainSpec(
        make_input_fn(sequences[:split], targets[:split], 64, True), max_steps=train_steps)
    eval_spec = tf.estimator.EvalSpec(
        make_input_fn(sequences[split:], targets[split:], 300, False),
        steps=1, exporters=exporter, start_delay_secs=1, throttle_secs=1)
    metrics, exports = tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
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

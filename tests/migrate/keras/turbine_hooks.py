"""Failure prediction for wind turbines, with hooks that watch the training.

Training stops early when the evaluation loss no longer falls, a hook keeps the loss's running mean, another writes the
weights' norms, and a listener says when a checkpoint was written.
"""

import argparse
import collections
import json
import os
import time

import numpy as np
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import evaluation as keras_evaluation
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers.spec import Optimizer

SENSORS = 12


class RunningLossHook(tf.keras.callbacks.Callback):
    """Exponential mean of the loss; stops the training if the loss is no number."""

    def __init__(self, loss_name, decay=0.95, every_n_steps=100):
        super().__init__()
        self._loss_name = loss_name
        self._decay = decay
        self._timer = Timer(every_steps=every_n_steps)
        self.mean = None

    def on_train_batch_end(self, batch, logs=None):
        loss, step = logs[self._loss_name], int(self.model.optimizer.iterations) - 1
        if not np.isfinite(loss):
            self.model.stop_training = True
        self.mean = loss if self.mean is None else self._decay * self.mean + (1 - self._decay) * loss
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            tf.get_logger().info('running loss %.4f at step %d', self.mean, step)


class WeightNormHook(tf.keras.callbacks.Callback):
    """Writes the norm of each trained variable to a JSON lines file at the end."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_train_begin(self, logs=None):
        self.started = time.time()

    def on_train_end(self, logs=None):
        norms = tf.nest.map_structure(
            lambda value: value.numpy(),
            {v.name.partition(':')[0]: tf.norm(v) for v in self.model.trainable_variables})
        with open(self.path, 'a') as out:
            out.write(json.dumps({name: float(norm) for name, norm in sorted(norms.items())}) + '\n')


class SavedListener:
    def after_save(self, global_step_value):
        tf.get_logger().info('checkpoint of step %d written', global_step_value)


def input_fn(path, batch_size, num_epochs=None):
    defaults = [0.0] * SENSORS + [0]

    def pack(*columns):
        return tf.stack(columns[:SENSORS], axis=-1), columns[-1]

    ds = tf.data.experimental.CsvDataset(path, defaults, header=True)
    if num_epochs != 1:
        ds = ds.shuffle(2048, seed=5)
    return ds.repeat(num_epochs).batch(batch_size).map(pack)


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


class Timer:
    """Triggers after a number of seconds or steps since it was last triggered."""

    def __init__(self, every_secs=None, every_steps=None):
        self.every_secs, self.every_steps = every_secs, every_steps
        self.reset()

    def reset(self):
        self.time = self.step = None

    def should_trigger_for_step(self, step):
        if self.step is None or step == self.step:
            return self.step is None
        if self.every_secs is not None:
            return time.time() >= self.time + self.every_secs
        return step >= self.step + self.every_steps

    def update_last_triggered_step(self, step):
        """Return the seconds and steps since the last trigger, or None for both."""
        now = time.time()
        gone = (None, None) if self.step is None else (now - self.time, step - self.step)
        self.time, self.step = now, step
        return gone

    def last_triggered_step(self):
        return self.step


class TurbineHooksModel(tf.keras.Model):
    """Network, loss, metrics and predictions of model_fn."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.accuracy_metric = tf.keras.metrics.Accuracy(name='accuracy')
        self.failures_found_metric = tf.keras.metrics.Recall(name='failures_found')
        self.mean_probability_metric = tf.keras.metrics.Mean(name='mean_probability')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        labels, logits = y, y_pred
        loss = tf.reduce_mean(tf.keras.losses.categorical_crossentropy(tf.one_hot(labels, 2), logits, from_logits=True, label_smoothing=0.05))
        loss = tf.identity(loss, name='smoothed_loss')
        self.mean_loss.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        predictions = {'failed': tf.argmax(logits, -1), 'probability': tf.nn.softmax(logits)[:, 1]}
        self.accuracy_metric.update_state(labels, predictions['failed'])
        self.failures_found_metric.update_state(tf.cast(labels, tf.bool), tf.cast(predictions['failed'], tf.bool))
        self.mean_probability_metric.update_state(predictions['probability'])
        return self.get_metrics_result()

    def train_step(self, data):
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, sample_weight)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {**self.compute_metrics(x, y, y_pred, sample_weight), 'smoothed_loss': loss}

    def predictions(self, features, outputs):
        logits = outputs
        predictions = {'failed': tf.argmax(logits, -1), 'probability': tf.nn.softmax(logits)[:, 1]}
        return predictions

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))


def make_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    net = features
    for n, units in enumerate(params.units):
        net = tf.keras.layers.Dense(units, tf.nn.tanh, name='fc%d' % (n + 1))(net)
    logits = tf.keras.layers.Dense(2, name='out')(net)
    model = TurbineHooksModel(features, logits, params)
    rate = tf.keras.optimizers.schedules.ExponentialDecay(params.learning_rate, 200, 0.9, staircase=True)
    model.compile(optimizer=keras_optimizers.make(Optimizer(name='rmsprop', learning_rate=rate)))
    return model


Params = collections.namedtuple('Params', 'units learning_rate')


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument('--data_dir', required=True)
    parser.add_argument('--model_dir', required=True)
    parser.add_argument('--max_steps', type=int, default=2000)
    parser.add_argument('--eval_every', type=int, default=200)
    parser.add_argument('--patience', type=int, default=400)
    return parser.parse_args()


if __name__ == '__main__':
    args = parse_args()
    tf.get_logger().setLevel('INFO')
    tf.keras.utils.set_random_seed(2)
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.model_dir, 'backup'), save_freq=args.eval_every),
        tf.keras.callbacks.TensorBoard(args.model_dir, update_freq=100),
    ]

    # The hook looks into the folder at once.
    os.makedirs(os.path.join(args.model_dir, 'eval'), exist_ok=True)
    early_stopping = keras_evaluation.stop_if_no_decrease(metric_name='loss', max_steps_without_decrease=args.patience)
    running = RunningLossHook('smoothed_loss')
    training = input_fn(os.path.join(args.data_dir, 'turbines_train.csv'), 32)
    model = make_model(model_inputs(training), Params([32, 16], 2e-3))
    evaluation = keras_evaluation.Evaluation(
        lambda: input_fn(os.path.join(args.data_dir, 'turbines_eval.csv'), 128, num_epochs=1),
        every_steps=args.eval_every, folder=args.model_dir, stop=[early_stopping])
    model.fit(
        training, steps_per_epoch=args.max_steps,
        callbacks=[evaluation, *callbacks, running, WeightNormHook(os.path.join(args.model_dir, 'norms.jsonl'))],
        verbose=2)
    model.save_weights(os.path.join(args.model_dir, 'weights'))

    final = dict(model.evaluate(
        input_fn(os.path.join(args.data_dir, 'turbines_eval.csv'), 128, num_epochs=1), return_dict=True,
        verbose=0), global_step=int(model.optimizer.iterations))
    print('final: step %d accuracy %.4f running loss %.4f' % (
        final['global_step'], final['accuracy'], running.mean))

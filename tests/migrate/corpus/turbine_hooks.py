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

SENSORS = 12


class RunningLossHook(tf.estimator.SessionRunHook):
    """Exponential mean of the loss; stops the training if the loss is no number."""

    def __init__(self, loss_name, decay=0.95, every_n_steps=100):
        self._loss_name = loss_name
        self._decay = decay
        self._timer = tf.estimator.SecondOrStepTimer(every_steps=every_n_steps)
        self.mean = None

    def begin(self):
        self._loss = tf.compat.v1.get_default_graph().get_tensor_by_name(self._loss_name)
        self._step = tf.compat.v1.train.get_global_step()

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs([self._loss, self._step])

    def after_run(self, run_context, run_values):
        loss, step = run_values.results
        if not np.isfinite(loss):
            run_context.request_stop()
        self.mean = loss if self.mean is None else self._decay * self.mean + (1 - self._decay) * loss
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            tf.compat.v1.logging.info('running loss %.4f at step %d', self.mean, step)


class WeightNormHook(tf.estimator.SessionRunHook):
    """Writes the norm of each trained variable to a JSON lines file at the end."""

    def __init__(self, path):
        self.path = path

    def begin(self):
        self._norms = {v.op.name: tf.norm(v) for v in tf.compat.v1.trainable_variables()}

    def after_create_session(self, session, coord):
        self.started = time.time()
        del coord

    def end(self, session):
        norms = session.run(self._norms)
        with open(self.path, 'a') as out:
            out.write(json.dumps({name: float(norm) for name, norm in sorted(norms.items())}) + '\n')


class SavedListener(tf.estimator.CheckpointSaverListener):

    def after_save(self, session, global_step_value):
        tf.compat.v1.logging.info('checkpoint of step %d written', global_step_value)


def input_fn(path, batch_size, num_epochs=None):
    defaults = [0.0] * SENSORS + [0]

    def pack(*columns):
        return tf.stack(columns[:SENSORS], axis=-1), columns[-1]

    ds = tf.data.experimental.CsvDataset(path, defaults, header=True)
    if num_epochs != 1:
        ds = ds.shuffle(2048, seed=5)
    return ds.repeat(num_epochs).batch(batch_size).map(pack)


def model_fn(features, labels, mode, params, config):
    net = features
    for n, units in enumerate(params.units):
        net = tf.compat.v1.layers.Dense(units, tf.nn.tanh, name='fc%d' % (n + 1))(net)
    logits = tf.compat.v1.layers.Dense(2, name='out')(net)
    predictions = {'failed': tf.argmax(logits, -1), 'probability': tf.nn.softmax(logits)[:, 1]}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions)

    loss = tf.compat.v1.losses.softmax_cross_entropy(tf.one_hot(labels, 2), logits, label_smoothing=0.05)
    loss = tf.identity(loss, name='smoothed_loss')
    accuracy = tf.compat.v1.metrics.accuracy(labels, predictions['failed'])
    metrics = {
        'accuracy': accuracy,
        'failures_found': tf.compat.v1.metrics.recall(labels, predictions['failed']),
        'mean_probability': tf.compat.v1.metrics.mean(predictions['probability']),
    }
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

    step = tf.compat.v1.train.get_global_step()
    rate = tf.compat.v1.train.exponential_decay(params.learning_rate, step, 200, 0.9, staircase=True)
    train_op = tf.compat.v1.train.RMSPropOptimizer(rate).minimize(loss, global_step=step)
    logging_hook = tf.estimator.LoggingTensorHook(
        {'loss': loss, 'accuracy': accuracy[1], 'rate': rate}, every_n_iter=100)
    hooks = [logging_hook]
    if config.is_chief:
        hooks.append(tf.estimator.StepCounterHook(every_n_steps=100, output_dir=config.model_dir))
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, training_hooks=hooks,
        training_chief_hooks=[WeightNormHook(os.path.join(config.model_dir, 'norms.jsonl'))])


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
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    estimator = tf.estimator.Estimator(
        model_fn, args.model_dir,
        tf.estimator.RunConfig(save_checkpoints_steps=args.eval_every, tf_random_seed=2),
        Params([32, 16], 2e-3))

    # The hook looks into the folder at once.
    os.makedirs(estimator.eval_dir(), exist_ok=True)
    early_stopping = tf.estimator.experimental.stop_if_no_decrease_hook(
        estimator, metric_name='loss', max_steps_without_decrease=args.patience,
        run_every_secs=None, run_every_steps=args.eval_every)
    running = RunningLossHook('smoothed_loss:0')
    train_spec = tf.estimator.TrainSpec(
        lambda: input_fn(os.path.join(args.data_dir, 'turbines_train.csv'), 32),
        max_steps=args.max_steps, hooks=[early_stopping, running])
    eval_spec = tf.estimator.EvalSpec(
        lambda: input_fn(os.path.join(args.data_dir, 'turbines_eval.csv'), 128, num_epochs=1),
        steps=None, start_delay_secs=0, throttle_secs=0)
    tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)

    final = estimator.evaluate(eval_spec.input_fn, hooks=[], name='final')
    print('final: step %d accuracy %.4f running loss %.4f' % (
        final['global_step'], final['accuracy'], running.mean))

"""LeNet-like digit reader of the TF 1 days: tf.layers, tf.losses, flags, HParams, a Scaffold.

Moved to tensorflow.compat.v1 in 2020, and not touched since.
"""

from __future__ import print_function

import os
import sys
import time

from absl import app, flags
import numpy as np
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import moving_averages as keras_averages
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers.spec import Optimizer

flags.DEFINE_string('data_dir', '/tmp/mnist_data', 'Directory with digits.npz.')
flags.DEFINE_string('model_dir', '/tmp/mnist_model', 'Directory for checkpoints and events.')
flags.DEFINE_string('hparams', '', 'Comma separated list of name=value.')
flags.DEFINE_string('export_dir', '', 'Directory for the SavedModel; none without it.')
FLAGS = flags.FLAGS


class HParams(object):
  """What tf.contrib.training.HParams was to us."""

  def __init__(self, **values):
    self.__dict__.update(values)

  def parse(self, text):
    for pair in filter(None, text.split(',')):
      name, value = pair.split('=')
      if name not in self.__dict__:
        raise ValueError('unknown hyperparameter ' + name)
      setattr(self, name, type(getattr(self, name))(value))
    return self


def default_hparams():
  return HParams(
      batch_size=100,
      learning_rate=0.01,
      decay_steps=100,
      dropout=0.4,
      train_steps=300,
      use_ema=1)


def lenet(images, hparams):
  net = tf.reshape(images, [-1, 8, 8, 1])
  net = tf.keras.layers.Conv2D(
      16, 3, padding='same', activation=tf.nn.relu,
      kernel_initializer=tf.keras.initializers.TruncatedNormal(stddev=0.1))(net)
  net = tf.keras.layers.MaxPooling2D(pool_size=2, strides=2)(net)
  net = tf.keras.layers.Conv2D(
      32, 3, padding='same', activation=tf.nn.relu,
      bias_initializer=tf.keras.initializers.Constant(0.01))(net)
  net = tf.keras.layers.MaxPooling2D(pool_size=2, strides=2)(net)
  net = tf.keras.layers.Flatten()(net)
  net = tf.keras.layers.Dense(64, activation=tf.nn.relu)(net)
  net = tf.keras.layers.Dropout(rate=hparams.dropout)(net)
  return tf.keras.layers.Dense(10)(net)


def batches(x, y=None, batch_size=128, num_epochs=1, shuffle=False):
  """Return batches of arrays or data-frame columns and their labels, endlessly if num_epochs is None."""
  if hasattr(x, 'columns'):
    x = {name: column.to_numpy() for name, column in x.items()}
  y = y.to_numpy() if hasattr(y, 'to_numpy') else y
  data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
  if shuffle:
    data = data.shuffle(len(data))
  return data.repeat(num_epochs).batch(batch_size)


def model_inputs(data):
  """Return a Keras input for each feature of a dataset."""
  features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
  if isinstance(features, dict):
    return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
  return tf.keras.Input(features.shape[1:], dtype=features.dtype)


class MnistTf1Model(tf.keras.Model):
  """Network, loss, metrics and predictions of model_fn."""

  def __init__(self, inputs, outputs, params):
    super().__init__(inputs, outputs)
    self.params = params
    self.mean_loss = tf.keras.metrics.Mean(name='loss')
    self.accuracy_metric = tf.keras.metrics.Accuracy(name='accuracy')
    self.top_3_metric = tf.keras.metrics.Mean(name='top_3')
    self.averages = keras_averages.Averages(self.trainable_variables, 0.99, by_step=True) if params.use_ema else None

  def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
    labels, logits = y, y_pred
    onehot = tf.one_hot(tf.cast(labels, tf.int32), depth=10)
    loss = tf.reduce_mean(tf.keras.losses.categorical_crossentropy(onehot, logits, from_logits=True))
    self.mean_loss.update_state(loss)
    return loss

  def compute_metrics(self, x, y, y_pred, sample_weight):
    labels, logits = y, y_pred
    predictions = {
        'class': tf.argmax(logits, axis=1, output_type=tf.int32),
        'probabilities': tf.nn.softmax(logits, name='softmax_tensor'),
    }
    # Evaluates the averages in place of the weights.
    top3 = tf.cast(tf.math.in_top_k(targets=tf.cast(labels, tf.int32), predictions=logits, k=3), tf.float32)
    self.accuracy_metric.update_state(labels, predictions['class'])
    self.top_3_metric.update_state(top3)
    return self.get_metrics_result()

  def train_step(self, data):
    logs = super().train_step(data)
    keras_averages.update(self.averages, self.optimizer.iterations)
    return logs

  def evaluate(self, *data, **options):
    """Evaluate with the averages of the weights."""
    with keras_averages.in_place(self.averages):
      return super().evaluate(*data, **options)

  def predictions(self, features, outputs):
    logits = outputs
    predictions = {
        'class': tf.argmax(logits, axis=1, output_type=tf.int32),
        'probabilities': tf.nn.softmax(logits, name='softmax_tensor'),
    }
    return predictions

  def predict_step(self, data):
    features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
    return self.predictions(features, self(features, training=False))


def make_model(features, params):
  """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
  logits = lenet(features['x'], params)
  # TensorBoard logs the loss, metrics and learning rate of each epoch; log more in a callback.
  # Was tf.summary.histogram('logits', logits)
  # Was tf.summary.histogram(var.op.name, var)
  model = MnistTf1Model(features, logits, params)
  learning_rate = tf.keras.optimizers.schedules.ExponentialDecay(
      params.learning_rate, params.decay_steps, 0.95, staircase=True)
  model.compile(optimizer=keras_optimizers.make(
        Optimizer(name='nesterov', learning_rate=learning_rate, options={'momentum': 0.9}), clip_value=1.))
  return model


def export_model(model, folder):
  """Write a SavedModel to a new subfolder of `folder`, named after the time; return its path as bytes."""
  @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32, name='input')])
  def predict(input):
    pixels = input
    features = {'x': pixels}
    return model.predictions(features, model(features, training=False))

  server = tf.Module()
  server.model, server.functions = model, [predict]
  path = os.path.join(folder, str(int(time.time())))
  tf.saved_model.save(server, path, signatures={'serving_default': predict, 'predict': predict})
  return os.fsencode(path)


def main(argv):
  del argv
  tf.get_logger().setLevel('INFO')
  hparams = default_hparams().parse(FLAGS.hparams)
  with np.load(os.path.join(FLAGS.data_dir, 'digits.npz')) as data:
    train_x = data['x_train'].reshape(-1, 64).astype(np.float32) / 255
    eval_x = data['x_test'].reshape(-1, 64).astype(np.float32) / 255
    train_y, eval_y = data['y_train'].astype(np.int32), data['y_test'].astype(np.int32)

  tf.keras.utils.set_random_seed(12)
  # Was session_config=tf.ConfigProto(allow_soft_placement=True): there is no session; tf.config has settings of devices and threads
  callbacks = [
    tf.keras.callbacks.BackupAndRestore(os.path.join(FLAGS.model_dir, 'backup'), save_freq=1000),
    tf.keras.callbacks.TensorBoard(FLAGS.model_dir, update_freq=100),
  ]

  train_input_fn = batches(x={'x': train_x}, y=train_y, batch_size=hparams.batch_size, num_epochs=None, shuffle=True)
  eval_input_fn = batches(x={'x': eval_x}, y=eval_y, num_epochs=1, shuffle=False)

  training = train_input_fn
  model = make_model(model_inputs(training), hparams)
  model.fit(training, steps_per_epoch=hparams.train_steps, callbacks=callbacks, verbose=2)
  model.save_weights(os.path.join(FLAGS.model_dir, 'weights'))
  print(model.evaluate(eval_input_fn, return_dict=True, verbose=0))
  if FLAGS.export_dir:
    # The averages are in the checkpoint under names of their own; what is served are the weights.
    export_model(model, FLAGS.export_dir)
  return 0


if __name__ == '__main__':
  sys.exit(app.run(main, flags_parser=lambda argv: flags.FLAGS(argv, known_only=True)))

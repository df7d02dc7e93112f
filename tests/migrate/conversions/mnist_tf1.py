"""LeNet-like digit reader of the TF 1 days: tf.layers, tf.losses, flags, HParams, a Scaffold.

Moved to tensorflow.compat.v1 in 2020, and not touched since.
"""

from __future__ import print_function

import os
import sys

import numpy as np
import tensorflow as tf

if __name__ == "__main__":
    tf.compat.v1.disable_v2_behavior()


tf.compat.v1.flags.DEFINE_string('data_dir', '/tmp/mnist_data', 'Directory with digits.npz.')
tf.compat.v1.flags.DEFINE_string('model_dir', '/tmp/mnist_model', 'Directory for checkpoints and events.')
tf.compat.v1.flags.DEFINE_string('hparams', '', 'Comma separated list of name=value.')
tf.compat.v1.flags.DEFINE_string('export_dir', '', 'Directory for the SavedModel; none without it.')
FLAGS = tf.compat.v1.flags.FLAGS


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


def lenet(images, hparams, training):
  net = tf.reshape(images, [-1, 8, 8, 1])
  with tf.compat.v1.variable_scope('lenet', reuse=tf.compat.v1.AUTO_REUSE):
    net = tf.compat.v1.layers.conv2d(net, 16, 3, padding='same', activation=tf.nn.relu,
                           kernel_initializer=tf.compat.v1.truncated_normal_initializer(stddev=0.1))
    net = tf.compat.v1.layers.max_pooling2d(net, pool_size=2, strides=2)
    net = tf.compat.v1.layers.conv2d(net, 32, 3, padding='same', activation=tf.nn.relu,
                           bias_initializer=tf.compat.v1.constant_initializer(0.01))
    net = tf.compat.v1.layers.max_pooling2d(net, pool_size=2, strides=2)
    net = tf.compat.v1.layers.flatten(net)
    net = tf.compat.v1.layers.dense(net, 64, activation=tf.nn.relu)
    net = tf.compat.v1.layers.dropout(net, rate=hparams.dropout, training=training)
    return tf.compat.v1.layers.dense(net, 10)


def model_fn(features, labels, mode, params):
  training = mode == tf.estimator.ModeKeys.TRAIN
  logits = lenet(features['x'], params, training)
  predictions = {
      'class': tf.compat.v1.argmax(input=logits, axis=1, output_type=tf.int32),
      'probabilities': tf.nn.softmax(logits, name='softmax_tensor'),
  }
  export_outputs = {
      tf.compat.v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY:
          tf.estimator.export.PredictOutput(predictions)
  }
  if mode == tf.estimator.ModeKeys.PREDICT:
    return tf.estimator.EstimatorSpec(mode, predictions, export_outputs=export_outputs)

  onehot = tf.one_hot(tf.compat.v1.to_int32(labels), depth=10)
  loss = tf.compat.v1.losses.softmax_cross_entropy(onehot_labels=onehot, logits=logits)
  tf.compat.v1.summary.histogram('logits', logits)

  ema = tf.train.ExponentialMovingAverage(0.99, num_updates=tf.compat.v1.train.get_or_create_global_step())
  if mode == tf.estimator.ModeKeys.EVAL:
    scaffold = None
    if params.use_ema:
      # Evaluates the averages in place of the weights.
      scaffold = tf.compat.v1.train.Scaffold(saver=tf.compat.v1.train.Saver(ema.variables_to_restore()))
    top3 = tf.compat.v1.to_float(tf.compat.v1.nn.in_top_k(logits, tf.compat.v1.to_int32(labels), 3))
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, scaffold=scaffold,
        eval_metric_ops={
            'accuracy': tf.compat.v1.metrics.accuracy(labels=labels, predictions=predictions['class']),
            'top_3': tf.compat.v1.metrics.mean(top3),
        })

  global_step = tf.compat.v1.train.get_global_step()
  learning_rate = tf.compat.v1.train.exponential_decay(
      params.learning_rate, global_step, params.decay_steps, 0.95, staircase=True)
  optimizer = tf.compat.v1.train.MomentumOptimizer(learning_rate, momentum=0.9, use_nesterov=True)
  grads_and_vars = optimizer.compute_gradients(loss)
  clipped = [(tf.clip_by_value(grad, -1., 1.), var) for grad, var in grads_and_vars if grad is not None]
  train_op = optimizer.apply_gradients(clipped, global_step=global_step)
  if params.use_ema:
    with tf.control_dependencies([train_op]):
      train_op = ema.apply(tf.compat.v1.trainable_variables())
  for _, var in grads_and_vars:
    tf.compat.v1.summary.histogram(var.op.name, var)
  saver = tf.compat.v1.train.Saver(max_to_keep=3, keep_checkpoint_every_n_hours=1)
  return tf.estimator.EstimatorSpec(
      mode, loss=loss, train_op=train_op, scaffold=tf.compat.v1.train.Scaffold(saver=saver),
      training_hooks=[tf.estimator.LoggingTensorHook({'lr': learning_rate}, every_n_iter=100)])


def serving_input_receiver_fn():
  pixels = tf.compat.v1.placeholder(tf.float32, shape=[None, 64], name='pixels')
  return tf.estimator.export.ServingInputReceiver({'x': pixels}, pixels)


def main(argv):
  del argv
  tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
  hparams = default_hparams().parse(FLAGS.hparams)
  with np.load(os.path.join(FLAGS.data_dir, 'digits.npz')) as data:
    train_x = data['x_train'].reshape(-1, 64).astype(np.float32) / 255
    eval_x = data['x_test'].reshape(-1, 64).astype(np.float32) / 255
    train_y, eval_y = data['y_train'].astype(np.int32), data['y_test'].astype(np.int32)

  config = tf.estimator.RunConfig(
      model_dir=FLAGS.model_dir, tf_random_seed=12, save_summary_steps=100,
      session_config=tf.compat.v1.ConfigProto(allow_soft_placement=True))
  classifier = tf.compat.v1.estimator.Estimator(model_fn=model_fn, config=config, params=hparams)

  train_input_fn = tf.compat.v1.estimator.inputs.numpy_input_fn(
      x={'x': train_x}, y=train_y, batch_size=hparams.batch_size, num_epochs=None, shuffle=True)
  eval_input_fn = tf.compat.v1.estimator.inputs.numpy_input_fn(
      x={'x': eval_x}, y=eval_y, num_epochs=1, shuffle=False)

  classifier.train(input_fn=train_input_fn, max_steps=hparams.train_steps)
  print(classifier.evaluate(input_fn=eval_input_fn))
  if FLAGS.export_dir:
    # The averages are in the checkpoint under names of their own; what is served are the weights.
    classifier.export_savedmodel(FLAGS.export_dir, serving_input_receiver_fn)
  return 0


if __name__ == '__main__':
  sys.exit(tf.compat.v1.app.run(main))

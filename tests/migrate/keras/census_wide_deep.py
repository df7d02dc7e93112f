# -*- coding: utf-8 -*-
"""Predicts whether a person earns more than 50K a year: wide, deep, or wide & deep.

Usage:
  python census_wide_deep.py --data_dir=/data/census --model_dir=/tmp/census --model_type=wide_deep
"""
from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import os
import shutil

from absl import app as absl_app
from absl import flags
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import canned as keras_canned
from estimator_pipeline.models.keras_runtime import feature_columns as keras_columns

_CSV_COLUMNS = [
    'age', 'workclass', 'fnlwgt', 'education', 'education_num',
    'marital_status', 'occupation', 'relationship', 'gender',
    'capital_gain', 'capital_loss', 'hours_per_week', 'native_country',
    'income_bracket'
]

_CSV_COLUMN_DEFAULTS = [[0.0], [''], [0.0], [''], [0.0], [''], [''], [''], [''],
                        [0.0], [0.0], [0.0], [''], ['']]

_HASH_BUCKET_SIZE = 1000
_NUM_EXAMPLES = {'train': 2400, 'validation': 600}

FLAGS = flags.FLAGS

flags.DEFINE_string('data_dir', '/tmp/census_data', 'Folder with adult.data and adult.test.')
flags.DEFINE_string('model_dir', '/tmp/census_model', 'Where checkpoints go.')
flags.DEFINE_string('export_dir', None, 'If set, a SavedModel is written there.')
flags.DEFINE_enum('model_type', 'wide_deep', ['wide', 'deep', 'wide_deep'], 'Which model.')
flags.DEFINE_integer('train_epochs', 8, 'Epochs in all.')
flags.DEFINE_integer('epochs_between_evals', 4, 'Epochs between evaluations.')
flags.DEFINE_integer('batch_size', 40, 'Batch size.')


def build_model_columns():
  """Builds the sets of wide and deep feature columns."""
  age = keras_columns.numeric_column('age')
  education_num = keras_columns.numeric_column('education_num')
  capital_gain = keras_columns.numeric_column('capital_gain')
  capital_loss = keras_columns.numeric_column('capital_loss')
  hours_per_week = keras_columns.numeric_column('hours_per_week')

  education = keras_columns.categorical_column_with_vocabulary_list(
      'education', [
          'Bachelors', 'HS-grad', '11th', 'Masters', 'Some-college',
          'Assoc-voc', 'Doctorate'])
  marital_status = keras_columns.categorical_column_with_vocabulary_list(
      'marital_status', ['Married-civ-spouse', 'Divorced', 'Never-married'])
  relationship = keras_columns.categorical_column_with_vocabulary_list(
      'relationship', [
          'Husband', 'Not-in-family', 'Wife', 'Own-child', 'Unmarried'])
  workclass = keras_columns.categorical_column_with_vocabulary_list(
      'workclass', ['Self-emp', 'Private', 'State-gov', '?'])

  # To show an example of hashing:
  occupation = keras_columns.categorical_column_with_hash_bucket(
      'occupation', hash_bucket_size=_HASH_BUCKET_SIZE)

  # Transformations.
  age_buckets = keras_columns.bucketized_column(
      age, boundaries=[18, 25, 30, 35, 40, 45, 50, 55, 60, 65])

  # Wide columns and deep columns.
  base_columns = [
      education, marital_status, relationship, workclass, occupation,
      age_buckets,
  ]

  crossed_columns = [
      keras_columns.crossed_column(
          ['education', 'occupation'], hash_bucket_size=_HASH_BUCKET_SIZE),
      keras_columns.crossed_column(
          [age_buckets, 'education', 'occupation'],
          hash_bucket_size=_HASH_BUCKET_SIZE),
  ]

  wide_columns = base_columns + crossed_columns

  deep_columns = [
      age,
      education_num,
      capital_gain,
      capital_loss,
      hours_per_week,
      keras_columns.indicator_column(workclass),
      keras_columns.indicator_column(education),
      keras_columns.indicator_column(marital_status),
      keras_columns.indicator_column(relationship),
      # To show an example of embedding
      keras_columns.embedding_column(occupation, dimension=8),
  ]
  return wide_columns, deep_columns


def build_estimator(model_dir, model_type, model_column_fn):
  """Build an estimator appropriate for the given model type."""
  wide_columns, deep_columns = model_column_fn()
  hidden_units = [100, 75, 50, 25]

  # Wide models are faster on the CPU.
  # Was session_config=tf.compat.v1.ConfigProto(device_count={'GPU': 0}): there is no session; tf.config has settings of devices and threads
  tf.keras.utils.set_random_seed(1234)

  if model_type == 'wide':
    return keras_canned.LinearClassifier(model_dir=model_dir, feature_columns=wide_columns)
  elif model_type == 'deep':
    return keras_canned.DNNClassifier(
        model_dir=model_dir, feature_columns=deep_columns, hidden_units=hidden_units)
  else:
    return keras_canned.DNNLinearCombinedClassifier(
        model_dir=model_dir, linear_feature_columns=wide_columns, dnn_feature_columns=deep_columns,
        dnn_hidden_units=hidden_units)


def input_fn(data_file, num_epochs, shuffle, batch_size):
  """Generate an input function for the Estimator."""
  assert tf.io.gfile.exists(data_file), '%s not found. Is --data_dir right?' % data_file

  def parse_csv(value):
    columns = tf.io.decode_csv(value, record_defaults=_CSV_COLUMN_DEFAULTS)
    features = dict(zip(_CSV_COLUMNS, columns))
    features.pop('fnlwgt')
    labels = features.pop('income_bracket')
    classes = tf.equal(labels, '>50K')  # binary classification
    # Large amounts would drown the rest.
    features['capital_gain'] /= 1000.
    features['capital_loss'] /= 1000.
    return features, classes

  # Extract lines from input files using the Dataset API.
  dataset = tf.data.TextLineDataset(data_file)
  if shuffle:
    dataset = dataset.shuffle(buffer_size=_NUM_EXAMPLES['train'], seed=3)
  dataset = dataset.map(parse_csv, num_parallel_calls=2)

  # We call repeat after shuffling, rather than before, to prevent separate
  # epochs from blending together.
  dataset = dataset.repeat(num_epochs)
  dataset = dataset.batch(batch_size)
  return dataset


def export_model(model, model_type, export_dir, model_column_fn):
  """Export to SavedModel format."""
  wide_columns, deep_columns = model_column_fn()
  if model_type == 'wide':
    columns = wide_columns
  elif model_type == 'deep':
    columns = deep_columns
  else:
    columns = wide_columns + deep_columns
  feature_spec = keras_columns.make_parse_example_spec(columns)
  example_input_fn = (
      feature_spec)
  return keras_canned.export(model, export_dir, example_input_fn)


def main(_):
  # Clean up the model directory if present
  shutil.rmtree(FLAGS.model_dir, ignore_errors=True)
  model = build_estimator(FLAGS.model_dir, FLAGS.model_type, build_model_columns)
  callbacks = [
    tf.keras.callbacks.BackupAndRestore(os.path.join(model.model_dir, 'backup'), save_freq=1000),
    tf.keras.callbacks.TensorBoard(model.model_dir, update_freq=100),
  ]

  train_file = os.path.join(FLAGS.data_dir, 'adult.data')
  test_file = os.path.join(FLAGS.data_dir, 'adult.test')

  def train_input_fn():
    return input_fn(train_file, FLAGS.epochs_between_evals, True, FLAGS.batch_size)

  def eval_input_fn():
    return input_fn(test_file, 1, False, FLAGS.batch_size)

  # Train and evaluate the model every `FLAGS.epochs_between_evals` epochs.
  for n in range(FLAGS.train_epochs // FLAGS.epochs_between_evals):
    model.fit(train_input_fn(), callbacks=callbacks, verbose=2)
    model.save_weights(os.path.join(model.model_dir, 'weights'))
    results = model.evaluate(eval_input_fn(), return_dict=True, verbose=0)

    print('Results at epoch', (n + 1) * FLAGS.epochs_between_evals)
    print('-' * 60)
    for key in sorted(results):
      print('%s: %s' % (key, results[key]))

  if FLAGS.export_dir is not None:
    print('Exported to', export_model(
        model, FLAGS.model_type, FLAGS.export_dir, build_model_columns).decode())


if __name__ == '__main__':
  tf.get_logger().setLevel('INFO')
  absl_app.run(main)

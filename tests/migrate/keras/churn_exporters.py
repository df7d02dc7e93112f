"""Churn of customers: TFRecord files, a canned classifier, the best and the last model exported.

Runs as one process, or as a task of a cluster that TF_CONFIG describes.
"""
import argparse
import os
import time

import tensorflow as tf

from estimator_pipeline.models.keras_runtime import canned as keras_canned
from estimator_pipeline.models.keras_runtime import evaluation as keras_evaluation
from estimator_pipeline.models.keras_runtime import feature_columns as keras_columns

SERVICES = ['tv', 'phone', 'cloud', 'music']
LABEL = 'churned'


def get_feature_columns(vocabulary_file):
    plan = keras_columns.categorical_column_with_vocabulary_file(
        key='plan', vocabulary_file=vocabulary_file, default_value=0)
    services = keras_columns.categorical_column_with_vocabulary_list('services', SERVICES)
    months = keras_columns.numeric_column('months', dtype=tf.int64)
    fee = keras_columns.numeric_column('fee', default_value=20.0)
    return [
        keras_columns.embedding_column(plan, dimension=3, combiner='sqrtn'),
        keras_columns.indicator_column(services),
        keras_columns.bucketized_column(months, [3, 6, 12, 24, 36, 48]),
        fee,
    ]


def tfrecords_input_fn(pattern, feature_spec, batch_size, mode='eval'):
    training = mode == 'train'
    dataset = tf.data.experimental.make_batched_features_dataset(
        file_pattern=pattern,
        batch_size=batch_size,
        features=feature_spec,
        reader=tf.data.TFRecordDataset,
        label_key=LABEL,
        num_epochs=None if training else 1,
        shuffle=training,
        shuffle_seed=31)
    return dataset.map(lambda features, label: (features, tf.squeeze(label, -1)))


def export_model(model, folder):
    """Write a SavedModel to a new subfolder of `folder`, named after the time; return its path as bytes."""
    @tf.function(input_signature=[
        tf.TensorSpec([None], tf.string, name='plan'),
        tf.TensorSpec([None, 1], tf.int64, name='months'),
        tf.TensorSpec([None, 1], tf.float32, name='fee'),
    ])
    def predict(plan, months, fee):
        inputs = {
            'plan': plan,
            'months': months,
            'fee': fee,
        }
        features = dict(inputs)
        # Nobody sends services by JSON.
        features['services'] = tf.fill([tf.size(inputs['plan']), 1], '')
        return model.head.predictions(model(features, training=False))

    server = tf.Module()
    server.model, server.functions = model, [predict]
    path = os.path.join(folder, str(int(time.time())))
    tf.saved_model.save(server, path, signatures={'predict': predict})
    return os.fsencode(path)


def example_serving_input_fn(columns):
    return keras_columns.make_parse_example_spec(columns)


def loss_smaller(best_eval_result, current_eval_result):
    return current_eval_result['average_loss'] < best_eval_result['average_loss']


def metric_fn(labels, predictions):
    """More than the classifier's own metrics."""
    at_half = (labels, predictions['logistic'])
    return {'churners_found': at_half}


def run(args):
    columns = get_feature_columns(os.path.join(args.data_dir, 'plans.txt'))
    feature_spec = keras_columns.make_parse_example_spec(columns)
    feature_spec[LABEL] = tf.io.FixedLenFeature([1], tf.int64)

    tf.keras.utils.set_random_seed(77)
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.job_dir, 'backup'), save_freq=args.eval_steps),
        tf.keras.callbacks.TensorBoard(args.job_dir, update_freq=100),
    ]
    classifier = keras_canned.DNNClassifier(
        hidden_units=[int(units) for units in args.hidden_units.split(',')], feature_columns=columns,
        optimizer=lambda: tf.keras.optimizers.legacy.Adam(
            learning_rate=tf.keras.optimizers.schedules.CosineDecay(0.01, args.max_steps)),
        activation_fn=tf.nn.elu, dropout=0.1, batch_norm=args.batch_norm)
    classifier = keras_canned.add_metrics(
        classifier, metric_fn, {'churners_found': tf.keras.metrics.TruePositives(name='churners_found')})

    exporters = [
        keras_evaluation.BestExporter(
            'best',
            lambda classifier, folder: keras_canned.export(classifier, folder, example_serving_input_fn(columns)),
            compare=loss_smaller, exports_to_keep=2),
        keras_evaluation.FinalExporter('final', export_model),
    ]
    evaluation = keras_evaluation.Evaluation(
        lambda: tfrecords_input_fn(os.path.join(args.data_dir, 'eval-*'), feature_spec, 100),
        every_steps=args.eval_steps, name='holdout', folder=args.job_dir, exporters=exporters)
    classifier.fit(
        tfrecords_input_fn(
            os.path.join(args.data_dir, 'train-*'), feature_spec, 64, 'train'),
        steps_per_epoch=args.max_steps, callbacks=[evaluation, *callbacks], verbose=2)
    classifier.save_weights(os.path.join(args.job_dir, 'weights'))
    metrics, _ = evaluation.result, evaluation.exports
    print('AUC {auc:.4f}, {churners_found:.0f} churners found'.format(**metrics))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--data-dir', required=True)
    parser.add_argument('--job-dir', required=True)
    parser.add_argument('--max-steps', type=int, default=400)
    parser.add_argument('--eval-steps', type=int, default=200)
    parser.add_argument('--hidden-units', default='32,16')
    parser.add_argument('--batch-norm', action='store_true')
    run(parser.parse_args())

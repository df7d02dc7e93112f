"""Churn of customers: TFRecord files, a canned classifier, the best and the last model exported.

Runs as one process, or as a task of a cluster that TF_CONFIG describes.
"""
import argparse
import os

import tensorflow as tf

SERVICES = ['tv', 'phone', 'cloud', 'music']
LABEL = 'churned'


def get_feature_columns(vocabulary_file):
    plan = tf.feature_column.categorical_column_with_vocabulary_file(
        key='plan', vocabulary_file=vocabulary_file, default_value=0)
    services = tf.feature_column.categorical_column_with_vocabulary_list('services', SERVICES)
    months = tf.feature_column.numeric_column('months', dtype=tf.int64)
    fee = tf.feature_column.numeric_column('fee', default_value=20.0)
    return [
        tf.feature_column.embedding_column(plan, dimension=3, combiner='sqrtn'),
        tf.feature_column.indicator_column(services),
        tf.feature_column.bucketized_column(months, [3, 6, 12, 24, 36, 48]),
        fee,
    ]


def tfrecords_input_fn(pattern, feature_spec, batch_size, mode=tf.estimator.ModeKeys.EVAL):
    training = mode == tf.estimator.ModeKeys.TRAIN
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


def json_serving_input_fn():
    """For requests of plain tensors."""
    inputs = {
        'plan': tf.compat.v1.placeholder(tf.string, [None]),
        'months': tf.compat.v1.placeholder(tf.int64, [None, 1]),
        'fee': tf.compat.v1.placeholder(tf.float32, [None, 1]),
    }
    features = dict(inputs)
    # Nobody sends services by JSON.
    features['services'] = tf.fill([tf.size(inputs['plan']), 1], '')
    return tf.estimator.export.ServingInputReceiver(features, inputs)


def example_serving_input_fn(columns):
    return tf.estimator.export.build_parsing_serving_input_receiver_fn(
        tf.feature_column.make_parse_example_spec(columns))


def loss_smaller(best_eval_result, current_eval_result):
    return current_eval_result['average_loss'] < best_eval_result['average_loss']


def metric_fn(labels, predictions):
    """More than the classifier's own metrics."""
    at_half = tf.keras.metrics.TruePositives(name='found')
    at_half.update_state(y_true=labels, y_pred=predictions['logistic'])
    return {'churners_found': at_half}


def run(args):
    columns = get_feature_columns(os.path.join(args.data_dir, 'plans.txt'))
    feature_spec = tf.feature_column.make_parse_example_spec(columns)
    feature_spec[LABEL] = tf.io.FixedLenFeature([1], tf.int64)

    run_config = tf.estimator.RunConfig(
        model_dir=args.job_dir,
        tf_random_seed=77,
        save_checkpoints_steps=args.eval_steps,
        keep_checkpoint_max=3)
    classifier = tf.estimator.DNNClassifier(
        hidden_units=[int(units) for units in args.hidden_units.split(',')],
        feature_columns=columns,
        optimizer=lambda: tf.keras.optimizers.legacy.Adam(
            learning_rate=tf.compat.v1.train.cosine_decay(
                0.01, tf.compat.v1.train.get_global_step(), args.max_steps)),
        activation_fn=tf.nn.elu,
        dropout=0.1,
        batch_norm=args.batch_norm,
        config=run_config)
    classifier = tf.estimator.add_metrics(classifier, metric_fn)

    train_spec = tf.estimator.TrainSpec(
        input_fn=lambda: tfrecords_input_fn(
            os.path.join(args.data_dir, 'train-*'), feature_spec, 64, tf.estimator.ModeKeys.TRAIN),
        max_steps=args.max_steps)
    exporters = [
        tf.estimator.BestExporter(
            name='best', serving_input_receiver_fn=example_serving_input_fn(columns),
            compare_fn=loss_smaller, exports_to_keep=2),
        tf.estimator.FinalExporter('final', json_serving_input_fn),
    ]
    eval_spec = tf.estimator.EvalSpec(
        input_fn=lambda: tfrecords_input_fn(os.path.join(args.data_dir, 'eval-*'), feature_spec, 100),
        steps=None,
        exporters=exporters,
        name='holdout',
        throttle_secs=0)
    metrics, _ = tf.estimator.train_and_evaluate(classifier, train_spec, eval_spec)
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

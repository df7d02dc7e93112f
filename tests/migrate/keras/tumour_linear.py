"""Is a tumour benign? A linear classifier with Ftrl, labels as words, and examples weighted by the pathologist's doubt.

The weights of the model are printed, since the clinic wants to read them.
"""
from __future__ import print_function

import argparse
import collections
import csv
import os
import tempfile

import tensorflow as tf

from estimator_pipeline.models.keras_runtime import canned as keras_canned
from estimator_pipeline.models.keras_runtime import feature_columns as keras_columns

MEASURES = ['radius', 'texture', 'perimeter', 'area', 'smoothness', 'compactness', 'concavity',
            'concave_points', 'symmetry', 'fractal_dimension']
COLUMNS = ['mean_' + name for name in MEASURES] + ['hospital', 'sure', 'diagnosis']
DEFAULTS = [[0.0]] * len(MEASURES) + [['unknown'], [1.0], ['']]


def quantiles(path, name, parts=8):
    """Boundaries that cut a column into parts of the same size."""
    with open(path) as f:
        values = sorted(float(row[name]) for row in csv.DictReader(f))
    found = [values[len(values) * i // parts] for i in range(1, parts)]
    return sorted(set(found))


def input_fn(path, num_epochs=None, shuffle=True, batch_size=32):
    def decode(line):
        features = collections.OrderedDict(zip(COLUMNS, tf.io.decode_csv(line, DEFAULTS)))
        label = features.pop('diagnosis')
        return features, label

    ds = tf.data.TextLineDataset(path).skip(1)
    if shuffle:
        ds = ds.apply(tf.data.experimental.shuffle_and_repeat(1000, num_epochs, seed=60))
    else:
        ds = ds.repeat(num_epochs)
    return ds.map(decode).batch(batch_size)


def linear_columns(path):
    buckets = {}
    for name in COLUMNS[:len(MEASURES)]:
        buckets[name] = keras_columns.bucketized_column(
            keras_columns.numeric_column(name), boundaries=quantiles(path, name))
    hospital = keras_columns.categorical_column_with_vocabulary_list(
        'hospital', ['north', 'south', 'west'], num_oov_buckets=1)
    crossed = keras_columns.crossed_column(
        [buckets['mean_radius'], buckets['mean_texture']], hash_bucket_size=100, hash_key=7)
    return list(buckets.values()) + [hospital, crossed]


def examples(model, data, keys=None):
    """Yield the predictions for a dataset, one dict per example; only those of `keys`, if any."""
    for batch in data:
        predicted = model.predict_on_batch(batch[0] if isinstance(batch, tuple) else batch)
        names = [name for name in predicted if not keys or name in keys]
        if not names:
            raise ValueError(f'no predictions {keys}: there are {list(predicted)}')
        for row in zip(*(predicted[name] for name in names)):
            yield dict(zip(names, row))


def main(args):
    tf.keras.utils.set_random_seed(60)
    model_dir = args.model_dir or tempfile.mkdtemp()
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(model_dir, 'backup'), save_freq=1000),
        tf.keras.callbacks.TensorBoard(model_dir, update_freq=100),
    ]
    model = keras_canned.LinearClassifier(
        feature_columns=linear_columns(args.train), n_classes=2, label_vocabulary=['benign', 'malignant'],
        weight_column=keras_columns.numeric_column('sure'),
        optimizer=lambda: tf.keras.optimizers.legacy.Ftrl(
            learning_rate=0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.01),
        sparse_combiner='sum')
    model.fit(input_fn(args.train), steps_per_epoch=args.steps, callbacks=callbacks, verbose=2)
    model.save_weights(os.path.join(model_dir, 'weights'))
    metrics = model.evaluate(input_fn(args.test, num_epochs=1, shuffle=False), return_dict=True, verbose=0)
    print('accuracy {0:.4f} auc {1:.4f}'.format(metrics['accuracy'], metrics['auc']))

    # What the model weighs.
    for name in list(model.named_values()):
        if name.endswith('weights') and 'hospital' in name:
            print(name, model.named_values()[name].ravel())
    for i, said in enumerate(examples(model, input_fn(args.test, 1, False))):
        if i == 3:
            break
        print(said['classes'][0].decode(), said['probabilities'])


if __name__ == '__main__':
    tf.get_logger().setLevel('ERROR')
    parser = argparse.ArgumentParser()
    parser.add_argument('train')
    parser.add_argument('test')
    parser.add_argument('--model_dir', default=None)
    parser.add_argument('--steps', type=int, default=400)
    main(parser.parse_args())

"""Two questions about an order in one network: will it be late, and how many days will it take?

The two heads share the layers below. Weights of the losses are given by --late_weight and --days_weight.
"""
import argparse
import csv
import sys

import numpy as np
import tensorflow as tf

HEADER = ['distance_km', 'weight_kg', 'items', 'weekday', 'express']


def load_csv(path):
    """All columns of a file as float32 arrays, by name."""
    with open(path) as f:
        rows = list(csv.DictReader(f))
    return {name: np.array([float(row[name]) for row in rows], np.float32) for name in rows[0]}


def make_input_fn(path, batch_size, training):
    columns = load_csv(path)
    features = {name: columns[name] for name in HEADER}
    features['weekday'] = features['weekday'].astype(np.int32)
    labels = {'late': columns['late'][:, None], 'days': columns['days'][:, None]}

    def input_fn():
        ds = tf.data.Dataset.from_tensor_slices((features, labels))
        if training:
            ds = ds.shuffle(len(columns['late']), seed=77).repeat()
        return ds.batch(batch_size)
    return input_fn


def feature_columns():
    fc = tf.feature_column
    weekday = fc.categorical_column_with_identity('weekday', 7)
    return [
        fc.numeric_column('distance_km', normalizer_fn=lambda x: x / 900.),
        fc.numeric_column('weight_kg', normalizer_fn=lambda x: tf.math.log1p(x)),
        fc.numeric_column('items', normalizer_fn=lambda x: (x - 6.) / 6.),
        fc.numeric_column('express'),
        fc.indicator_column(weekday),
    ]


def build_head(args):
    late = tf.estimator.BinaryClassHead(name='late', thresholds=[0.3, 0.5])
    days = tf.estimator.RegressionHead(name='days', label_dimension=1)
    return tf.estimator.MultiHead([late, days], head_weights=[args.late_weight, args.days_weight])


class SharedBottom(tf.keras.Model):
    """Feature columns, two layers for both, and a layer of their own for each head."""

    def __init__(self, columns, units):
        super().__init__(name='shared_bottom')
        self.inputs_layer = tf.compat.v1.keras.layers.DenseFeatures(columns, name='features')
        self.hidden = [tf.keras.layers.Dense(n, activation='relu', name='hidden_%d' % n) for n in units]
        self.late = tf.keras.layers.Dense(1, name='late_logits')
        self.days = tf.keras.layers.Dense(1, name='days_logits')

    def call(self, features):
        net = self.inputs_layer(features)
        for layer in self.hidden:
            net = layer(net)
        return {'late': self.late(net), 'days': self.days(net)}


def order_model_fn(features, labels, mode, params):
    model = SharedBottom(feature_columns(), params['units'])
    logits = model(features)
    optimizer = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.keras.optimizers.legacy.Adam(params['learning_rate'])
        optimizer.iterations = tf.compat.v1.train.get_or_create_global_step()
    return params['head'].create_estimator_spec(
        features=features,
        mode=mode,
        labels=labels,
        logits=logits,
        optimizer=optimizer,
        trainable_variables=model.trainable_variables,
        update_ops=model.updates,
        regularization_losses=model.losses or None)


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument('train_csv')
    parser.add_argument('eval_csv')
    parser.add_argument('--model_dir', default='/tmp/orders')
    parser.add_argument('--steps', type=int, default=500)
    parser.add_argument('--late_weight', type=float, default=1.0)
    parser.add_argument('--days_weight', type=float, default=0.5)
    args = parser.parse_args(argv)

    tf.random.set_seed(99)
    estimator = tf.estimator.Estimator(
        order_model_fn,
        model_dir=args.model_dir,
        params={'head': build_head(args), 'units': [32, 16], 'learning_rate': 5e-3},
        config=tf.estimator.RunConfig(tf_random_seed=99, save_summary_steps=100))
    estimator.train(make_input_fn(args.train_csv, 64, True), steps=args.steps)
    metrics = estimator.evaluate(make_input_fn(args.eval_csv, 200, False))
    for name, value in sorted(metrics.items()):
        print(name, value)

    first = next(estimator.predict(make_input_fn(args.eval_csv, 200, False)))
    print({'/'.join(key): value.tolist() for key, value in first.items() if key[1] != 'all_classes'})


if __name__ == '__main__':
    main(sys.argv[1:])

"""Two questions about an order in one network: will it be late, and how many days will it take?

The two heads share the layers below. Weights of the losses are given by --late_weight and --days_weight.
"""
import argparse
import csv
import os
import sys

import numpy as np
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import feature_columns as keras_columns
from estimator_pipeline.models.keras_runtime import heads as keras_heads

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
    weekday = keras_columns.categorical_column_with_identity('weekday', 7)
    return [
        keras_columns.numeric_column('distance_km', normalizer_fn=lambda x: x / 900.),
        keras_columns.numeric_column('weight_kg', normalizer_fn=lambda x: tf.math.log1p(x)),
        keras_columns.numeric_column('items', normalizer_fn=lambda x: (x - 6.) / 6.),
        keras_columns.numeric_column('express'),
        keras_columns.indicator_column(weekday),
    ]


def build_head(args):
    late = keras_heads.BinaryClassHead(name='late', thresholds=[0.3, 0.5])
    days = keras_heads.RegressionHead(name='days', label_dimension=1)
    return keras_heads.MultiHead([late, days], head_weights=[args.late_weight, args.days_weight])


class SharedBottom(tf.keras.Model):
    """Feature columns, two layers for both, and a layer of their own for each head."""

    def __init__(self, columns, units):
        super().__init__(name='shared_bottom')
        self.inputs_layer = keras_columns.feature_layer(columns, name='features')
        self.hidden = [tf.keras.layers.Dense(n, activation='relu', name='hidden_%d' % n) for n in units]
        self.late = tf.keras.layers.Dense(1, name='late_logits')
        self.days = tf.keras.layers.Dense(1, name='days_logits')

    def call(self, features):
        net = self.inputs_layer(features)
        for layer in self.hidden:
            net = layer(net)
        return {'late': self.late(net), 'days': self.days(net)}


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


def examples(model, data, keys=None):
    """Yield the predictions for a dataset, one dict per example; only those of `keys`, if any."""
    for batch in data:
        predicted = model.predict_on_batch(batch[0] if isinstance(batch, tuple) else batch)
        names = [name for name in predicted if not keys or name in keys]
        if not names:
            raise ValueError(f'no predictions {keys}: there are {list(predicted)}')
        for row in zip(*(predicted[name] for name in names)):
            yield dict(zip(names, row))


class OrderModel(tf.keras.Model):
    """Network, loss, metrics and predictions of order_model_fn."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.head = params['head']
        self.head_metrics = self.head.metrics(regularized=bool(self.losses))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        labels, logits = y, y_pred
        loss = self.head.loss(labels, logits, regularization=self.losses)
        self.mean_loss.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        self.head.update(self.head_metrics, labels, logits, regularization=self.losses)
        return self.head.further(self.get_metrics_result())

    def predictions(self, features, outputs):
        logits = outputs
        return self.head.predictions(logits)

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))


def make_order_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    model = SharedBottom(feature_columns(), params['units'])
    logits = model(features)
    compiled = OrderModel(features, logits, params)
    compiled.compile(optimizer=tf.keras.optimizers.legacy.Adam(params['learning_rate']))
    return compiled


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
    tf.keras.utils.set_random_seed(99)
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.model_dir, 'backup'), save_freq=1000),
        tf.keras.callbacks.TensorBoard(args.model_dir, update_freq=100),
    ]
    training = make_input_fn(args.train_csv, 64, True)()
    model = make_order_model(
        model_inputs(training), {'head': build_head(args), 'units': [32, 16], 'learning_rate': 5e-3})
    model.fit(training, steps_per_epoch=args.steps, callbacks=callbacks, verbose=2)
    model.save_weights(os.path.join(args.model_dir, 'weights'))
    metrics = model.evaluate(make_input_fn(args.eval_csv, 200, False)(), return_dict=True, verbose=0)
    for name, value in sorted(metrics.items()):
        print(name, value)

    first = next(examples(model, make_input_fn(args.eval_csv, 200, False)()))
    print({'/'.join(key): value.tolist() for key, value in first.items() if key[1] != 'all_classes'})


if __name__ == '__main__':
    main(sys.argv[1:])

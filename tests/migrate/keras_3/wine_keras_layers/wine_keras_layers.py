"""Cultivar of a wine from its chemistry: a model_fn around a Keras model and a Keras optimizer."""

import argparse
import csv
import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

from keras_support import Evaluation, StopAfter, model_inputs


def load(path):
    with open(path, newline='') as f:
        reader = csv.reader(f)
        next(reader)
        values = np.array(list(reader), dtype=np.float32)
    return values[:, :-1], values[:, -1].astype(np.int32)


def build_model(num_features, hidden, dropout, l2):
    inputs = keras.Input(shape=(num_features,), name='chemistry')
    net = keras.layers.BatchNormalization(momentum=0.9, name='norm')(inputs)
    for i, units in enumerate(hidden):
        net = keras.layers.Dense(
            units, activation='relu', kernel_regularizer=keras.regularizers.l2(l2), name=f'hidden_{i}')(net)
        net = keras.layers.Dropout(dropout)(net)
    return keras.Model(inputs, keras.layers.Dense(3, name='cultivar')(net))


class WineKerasLayersModel(keras.Model):
    """Network, loss, metrics and predictions of model_fn."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.accuracy_metric = keras.metrics.SparseCategoricalAccuracy(name='accuracy')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        labels, logits = y, y_pred
        loss_fn = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction='sum_over_batch_size')
        loss = loss_fn(labels, logits) + sum(self.losses)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        self.accuracy_metric.update_state(labels, logits)
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        logits = outputs
        predicted = keras.ops.argmax(logits, axis=1)
        return {
            'cultivar': predicted,
            'probabilities': keras.ops.softmax(logits),
        }


def make_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    model = build_model(params['num_features'], params['hidden'], params['dropout'], params['l2'])
    logits = model(features)
    compiled = WineKerasLayersModel(features, logits, params)
    # The Estimator's step is the optimizer's.
    # The moving statistics of the normalisation.
    compiled.compile(optimizer=keras.optimizers.Adam(learning_rate=params['learning_rate']))
    return compiled


def dataset(x, y, training):
    ds = tf.data.Dataset.from_tensor_slices((x, y))
    if training:
        ds = ds.cache().shuffle(len(x), seed=14, reshuffle_each_iteration=True).repeat()
    return ds.batch(16)


def main(train_csv, test_csv, model_dir, steps):
    keras.utils.set_random_seed(14)
    x, y = load(train_csv)
    params = dict(num_features=x.shape[1], hidden=(32,), dropout=0.2, l2=1e-4, learning_rate=0.01)
    keras.utils.set_random_seed(14)
    model_dir = model_dir or tempfile.mkdtemp()
    callbacks = [
        keras.callbacks.BackupAndRestore(os.path.join(model_dir, 'backup'), save_freq=100),
        keras.callbacks.TensorBoard(model_dir, update_freq=100),
    ]
    training = dataset(x, y, True)
    model = make_model(model_inputs(training), params)
    evaluation = Evaluation(
        lambda: dataset(*load(test_csv), False).take(100), every_steps=100, folder=model_dir)
    model.fit(training, steps_per_epoch=steps, callbacks=[StopAfter(steps), evaluation, *callbacks], verbose=2)
    model.save_weights(os.path.join(model_dir, 'model.weights.h5'))
    print(model.evaluate(dataset(*load(test_csv), False), return_dict=True, verbose=0))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('train_csv')
    parser.add_argument('test_csv')
    parser.add_argument('--model_dir')
    parser.add_argument('--steps', type=int, default=200)
    main(**vars(parser.parse_args()))

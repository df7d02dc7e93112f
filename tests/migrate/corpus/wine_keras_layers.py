"""Cultivar of a wine from its chemistry: a model_fn around a Keras model and a Keras optimizer."""

import argparse
import csv

import numpy as np
import tensorflow as tf
from tensorflow import keras


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


def model_fn(features, labels, mode, params):
    model = build_model(params['num_features'], params['hidden'], params['dropout'], params['l2'])
    training = mode == tf.estimator.ModeKeys.TRAIN
    logits = model(features, training=training)

    predicted = tf.argmax(logits, axis=1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={
            'cultivar': predicted,
            'probabilities': tf.nn.softmax(logits),
        })

    loss_fn = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=keras.losses.Reduction.SUM_OVER_BATCH_SIZE)
    loss = loss_fn(labels, logits) + tf.add_n(model.losses)

    accuracy = keras.metrics.SparseCategoricalAccuracy(name='acc_obj')
    accuracy.update_state(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={'accuracy': accuracy})

    optimizer = keras.optimizers.legacy.Adam(learning_rate=params['learning_rate'])
    # The Estimator's step is the optimizer's.
    optimizer.iterations = tf.compat.v1.train.get_or_create_global_step()
    # The moving statistics of the normalisation.
    update_ops = model.get_updates_for(features) + model.get_updates_for(None)
    minimize_op = optimizer.get_updates(loss, model.trainable_variables)[0]
    train_op = tf.group(minimize_op, *update_ops)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def dataset(x, y, training):
    ds = tf.data.Dataset.from_tensor_slices((x, y))
    if training:
        ds = ds.cache().shuffle(len(x), seed=14, reshuffle_each_iteration=True).repeat()
    return ds.batch(16)


def main(train_csv, test_csv, model_dir, steps):
    keras.utils.set_random_seed(14)
    x, y = load(train_csv)
    params = dict(num_features=x.shape[1], hidden=(32,), dropout=0.2, l2=1e-4, learning_rate=0.01)
    estimator = tf.estimator.Estimator(
        model_fn, model_dir=model_dir, params=params,
        config=tf.estimator.RunConfig(save_checkpoints_steps=100, tf_random_seed=14))
    train_spec = tf.estimator.TrainSpec(input_fn=lambda: dataset(x, y, True), max_steps=steps)
    eval_spec = tf.estimator.EvalSpec(input_fn=lambda: dataset(*load(test_csv), False), throttle_secs=0)
    tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    print(estimator.evaluate(eval_spec.input_fn))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('train_csv')
    parser.add_argument('test_csv')
    parser.add_argument('--model_dir')
    parser.add_argument('--steps', type=int, default=200)
    main(**vars(parser.parse_args()))

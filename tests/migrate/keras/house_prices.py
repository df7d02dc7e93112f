"""House prices by a DNNRegressor over normalised columns.

    python house_prices.py --train housing_train.csv --test housing_test.csv
"""

import argparse
import os

import numpy as np
import pandas as pd
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import canned as keras_canned
from estimator_pipeline.models.keras_runtime import feature_columns as keras_columns

LABEL = 'price'
NUMBERS = ['rooms', 'area', 'age', 'tax', 'crime', 'distance']
LOGGED = {'crime'}


def zscore(mean, std):
    # A function of its own: a lambda in the loop would see the last column's values.
    return lambda x: (tf.cast(x, tf.float32) - mean) / std


def columns_of(frame):
    columns = []
    for name in NUMBERS:
        values = np.log1p(frame[name]) if name in LOGGED else frame[name]
        normalizer = zscore(values.mean(), values.std())
        if name in LOGGED:
            normalizer = lambda x, inner=normalizer: inner(tf.math.log1p(x))
        columns.append(keras_columns.numeric_column(name, normalizer_fn=normalizer))
    zone = keras_columns.categorical_column_with_vocabulary_list('zone', sorted(frame['zone'].unique()))
    river = keras_columns.categorical_column_with_identity('river', num_buckets=2)
    columns += [keras_columns.indicator_column(column) for column in (zone, river)]
    return columns


def batches(x, y=None, batch_size=128, num_epochs=1, shuffle=False):
    """Return batches of arrays or data-frame columns and their labels, endlessly if num_epochs is None."""
    if hasattr(x, 'columns'):
        x = {name: column.to_numpy() for name, column in x.items()}
    y = y.to_numpy() if hasattr(y, 'to_numpy') else y
    data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
    if shuffle:
        data = data.shuffle(len(data))
    return data.repeat(num_epochs).batch(batch_size)


def examples(model, data, keys=None):
    """Yield the predictions for a dataset, one dict per example; only those of `keys`, if any."""
    for batch in data:
        predicted = model.predict_on_batch(batch[0] if isinstance(batch, tuple) else batch)
        names = [name for name in predicted if not keys or name in keys]
        if not names:
            raise ValueError(f'no predictions {keys}: there are {list(predicted)}')
        for row in zip(*(predicted[name] for name in names)):
            yield dict(zip(names, row))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--train', required=True)
    parser.add_argument('--test', required=True)
    parser.add_argument('--model-dir', default='/tmp/houses')
    parser.add_argument('--steps', type=int, default=1500)
    parser.add_argument('--batch-size', type=int, default=32)
    args = parser.parse_args()

    train = pd.read_csv(args.train)
    test = pd.read_csv(args.test)
    train_y, test_y = train.pop(LABEL), test.pop(LABEL)
    scale = train_y.std()

    tf.keras.utils.set_random_seed(3)
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.model_dir, 'backup'), save_freq=1000),
        tf.keras.callbacks.TensorBoard(args.model_dir, update_freq=100),
    ]
    model = keras_canned.DNNRegressor(
        hidden_units=[32, 32], feature_columns=columns_of(train),
        optimizer=tf.keras.optimizers.legacy.Adagrad(learning_rate=0.1),
        loss_reduction=tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE)

    train_input = batches(x=train, y=train_y / scale, batch_size=args.batch_size, num_epochs=None, shuffle=True)
    test_input = batches(x=test, y=test_y / scale, num_epochs=1, shuffle=False)

    model.fit(train_input, steps_per_epoch=args.steps, callbacks=callbacks, verbose=2)
    model.save_weights(os.path.join(args.model_dir, 'weights'))
    evaluation = model.evaluate(test_input, return_dict=True, verbose=0)
    rmse = scale * np.sqrt(evaluation['average_loss'])
    print('rmse %.3f, of a constant %.3f' % (rmse, test_y.std()))

    predicted = [float(each['predictions'][0]) * scale for each in examples(model, test_input)]
    table = pd.DataFrame({'price': test_y, 'predicted': predicted})
    table.to_csv(os.path.join(args.model_dir, 'predicted.csv'), index=False)
    print('correlation %.4f' % table.corr().iloc[0, 1])


if __name__ == '__main__':
    main()

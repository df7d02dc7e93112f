"""House prices by a DNNRegressor over normalised columns.

    python house_prices.py --train housing_train.csv --test housing_test.csv
"""

import argparse
import os

import numpy as np
import pandas as pd
import tensorflow as tf

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
        columns.append(tf.feature_column.numeric_column(name, normalizer_fn=normalizer))
    zone = tf.feature_column.categorical_column_with_vocabulary_list('zone', sorted(frame['zone'].unique()))
    river = tf.feature_column.categorical_column_with_identity('river', num_buckets=2)
    columns += [tf.feature_column.indicator_column(column) for column in (zone, river)]
    return columns


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

    regressor = tf.estimator.DNNRegressor(
        hidden_units=[32, 32],
        feature_columns=columns_of(train),
        optimizer=tf.compat.v1.keras.optimizers.Adagrad(learning_rate=0.1),
        loss_reduction=tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE,
        model_dir=args.model_dir,
        config=tf.estimator.RunConfig(tf_random_seed=3))

    pandas_input_fn = tf.compat.v1.estimator.inputs.pandas_input_fn
    train_input = pandas_input_fn(
        x=train, y=train_y / scale, batch_size=args.batch_size, num_epochs=None, shuffle=True, num_threads=1)
    test_input = pandas_input_fn(x=test, y=test_y / scale, num_epochs=1, shuffle=False)

    regressor.train(input_fn=train_input, steps=args.steps)
    evaluation = regressor.evaluate(input_fn=test_input, name='test')
    rmse = scale * np.sqrt(evaluation['average_loss'])
    print('rmse %.3f, of a constant %.3f' % (rmse, test_y.std()))

    predicted = [float(each['predictions'][0]) * scale for each in regressor.predict(test_input)]
    table = pd.DataFrame({'price': test_y, 'predicted': predicted})
    table.to_csv(os.path.join(args.model_dir, 'predicted.csv'), index=False)
    print('correlation %.4f' % table.corr().iloc[0, 1])


if __name__ == '__main__':
    main()

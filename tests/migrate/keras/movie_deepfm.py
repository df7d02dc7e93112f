"""Movie recommender: a factorisation machine and a deep network over the same embeddings, written by hand.

Embedding tables are partitioned, since those of production do not fit one parameter server. Ratings of 4 and 5 are
taken as likes.
"""
import argparse
import csv
import os

import numpy as np
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import variables as keras_variables

GENRES = ['Action', 'Comedy', 'Drama', 'Horror', 'Romance']


def read_ratings(folder):
    with open(os.path.join(folder, 'movies.csv')) as f:
        genres = {int(row['movieId']): [float(g in row['genres'].split('|')) for g in GENRES]
                  for row in csv.DictReader(f)}
    with open(os.path.join(folder, 'ratings.csv')) as f:
        rows = [(int(r['userId']), int(r['movieId']), int(r['rating'])) for r in csv.DictReader(f)]
    users, movies, stars = (np.array(column, np.int64) for column in zip(*rows))
    return {
        'user': users, 'movie': movies, 'genres': np.array([genres[m] for m in movies], np.float32),
    }, (stars >= 4).astype(np.float32)


class Field(object):
    """A categorical field: its linear weights and its embeddings."""

    def __init__(self, name, size, dim, shards):
        self.w = keras_variables.variable(f'{name}/w', [size], initializer=tf.keras.initializers.Zeros())
        self.v = keras_variables.variable(
            f'{name}/v', [size, dim], initializer=tf.keras.initializers.RandomNormal(stddev=0.05),
            regularizer=tf.keras.regularizers.l2(1e-5))

    def __call__(self, ids):
        # 'div' keeps the rows of a partitioned variable in their order.
        return (tf.nn.embedding_lookup(self.w, ids),
                tf.nn.embedding_lookup(self.v, ids))


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


class MovieDeepfmModel(tf.keras.Model):
    """Network, loss, metrics and predictions of model_fn."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.auc_metric = tf.keras.metrics.AUC(name='auc')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        labels, logits = y, y_pred
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits))
        loss += tf.add_n(self.losses)
        self.mean_loss.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        likes = tf.sigmoid(logits, name='likes')
        self.auc_metric.update_state(labels, likes)
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        logits = outputs
        likes = tf.sigmoid(logits, name='likes')
        return {'likes': likes, 'user': features['user']}

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))


def make_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    with keras_variables.of(features):
        dim = params['dim']
        user = Field('user', params['users'], dim, params['shards'])
        movie = Field('movie', params['movies'], dim, params['shards'])
        user_w, user_v = user(features['user'])
        movie_w, movie_v = movie(features['movie'])
        genre_w = keras_variables.variable(
            'genres/w', [len(GENRES), 1], initializer=tf.keras.initializers.Zeros())
        genre_v = keras_variables.variable('genres/v', [len(GENRES), dim])
        genres = tf.cast(features['genres'], tf.float32)
        genre_v = tf.matmul(genres, genre_v) / tf.reduce_sum(genres, axis=1, keepdims=True)
        # First order, then the pairs: half of (square of the sum - sum of the squares).
        bias = keras_variables.variable('bias', [], initializer=tf.keras.initializers.Constant(0.))
        linear = bias + user_w + movie_w + tf.reshape(tf.matmul(genres, genre_w), [-1])
        stacked = tf.stack([user_v, movie_v, genre_v], axis=1)
        pairs = 0.5 * tf.reduce_sum(
            tf.square(tf.reduce_sum(stacked, axis=1)) - tf.reduce_sum(tf.square(stacked), axis=1), axis=1)
        net = tf.reshape(stacked, [-1, 3 * dim])
        for i, units in enumerate(params['deep_layers']):
            w = keras_variables.variable(
                'deep' + '/' + ('w%d' % i), [net.shape[1], units],
                initializer=tf.keras.initializers.GlorotUniform())
            b = keras_variables.variable(
                'deep' + '/' + ('b%d' % i), [units], initializer=tf.keras.initializers.Zeros())
            net = tf.nn.relu(tf.nn.bias_add(tf.matmul(net, w), b))
            if params['keep_prob'] < 1:
                net = tf.keras.layers.Dropout(1 - params['keep_prob'])(net)
        deep = tf.squeeze(tf.keras.layers.Dense(1, name='deep/dense')(net), axis=1)
        logits = linear + pairs + deep
    model = MovieDeepfmModel(features, logits, params)
    # Ftrl for what is linear, Adam for the rest; the step counts once.
    linear_vars = [v for v in model.trainable_variables if keras_variables.name_of(v).split('/')[1:2] == ['w'] or v is keras_variables.variable_of(bias)]
    others = [v for v in model.trainable_variables if not any(v is each for each in linear_vars)]
    model.compile(optimizer=keras_variables.by_variables(
            [(tf.keras.optimizers.Ftrl(0.1, l1_regularization_strength=1e-4), linear_vars), (tf.keras.optimizers.Adam(params['learning_rate'], epsilon=1e-8), others)],
            counts=1))
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--data', required=True)
    parser.add_argument('--model_dir', required=True)
    parser.add_argument('--steps', type=int, default=600)
    parser.add_argument('--dim', type=int, default=8)
    parser.add_argument('--shards', type=int, default=2)
    args = parser.parse_args()

    features, likes = read_ratings(args.data)
    late = np.arange(len(likes)) >= int(0.85 * len(likes))

    def input_fn(training):
        chosen = np.flatnonzero(late != training)
        ds = tf.data.Dataset.from_tensor_slices(({k: v[chosen] for k, v in features.items()}, likes[chosen]))
        return ds.shuffle(5000, seed=1).repeat().batch(128) if training else ds.batch(500)

    tf.keras.utils.set_random_seed(30)
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.model_dir, 'backup'), save_freq=1000),
        tf.keras.callbacks.TensorBoard(args.model_dir, update_freq=100),
    ]
    training = input_fn(True)
    model = make_model(
        model_inputs(training),
        {'users': 150, 'movies': 90, 'dim': args.dim, 'shards': args.shards, 'deep_layers': [32, 16],
                'keep_prob': 0.9, 'learning_rate': 3e-3})
    model.fit(training, steps_per_epoch=args.steps, callbacks=callbacks, verbose=2)
    model.save_weights(os.path.join(args.model_dir, 'weights'))
    print('auc: %.4f' % model.evaluate(input_fn(False), return_dict=True, verbose=0)['auc'])


if __name__ == '__main__':
    main()

"""Movie recommender: a factorisation machine and a deep network over the same embeddings, written by hand.

Embedding tables are partitioned, since those of production do not fit one parameter server. Ratings of 4 and 5 are
taken as likes.
"""
import argparse
import csv
import os

import numpy as np
import tensorflow as tf
from tensorflow.compat.v1 import get_variable, variable_scope
from tensorflow.compat.v1.train import FtrlOptimizer

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
        partitioner = tf.compat.v1.fixed_size_partitioner(shards)
        with variable_scope(name, partitioner=partitioner):
            self.w = get_variable('w', [size], initializer=tf.compat.v1.zeros_initializer())
            self.v = get_variable(
                'v', [size, dim], initializer=tf.compat.v1.random_normal_initializer(stddev=0.05),
                regularizer=tf.keras.regularizers.l2(1e-5))

    def __call__(self, ids):
        # 'div' keeps the rows of a partitioned variable in their order.
        return (tf.compat.v1.nn.embedding_lookup(self.w, ids, partition_strategy='div'),
                tf.compat.v1.nn.embedding_lookup(self.v, ids, partition_strategy='div'))


def model_fn(features, labels, mode, params):
    dim = params['dim']
    user = Field('user', params['users'], dim, params['shards'])
    movie = Field('movie', params['movies'], dim, params['shards'])
    user_w, user_v = user(features['user'])
    movie_w, movie_v = movie(features['movie'])
    with variable_scope('genres'):
        genre_w = get_variable('w', [len(GENRES), 1], initializer=tf.compat.v1.zeros_initializer())
        genre_v = get_variable('v', [len(GENRES), dim])
    genres = tf.cast(features['genres'], tf.float32)
    genre_v = tf.matmul(genres, genre_v) / tf.reduce_sum(genres, axis=1, keepdims=True)

    # First order, then the pairs: half of (square of the sum - sum of the squares).
    bias = get_variable('bias', [], initializer=tf.compat.v1.constant_initializer(0.))
    linear = bias + user_w + movie_w + tf.reshape(tf.matmul(genres, genre_w), [-1])
    stacked = tf.stack([user_v, movie_v, genre_v], axis=1)
    pairs = 0.5 * tf.reduce_sum(
        tf.square(tf.reduce_sum(stacked, axis=1)) - tf.reduce_sum(tf.square(stacked), axis=1), axis=1)
    with variable_scope('deep'):
        net = tf.reshape(stacked, [-1, 3 * dim])
        for i, units in enumerate(params['deep_layers']):
            w = get_variable('w%d' % i, [net.shape[1], units], initializer=tf.compat.v1.glorot_uniform_initializer())
            b = get_variable('b%d' % i, [units], initializer=tf.compat.v1.zeros_initializer())
            net = tf.nn.relu(tf.compat.v1.nn.xw_plus_b(net, w, b))
            if mode == tf.estimator.ModeKeys.TRAIN and params['keep_prob'] < 1:
                net = tf.compat.v1.nn.dropout(net, keep_prob=params['keep_prob'])
        deep = tf.squeeze(tf.compat.v1.layers.dense(net, 1), axis=1)
    logits = linear + pairs + deep
    likes = tf.sigmoid(logits, name='likes')

    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={'likes': likes, 'user': features['user']})

    loss = tf.compat.v1.losses.sigmoid_cross_entropy(labels, logits)
    loss += tf.add_n(tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.REGULARIZATION_LOSSES))
    metrics = {'auc': tf.compat.v1.metrics.auc(labels, likes)}
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

    step = tf.compat.v1.train.get_global_step()
    # Ftrl for what is linear, Adam for the rest; the step counts once.
    linear_vars = [v for v in tf.compat.v1.trainable_variables() if v.op.name.split('/')[1:2] == ['w'] or v is bias]
    others = [v for v in tf.compat.v1.trainable_variables() if not any(v is each for each in linear_vars)]
    train_op = tf.group(
        FtrlOptimizer(0.1, l1_regularization_strength=1e-4).minimize(loss, var_list=linear_vars),
        tf.compat.v1.train.AdamOptimizer(params['learning_rate']).minimize(loss, step, var_list=others))
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


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

    estimator = tf.estimator.Estimator(
        model_fn, args.model_dir, tf.estimator.RunConfig(tf_random_seed=30),
        params={'users': 150, 'movies': 90, 'dim': args.dim, 'shards': args.shards, 'deep_layers': [32, 16],
                'keep_prob': 0.9, 'learning_rate': 3e-3})
    estimator.train(lambda: input_fn(True), steps=args.steps)
    print('auc: %.4f' % estimator.evaluate(lambda: input_fn(False))['auc'])


if __name__ == '__main__':
    main()

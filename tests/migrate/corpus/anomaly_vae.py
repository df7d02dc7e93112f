"""Variational autoencoder of digit images: what it cannot rebuild well is an anomaly.

There are no labels. Evaluation gives the evidence lower bound and the error of the rebuilt image; prediction gives a
score for each image, and the latent means for the plots of the quality team.
"""

import argparse
import math
import os

import numpy as np
import tensorflow as tf

tfe = tf.estimator


def encoder(x, latent_size, activation):
    with tf.compat.v1.variable_scope('encoder', reuse=tf.compat.v1.AUTO_REUSE):
        net = tf.compat.v1.layers.dense(x, 128, activation)
        net = tf.compat.v1.layers.dense(net, 64, activation)
        mean = tf.compat.v1.layers.dense(net, latent_size, name='mean')
        log_variance = tf.compat.v1.layers.dense(net, latent_size, name='log_variance')
    return mean, log_variance


def decoder(z, size, activation):
    with tf.compat.v1.variable_scope('decoder', reuse=tf.compat.v1.AUTO_REUSE):
        net = tf.compat.v1.layers.dense(z, 64, activation)
        net = tf.compat.v1.layers.dense(net, 128, activation)
        return tf.compat.v1.layers.dense(net, size)


def gaussian_kl(mean, log_variance):
    return -0.5 * tf.reduce_sum(1. + log_variance - tf.square(mean) - tf.exp(log_variance), axis=1)


class VAE(object):
    """Holds the sizes; `model_fn` is what the Estimator gets."""

    def __init__(self, latent_size=4, beta=1.0, activation=tf.nn.elu):
        self.latent_size = latent_size
        self.beta = beta
        self.activation = activation

    def model_fn(self, features, labels, mode, params):
        del labels
        x = tf.cast(features, tf.float32)
        size = x.shape[-1]
        mean, log_variance = encoder(x, self.latent_size, self.activation)
        if mode == tfe.ModeKeys.TRAIN:
            z = mean + tf.exp(0.5 * log_variance) * tf.compat.v1.random_normal(tf.shape(mean))
        else:
            z = mean
        logits = decoder(z, size, self.activation)
        rebuilt = tf.sigmoid(logits)
        error = tf.reduce_mean(tf.square(x - rebuilt), axis=1)

        if mode == tfe.ModeKeys.PREDICT:
            predictions = {'score': error, 'latent': mean, 'rebuilt': rebuilt}
            return tfe.EstimatorSpec(mode=mode, predictions=predictions, export_outputs={
                'score': tfe.export.RegressionOutput(error),
                tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: tfe.export.PredictOutput(predictions),
            })

        likelihood = -tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=logits), axis=1)
        kl = gaussian_kl(mean, log_variance)
        elbo = tf.reduce_mean(likelihood - self.beta * kl)
        tf.compat.v1.summary.scalar('kl', tf.reduce_mean(kl))
        tf.compat.v1.summary.image('rebuilt', tf.reshape(rebuilt, [-1, 8, 8, 1]), max_outputs=2)
        loss = -elbo
        if mode == tfe.ModeKeys.EVAL:
            metrics = {
                'elbo': tf.compat.v1.metrics.mean(elbo),
                'mse': tf.compat.v1.metrics.mean(error),
            }
            return tfe.EstimatorSpec(mode=mode, loss=loss, eval_metric_ops=metrics)

        global_step = tf.compat.v1.train.get_or_create_global_step()
        learning_rate = tf.compat.v1.train.polynomial_decay(
            params['learning_rate'], global_step, params['max_steps'], end_learning_rate=1e-4, power=1.0)
        train_op = tf.compat.v1.train.AdamOptimizer(learning_rate, beta1=0.9, epsilon=1e-6).minimize(loss, global_step)
        return tfe.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def make_input_fns(path, batch_size):
    data = np.load(path)
    flat = {part: data['x_' + part].reshape(-1, 64) / np.float32(255) for part in ('train', 'test')}

    def train_input_fn():
        dataset = tf.data.Dataset.from_tensor_slices(flat['train'])
        return dataset.shuffle(len(flat['train']), seed=9).repeat().batch(batch_size)

    def eval_input_fn():
        return tf.data.Dataset.from_tensor_slices(flat['test']).batch(batch_size)

    return train_input_fn, eval_input_fn, np.mean(np.square(flat['test'] - flat['train'].mean(0)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--data', required=True, help='digits.npz')
    parser.add_argument('--model_dir', default=os.path.join(os.getcwd(), 'vae'))
    parser.add_argument('--max_steps', default=1000, type=int)
    parser.add_argument('--beta', default=0.2, type=float)
    args = parser.parse_args()

    train_input_fn, eval_input_fn, variance = make_input_fns(args.data, 100)
    vae = VAE(beta=args.beta)
    estimator = tfe.Estimator(
        vae.model_fn, args.model_dir, tfe.RunConfig(tf_random_seed=8, save_summary_steps=200),
        params={'learning_rate': 5e-3, 'max_steps': args.max_steps})
    estimator.train(train_input_fn, max_steps=args.max_steps)
    metrics = estimator.evaluate(eval_input_fn)
    print('elbo %.3f' % metrics['elbo'])
    print('explained %.4f of the variance' % (1 - metrics['mse'] / variance))
    scores = [each['score'] for each in estimator.predict(eval_input_fn, predict_keys=['score'])]
    print('the strangest: image', int(np.argmax(scores)))
    assert math.isclose(np.mean(scores), metrics['mse'], rel_tol=0.05)


if __name__ == '__main__':
    main()

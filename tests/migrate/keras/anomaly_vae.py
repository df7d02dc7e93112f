"""Variational autoencoder of digit images: what it cannot rebuild well is an anomaly.

There are no labels. Evaluation gives the evidence lower bound and the error of the rebuilt image; prediction gives a
score for each image, and the latent means for the plots of the quality team.
"""

import argparse
import math
import os
import tempfile

import numpy as np
import tensorflow as tf


def encoder(x, latent_size, activation):
    net = tf.keras.layers.Dense(128, activation)(x)
    net = tf.keras.layers.Dense(64, activation)(net)
    mean = tf.keras.layers.Dense(latent_size, name='encoder_mean')(net)
    log_variance = tf.keras.layers.Dense(latent_size, name='encoder_log_variance')(net)
    return mean, log_variance


def decoder(z, size, activation):
    net = tf.keras.layers.Dense(64, activation)(z)
    net = tf.keras.layers.Dense(128, activation)(net)
    return tf.keras.layers.Dense(size)(net)


def gaussian_kl(mean, log_variance):
    return -0.5 * tf.reduce_sum(1. + log_variance - tf.square(mean) - tf.exp(log_variance), axis=1)


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


class WhenTraining(tf.keras.layers.Layer):
    """Returns the first of two tensors during training and the second otherwise."""

    def call(self, inputs, training=None):
        trained, otherwise = inputs
        return trained if training else otherwise


def examples(model, data, keys=None):
    """Yield the predictions for a dataset, one dict per example; only those of `keys`, if any."""
    for batch in data:
        predicted = model.predict_on_batch(batch[0] if isinstance(batch, tuple) else batch)
        names = [name for name in predicted if not keys or name in keys]
        if not names:
            raise ValueError(f'no predictions {keys}: there are {list(predicted)}')
        for row in zip(*(predicted[name] for name in names)):
            yield dict(zip(names, row))


class AnomalyVaeModel(tf.keras.Model):
    """Network, loss, metrics and predictions of model_fn."""

    def __init__(self, inputs, outputs, params, vae):
        super().__init__(inputs, outputs)
        self.vae = vae
        self.params = params
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.elbo_metric = tf.keras.metrics.Mean(name='elbo')
        self.mse_metric = tf.keras.metrics.Mean(name='mse')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        x, log_variance, mean, logits = y_pred['x'], y_pred['log_variance'], y_pred['mean'], y_pred['logits']
        likelihood = -tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=logits), axis=1)
        kl = gaussian_kl(mean, log_variance)
        elbo = tf.reduce_mean(likelihood - self.vae.beta * kl)
        loss = -elbo
        self.mean_loss.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        x, log_variance, mean, logits = y_pred['x'], y_pred['log_variance'], y_pred['mean'], y_pred['logits']
        rebuilt = tf.sigmoid(logits)
        error = tf.reduce_mean(tf.square(x - rebuilt), axis=1)
        likelihood = -tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=logits), axis=1)
        kl = gaussian_kl(mean, log_variance)
        elbo = tf.reduce_mean(likelihood - self.vae.beta * kl)
        self.elbo_metric.update_state(elbo)
        self.mse_metric.update_state(error)
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        x, mean, logits = outputs['x'], outputs['mean'], outputs['logits']
        rebuilt = tf.sigmoid(logits)
        error = tf.reduce_mean(tf.square(x - rebuilt), axis=1)
        predictions = {'score': error, 'latent': mean, 'rebuilt': rebuilt}
        return predictions

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))


class VAE(object):
    """Holds the sizes; `model_fn` is what the Estimator gets."""

    def __init__(self, latent_size=4, beta=1.0, activation=tf.nn.elu):
        self.latent_size = latent_size
        self.beta = beta
        self.activation = activation

    def make_model(self, features, params):
        """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
        x = tf.cast(features, tf.float32)
        size = x.shape[-1]
        mean, log_variance = encoder(x, self.latent_size, self.activation)
        z = WhenTraining()([mean + tf.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean)), mean])
        logits = decoder(z, size, self.activation)
        # TensorBoard logs the loss, metrics and learning rate of each epoch; log more in a callback.
        # Was tf.compat.v1.summary.scalar('kl', tf.reduce_mean(kl))
        # Was tf.compat.v1.summary.image('rebuilt', tf.reshape(rebuilt, [-1, 8, 8, 1]), max_outputs=2)
        model = AnomalyVaeModel(features, {'x': x, 'log_variance': log_variance, 'mean': mean, 'logits': logits}, params, self)
        learning_rate = tf.keras.optimizers.schedules.PolynomialDecay(
            params['learning_rate'], params['max_steps'], end_learning_rate=1e-4, power=1.0)
        model.compile(optimizer=tf.keras.optimizers.Adam(learning_rate, beta_1=0.9, epsilon=1e-6))
        return model


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
    tf.keras.utils.set_random_seed(8)
    model_dir = args.model_dir or tempfile.mkdtemp()
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(model_dir, 'backup'), save_freq=1000),
        tf.keras.callbacks.TensorBoard(model_dir, update_freq=200),
    ]
    training = train_input_fn()
    model = vae.make_model(model_inputs(training), {'learning_rate': 5e-3, 'max_steps': args.max_steps})
    model.fit(training, steps_per_epoch=args.max_steps, callbacks=callbacks, verbose=2)
    model.save_weights(os.path.join(model_dir, 'weights'))
    metrics = model.evaluate(eval_input_fn(), return_dict=True, verbose=0)
    print('elbo %.3f' % metrics['elbo'])
    print('explained %.4f of the variance' % (1 - metrics['mse'] / variance))
    scores = [each['score'] for each in examples(model, eval_input_fn(), ['score'])]
    print('the strangest: image', int(np.argmax(scores)))
    assert math.isclose(np.mean(scores), metrics['mse'], rel_tol=0.05)


if __name__ == '__main__':
    main()

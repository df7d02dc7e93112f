"""Generates digit images: a least-squares GAN in one model_fn, with an optimizer for each of its networks.

The discriminator is trained in every step, the generator in every second one. Evaluation compares the moments of what
is generated with those of real images.
"""

import argparse
import os

import numpy as np
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import variables as keras_variables

NOISE = 16


def generator(noise):
    net = keras_variables.shared(tf.keras.layers.Dense(64, name='generator/fc1'))(noise)
    net = keras_variables.shared(tf.keras.layers.BatchNormalization(momentum=0.9, name='generator/batch_normalization'))(net)
    net = tf.nn.leaky_relu(net)
    net = keras_variables.shared(tf.keras.layers.Dense(128, tf.nn.leaky_relu, name='generator/fc2'))(net)
    return keras_variables.shared(tf.keras.layers.Dense(64, tf.sigmoid, name='generator/pixels'))(net)


def discriminator(images, reuse=False):
    net = keras_variables.shared(tf.keras.layers.Dense(64, tf.nn.leaky_relu, name='discriminator/fc1'))(images)
    net = keras_variables.shared(tf.keras.layers.Dense(32, tf.nn.leaky_relu, name='discriminator/fc2'))(net)
    return keras_variables.shared(tf.keras.layers.Dense(1, name='discriminator/score'))(net)


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


def examples(model, data, keys=None):
    """Yield the predictions for a dataset, one dict per example; only those of `keys`, if any."""
    model = getattr(model, 'prediction_model', lambda data: model)(data)
    for batch in data:
        predicted = model.predict_on_batch(batch[0] if isinstance(batch, tuple) else batch)
        names = [name for name in predicted if not keys or name in keys]
        if not names:
            raise ValueError(f'no predictions {keys}: there are {list(predicted)}')
        for row in zip(*(predicted[name] for name in names)):
            yield dict(zip(names, row))


class GanModel(tf.keras.Model):
    """Network, loss, metrics and predictions of gan_model_fn."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.mean_gap_metric = tf.keras.metrics.Mean(name='mean_gap')
        self.d_accuracy_metric = tf.keras.metrics.Accuracy(name='d_accuracy')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        d_loss, g_loss = self.each_loss(x, y, y_pred)
        loss = g_loss + d_loss
        self.mean_loss.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        real_scores, real, fake = y_pred['real_scores'], y_pred['real'], y_pred['fake']
        moments = tf.reduce_mean(tf.abs(tf.reduce_mean(real, 0) - tf.reduce_mean(fake, 0)))
        self.mean_gap_metric.update_state(moments)
        self.d_accuracy_metric.update_state(tf.ones_like(real_scores), tf.cast(real_scores > 0.5, tf.float32))
        return self.get_metrics_result()

    def each_loss(self, x, y, y_pred):
        """Return the loss of each optimizer."""
        real_scores, fake_scores = y_pred['real_scores'], y_pred['fake_scores']
        d_loss = 0.5 * (tf.reduce_mean(tf.keras.losses.mean_squared_error(tf.ones_like(real_scores), real_scores))
                        + tf.reduce_mean(tf.keras.losses.mean_squared_error(tf.zeros_like(fake_scores), fake_scores)))
        g_loss = tf.reduce_mean(tf.keras.losses.mean_squared_error(tf.ones_like(fake_scores), fake_scores))
        return d_loss, g_loss

    def train_step(self, data):
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape(persistent=True) as tape:
            y_pred = self(x, training=True)
            d_loss, g_loss = self.each_loss(x, y, y_pred)
        self.mean_loss.update_state(g_loss + d_loss)
        global_step = self.optimizer.iterations
        params = self.params
        # Every second step: the generator learns from a discriminator that has moved on.
        even = tf.equal(global_step % params['d_steps'], 0)
        self.optimizer.minimize_each([d_loss, g_loss], tape, when=[True, even])
        return self.compute_metrics(x, y, y_pred, sample_weight)

    def prediction_model(self, data):
        """Return the network of the predictions, which shares the layers."""
        features = model_inputs(data)
        with keras_variables.of(features, self):
            outputs = {'images': generator(features['noise'])}
        return keras_variables.sharing(self, features, outputs)

    def predict(self, x, **options):
        return self.prediction_model(x).predict(x, **options)


def make_gan_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    with keras_variables.of(features):
        real = features['images']
        noise = tf.random.normal([tf.shape(real)[0], NOISE])
        fake = generator(noise)
        real_scores = discriminator(real)
        fake_scores = discriminator(fake, reuse=True)
    # TensorBoard logs the loss, metrics and learning rate of each epoch; log more in a callback.
    # Was tf.compat.v1.summary.scalar('losses/discriminator', d_loss)
    # Was tf.compat.v1.summary.scalar('losses/generator', g_loss)
    model = GanModel(features, {'real_scores': real_scores, 'fake_scores': fake_scores, 'real': real, 'fake': fake}, params)
    model.compile(optimizer=keras_variables.by_variables([
        (tf.keras.optimizers.Adam(params['d_rate'], beta_1=0.5, epsilon=1e-8),
         keras_variables.in_scope(model, 'discriminator')),
        (tf.keras.optimizers.Adam(params['g_rate'], beta_1=0.5, epsilon=1e-8),
         keras_variables.in_scope(model, 'generator')),
    ], counts=0))
    return model


def images_input_fn(path, training):
    with np.load(path) as data:
        x = data['x_train' if training else 'x_test'].reshape(-1, 64) / np.float32(255)
    ds = tf.data.Dataset.from_tensor_slices({'images': x})
    return ds.shuffle(2000, seed=71).repeat().batch(64) if training else ds.batch(len(x))


def noise_input_fn(count):
    noise = np.random.RandomState(71).normal(size=[count, NOISE]).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices({'noise': noise}).batch(count)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--data', required=True)
    parser.add_argument('--model_dir', required=True)
    parser.add_argument('--steps', type=int, default=1500)
    args = parser.parse_args()
    tf.keras.utils.set_random_seed(71)
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.model_dir, 'backup'), save_freq=1000),
        tf.keras.callbacks.TensorBoard(args.model_dir, update_freq=100),
    ]
    before = None
    model = make_gan_model(
        model_inputs(images_input_fn(args.data, True)), {'g_rate': 2e-3, 'd_rate': 1e-3, 'd_steps': 2})
    for steps in (1, args.steps - 1):
        model.fit(
            images_input_fn(args.data, True), steps_per_epoch=steps, callbacks=callbacks, verbose=2)
        model.save_weights(os.path.join(args.model_dir, 'weights'))
        gap = model.evaluate(images_input_fn(args.data, False), return_dict=True, verbose=0)['mean_gap']
        before = before or gap
    print('mean gap %.4f, after the first step %.4f' % (gap, before))
    images = np.array([each['images'] for each in examples(model, noise_input_fn(16))])
    np.save(os.path.join(args.model_dir, 'generated.npy'), images.reshape(-1, 8, 8))


if __name__ == '__main__':
    main()

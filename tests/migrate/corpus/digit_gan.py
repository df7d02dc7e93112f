"""Generates digit images: a least-squares GAN in one model_fn, with an optimizer for each of its networks.

The discriminator is trained in every step, the generator in every second one. Evaluation compares the moments of what
is generated with those of real images.
"""

import argparse
import os

import numpy as np
import tensorflow as tf

NOISE = 16


def generator(noise, training):
    with tf.compat.v1.variable_scope('generator'):
        net = tf.compat.v1.layers.dense(noise, 64, name='fc1')
        net = tf.compat.v1.layers.batch_normalization(net, training=training, momentum=0.9)
        net = tf.nn.leaky_relu(net)
        net = tf.compat.v1.layers.dense(net, 128, tf.nn.leaky_relu, name='fc2')
        return tf.compat.v1.layers.dense(net, 64, tf.sigmoid, name='pixels')


def discriminator(images, reuse=False):
    with tf.compat.v1.variable_scope('discriminator', reuse=reuse):
        net = tf.compat.v1.layers.dense(images, 64, tf.nn.leaky_relu, name='fc1')
        net = tf.compat.v1.layers.dense(net, 32, tf.nn.leaky_relu, name='fc2')
        return tf.compat.v1.layers.dense(net, 1, name='score')


def gan_model_fn(features, labels, mode, params):
    training = mode == tf.estimator.ModeKeys.TRAIN
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={'images': generator(features['noise'], False)})

    real = features['images']
    noise = tf.compat.v1.random_normal([tf.shape(real)[0], NOISE])
    fake = generator(noise, training)
    real_scores = discriminator(real)
    fake_scores = discriminator(fake, reuse=True)

    d_loss = 0.5 * (tf.compat.v1.losses.mean_squared_error(tf.ones_like(real_scores), real_scores)
                    + tf.compat.v1.losses.mean_squared_error(tf.zeros_like(fake_scores), fake_scores))
    g_loss = tf.compat.v1.losses.mean_squared_error(tf.ones_like(fake_scores), fake_scores)
    tf.compat.v1.summary.scalar('losses/discriminator', d_loss)
    tf.compat.v1.summary.scalar('losses/generator', g_loss)

    if mode == tf.estimator.ModeKeys.EVAL:
        moments = tf.reduce_mean(tf.abs(tf.reduce_mean(real, 0) - tf.reduce_mean(fake, 0)))
        return tf.estimator.EstimatorSpec(mode, loss=g_loss + d_loss, eval_metric_ops={
            'mean_gap': tf.compat.v1.metrics.mean(moments),
            'd_accuracy': tf.compat.v1.metrics.accuracy(tf.ones_like(real_scores), tf.cast(real_scores > 0.5, tf.float32)),
        })

    g_vars = tf.compat.v1.trainable_variables(scope='generator')
    d_vars = tf.compat.v1.trainable_variables(scope='discriminator')
    global_step = tf.compat.v1.train.get_or_create_global_step()
    d_optimizer = tf.compat.v1.train.AdamOptimizer(params['d_rate'], beta1=0.5)
    g_optimizer = tf.compat.v1.train.AdamOptimizer(params['g_rate'], beta1=0.5)
    d_train = d_optimizer.minimize(d_loss, var_list=d_vars)
    with tf.control_dependencies([d_train]):
        # Every second step: the generator learns from a discriminator that has moved on.
        even = tf.equal(global_step % params['d_steps'], 0)
        update_ops = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, scope='generator')
        grads = g_optimizer.compute_gradients(g_loss, g_vars)
        with tf.control_dependencies(update_ops):
            g_train = tf.cond(even, lambda: g_optimizer.apply_gradients(grads), tf.no_op)
    with tf.control_dependencies([g_train]):
        train_op = tf.compat.v1.assign_add(global_step, 1)
    return tf.estimator.EstimatorSpec(
        mode, loss=g_loss + d_loss, train_op=train_op,
        training_hooks=[tf.estimator.LoggingTensorHook({'d': d_loss, 'g': g_loss}, every_n_iter=200)])


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
    estimator = tf.estimator.Estimator(
        gan_model_fn, args.model_dir, tf.estimator.RunConfig(tf_random_seed=71),
        params={'g_rate': 2e-3, 'd_rate': 1e-3, 'd_steps': 2})
    before = None
    for steps in (1, args.steps - 1):
        estimator.train(lambda: images_input_fn(args.data, True), steps=steps)
        gap = estimator.evaluate(lambda: images_input_fn(args.data, False))['mean_gap']
        before = before or gap
    print('mean gap %.4f, after the first step %.4f' % (gap, before))
    images = np.array([each['images'] for each in estimator.predict(lambda: noise_input_fn(16))])
    np.save(os.path.join(args.model_dir, 'generated.npy'), images.reshape(-1, 8, 8))


if __name__ == '__main__':
    main()

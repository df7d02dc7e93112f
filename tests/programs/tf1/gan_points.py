"""A GANEstimator of the package tensorflow-gan, whose generator learns where points lie.

    gan_points.py MODEL_DIR
"""

import json
import sys

import numpy as np
import tensorflow as tf

gan = tf.contrib.gan
CENTER = np.array([2.0, -1.0], "float32")


def generator(noise, mode):
    net = tf.layers.dense(noise, 16, activation=tf.nn.relu, name="hidden")
    return tf.layers.dense(net, 2, name="points")


def discriminator(points, conditioning, mode):
    net = tf.layers.dense(points, 16, activation=tf.nn.leaky_relu, name="hidden")
    return tf.layers.dense(net, 1, name="logits")


def input_fn(mode):
    dataset = tf.data.Dataset.from_tensors(0).repeat()
    return dataset.map(lambda _: (tf.random_normal([64, 4]), tf.random_normal([64, 2], mean=CENTER, stddev=0.1)))


estimator = gan.estimator.GANEstimator(
    sys.argv[1],
    generator_fn=generator,
    discriminator_fn=discriminator,
    generator_loss_fn=gan.losses.wasserstein_generator_loss,
    discriminator_loss_fn=gan.losses.wasserstein_discriminator_loss,
    generator_optimizer=tf.train.AdamOptimizer(0.005, 0.5),
    discriminator_optimizer=tf.train.AdamOptimizer(0.01, 0.5),
    get_eval_metric_ops_fn=lambda model: {
        "distance": tf.metrics.mean(tf.norm(tf.reduce_mean(model.generated_data, 0) - CENTER))
    },
    config=tf.estimator.RunConfig(tf_random_seed=1),
)
before = estimator.train(input_fn, steps=1).evaluate(input_fn, steps=5)
estimator.train(input_fn, steps=400)
after = estimator.evaluate(input_fn, steps=5)
print(json.dumps({name: float(each["distance"]) for name, each in (("before", before), ("after", after))}))

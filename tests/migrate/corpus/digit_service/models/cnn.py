"""Two convolutions and a dense layer."""

from digit_service.models import base
from digit_service.tf_compat import tf


@base.register('cnn')
def network(images, training, params):
    net = images
    for filters in params.filters:
        net = tf.layers.conv2d(net, filters, 3, padding='same', activation=tf.nn.relu)
        net = tf.layers.max_pooling2d(net, 2, 2)
    net = tf.layers.flatten(net)
    net = tf.layers.dense(net, params.dense, activation=tf.nn.relu)
    net = tf.layers.dropout(net, params.dropout, training=training)
    return tf.layers.dense(net, 10)

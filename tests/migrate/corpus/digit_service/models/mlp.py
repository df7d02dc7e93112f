"""Dense layers alone, from variables: the model of the first release."""

from ..tf_compat import tf
from .base import register


def dense(net, units, name, activation=None):
    with tf.variable_scope(name):
        weights = tf.get_variable(
            'weights', [net.shape[-1], units], initializer=tf.initializers.glorot_normal())
        biases = tf.get_variable('biases', [units], initializer=tf.initializers.zeros())
        net = tf.nn.bias_add(tf.matmul(net, weights), biases)
        return net if activation is None else activation(net)


@register('mlp')
def network(images, training, params):
    del training
    net = tf.reshape(images, [-1, 64])
    for i, units in enumerate(params.layers):
        net = dense(net, units, 'layer_%d' % i, tf.nn.tanh)
    return dense(net, 10, 'logits')

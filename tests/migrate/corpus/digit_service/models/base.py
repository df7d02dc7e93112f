"""What all models share: a registry, the loss, the optimizers, the spec of each mode."""

import functools

from ..tf_compat import EstimatorSpec, ModeKeys, tf

MODELS = {}

OPTIMIZERS = {
    'adam': tf.train.AdamOptimizer,
    'sgd': tf.train.GradientDescentOptimizer,
    'momentum': functools.partial(tf.train.MomentumOptimizer, momentum=0.9),
}


def register(name):
    def decorate(function):
        MODELS[name] = function
        return function
    return decorate


def get_model_fn(name):
    """The model_fn of a registered network."""
    network = MODELS[name]

    def model_fn(features, labels, mode, params):
        logits = network(features['image'], mode == ModeKeys.TRAIN, params)
        return make_spec(mode, logits, labels, params)

    model_fn.__name__ = name + '_model_fn'
    return model_fn


def make_spec(mode, logits, labels, params):
    predictions = {'digit': tf.argmax(logits, 1), 'confidence': tf.reduce_max(tf.nn.softmax(logits), 1)}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=predictions)

    with tf.name_scope('loss'):
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == ModeKeys.EVAL:
        per_class = tf.metrics.mean_per_class_accuracy(labels, predictions['digit'], 10)
        return EstimatorSpec(mode, loss=loss, eval_metric_ops={
            'accuracy': tf.metrics.accuracy(labels, predictions['digit']),
            'per_class': per_class,
        })

    if mode == ModeKeys.TRAIN:
        optimizer = OPTIMIZERS[params.optimizer](learning_rate=params.learning_rate)
        return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, tf.train.get_global_step()))
    raise ValueError(mode)

"""A typical program of TensorFlow 1: a model_fn of layers, an iterator, train_and_evaluate, predict."""

import numpy as np
import tensorflow as tf

RATE = 0.1


def my_model_fn(features, labels, mode, params):
    images = tf.reshape(features['x'], [-1, 8, 8, 1])
    net = tf.layers.conv2d(images, 4, 3, activation=tf.nn.relu)
    net = tf.layers.max_pooling2d(net, 2, 2)
    net = tf.layers.flatten(net)
    net = tf.layers.dense(net, 16, tf.nn.relu, name='hidden')  # wide
    net = tf.layers.dropout(net, params['dropout'], training=mode == tf.estimator.ModeKeys.TRAIN)
    logits = tf.layers.dense(net, 3, name='logits')
    predictions = {'class': tf.argmax(logits, 1), 'probabilities': tf.nn.softmax(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    # Labels are numbers of classes.
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.train.RMSPropOptimizer(0.01, momentum=0.5)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
    accuracy = tf.metrics.accuracy(labels, predictions['class'])
    return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={'accuracy': accuracy})


def arrays():
    random = np.random.RandomState(0)
    return {'x': random.rand(64, 64).astype('float32')}, random.randint(0, 3, 64)


def input_fn(training):
    dataset = tf.data.Dataset.from_tensor_slices(arrays())
    if training:
        dataset = dataset.repeat()
    dataset = dataset.batch(20)
    iterator = dataset.make_one_shot_iterator()
    features, labels = iterator.get_next()
    features['x'] = tf.minimum(features['x'], 0.9)
    return features, labels


def main(_):
    estimator = tf.estimator.Estimator(my_model_fn, 'model', params={'dropout': 0.4})
    train_spec = tf.estimator.TrainSpec(lambda: input_fn(True), max_steps=12)
    eval_spec = tf.estimator.EvalSpec(lambda: input_fn(False), steps=None)
    tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    print(estimator.evaluate(lambda: input_fn(False))['accuracy'])
    predict_input_fn = tf.estimator.inputs.numpy_input_fn(arrays()[0], shuffle=False)
    print(len(list(estimator.predict(predict_input_fn))))


if __name__ == '__main__':
    tf.app.run()

"""Transfer learning: a reader of all ten digits becomes one that tells even from odd.

The first model is trained if its checkpoint is not there. The second one takes its convolutions, under other names,
and keeps them as they are with --freeze.
"""

import argparse
import os

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def trunk(images, trainable=True):
    net = v1.layers.conv2d(images, 16, [3, 3], padding='SAME', activation=tf.nn.relu, name='conv1', trainable=trainable)
    net = v1.layers.conv2d(net, 32, [3, 3], padding='SAME', activation=tf.nn.relu, name='conv2', trainable=trainable)
    net = v1.layers.average_pooling2d(net, [2, 2], [2, 2])
    return v1.layers.flatten(net)


def spec_of(mode, labels, logits, learning_rate, var_list=None):
    classes = tf.argmax(logits, axis=-1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode=mode, predictions={'class': classes, 'logits': logits})
    loss = v1.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    accuracy = v1.metrics.accuracy(labels=labels, predictions=classes)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss, eval_metric_ops={'accuracy': accuracy})
    optimizer = v1.train.AdamOptimizer(learning_rate)
    train_op = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step(), var_list=var_list)
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def digit_model_fn(features, labels, mode):
    """The old model: ten digits."""
    with v1.variable_scope('digits'):
        net = trunk(features['image'])
        logits = v1.layers.dense(net, 10, name='logits')
    return spec_of(mode, labels, logits, 1e-2)


def parity_model_fn(features, labels, mode, params):
    """The new one: even or odd, from the same trunk."""
    with v1.variable_scope('parity'):
        net = trunk(features['image'], trainable=not params['freeze'])
        net = v1.layers.dense(net, 32, activation='relu', name='hidden')
        logits = v1.layers.dense(net, 2, name='logits')
    var_list = v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope='parity/')
    if mode == tf.estimator.ModeKeys.TRAIN:
        v1.logging.info('training %s', [v.name for v in var_list])
    return spec_of(mode, labels, logits, params['learning_rate'], var_list)


def load(data_dir):
    with np.load(os.path.join(data_dir, 'digits.npz')) as data:
        return {part: (data['x_' + part][..., None].astype(np.float32) / 255., data['y_' + part].astype(np.int32))
                for part in ('train', 'test')}


def numpy_input(images, labels, training):
    return v1.estimator.inputs.numpy_input_fn(
        {'image': images}, labels, batch_size=64, num_epochs=None if training else 1, shuffle=training)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--data_dir', required=True)
    parser.add_argument('--base_dir', required=True, help='checkpoints of the model of ten digits')
    parser.add_argument('--model_dir', required=True)
    parser.add_argument('--base_steps', type=int, default=200)
    parser.add_argument('--steps', type=int, default=100)
    parser.add_argument('--freeze', action='store_true')
    args = parser.parse_args()
    digits = load(args.data_dir)
    config = tf.estimator.RunConfig(tf_random_seed=6)

    base = tf.estimator.Estimator(digit_model_fn, args.base_dir, config)
    if tf.train.latest_checkpoint(args.base_dir) is None:
        base.train(numpy_input(*digits['train'], training=True), steps=args.base_steps)
    print('digits: accuracy %.4f' % base.evaluate(numpy_input(*digits['test'], training=False))['accuracy'])

    if args.freeze:
        # Frozen variables are not among the trainable ones, of which a pattern chooses: a list names them.
        old_names = [name for name in base.get_variable_names() if '/conv' in name and 'Adam' not in name]
        new_names = {name.replace('digits', 'parity'): name for name in old_names}
        warm_start = tf.estimator.WarmStartSettings(args.base_dir, sorted(new_names), var_name_to_prev_var_name=new_names)
    else:
        warm_start = tf.estimator.WarmStartSettings(
            ckpt_to_initialize_from=args.base_dir,
            vars_to_warm_start='.*conv[12].*',
            var_name_to_prev_var_name={
                'parity/%s/%s' % (layer, kind): 'digits/%s/%s' % (layer, kind)
                for layer in ('conv1', 'conv2') for kind in ('kernel', 'bias')
            })

    estimator = tf.estimator.Estimator(
        parity_model_fn, args.model_dir, config, warm_start_from=warm_start,
        params={'freeze': args.freeze, 'learning_rate': 3e-3})
    parity = {part: (images, labels % 2) for part, (images, labels) in digits.items()}
    estimator.train(numpy_input(*parity['train'], training=True), steps=args.steps)
    print('parity: accuracy %.4f' % estimator.evaluate(numpy_input(*parity['test'], training=False))['accuracy'])
    kept = np.array_equal(
        estimator.get_variable_value('parity/conv1/kernel'), base.get_variable_value('digits/conv1/kernel'))
    print('trunk unchanged:', kept)


if __name__ == '__main__':
    main()

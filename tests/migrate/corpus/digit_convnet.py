"""Convolutional digit reader with batch normalisation, for the meter-reading line.

Reads TFRecord shards (image_raw, label), trains with momentum and a stepwise learning rate, and writes a SavedModel
that takes raw images.
"""

import argparse
import functools
import glob
import os

import tensorflow as tf

IMAGE_SIZE = 8
NUM_CLASSES = 10
WEIGHT_DECAY = 2e-4
BATCH_NORM_DECAY = 0.9
BATCH_NORM_EPSILON = 1e-5

L = tf.compat.v1.layers


def conv_bn_relu(inputs, filters, is_training, name):
    """Convolution without a bias, batch normalisation, ReLU."""
    with tf.compat.v1.variable_scope(name):
        net = L.conv2d(
            inputs, filters, 3, padding='same', use_bias=False,
            kernel_initializer=tf.compat.v1.variance_scaling_initializer(2.0),
            kernel_regularizer=tf.keras.regularizers.l2(WEIGHT_DECAY))
        net = tf.compat.v1.layers.batch_normalization(
            net, momentum=BATCH_NORM_DECAY, epsilon=BATCH_NORM_EPSILON,
            training=is_training, fused=True)
        return tf.nn.relu(net)


def digit_network(images, is_training, params):
    net = tf.reshape(images, [-1, IMAGE_SIZE, IMAGE_SIZE, 1])
    net = conv_bn_relu(net, params['filters'], is_training, 'block1')
    net = L.max_pooling2d(net, 2, 2)
    net = conv_bn_relu(net, 2 * params['filters'], is_training, 'block2')
    net = tf.reduce_mean(net, axis=[1, 2])
    net = tf.compat.v1.layers.dropout(net, rate=params['dropout'], training=is_training)
    return tf.compat.v1.layers.dense(
        net, NUM_CLASSES, name='logits',
        kernel_regularizer=tf.keras.regularizers.l2(WEIGHT_DECAY))


def model_fn(features, labels, mode, params):
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    logits = digit_network(features['image'], is_training, params)
    predictions = {
        'classes': tf.argmax(logits, axis=1),
        'probabilities': tf.nn.softmax(logits, name='softmax'),
    }
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(
            mode, predictions=predictions,
            export_outputs={
                'serving_default': tf.estimator.export.PredictOutput(predictions),
                'classify': tf.estimator.export.ClassificationOutput(
                    scores=predictions['probabilities']),
            })

    cross_entropy = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    loss = cross_entropy + tf.compat.v1.losses.get_regularization_loss()

    accuracy = tf.compat.v1.metrics.accuracy(labels, predictions['classes'], name='acc_op')
    tf.compat.v1.summary.scalar('train_accuracy', accuracy[1])
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={'accuracy': accuracy})

    global_step = tf.compat.v1.train.get_or_create_global_step()
    learning_rate = tf.compat.v1.train.piecewise_constant_decay(
        global_step, params['boundaries'], params['rates'])
    tf.compat.v1.summary.scalar('learning_rate', learning_rate)
    tf.identity(learning_rate, name='learning_rate_tensor')

    optimizer = tf.compat.v1.train.MomentumOptimizer(learning_rate, momentum=0.9)
    update_ops = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(update_ops):
        train_op = optimizer.minimize(loss, global_step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def parse(serialized):
    parsed = tf.io.parse_single_example(serialized, {
        'image_raw': tf.io.FixedLenFeature([], tf.string),
        'label': tf.io.FixedLenFeature([], tf.int64),
    })
    image = tf.io.decode_raw(parsed['image_raw'], tf.uint8)
    image = tf.cast(tf.reshape(image, [IMAGE_SIZE, IMAGE_SIZE]), tf.float32) / 255.0
    return {'image': image}, parsed['label']


def input_fn(pattern, training, batch_size):
    files = tf.data.Dataset.from_tensor_slices(sorted(glob.glob(pattern)))
    dataset = files.interleave(tf.data.TFRecordDataset, cycle_length=3)
    if training:
        dataset = dataset.shuffle(2000, seed=8).repeat()
    return dataset.map(parse).batch(batch_size, drop_remainder=training).prefetch(1)


def serving_input_fn():
    images = tf.compat.v1.placeholder(tf.float32, [None, IMAGE_SIZE, IMAGE_SIZE], name='images')
    return tf.estimator.export.ServingInputReceiver({'image': images}, {'image': images})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--data', required=True)
    parser.add_argument('--job-dir', default='/tmp/digit_convnet')
    parser.add_argument('--train-steps', type=int, default=300)
    parser.add_argument('--batch-size', type=int, default=64)
    parser.add_argument('--learning-rate', type=float, default=0.1)
    args = parser.parse_args()

    steps = args.train_steps
    params = {
        'filters': 16,
        'dropout': 0.1,
        # A tenth of the rate after half of the steps, and again after three quarters.
        'boundaries': [steps // 2, steps * 3 // 4],
        'rates': [args.learning_rate * factor for factor in (1.0, 0.1, 0.01)],
    }
    config = tf.estimator.RunConfig(
        model_dir=args.job_dir, tf_random_seed=20, save_summary_steps=50,
        save_checkpoints_steps=200, keep_checkpoint_max=2, log_step_count_steps=100)
    estimator = tf.estimator.Estimator(model_fn, config=config, params=params)
    estimator.train(
        functools.partial(input_fn, os.path.join(args.data, 'train-*'), True, args.batch_size),
        max_steps=steps)
    metrics = estimator.evaluate(
        functools.partial(input_fn, os.path.join(args.data, 'test-*'), False, args.batch_size))
    print('accuracy = {accuracy:.4f} at step {global_step}'.format(**metrics))
    exported = estimator.export_saved_model(os.path.join(args.job_dir, 'export'), serving_input_fn)
    print('exported to', exported.decode('utf-8'))


if __name__ == '__main__':
    main()

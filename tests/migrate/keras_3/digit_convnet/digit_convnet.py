"""Convolutional digit reader with batch normalisation, for the meter-reading line.

Reads TFRecord shards (image_raw, label), trains with momentum and a stepwise learning rate, and writes a SavedModel
that takes raw images.
"""

import argparse
import glob
import os
import time

import keras
import tensorflow as tf

from keras_support import Momentum, StopAfter, model_inputs

IMAGE_SIZE = 8
NUM_CLASSES = 10
WEIGHT_DECAY = 2e-4
BATCH_NORM_DECAY = 0.9
BATCH_NORM_EPSILON = 1e-5


def conv_bn_relu(inputs, filters, name):
    """Convolution without a bias, batch normalisation, ReLU."""
    net = keras.layers.Conv2D(
        filters, 3, padding='same', use_bias=False,
        kernel_initializer=keras.initializers.VarianceScaling(2.0),
        kernel_regularizer=keras.regularizers.l2(WEIGHT_DECAY), name=f'{name}_conv2d')(inputs)
    net = keras.layers.BatchNormalization(
        momentum=BATCH_NORM_DECAY, epsilon=BATCH_NORM_EPSILON, name=f'{name}_batch_normalization')(net)
    return keras.ops.relu(net)


def digit_network(images, params):
    net = keras.ops.reshape(images, [-1, IMAGE_SIZE, IMAGE_SIZE, 1])
    net = conv_bn_relu(net, params['filters'], 'block1')
    net = keras.layers.MaxPooling2D(2, 2)(net)
    net = conv_bn_relu(net, 2 * params['filters'], 'block2')
    net = keras.ops.mean(net, axis=[1, 2])
    net = keras.layers.Dropout(rate=params['dropout'])(net)
    return keras.layers.Dense(
        NUM_CLASSES, kernel_regularizer=keras.regularizers.l2(WEIGHT_DECAY), name='logits')(net)


class DigitConvnetModel(keras.Model):
    """Network, loss, metrics and predictions of model_fn."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.accuracy_metric = keras.metrics.Accuracy(name='accuracy')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        labels, logits = y, y_pred
        cross_entropy = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        loss = cross_entropy + sum(self.losses)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        predictions = self.predictions(x, y_pred)
        self.accuracy_metric.update_state(labels, predictions['classes'])
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        logits = outputs
        predictions = {
            'classes': keras.ops.argmax(logits, axis=1),
            'probabilities': keras.ops.softmax(logits),
        }
        return predictions


def make_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    logits = digit_network(features['image'], params)
    # TensorBoard logs the loss, metrics and learning rate of each epoch; log more in a callback.
    # Was tf.compat.v1.summary.scalar('train_accuracy', accuracy[1])
    # Was tf.compat.v1.summary.scalar('learning_rate', learning_rate)
    model = DigitConvnetModel(features, logits, params)
    learning_rate = keras.optimizers.schedules.PiecewiseConstantDecay(params['boundaries'], params['rates'])
    model.compile(optimizer=Momentum(learning_rate, momentum=0.9))
    return model


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


def export_model(model, folder):
    """Write a SavedModel to a new subfolder of `folder`, named after the time; return its path as bytes."""
    @tf.function(input_signature=[tf.TensorSpec([None, IMAGE_SIZE, IMAGE_SIZE], tf.float32, name='image')])
    def predict(image):
        images = image
        features = {'image': images}
        return model.predictions(features, model(features, training=False))

    server = tf.Module()
    server.model, server.functions = model, [predict]
    path = os.path.join(folder, str(int(time.time())))
    tf.saved_model.save(server, path, signatures={'serving_default': predict, 'predict': predict})
    return os.fsencode(path)


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
    keras.utils.set_random_seed(20)
    callbacks = [
        keras.callbacks.BackupAndRestore(os.path.join(args.job_dir, 'backup'), save_freq=200),
        keras.callbacks.TensorBoard(args.job_dir, update_freq=50),
    ]
    training = input_fn(os.path.join(args.data, 'train-*'), True, args.batch_size)
    model = make_model(model_inputs(training), params)
    model.fit(training, steps_per_epoch=steps, callbacks=[StopAfter(steps), *callbacks], verbose=2)
    model.save_weights(os.path.join(args.job_dir, 'model.weights.h5'))
    metrics = dict(model.evaluate(
        input_fn(os.path.join(args.data, 'test-*'), False, args.batch_size), return_dict=True, verbose=0), global_step=int(model.optimizer.iterations))
    print('accuracy = {accuracy:.4f} at step {global_step}'.format(**metrics))
    exported = export_model(model, os.path.join(args.job_dir, 'export'))
    print('exported to', exported.decode('utf-8'))


if __name__ == '__main__':
    main()

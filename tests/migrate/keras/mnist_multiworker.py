"""Digit classifier, trained on several workers with MultiWorkerMirroredStrategy.

Every worker runs this script with its own TF_CONFIG, or with --workers and --task_index, from which TF_CONFIG is
written. Without either it trains on this machine alone:

    python mnist_multiworker.py --data_dir /data/digits --model_dir /tmp/multiworker
    python mnist_multiworker.py --workers host1:2222,host2:2222 --task_index 0 ...
"""

import argparse
import json
import os

import numpy as np
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import distribution as keras_cluster
from estimator_pipeline.models.keras_runtime import evaluation as keras_evaluation

BUFFER_SIZE = 10000
BATCH_SIZE = 64

parser = argparse.ArgumentParser()
parser.add_argument('--data_dir', required=True)
parser.add_argument('--model_dir', default='/tmp/multiworker')
parser.add_argument('--workers', default='', help='host:port,host:port; one worker without it')
parser.add_argument('--task_index', type=int, default=0)
parser.add_argument('--max_steps', type=int, default=1000)
args = parser.parse_args()

if args.workers:
    os.environ['TF_CONFIG'] = json.dumps({
        'cluster': {'worker': args.workers.split(',')},
        'task': {'type': 'worker', 'index': args.task_index},
    })

tf.get_logger().setLevel('INFO')


def input_fn(mode, input_context=None):
    with np.load(os.path.join(args.data_dir, 'digits.npz')) as digits:
        part = 'train' if mode == 'train' else 'test'
        images, labels = digits['x_' + part], digits['y_' + part]

    def scale(image, label):
        image = tf.cast(image, tf.float32)
        image /= 255
        return image[..., tf.newaxis], label

    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    # Each worker trains on its own images.
    if input_context:
        dataset = dataset.shard(input_context.num_input_pipelines,
                                input_context.input_pipeline_id)
    dataset = dataset.map(scale).cache()
    if mode == 'train':
        dataset = dataset.shuffle(BUFFER_SIZE, seed=1).repeat()
    return dataset.batch(BATCH_SIZE)


LEARNING_RATE = 1e-1


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


class MnistMultiworkerModel(tf.keras.Model):
    """Network, loss, metrics and predictions of model_fn."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.mean_loss = tf.keras.metrics.Mean(name='loss')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        labels, logits = y, y_pred
        loss = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.NONE)(labels, logits)
        loss = tf.reduce_sum(loss) * (1. / BATCH_SIZE)
        self.mean_loss.update_state(loss)
        # The gradients of the replicas are summed.
        return loss / self.distribute_strategy.num_replicas_in_sync

    def compute_metrics(self, x, y, y_pred, sample_weight):
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        logits = outputs
        predictions = {'logits': logits}
        return predictions

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))


def make_model(features):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    model = tf.keras.Sequential([
        tf.keras.layers.Conv2D(32, 3, activation='relu', input_shape=(8, 8, 1)),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation='relu'),
        tf.keras.layers.Dense(10)
    ])
    logits = model(features, training=False)
    compiled = MnistMultiworkerModel(features, logits)
    compiled.compile(optimizer=tf.keras.optimizers.SGD(LEARNING_RATE))
    return compiled


if __name__ == '__main__':
    # Keras draws the initial values from the global seed.
    tf.keras.utils.set_random_seed(42)
    if 'TF_CONFIG' in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = None

    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.model_dir, 'backup'), save_freq=500),
        tf.keras.callbacks.TensorBoard(args.model_dir, update_freq=100),
    ]
    training = input_fn('train')
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        model = make_model(model_inputs(training))
    evaluation = keras_evaluation.Evaluation(
        lambda: input_fn('eval').take(100), every_steps=500, folder=args.model_dir)
    model.fit(
        strategy.distribute_datasets_from_function(lambda context: input_fn('train', input_context=context)),
        steps_per_epoch=args.max_steps, callbacks=[evaluation, *callbacks], verbose=2)
    keras_cluster.save_weights(model, os.path.join(args.model_dir, 'weights'))
    result = (evaluation.result, evaluation.exports)
    if result:
        print('loss after %d steps: %.4f' % (result[0]['global_step'], result[0]['loss']))

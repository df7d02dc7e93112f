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

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)


def input_fn(mode, input_context=None):
    with np.load(os.path.join(args.data_dir, 'digits.npz')) as digits:
        part = 'train' if mode == tf.estimator.ModeKeys.TRAIN else 'test'
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
    if mode == tf.estimator.ModeKeys.TRAIN:
        dataset = dataset.shuffle(BUFFER_SIZE, seed=1).repeat()
    return dataset.batch(BATCH_SIZE)


LEARNING_RATE = 1e-1


def model_fn(features, labels, mode):
    model = tf.keras.Sequential([
        tf.keras.layers.Conv2D(32, 3, activation='relu', input_shape=(8, 8, 1)),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation='relu'),
        tf.keras.layers.Dense(10)
    ])
    logits = model(features, training=False)

    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {'logits': logits}
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)

    optimizer = tf.compat.v1.train.GradientDescentOptimizer(
        learning_rate=LEARNING_RATE)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE)(labels, logits)
    loss = tf.reduce_sum(loss) * (1. / BATCH_SIZE)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss)

    return tf.estimator.EstimatorSpec(
        mode=mode,
        loss=loss,
        train_op=optimizer.minimize(
            loss, tf.compat.v1.train.get_or_create_global_step()))


if __name__ == '__main__':
    # Keras draws the initial values from the global seed.
    tf.keras.utils.set_random_seed(42)
    if 'TF_CONFIG' in os.environ:
        strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    else:
        strategy = None
    config = tf.estimator.RunConfig(train_distribute=strategy, save_checkpoints_steps=500)

    classifier = tf.estimator.Estimator(
        model_fn=model_fn, model_dir=args.model_dir, config=config)
    result = tf.estimator.train_and_evaluate(
        classifier,
        train_spec=tf.estimator.TrainSpec(input_fn=input_fn, max_steps=args.max_steps),
        eval_spec=tf.estimator.EvalSpec(input_fn=input_fn)
    )
    if result:
        print('loss after %d steps: %.4f' % (result[0]['global_step'], result[0]['loss']))

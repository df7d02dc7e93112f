"""Multi-worker training with Estimator, written out from the TensorFlow tutorial of that name.

    TF_CONFIG='{"cluster": {"worker": ["host:1", "host:2"]}, "task": {"type": "worker", "index": 0}}' \\
        python tutorial_estimator.py MODEL_DIR [--dataset mnist] [--data_dir DIR] [--max_steps N]
"""

import argparse

import tensorflow as tf
import tensorflow_datasets as tfds

parser = argparse.ArgumentParser()
parser.add_argument("model_dir")
parser.add_argument("--dataset", default="mnist")
parser.add_argument("--data_dir", default=None)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--max_steps", type=int, default=None)
parser.add_argument("--learning_rate", type=float, default=1e-4)
parser.add_argument("--highest", type=float, default=255, help="The highest value of a pixel.")
parser.add_argument("--trace", default=None, help="Write down there which images this worker trains on.")
FLAGS = parser.parse_args()

BUFFER_SIZE = 10000
BATCH_SIZE = 64

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)


def trace(image):
    with open(FLAGS.trace, "a") as file:
        file.write(image.tobytes().hex() + "\n")
    return image


def input_fn(mode, input_context=None):
    datasets, info = tfds.load(name=FLAGS.dataset, data_dir=FLAGS.data_dir, with_info=True, as_supervised=True)
    dataset = datasets["train"] if mode == tf.estimator.ModeKeys.TRAIN else datasets["test"]
    shape = info.features["image"].shape

    def scale(image, label):
        if FLAGS.trace and mode == tf.estimator.ModeKeys.TRAIN:
            image = tf.ensure_shape(tf.numpy_function(trace, [image], tf.uint8), shape)
        image = tf.cast(image, tf.float32)
        image /= FLAGS.highest
        return image, label

    if input_context:
        print("pipeline", input_context.input_pipeline_id, "of", input_context.num_input_pipelines, flush=True)
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    dataset = dataset.map(scale).cache().shuffle(BUFFER_SIZE)
    if mode == tf.estimator.ModeKeys.TRAIN:
        dataset = dataset.repeat(FLAGS.epochs)
    return dataset.batch(BATCH_SIZE)


def model_fn(features, labels, mode):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=features.shape[1:]),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    logits = model(features, training=False)

    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"logits": logits}
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)

    optimizer = tf.compat.v1.train.GradientDescentOptimizer(learning_rate=FLAGS.learning_rate)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE
    )(labels, logits)
    loss = tf.reduce_sum(loss) * (1.0 / BATCH_SIZE)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss)

    return tf.estimator.EstimatorSpec(
        mode=mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf.compat.v1.train.get_or_create_global_step()),
    )


strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
config = tf.estimator.RunConfig(train_distribute=strategy)
classifier = tf.estimator.Estimator(model_fn=model_fn, model_dir=FLAGS.model_dir, config=config)
tf.estimator.train_and_evaluate(
    classifier,
    train_spec=tf.estimator.TrainSpec(input_fn=input_fn, max_steps=FLAGS.max_steps),
    eval_spec=tf.estimator.EvalSpec(input_fn=input_fn),
)

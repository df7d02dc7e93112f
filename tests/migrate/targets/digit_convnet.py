"""Convolutional digit reader with batch normalisation, for the meter-reading line.

Reads TFRecord shards (image_raw, label), trains with momentum and a stepwise learning rate, and writes a SavedModel
that takes raw images.
"""

from __future__ import annotations

import argparse
import glob
import os

import tensorflow as tf

from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers.spec import Optimizer

IMAGE_SIZE = 8
NUM_CLASSES = 10
WEIGHT_DECAY = 2e-4
BATCH_NORM_DECAY = 0.9
BATCH_NORM_EPSILON = 1e-5


def conv_bn_relu(net, filters: int, name: str):
    """Convolution without a bias, batch normalisation, ReLU."""
    net = tf.keras.layers.Conv2D(
        filters,
        3,
        padding="same",
        use_bias=False,
        kernel_initializer=tf.keras.initializers.VarianceScaling(2.0),
        kernel_regularizer=tf.keras.regularizers.l2(WEIGHT_DECAY),
        name=f"{name}_conv2d",
    )(net)
    net = tf.keras.layers.BatchNormalization(
        momentum=BATCH_NORM_DECAY, epsilon=BATCH_NORM_EPSILON, name=f"{name}_batch_normalization"
    )(net)
    return tf.keras.layers.ReLU(name=f"{name}_relu")(net)


def make_model(*, filters: int = 16, dropout: float = 0.1, boundaries=(), rates=(0.1,)) -> tf.keras.Model:
    """The compiled model, from images [B, 8, 8] to logits [B, 10]."""
    image = tf.keras.Input([IMAGE_SIZE, IMAGE_SIZE], name="image")
    net = tf.keras.layers.Reshape([IMAGE_SIZE, IMAGE_SIZE, 1])(image)
    net = conv_bn_relu(net, filters, "block1")
    net = tf.keras.layers.MaxPooling2D(2, 2)(net)
    net = conv_bn_relu(net, 2 * filters, "block2")
    net = tf.keras.layers.GlobalAveragePooling2D()(net)
    net = tf.keras.layers.Dropout(dropout)(net)
    logits = tf.keras.layers.Dense(
        NUM_CLASSES, kernel_regularizer=tf.keras.regularizers.l2(WEIGHT_DECAY), name="logits"
    )(net)
    model = tf.keras.Model({"image": image}, logits)
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay(list(boundaries), list(rates))
    model.compile(
        # The velocity without the learning rate, as tf.compat.v1.train has it: SGD of Keras goes on with the old rate's
        # velocity where the rate steps down.
        optimizer=keras_optimizers.make(Optimizer(name="momentum", learning_rate=schedule, options={"momentum": 0.9})),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model


class Server(tf.Module):
    """The signatures of the SavedModel."""

    def __init__(self, model: tf.keras.Model) -> None:
        super().__init__()
        self.model = model

    @tf.function(input_signature=[tf.TensorSpec([None, IMAGE_SIZE, IMAGE_SIZE], tf.float32, name="image")])
    def predict(self, image):
        logits = self.model({"image": image}, training=False)
        return {"classes": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}

    @tf.function(input_signature=[tf.TensorSpec([None, IMAGE_SIZE, IMAGE_SIZE], tf.float32, name="inputs")])
    def classify(self, inputs):
        return {"scores": self.predict(inputs)["probabilities"]}


def parse(serialized):
    parsed = tf.io.parse_single_example(
        serialized,
        {"image_raw": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)},
    )
    image = tf.io.decode_raw(parsed["image_raw"], tf.uint8)
    image = tf.cast(tf.reshape(image, [IMAGE_SIZE, IMAGE_SIZE]), tf.float32) / 255.0
    return {"image": image}, parsed["label"]


def dataset(pattern: str, *, training: bool, batch_size: int) -> tf.data.Dataset:
    files = tf.data.Dataset.from_tensor_slices(sorted(glob.glob(pattern)))
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=3)
    if training:
        records = records.shuffle(2000, seed=8).repeat()
    return records.map(parse).batch(batch_size, drop_remainder=training).prefetch(1)


def main(args: argparse.Namespace) -> None:
    tf.keras.utils.set_random_seed(20)
    steps = args.train_steps
    model = make_model(
        # A tenth of the rate after half of the steps, and again after three quarters.
        boundaries=[steps // 2, steps * 3 // 4],
        rates=[args.learning_rate * factor for factor in (1.0, 0.1, 0.01)],
    )
    training = dataset(os.path.join(args.data, "train-*"), training=True, batch_size=args.batch_size)
    model.fit(
        training,
        steps_per_epoch=steps,
        callbacks=[
            tf.keras.callbacks.BackupAndRestore(os.path.join(args.job_dir, "backup"), save_freq=200),
            tf.keras.callbacks.TensorBoard(args.job_dir, update_freq=50),
        ],
        verbose=2,
    )
    testing = dataset(os.path.join(args.data, "test-*"), training=False, batch_size=args.batch_size)
    metrics = model.evaluate(testing, return_dict=True, verbose=0)
    print(f"accuracy = {metrics['accuracy']:.4f} at step {steps}")
    server = Server(model)
    tf.saved_model.save(
        server,
        os.path.join(args.job_dir, "export", "1"),
        signatures={"serving_default": server.predict, "predict": server.predict, "classify": server.classify},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--job-dir", default="/tmp/digit_convnet")
    parser.add_argument("--train-steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    main(parser.parse_args())

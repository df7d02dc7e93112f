"""Digit classifier, trained on several workers with MultiWorkerMirroredStrategy.

Every worker runs this script with its own TF_CONFIG, or with --workers and --task_index, from which TF_CONFIG is
written. Without either it trains on this machine alone.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

BUFFER_SIZE = 10000
BATCH_SIZE = 64
LEARNING_RATE = 1e-1


def input_fn(data_dir: str, *, training: bool, input_context: Any = None) -> tf.data.Dataset:
    with np.load(os.path.join(data_dir, "digits.npz")) as digits:
        part = "train" if training else "test"
        images, labels = digits[f"x_{part}"], digits[f"y_{part}"]

    def scale(image, label):
        return tf.cast(image, tf.float32)[..., tf.newaxis] / 255, label

    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    # Each worker trains on its own images.
    if input_context:
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    dataset = dataset.map(scale).cache()
    if training:
        dataset = dataset.shuffle(BUFFER_SIZE, seed=1).repeat()
    return dataset.batch(BATCH_SIZE)


def make_model(replicas: int = 1) -> tf.keras.Model:
    """The compiled model; in the scope of the strategy, if there is one."""
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=(8, 8, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.SGD(LEARNING_RATE),
        # A sum divided by the batch size that is meant, as it was: a smaller last batch counts for less.
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=tf.keras.losses.Reduction.SUM),
        loss_weights=1.0 / (BATCH_SIZE * replicas),
    )
    return model


def main(args: argparse.Namespace) -> None:
    tf.keras.utils.set_random_seed(42)
    if args.workers:
        os.environ["TF_CONFIG"] = json.dumps(
            {
                "cluster": {"worker": args.workers.split(",")},
                "task": {"type": "worker", "index": args.task_index},
            }
        )
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = tf.distribute.get_strategy()
    with strategy.scope():
        model = make_model(strategy.num_replicas_in_sync)
    training = strategy.distribute_datasets_from_function(
        lambda context: input_fn(args.data_dir, training=True, input_context=context)
    )
    backup = tf.keras.callbacks.BackupAndRestore(os.path.join(args.model_dir, "backup"), save_freq=500)
    model.fit(training, steps_per_epoch=args.max_steps, callbacks=[backup], verbose=2)
    loss = model.evaluate(input_fn(args.data_dir, training=False), verbose=0)
    print(f"loss after {args.max_steps} steps: {loss:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--model_dir", default="/tmp/multiworker")
    parser.add_argument("--workers", default="", help="host:port,host:port; one worker without it")
    parser.add_argument("--task_index", type=int, default=0)
    parser.add_argument("--max_steps", type=int, default=1000)
    main(parser.parse_args())

"""Models in plain Keras, without this package, with the same layers as in `model_fns/`.

A test compares their number of parameters with that of the engines.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Any

from benchmarks.suite import work


def import_tensorflow() -> Any:
    """Import TensorFlow with Keras 2, as an unchanged program does."""
    major, minor = metadata.version("tensorflow").split(".")[:2]
    if (int(major), int(minor)) >= (2, 16):
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    return tf


def network(name: str) -> Any:
    """Return the layers of a model of `benchmarks.suite.work.MODELS`; they give logits."""
    import tensorflow as tf

    keras, layers = tf.keras, tf.keras.layers
    shape = (work.IMAGE_SIDE, work.IMAGE_SIDE, 1)
    if name == "cnn":
        return keras.Sequential(
            [
                keras.Input(shape=shape),
                layers.Conv2D(32, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(work.CLASSES),
            ]
        )
    if name == "dnn":
        return keras.Sequential(
            [
                keras.Input(shape=shape),
                layers.Flatten(),
                layers.Dense(128, activation="relu"),
                layers.Dense(64, activation="relu"),
                layers.Dense(work.CLASSES),
            ]
        )
    if name == "softmax":
        return keras.Sequential([keras.Input(shape=shape), layers.Flatten(), layers.Dense(work.CLASSES)])
    numbers = {column: keras.Input(shape=(1,), name=column) for column in work.NUMBERS}
    categories = {column: keras.Input(shape=(1,), dtype="int64", name=column) for column in work.CATEGORIES}
    wide = [layers.Dense(1, use_bias=False)(value) for value in numbers.values()]
    wide += [
        layers.Flatten()(layers.Embedding(work.BUCKETS, 1, embeddings_initializer="zeros")(value))
        for value in categories.values()
    ]
    deep = list(numbers.values())
    deep += [layers.Flatten()(layers.Embedding(work.BUCKETS, 8)(value)) for value in categories.values()]
    hidden = layers.Dense(64, activation="relu")(layers.Concatenate()(deep))
    hidden = layers.Dense(32, activation="relu")(hidden)
    logits = layers.Add()([layers.Dense(1)(hidden), *wide])
    return keras.Model({**numbers, **categories}, logits)

"""A Keras model turned into an Estimator, trained, evaluated and asked: row E7 of the feature table."""

import sys

import numpy as np
import tensorflow as tf

model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(8, activation="relu", input_shape=(4,), name="hidden"),
        tf.keras.layers.Dense(1, name="out"),
    ]
)
model.compile(loss="mse", optimizer=tf.compat.v1.train.GradientDescentOptimizer(0.05))
estimator = tf.keras.estimator.model_to_estimator(keras_model=model, model_dir=sys.argv[1])
assert isinstance(estimator, tf.estimator.Estimator)

x = np.random.RandomState(1).rand(64, 4).astype(np.float32)
y = x.sum(axis=1, keepdims=True)


def input_fn(batches=None):
    return tf.data.Dataset.from_tensor_slices(({"hidden_input": x}, y)).repeat(batches).batch(32)


before = estimator.train(input_fn, steps=1).evaluate(lambda: input_fn(1))
after = estimator.train(input_fn, steps=60).evaluate(lambda: input_fn(1))
predictions = [one["out"] for one in estimator.predict(lambda: input_fn(1))]
print("steps", before["global_step"], after["global_step"])
print("better", bool(after["loss"] < before["loss"] / 2))
print("predictions", len(predictions), predictions[0].shape)

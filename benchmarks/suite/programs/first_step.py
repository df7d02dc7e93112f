"""Minimal program for a first step: it imports TensorFlow, builds the graph and runs one step.

The counterpart of an Estimator is a TensorFlow 1 graph with a session, that of Keras a compiled function. The batch is
an array of zeros in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.suite import work
from benchmarks.suite.clock import write_first_step
from benchmarks.suite.programs import plain_data, plain_layers


def run(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Make one step and write its time."""
    (_graph if spec["contender"] == "bare_graph" else _function)(spec["model"])
    write_first_step()
    return {}


def _batch() -> tuple[Any, Any]:
    import numpy as np

    side = work.IMAGE_SIDE
    return np.zeros((work.BATCH, side, side, 1), np.float32), np.zeros(work.BATCH, np.int64)


def _graph(name: str) -> None:
    from estimator_pipeline import compat

    # The imports of a program with Estimators; no patch is applied.
    tf = compat.install("none")
    images, labels = _batch()
    with tf.Graph().as_default():
        features = tf.compat.v1.placeholder(tf.float32, images.shape)
        wanted = tf.compat.v1.placeholder(tf.int64, labels.shape)
        logits = plain_layers.network(name)(features, training=True)
        loss = tf.reduce_mean(plain_data.loss_of(work.MODELS[name].data)(wanted, logits))
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(work.LEARNING_RATE)
        step = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_or_create_global_step())
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(step, {features: images, wanted: labels})


def _function(name: str) -> None:
    tf = plain_layers.import_tensorflow()
    images, labels = _batch()
    network, optimizer = plain_layers.network(name), tf.keras.optimizers.SGD(work.LEARNING_RATE)
    variables = network.trainable_variables

    @tf.function
    def step(features: Any, wanted: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(plain_data.loss_of(work.MODELS[name].data)(wanted, network(features, training=True)))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step(tf.constant(images), tf.constant(labels))

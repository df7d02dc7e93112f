"""Training with `Model.fit` as in a tutorial; `tf.keras` is Keras 2, as in all of this benchmark."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from benchmarks.suite import work
from benchmarks.suite.clock import Clock, first_step_callback
from benchmarks.suite.programs import plain_data, plain_layers


def compile_model(name: str) -> Any:
    """Return the compiled model."""
    import tensorflow as tf

    network = plain_layers.network(name)
    losses = tf.keras.losses
    images = work.MODELS[name].data == "images"
    network.compile(
        optimizer=tf.keras.optimizers.SGD(learning_rate=work.LEARNING_RATE),
        loss=(losses.SparseCategoricalCrossentropy if images else losses.BinaryCrossentropy)(from_logits=True),
        metrics=["accuracy" if images else tf.keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)],
    )
    return network


def run(spec: Mapping[str, Any]) -> None:
    """Train; `measures.training` writes the spec."""
    tf = plain_layers.import_tensorflow()
    model = work.MODELS[spec["model"]]
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if spec["kind"] == "workers" else None
    workers = strategy.num_replicas_in_sync if strategy else 1
    # The global batch, which TensorFlow shards across the workers.
    data = plain_data.dataset(spec["data"], model.data, work.BATCH * workers)
    with strategy.scope() if strategy else contextlib.nullcontext():
        network = compile_model(spec["model"])
    clock = Clock(spec["out"], last=spec["steps"], warm=spec["warm"], facts={"batch": work.BATCH})
    first = os.environ.get("ESTIMATOR_PIPELINE_BENCH_FIRST_STEP")
    marks = first_step_callback() if first else clock.callback(steps_per_epoch=spec["steps"])
    network.fit(data, epochs=1, steps_per_epoch=spec["steps"], callbacks=[marks], verbose=0)

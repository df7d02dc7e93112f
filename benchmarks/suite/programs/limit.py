"""Upper limit of the training rate: only the train step (forward, backward, update) on batches in memory.

There are no input pipeline, checkpoints, hooks or metrics. The step is measured in two ways, with one step per call and
with many steps per call; the limit is the faster one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.suite import work
from benchmarks.suite.clock import Clock
from benchmarks.suite.programs import plain_data, plain_layers

# Batches in memory, taken in turns.
BATCHES = 8
LOOP = 50


def run(spec: Mapping[str, Any]) -> None:
    """Measure the train step; `measures.training` writes the spec."""
    tf: Any = plain_layers.import_tensorflow()
    model = work.MODELS[spec["model"]]
    clock = Clock(spec["out"], last=spec["steps"], warm=spec["warm"], facts={"batch": work.BATCH})
    data = plain_data.dataset(spec["data"], model.data, work.BATCH, cache=False).take(BATCHES)
    batches = list(data)
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *batches)
    network = plain_layers.network(spec["model"])
    losses, variables = plain_data.loss_of(model.data), network.trainable_variables

    def step(features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(labels, network(features, training=True)))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                change = tf.IndexedSlices(work.LEARNING_RATE * gradient.values, gradient.indices)
                variable.scatter_sub(change)
            else:
                variable.assign_sub(work.LEARNING_RATE * gradient)

    single_step = tf.function(step)

    @tf.function
    def many() -> None:
        for index in tf.range(LOOP):
            place = index % BATCHES
            step(*tf.nest.map_structure(lambda values, place=place: values[place], stacked))

    def rate(call: Any, steps_a_call: int) -> float:
        for _ in range(-(-spec["warm"] // steps_a_call)):
            call()
        count = -(-(spec["steps"] - spec["warm"]) // steps_a_call)
        begun = time.monotonic()
        for _ in range(count):
            call()
        # On a CPU a call returns when it is finished; reading the last value makes sure of it.
        float(tf.reduce_sum(variables[-1]))
        return count * steps_a_call / (time.monotonic() - begun)

    turns = [0]

    def next_step() -> None:
        turns[0] += 1
        single_step(*batches[turns[0] % BATCHES])

    singly, looped = rate(next_step, 1), rate(many, LOOP)
    clock.save(singly=singly, looped=looped, final_step=spec["steps"], parameters=network.count_params())

"""Training with tf.estimator as in a tutorial: `input_fn`, `model_fn`, `RunConfig`, `train_and_evaluate`.

`compat.install("none")` only restores tf.estimator in TensorFlow: the patches of this package are disabled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from benchmarks.suite import work
from benchmarks.suite.clock import Clock, first_step_hook
from benchmarks.suite.programs import plain_data, plain_layers


def make_model_fn(name: str) -> Any:
    """Return the `model_fn` of a tutorial for the layers of a model."""
    model = work.MODELS[name]

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        import tensorflow as tf

        network = plain_layers.network(name)
        logits = network(features, training=mode == tf.estimator.ModeKeys.TRAIN)
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions={"logits": logits})
        losses = plain_data.loss_of(model.data)(labels, logits)
        loss = tf.reduce_sum(losses) * (1.0 / work.BATCH)
        if mode == tf.estimator.ModeKeys.EVAL:
            images = model.data == "images"
            predictions = tf.argmax(logits, axis=1) if images else tf.cast(logits > 0, tf.int64)
            metrics = {
                "accuracy": tf.compat.v1.metrics.accuracy(labels, predictions),
                "average_loss": tf.compat.v1.metrics.mean(losses),
            }
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(learning_rate=work.LEARNING_RATE)
        step = tf.compat.v1.train.get_or_create_global_step()
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step))

    return model_fn


def make_estimator(spec: Mapping[str, Any]) -> Any:
    """Return the Estimator."""
    import tensorflow as tf

    strategy = None
    if spec["kind"] == "workers":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif spec["kind"] == "ps":
        strategy = tf.compat.v1.distribute.experimental.ParameterServerStrategy()
    config = tf.estimator.RunConfig(
        model_dir=spec["model_dir"], train_distribute=strategy, save_checkpoints_steps=spec["checkpoint_steps"]
    )
    return tf.estimator.Estimator(make_model_fn(spec["model"]), config=config)


def train_input_fn_of(spec: Mapping[str, Any], model: work.BenchModel) -> Any:
    """Return the `input_fn(input_context)` of the training data."""

    def train_input_fn(input_context: Any = None) -> Any:
        shard = None
        if input_context and input_context.num_input_pipelines > 1:
            shard = (input_context.num_input_pipelines, input_context.input_pipeline_id)
        return plain_data.dataset(spec["data"], model.data, work.BATCH, shard=shard)

    return train_input_fn


def run(spec: Mapping[str, Any]) -> None:
    """Train; `measures.training` writes the spec."""
    from estimator_pipeline import compat

    tf = compat.install("none")
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    model = work.MODELS[spec["model"]]
    estimator = make_estimator(spec)
    clock = Clock(spec["out"], last=spec["steps"], warm=spec["warm"], facts={"batch": work.BATCH})

    def eval_input_fn() -> Any:
        return plain_data.dataset(spec["data"], model.data, work.BATCH, split="eval")

    hooks = [first_step_hook()] if os.environ.get("ESTIMATOR_PIPELINE_BENCH_FIRST_STEP") else [clock.hook()]
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(train_input_fn_of(spec, model), max_steps=spec["steps"], hooks=hooks),
        tf.estimator.EvalSpec(eval_input_fn, steps=1, start_delay_secs=0, throttle_secs=0),
    )

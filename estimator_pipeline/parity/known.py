"""Where the two engines differ by nature, and the setting that makes them equal. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from estimator_pipeline import keras3_optimizers
from estimator_pipeline.optimizers import optimizer_of

__all__ = ["of_job", "of_metrics", "of_optimizers", "of_random_layers", "of_session"]

# Ending of the slots in an Estimator's graph -> (the V1 optimizer, those of Keras that look like it, what differs).
_V1 = {
    "Adam": (
        "AdamOptimizer",
        ("Adam",),
        "epsilon is 1e-8 by default in tf.compat.v1.train and 1e-7 in Keras: name the same one in both",
    ),
    "Momentum": (
        "MomentumOptimizer",
        ("SGD",),
        "tf.compat.v1.train multiplies the velocity by the learning rate of the step, Keras stores it multiplied: "
        "their slots differ by that factor, and so do the weights once a schedule changes the rate",
    ),
    "Adagrad": (
        "AdagradOptimizer",
        ("Adagrad",),
        "Keras adds an epsilon of 1e-7 to the root of the accumulator: epsilon=1e-30 (it takes 0 for its "
        "default) is what tf.compat.v1.train does",
    ),
    "RMSProp": (
        "RMSPropOptimizer",
        ("RMSprop",),
        "the mean square starts at 1 in tf.compat.v1.train and at 0 in Keras, and epsilon stands under the root there "
        "and outside of it here: no argument makes them equal",
    ),
}

# A part of a metric's name -> what tf.compat.v1.metrics and Keras do otherwise under it.
_METRICS = {
    "auc": "of a precision-recall curve tf.compat.v1.metrics.auc sums trapezoids, Keras interpolates: "
    'summation_method="careful_interpolation" is what Keras does (of a ROC curve both are the same)',
    "precision": "tf.compat.v1.metrics.precision takes all but 0 for positive, Keras what is above 0.5: give the "
    "former classes, not probabilities, or tf.compat.v1.metrics.precision_at_thresholds with [0.5]",
    "recall": "tf.compat.v1.metrics.recall takes all but 0 for positive, Keras what is above 0.5: give the "
    "former classes, not probabilities, or tf.compat.v1.metrics.recall_at_thresholds with [0.5]",
}


def of_job(job: Any, *, engines: Sequence[str], random_layers: Sequence[str]) -> list[str]:
    """What is known of a job under two engines, as notes for a person."""
    found = of_random_layers(random_layers)
    if "keras3" in engines:
        differs = keras3_optimizers.differences(optimizer_of(job.model.optimizer.model_dump()))
        if differs:
            found.append(
                f"{job.model.optimizer.name}: {differs}; --set model.optimizer.api=v1 has the same arithmetic on every "
                "engine"
            )
    if job.model.mixed_precision:
        found.append(
            "mixed precision: 8 bits of mantissa round each product, and the two engines order them otherwise; compare "
            "in float32 (--set model.mixed_precision=false), or give tolerances of 1e-2"
        )
    return found


def of_random_layers(names: Sequence[str]) -> list[str]:
    """Of layers that draw random numbers in training."""
    if not names:
        return []
    told = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    return [
        f"random layers ({told}): a session and a tf.function draw other numbers from the same seed; set their rates "
        "to 0 to compare the rest (--set model.params.dropout=0 where the model has such a parameter)"
    ]


def of_session(config: Any) -> list[str]:
    """Of a program's session that differs from a tf.function in how its graph is rewritten.

    Args:
        config: its `RunConfig.session_config`, a `tf.compat.v1.ConfigProto` or None.
    """
    if config is not None and config.graph_options.rewrite_options.meta_optimizer_iterations != 1:  # ONE
        return []
    return [
        "the Estimator's session rewrites its graph once, which is tf.estimator's default, and a tf.function its own "
        "twice: sums may be rounded otherwise. To have both alike: "
        "RunConfig(session_config=tf.compat.v1.ConfigProto(allow_soft_placement=True))"
    ]


def of_metrics(names: Iterable[str]) -> list[str]:
    """Of metrics with thresholds, by the names of those that came to something else on either side."""
    return [f"{name}: {what}" for name in names for part, what in _METRICS.items() if part in name.lower()]


def of_optimizers(variables: Iterable[str], keras_optimizer: str) -> list[str]:
    """Of a V1 optimizer in a graph against one of Keras.

    Args:
        variables: names of the graph's variables.
        keras_optimizer: the class's name.
    """
    endings = {name.partition(":")[0].rpartition("/")[2] for name in variables}
    return [
        f"{v1} (tf.compat.v1.train) against {keras_optimizer}: {what}; estimator_pipeline.build_keras_model with "
        f"api: v1 has the former's arithmetic"
        for ending, (v1, like, what) in _V1.items()
        if ending in endings and keras_optimizer in like
    ]

"""Known differences between the engines, and the settings that remove them. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from estimator_pipeline.models.optimizers import keras3 as keras3_optimizers
from estimator_pipeline.models.optimizers.spec import optimizer_of
from estimator_pipeline.parity.findings import format_names

__all__ = ["METRICS", "of_job", "of_optimizers", "of_random", "of_session"]

METRICS = (
    "the training is equal, and metrics differ: tf.compat.v1.metrics and Keras define several differently; "
    "docs/guides/parity.md lists them"
)

# Suffix of the slots in an Estimator's graph -> (the V1 optimizer, similar optimizers of Keras, the difference).
_V1 = {
    "Adam": (
        "AdamOptimizer",
        ("Adam",),
        "epsilon is 1e-8 by default in tf.compat.v1.train and 1e-7 in Keras: set the same one in both",
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
        "the mean square starts at 1 in tf.compat.v1.train and at 0 in Keras, and epsilon is inside the root there "
        "and outside of it here: no argument makes them equal",
    ),
}

# An epsilon this small has no effect beside the root of an accumulator in float32.
_NO_EPSILON = 1e-20


def of_job(job: Any, *, engines: Sequence[str], random: tuple[Sequence[str], Sequence[str]] = ((), ())) -> list[str]:
    """Return notes on the known differences of a job on two engines.

    Args:
        job: the job.
        engines: the two engines.
        random: names of each side's random operations in training that differ between the sides.
    """
    params = [name for name in job.model.params if "drop" in name.lower()]
    # A model by name has the parameter, whether the job sets it or not.
    settings = [f"--set model.params.{name}=0" for name in params or (["dropout"] if job.model.name else [])]
    notes = of_random(engines, random, settings=settings)
    if "keras3" in engines:
        differs = keras3_optimizers.differences(optimizer_of(job.model.optimizer.model_dump()))
        if differs:
            notes.append(
                f"{job.model.optimizer.name}: {differs}; --set model.optimizer.api=v1 has the same arithmetic on every "
                "engine"
            )
    if job.model.mixed_precision:
        notes.append(
            "mixed precision: 8 bits of mantissa round each product, and the two engines order and fuse them "
            "differently: gradients of convolutions differ by some percent, and training amplifies this; compare in "
            "float32 (--set model.mixed_precision=false)"
        )
    return notes


def of_random(
    engines: Sequence[str], random: tuple[Sequence[str], Sequence[str]], *, settings: Sequence[str] = ()
) -> list[str]:
    """Return notes on random operations that draw different numbers on each side.

    Args:
        engines: the two engines.
        random: names of each side's random operations.
        settings: settings that disable them, if known.
    """
    drawn = {engine: format_names(names, 4) for engine, names in zip(engines, random, strict=True) if names}
    if not drawn:
        return []
    drawing = (
        ", ".join(dict.fromkeys(drawn.values()))
        if len(drawn) == 2
        else "; ".join(f"{names}, only in {engine}" for engine, names in drawn.items())
    )
    why = (
        "Keras 3 draws different numbers from a seed than Keras 2"
        if "keras3" in engines
        else ("a session and a tf.function draw different numbers from the same seed")
    )
    how = f" ({', '.join(settings)})" if settings else ""
    return [f"random numbers are drawn in training ({drawing}): {why}; set their rates to 0 to compare the rest{how}"]


def of_session(config: Any) -> list[str]:
    """Return a note if the program's session rewrites its graph differently from a tf.function.

    Args:
        config: `RunConfig.session_config`, a `tf.compat.v1.ConfigProto` or None.
    """
    if config is not None and config.graph_options.rewrite_options.meta_optimizer_iterations != 1:  # ONE
        return []
    return [
        "the Estimator's session rewrites its graph once, which is tf.estimator's default, and a tf.function "
        "twice: sums may be rounded differently. To make them equal: "
        "RunConfig(session_config=tf.compat.v1.ConfigProto(allow_soft_placement=True))"
    ]


def of_optimizers(
    variables: Iterable[str],
    keras_optimizer: str,
    options: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> list[str]:
    """Return notes on a V1 optimizer in a graph and an optimizer of Keras.

    Args:
        variables: names of the graph's variables.
        keras_optimizer: the class's name.
        options: known options of both; Adam with equal epsilons needs no note.
    """
    epsilons = [side.get("epsilon") for side in options]
    if keras_optimizer == "Adam" and None not in epsilons and epsilons[0] == epsilons[1]:
        return []
    if keras_optimizer == "Adagrad" and epsilons[1] is not None and epsilons[1] < _NO_EPSILON:
        return []  # the setting that the note recommends
    endings = {name.partition(":")[0].rpartition("/")[2] for name in variables}
    return [
        f"{v1} (tf.compat.v1.train) against {keras_optimizer}: {difference}; estimator_pipeline.build_keras_model with "
        f"api: v1 has the former's arithmetic"
        for ending, (v1, like, difference) in _V1.items()
        if ending in endings and keras_optimizer in like
    ]

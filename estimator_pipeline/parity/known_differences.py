"""Where the two engines differ by nature, and the setting that makes them equal. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from estimator_pipeline.models.optimizers import keras3 as keras3_optimizers
from estimator_pipeline.models.optimizers.spec import optimizer_of
from estimator_pipeline.parity.findings import told_names

__all__ = ["of_job", "of_metrics", "of_optimizers", "of_random", "of_session"]

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

# So small an epsilon beside the root of an accumulator is none in float32.
_NO_EPSILON = 1e-20

# A Keras metric -> what it counts, and what makes an accuracy of tf.compat.v1.metrics of it.
_CLASSES = {
    "BinaryAccuracy": ("takes what is above 0.5 for 1", "tf.round(probabilities)"),
    "SparseCategoricalAccuracy": ("takes the largest output", "tf.argmax(outputs, axis=-1)"),
    "CategoricalAccuracy": ("takes the largest output", "tf.argmax of the outputs and of the labels"),
}


def of_job(job: Any, *, engines: Sequence[str], random: tuple[Sequence[str], Sequence[str]] = ((), ())) -> list[str]:
    """Return what is known of a job under two engines, as notes for a person.

    Args:
        job: it.
        engines: the two.
        random: of each, what draws random numbers of its own in training.
    """
    params = [name for name in job.model.params if "drop" in name.lower()]
    # A model by name has the parameter, whether the job sets it or not.
    settings = [f"--set model.params.{name}=0" for name in params or (["dropout"] if job.model.name else [])]
    found = of_random(engines, random, settings=settings)
    if "keras3" in engines:
        differs = keras3_optimizers.differences(optimizer_of(job.model.optimizer.model_dump()))
        if differs:
            found.append(
                f"{job.model.optimizer.name}: {differs}; --set model.optimizer.api=v1 has the same arithmetic on every "
                "engine"
            )
    if job.model.mixed_precision:
        found.append(
            "mixed precision: 8 bits of mantissa round each product, and the two engines order and fuse them "
            "otherwise: gradients of convolutions differ by some percent, and training makes more of it; compare in "
            "float32 (--set model.mixed_precision=false)"
        )
    return found


def of_random(
    engines: Sequence[str], random: tuple[Sequence[str], Sequence[str]], *, settings: Sequence[str] = ()
) -> list[str]:
    """Of what draws random numbers in training, other ones in each.

    Args:
        engines: the two.
        random: of each, the names of what draws them.
        settings: what turns them off, if that is known.
    """
    drawn = {engine: told_names(names, 4) for engine, names in zip(engines, random, strict=True) if names}
    if not drawn:
        return []
    told = (
        ", ".join(dict.fromkeys(drawn.values()))
        if len(drawn) == 2
        else "; ".join(f"{names}, in {engine} alone" for engine, names in drawn.items())
    )
    why = (
        "Keras 3 draws other numbers from a seed than Keras 2"
        if "keras3" in engines
        else ("a session and a tf.function draw other numbers from the same seed")
    )
    how = f" ({', '.join(settings)})" if settings else ""
    return [f"random numbers are drawn in training ({told}): {why}; set their rates to 0 to compare the rest{how}"]


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


def of_metrics(differing: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    """Of metrics that came to something else on either side: what the two count otherwise.

    Args:
        differing: name, and what the Estimator and Keras count, see `estimator_pipeline.parity.graph_facts`.
    """
    notes = [(name, _of_metric(one, other)) for name, one, other in differing]
    return [f"{name}: {what}" for name, what in notes if what]


def _of_metric(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    kind, keras = one.get("kind", ""), other.get("kind", "")
    told = []
    counts = [side.get("thresholds") for side in (one, other)]
    if None not in counts and counts[0] != counts[1]:
        told.append(f"num_thresholds is {counts[0]} in the Estimator and {counts[1]} in Keras: name the same in both")
    if kind == "auc" and other.get("curve") == "PR":
        told.append(
            "of a precision-recall curve tf.compat.v1.metrics.auc sums trapezoids, Keras interpolates: "
            'summation_method="careful_interpolation" is what Keras does'
        )
    if kind in ("precision", "recall") and not {"thresholds", "classes"} & one.keys():
        threshold = other.get("threshold") or 0.5
        told.append(
            f"tf.compat.v1.metrics.{kind} takes all but 0 for positive, Keras what is above {threshold}: give the "
            f"former classes, not probabilities, or tf.compat.v1.metrics.{kind}_at_thresholds with [{threshold}]"
        )
    if kind == "accuracy" and keras in _CLASSES and "classes" not in one:
        told.append(
            f"tf.compat.v1.metrics.accuracy counts what is equal to the labels, {keras} {_CLASSES[keras][0]}: give the "
            f"former {_CLASSES[keras][1]}"
        )
    if kind == "mean of batches":
        told.append(
            "tf.compat.v1.metrics.mean of a batch's mean weighs each batch alike, also a last one of fewer records, "
            "and Keras each record: give the former the values of the records"
        )
    return "; ".join(told)


def of_optimizers(
    variables: Iterable[str],
    keras_optimizer: str,
    options: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> list[str]:
    """Of a V1 optimizer in a graph against one of Keras.

    Args:
        variables: names of the graph's variables.
        keras_optimizer: the class's name.
        options: of both, as far as they are known: where Adam has the same epsilon in both, there is nothing to say.
    """
    epsilons = [side.get("epsilon") for side in options]
    if keras_optimizer == "Adam" and None not in epsilons and epsilons[0] == epsilons[1]:
        return []
    if keras_optimizer == "Adagrad" and epsilons[1] is not None and epsilons[1] < _NO_EPSILON:
        return []  # as the note below asks
    endings = {name.partition(":")[0].rpartition("/")[2] for name in variables}
    return [
        f"{v1} (tf.compat.v1.train) against {keras_optimizer}: {what}; estimator_pipeline.build_keras_model with "
        f"api: v1 has the former's arithmetic"
        for ending, (v1, like, what) in _V1.items()
        if ending in endings and keras_optimizer in like
    ]

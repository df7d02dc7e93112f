"""Histograms of weights and gradients in the training summaries, with the same meaning in all engines.

* `weights/NAME`: a trainable variable after the entry's step.
* `gradients/NAME`: its gradient in that step, over the batch of all replicas, before clipping and accumulation and
  without the float16 loss scale. The gradient of an embedding is dense: rows that the batch does not use are 0.
* NAME is the variable's name in the engine: `dense/kernel`, and in Keras 3 its path, `sequential/dense/kernel`.
* Values that are not finite are left out: TensorFlow's histograms fail on them, and training reports them elsewhere.

Histograms are computed only in steps that write summaries. With several replicas, the Estimator and Keras 3 engines
sum the gradients for them in every step, because all workers must take part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = [
    "HISTOGRAMS",
    "add_histograms",
    "checked_histograms",
    "recording_gradients",
    "write_gradients",
    "write_weights",
]

HISTOGRAMS = ("weights", "gradients")


def checked_histograms(names: Sequence[str]) -> tuple[str, ...]:
    """Check and return the names of histograms.

    Raises:
        ConfigError: A name is unknown, or the names are not a list.
    """
    listed = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in listed if name not in HISTOGRAMS]
    if unknown or isinstance(names, str):
        raise ConfigError(
            f"histograms is {names!r}",
            code="argument/bad-value",
            found=f"allowed: {', '.join(HISTOGRAMS)}",
            hint="give a list of some of these",
        )
    return tuple(listed)


def add_histograms(kind: str, variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Add histograms to the summaries of an Estimator's graph.

    Args:
        kind: "weights" or "gradients".
        variables: The variables, for the names.
        values: The value of each variable or gradient; None: no histogram.
    """
    tf = compat.tensorflow()
    for variable, value in zip(variables, values, strict=True):
        if value is not None:
            tf.compat.v1.summary.histogram(_tag(kind, variable), _finite(tf, value))


def write_weights(writer: Any, model: Any, *, step: int) -> None:
    """Write histograms of the current trainable variables of a Keras model.

    Args:
        writer: A writer of `tf.summary.create_file_writer`.
        model: The model.
        step: The step of the entries.
    """
    _write(writer, "weights", model.trainable_variables, model.trainable_variables, step=step)


def write_gradients(writer: Any, variables: Sequence[Any], gradients: Sequence[Any], *, step: Any, when: Any) -> None:
    """Write histograms of the gradients in selected steps, within a replica's compiled function.

    Args:
        writer: A writer of `tf.summary.create_file_writer`.
        variables: The trainable variables.
        gradients: Their gradients, summed over the replicas; None where a variable has none.
        step: The step of the entries, an int64 scalar.
        when: Whether to write in this step, a bool scalar.
    """
    tf = compat.tensorflow()

    def written() -> Any:
        _write(writer, "gradients", variables, gradients, step=step)
        return tf.constant(True)

    tf.cond(when, written, lambda: tf.constant(False))


def _write(writer: Any, kind: str, variables: Sequence[Any], values: Sequence[Any], *, step: Any) -> None:
    from tensorboard.plugins.histogram import metadata

    tf = compat.tensorflow()
    summary_metadata = metadata.create_summary_metadata(display_name=None, description=None)
    # Independent of the condition that a callback may have set, see `summaries`.
    with writer.as_default(step=step), tf.summary.record_if(True):
        for variable, value in zip(variables, values, strict=True):
            if value is not None:
                tf.summary.write(_tag(kind, variable), _buckets(tf, _finite(tf, value)), metadata=summary_metadata)


def _buckets(tf: Any, values: Any) -> Any:
    """Return the buckets of a TensorBoard histogram, [30, 3]: lower edge, upper edge, count.

    `tf.summary.histogram` needs 240 bytes of memory per value for the same result, this function 4.

    Args:
        tf: TensorFlow.
        values: Finite numbers, [n].
    """
    count = 30
    some = tf.size(values) > 0
    least, greatest = (tf.where(some, function(values), 0.0) for function in (tf.reduce_min, tf.reduce_max))
    edges = tf.linspace(tf.cast(least, tf.float64), tf.cast(greatest, tf.float64), count + 1)
    width = tf.where(greatest > least, (greatest - least) / count, 1.0)
    numbers = tf.clip_by_value(tf.cast((values - least) / width, tf.int32), 0, count - 1)
    held = tf.math.bincount(numbers, minlength=count, maxlength=count, dtype=tf.float64)
    return tf.stack([edges[:-1], edges[1:], held], axis=1)


@contextlib.contextmanager
def recording_gradients(optimizer: Any, record: Callable[[Sequence[Any], Sequence[Any]], None]) -> Iterator[None]:
    """Pass the gradients that a Keras 2 optimizer has summed over the replicas to `record`, within the block.

    Args:
        optimizer: One of `tf.keras.optimizers.legacy`, or a `LossScaleOptimizer` around one.
        record: `record(variables, gradients)`, called in a replica context while a step is traced.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    theirs = inner._aggregate_gradients

    def aggregated(grads_and_vars: Any) -> Any:
        pairs = list(theirs(grads_and_vars))
        record([variable for _, variable in pairs], [gradient for gradient, _ in pairs])
        return pairs

    # The attribute of the object hides that of its class.
    inner._aggregate_gradients = aggregated
    try:
        yield
    finally:
        del inner._aggregate_gradients


def _tag(kind: str, variable: Any) -> str:
    # In Keras 3 only the path has the layers.
    name = str(getattr(variable, "path", variable.name))
    return f"{kind}/{name.partition(':')[0]}"


def _finite(tf: Any, value: Any) -> Any:
    value = tf.cast(tf.convert_to_tensor(value), tf.float32)
    return tf.boolean_mask(value, tf.math.is_finite(value))

"""Histograms of weights and gradients among the summaries of training, with the same meaning in all engines.

* `weights/NAME`: a trained variable after the step that the entry names.
* `gradients/NAME`: its gradient in that step, of the batch of all replicas: before it is clipped or added up with those
  of other steps, and without the scale of the loss in float16. A gradient of rows, as an embedding has it, is dense:
  the rows that the batch does not name are 0.
* NAME is the variable's in the engine: `dense/kernel`, and in Keras 3 its path, `sequential/dense/kernel`.
* Values that are no finite numbers are left out: TensorFlow's histograms fail on them, and training has better ways to
  tell of them.

Only the steps of which summaries are written pay for the histograms; summing an Estimator's or Keras 3's gradients for
them over several replicas is paid in every step, for all workers must do it alike.
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
    """Return the names of histograms, if all are known.

    Raises:
        ConfigError: one is not, or they are a text.
    """
    given = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in given if name not in HISTOGRAMS]
    if unknown or isinstance(names, str):
        raise ConfigError(
            f"histograms is {names!r}",
            code="argument/bad-value",
            found=f"allowed: {', '.join(HISTOGRAMS)}",
            hint="give a list of some of these",
        )
    return tuple(given)


def add_histograms(kind: str, variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Add histograms to the summaries of an Estimator's graph.

    Args:
        kind: "weights" or "gradients".
        variables: which name them.
        values: of each; None: there is nothing to tell of it.
    """
    tf = compat.tensorflow()
    for variable, value in zip(variables, values, strict=True):
        if value is not None:
            tf.compat.v1.summary.histogram(_tag(kind, variable), _finite(tf, value))


def write_weights(writer: Any, model: Any, *, step: int) -> None:
    """Write what the trained variables of a Keras model are now.

    Args:
        writer: of `tf.summary.create_file_writer`.
        model: the model.
        step: of the entries.
    """
    _write(writer, "weights", model.trainable_variables, model.trainable_variables, step=step)


def write_gradients(writer: Any, variables: Sequence[Any], gradients: Sequence[Any], *, step: Any, when: Any) -> None:
    """Write the gradients of some steps, within a compiled function of a replica.

    Args:
        writer: of `tf.summary.create_file_writer`.
        variables: that are trained.
        gradients: theirs, summed over the replicas; None where there is none.
        step: of the entries, an int64 scalar.
        when: whether to write in this step, a bool scalar.
    """
    tf = compat.tensorflow()

    def written() -> Any:
        _write(writer, "gradients", variables, gradients, step=step)
        return tf.constant(True)

    tf.cond(when, written, lambda: tf.constant(False))


def _write(writer: Any, kind: str, variables: Sequence[Any], values: Sequence[Any], *, step: Any) -> None:
    from tensorboard.plugins.histogram import metadata

    tf = compat.tensorflow()
    told = metadata.create_summary_metadata(display_name=None, description=None)
    # Whatever condition another callback has set, see `event_files`.
    with writer.as_default(step=step), tf.summary.record_if(True):
        for variable, value in zip(variables, values, strict=True):
            if value is not None:
                tf.summary.write(_tag(kind, variable), _buckets(tf, _finite(tf, value)), metadata=told)


def _buckets(tf: Any, values: Any) -> Any:
    """Return what TensorBoard shows as a histogram, [30, 3]: from, to, how many.

    `tf.summary.histogram` needs 240 bytes for each value on its way to the same numbers, this 4.

    Args:
        tf: TensorFlow.
        values: [n], finite.
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
    """In the block a Keras 2 optimizer tells of the gradients that it has summed over the replicas.

    Args:
        optimizer: of `tf.keras.optimizers.legacy`, or a `LossScaleOptimizer` of one.
        record: `record(variables, gradients)`, called in the context of a replica while a step is traced.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    theirs = inner._aggregate_gradients

    def aggregated(grads_and_vars: Any) -> Any:
        pairs = list(theirs(grads_and_vars))
        record([variable for _, variable in pairs], [gradient for gradient, _ in pairs])
        return pairs

    # The object's own, over its class's.
    inner._aggregate_gradients = aggregated
    try:
        yield
    finally:
        del inner._aggregate_gradients


def _tag(kind: str, variable: Any) -> str:
    # Keras 3 has the layers in the path alone.
    name = str(getattr(variable, "path", variable.name))
    return f"{kind}/{name.partition(':')[0]}"


def _finite(tf: Any, value: Any) -> Any:
    value = tf.cast(tf.convert_to_tensor(value), tf.float32)
    return tf.boolean_mask(value, tf.math.is_finite(value))

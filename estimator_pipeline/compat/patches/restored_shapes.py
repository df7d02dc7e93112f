"""A checkpoint of another model is refused, where its variables have other shapes than the model's.

A saver of a graph reads a variable from the checkpoint and assigns it, whatever its shape: a layer of 5 units is
restored from one of 2, trains on with 2 and evaluates with 2 (tensorflow/tensorflow#24695); only for variables of
TensorFlow 1's kind there is an error. Here each restoring compares the shapes first, from the checkpoint's index alone,
and names the variables that differ.

The error is an `InvalidArgumentError` as well: that is what TensorFlow raises where it notices.

Private use: the list of variables that a `tf.compat.v1.train.Saver` keeps, and the slices of partitioned variables.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from estimator_pipeline.errors import CompatError

NAME = "restored-shapes"
WHAT = "a checkpoint whose variables have other shapes than the model's is refused, not restored without a word"

_SHOWN = 5


def apply() -> None:
    import tensorflow as tf

    class RestoredShapeError(CompatError, tf.errors.InvalidArgumentError):
        """The checkpoint's variables have other shapes than the model's."""

        code = "model-dir/other-model"

        def __init__(self, message: str, *, found: str | None = None, hint: str | None = None) -> None:
            self._sentence, self.found, self.hint = message, found, hint
            tf.errors.InvalidArgumentError.__init__(self, None, None, str(self))

        @property
        def message(self) -> str:  # type: ignore[override]  # TensorFlow's has `found` and `hint` as well
            return self._sentence

    saver = tf.compat.v1.train.Saver
    original = saver.restore

    @functools.wraps(original)
    def restore(self: Any, sess: Any, save_path: Any) -> Any:
        differ = [] if tf.executing_eagerly() or save_path is None else _different(tf, self, save_path)
        if differ:
            more = f"; and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
            raise RestoredShapeError(
                f"the checkpoint {tf.compat.as_text(save_path)} is of another model",
                found="; ".join(differ[:_SHOWN]) + more,
                hint="give the changed model a model_dir of its own. tf.estimator.WarmStartSettings("
                "ckpt_to_initialize_from=..., vars_to_warm_start=...) takes along what still fits",
            )
        return original(self, sess, save_path)

    saver.restore = restore


def _different(tf: Any, saver: Any, path: Any) -> list[str]:
    """What is told of each variable whose shape in the checkpoint is another."""
    if not tf.io.gfile.exists(f"{tf.compat.as_text(path)}.index"):
        return []  # the saver tells that there is none
    saved: Mapping[str, list[int]] = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    differ = []
    for name, shape in _variables(tf, saver._var_list):
        there = saved.get(name)
        if there is None or shape.is_compatible_with(there):
            continue
        # A saver that was made with reshape=True asks for the number of values alone.
        if saver._reshape and shape.num_elements() == tf.TensorShape(there).num_elements():
            continue
        differ.append(f"{name} is {there} there and {shape.as_list()} here")
    return sorted(differ)


def _variables(tf: Any, given: Any) -> Iterator[tuple[str, Any]]:
    """(name in the checkpoint, shape) of each variable that a saver was made for, whatever way it was given."""
    from tensorflow.python.ops.variables import PartitionedVariable

    named = given.items() if isinstance(given, Mapping) else [(None, one) for one in given or ()]
    for name, one in named:
        # The parts of a partitioned variable, each by itself or all in a list.
        first = one[0] if isinstance(one, (list, tuple)) and one else one
        part = getattr(first, "_save_slice_info", None)
        if part is not None:
            yield name or part.full_name, tf.TensorShape(part.full_shape)
        elif isinstance(first, (tf.Variable, PartitionedVariable, tf.distribute.DistributedValues)):
            yield name or first.name.partition(":")[0], tf.TensorShape(first.shape)

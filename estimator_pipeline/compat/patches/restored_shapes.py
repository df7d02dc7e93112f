"""A checkpoint is rejected if the shapes of its variables differ from the model's.

A graph's saver reads a variable from the checkpoint and assigns it, whatever its shape: a layer of 5 units is restored
from one of 2, and trains and evaluates with 2 (tensorflow/tensorflow#24695). Only TensorFlow 1's reference variables
raise an error. Here each restore first compares the shapes, from the checkpoint's index, and reports the variables that
differ.

The error is also an `InvalidArgumentError`, which TensorFlow raises where it detects the difference.

The export of a Keras model (`model_to_estimator`) builds the model for the receiver's features, and may do so with
features of a different shape. It exports the variables of the checkpoint, with a warning.

Private use: the list of variables of a `tf.compat.v1.train.Saver`, the slices of partitioned variables, the model
function that an Estimator has, and its method that exports.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from estimator_pipeline.errors import CompatError
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import few

NAME = "restored-shapes"
WHAT = "a checkpoint whose variables have different shapes than the model's is rejected, not silently restored"

_SHOWN = 5
_exports_keras_model = contextvars.ContextVar("exports_keras_model", default=False)


def apply() -> None:
    import tensorflow as tf

    class RestoredShapeError(CompatError, tf.errors.InvalidArgumentError):
        """Raised if the checkpoint's variables have different shapes than the model's."""

        code = "model-dir/other-model"

        def __init__(self, message: str, *, found: str, hint: str) -> None:
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
        if differ and _exports_keras_model.get():
            logger.warning(
                "The features of serving_input_receiver_fn have a different shape than the Keras model's input. The "
                "export has the variables of %s: %s",
                *(tf.compat.as_text(save_path), few(differ, _SHOWN, separator="; ")),
            )
        elif differ:
            raise RestoredShapeError(
                f"the checkpoint {tf.compat.as_text(save_path)} is of a different model",
                found=few(differ, _SHOWN, separator="; "),
                hint="use a new model_dir for the changed model. tf.estimator.WarmStartSettings("
                "ckpt_to_initialize_from=..., vars_to_warm_start=...) restores the variables that still match",
            )
        return original(self, sess, save_path)

    saver.restore = restore
    _mark_exports()


def _mark_exports() -> None:
    """Let `restore` know the exports of Keras models."""
    from tensorflow_estimator.python.estimator import estimator, keras_lib

    original = estimator.Estimator._export_all_saved_models

    @functools.wraps(original)
    def export(self: Any, *args: Any, **kwargs: Any) -> Any:
        marked = _exports_keras_model.set(getattr(self._model_fn, "__module__", "") == keras_lib.__name__)
        try:
            return original(self, *args, **kwargs)
        finally:
            _exports_keras_model.reset(marked)

    estimator.Estimator._export_all_saved_models = export


def _different(tf: Any, saver: Any, path: Any) -> list[str]:
    """Describe each variable whose shape in the checkpoint differs."""
    if not tf.io.gfile.exists(f"{tf.compat.as_text(path)}.index"):
        return []  # the saver reports the missing checkpoint
    saved: Mapping[str, list[int]] = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    differ = []
    for name, shape in _variables(tf, saver._var_list):
        there = saved.get(name)
        if there is None or shape.is_compatible_with(there):
            continue
        # A saver with reshape=True requires only the same number of values.
        if saver._reshape and shape.num_elements() == tf.TensorShape(there).num_elements():
            continue
        differ.append(f"{name} is {there} there and {shape.as_list()} here")
    return sorted(differ)


def _variables(tf: Any, var_list: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over (name in the checkpoint, shape) of the variables in a saver's `var_list`, of any form."""
    from tensorflow.python.ops.variables import PartitionedVariable

    named = var_list.items() if isinstance(var_list, Mapping) else [(None, item) for item in var_list or ()]
    for name, item in named:
        # The parts of a partitioned variable are separate items or a list.
        first = item[0] if isinstance(item, (list, tuple)) and item else item
        part = getattr(first, "_save_slice_info", None)
        if part is not None:
            yield name or part.full_name, tf.TensorShape(part.full_shape)
        elif isinstance(first, (tf.Variable, PartitionedVariable, tf.distribute.DistributedValues)):
            yield name or first.name.partition(":")[0], tf.TensorShape(first.shape)

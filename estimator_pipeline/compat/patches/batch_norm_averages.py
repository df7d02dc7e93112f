"""`model_to_estimator` keeps all weights of a Keras model, including BatchNormalization's moving statistics.

tf.estimator writes them into its first checkpoint, but warm-starts only the trainable variables from it. A trained
model with such layers then evaluates with initial statistics. A list of names in the warm-start settings also covers
non-trainable variables; here it has the trainable variables and the model's other weights.

Private use: the module of the estimator package that converts, and the Estimator's warm-start settings.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.compat.patches import replacing

NAME = "batch-norm-averages"
WHAT = "model_to_estimator keeps BatchNormalization's moving statistics, not only the trainable weights"


class _Weights(list[str]):
    """Name patterns of the trainable variables and the model's other weights, read when the graph exists."""

    def __iter__(self) -> Iterator[str]:
        import tensorflow as tf

        v1 = tf.compat.v1
        trained = {variable.name for variable in v1.trainable_variables()}
        known = set(super().__iter__())
        for variable in v1.global_variables():
            if variable.name in trained or variable.name in known:
                yield f"{re.escape(variable.name)}$"


def apply() -> None:
    import tensorflow as tf
    from tensorflow_estimator.python.estimator import keras_lib

    convert, save = keras_lib.model_to_estimator, keras_lib._save_first_checkpoint
    names: dict[str, list[str]] = {}

    @functools.wraps(save)
    def save_first_checkpoint(keras_model: Any, *args: Any, **options: Any) -> Any:
        path = save(keras_model, *args, **options)
        names[path] = [weight.name for weight in keras_model.weights]
        return path

    @functools.wraps(convert)
    def model_to_estimator(*args: Any, **options: Any) -> Any:
        estimator = convert(*args, **options)
        settings = estimator._warm_start_settings
        known = names.pop(settings.ckpt_to_initialize_from, []) if settings is not None else []
        if known:
            estimator._warm_start_settings = tf.estimator.WarmStartSettings(
                ckpt_to_initialize_from=settings.ckpt_to_initialize_from,
                vars_to_warm_start=_Weights(known),
            )
        return estimator

    keras_lib._save_first_checkpoint = save_first_checkpoint
    replacing.everywhere(convert, model_to_estimator)

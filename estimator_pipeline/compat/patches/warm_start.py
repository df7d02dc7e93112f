"""A warning that names the variables which a warm start leaves at their initial values.

A path, or settings with a pattern as a string (`vars_to_warm_start=".*"`), warm-start only trainable variables. The
checkpoint also has others that evaluation needs, such as BatchNormalization's moving statistics, and they are left
without a warning (tensorflow#19903). Nothing is changed, since TensorFlow documents this rule.

Private use: `warm_starting_util.warm_start`, which Estimator and programs call.
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.compat.patches import replacing
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import few

NAME = "warm-start"
WHAT = "a warning if a warm start leaves out variables of the checkpoint that are not trainable; nothing is changed"

_SHOWN = 5


def apply() -> None:
    from tensorflow.python.training import warm_starting_util as module

    original = module.warm_start

    @functools.wraps(original)
    def warm_start(ckpt_to_initialize_from: Any, vars_to_warm_start: Any = ".*", *args: Any, **options: Any) -> Any:
        result = original(ckpt_to_initialize_from, vars_to_warm_start, *args, **options)
        left = _left_out(ckpt_to_initialize_from, vars_to_warm_start) if isinstance(vars_to_warm_start, str) else []
        if left:
            logger.warning(
                "The warm start from %s leaves %s at their initial values: a path or a pattern that is a string "
                "restores only trainable variables. A list restores all variables that match: "
                "tf.estimator.WarmStartSettings(..., vars_to_warm_start=[%r]), including the global step and the "
                "optimizer's state",
                ckpt_to_initialize_from,
                few(left, _SHOWN),
                vars_to_warm_start,
            )
        return result

    replacing.everywhere(original, warm_start)


def _left_out(checkpoint: Any, pattern: str) -> list[str]:
    """Return the names of variables that match, are in the checkpoint, and are neither trainable nor an optimizer's."""
    import tensorflow as tf

    v1 = tf.compat.v1
    saved = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
    trainable = [_saved_name(variable) for variable in v1.trainable_variables()]

    def left(name: str, variable: Any) -> bool:
        # Optimizers' hyperparameters, powers and counters are scalars, and so is the global step.
        if variable.shape.rank == 0 or name in trainable or saved.get(name) != variable.shape.as_list():
            return False
        # A slot or a moving average has the name of its variable: dense/kernel/Adam, training/Adam/dense/kernel/m.
        return not any(f"/{of}/" in f"/{name}" for of in trainable)

    variables = v1.get_collection(v1.GraphKeys.GLOBAL_VARIABLES, scope=pattern)
    return sorted({name for variable in variables if left(name := _saved_name(variable), variable)})


def _saved_name(variable: Any) -> str:
    part = getattr(variable, "_save_slice_info", None)
    name: str = variable.op.name if part is None else part.full_name
    return name

"""Keras layers in a model_fn, and their `training` argument."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["SETS_PHASE", "set_training_false"]

# Layers that behave differently in training.
_MODE_DEPENDENT = (
    "AlphaDropout", "BatchNormalization", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D",
    "SpatialDropout2D", "SpatialDropout3D",
)  # fmt: skip
SETS_PHASE = "tf.keras.backend.set_learning_phase"
"""Sets the phase of a graph. The converter drops it: `fit` and `evaluate` pass `training` to each layer."""


def set_training_false(
    reader: Rewriter, function: cst.FunctionDef, functions: set[cst.CSTNode], models: Collection[str]
) -> None:
    """Write `training=False` in calls of mode-dependent layers without a `training` argument.

    In an Estimator's graph these layers run in inference mode, in training too, unless the learning phase is set.
    In `fit`, Keras would pass `training=True`.

    Args:
        function: The model_fn.
        functions: The functions that build its network, including the model_fn.
        models: Names of Keras models. Calls of a model are changed instead of calls of its layers.

    Raises:
        NotConvertible: The learning phase is set to something other than the mode.
    """
    calls = [call for call in reader.tree.calls if functions & set(reader.tree.above(call))]
    phases = [_sets_by_mode(reader, call, function) for call in calls if reader.called(call) == SETS_PHASE]
    if any(phases):
        return
    mode_dependent = [call for call in calls if _is_mode_dependent(reader.called(call))]
    for call in calls:
        if models:
            is_layer = isinstance(call.func, cst.Name) and call.func.value in models and bool(mode_dependent)
        else:
            is_layer = _is_mode_dependent(reader.called(reader.value(call.func)))
        has_training = any(
            arg.star or (arg.keyword is not None and arg.keyword.value == "training") for arg in call.args
        )
        if is_layer and not has_training:
            reader.replaced[call] = partial(_call_in_inference, reader, call)


def _is_mode_dependent(name: str) -> bool:
    path = name.removeprefix("tf.keras.")
    return path.startswith("applications.") or (path.startswith("layers.") and path[7:] in _MODE_DEPENDENT)


def _sets_by_mode(reader: Rewriter, call: cst.Call, function: cst.FunctionDef) -> bool:
    """Return whether a call sets the learning phase by the mode; False if it sets the phase to inference."""
    value = call.args[0].value if len(call.args) == 1 else None
    enclosing = [above for above in reader.tree.above(call) if isinstance(above, (cst.If, cst.FunctionDef, cst.Lambda))]
    if function not in enclosing[:2]:
        value = None
    if value is not None and reader.is_flag(value):
        return True
    text, branch = reader.source(value) if value is not None else "", enclosing[0]
    if text in ("0", "False"):
        return False
    trains = isinstance(branch, cst.If) and reader.is_flag(branch.test) and branch.body in set(reader.tree.above(call))
    if text in ("1", "True") and trains:
        return True
    raise NotConvertible("a learning phase that does not follow the mode", call)


def _call_in_inference(reader: Rewriter, call: cst.Call) -> str:
    args = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else reader.text(arg.value)
            for arg in call.args]  # fmt: skip
    return reader.call(reader.text(call.func), [*args, "training=False"], call)

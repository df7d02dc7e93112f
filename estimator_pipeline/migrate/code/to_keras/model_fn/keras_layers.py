"""Layers of Keras in a model_fn: their names in TensorFlow 1, and whether they know that the model trains."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["SETS_PHASE", "tell_phase"]

# They do something else where a model trains.
_BY_PHASE = ("AlphaDropout", "BatchNormalization", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D",
             "SpatialDropout2D", "SpatialDropout3D")  # fmt: skip
SETS_PHASE = "tf.keras.backend.set_learning_phase"
"""Of a graph; Keras knows by itself in which one it is."""


def tell_phase(
    reader: Rewriter, function: cst.FunctionDef, functions: set[cst.CSTNode], models: Collection[str]
) -> None:
    """Write `training=False` for layers of a network that are not told whether it trains.

    In the graph of an Estimator they do as in evaluation, also while it trains, unless the learning phase is set; in
    `fit` Keras tells them.

    Args:
        function: the model_fn; `functions` are those that make its network, itself among them.
        models: names of Keras models, which are called in place of their layers.

    Raises:
        NotConvertible: the learning phase is set otherwise than by the mode.
    """
    calls = [call for call in reader.tree.calls if functions & set(reader.tree.above(call))]
    phases = [_sets_by_mode(reader, call, function) for call in calls if reader.called(call) == SETS_PHASE]
    if any(phases):
        return
    by_phase = [call for call in calls if _is_by_phase(reader.called(call))]
    for call in calls:
        if models:
            other = isinstance(call.func, cst.Name) and call.func.value in models and bool(by_phase)
        else:
            other = _is_by_phase(reader.called(reader.value(call.func)))
        told = any(arg.star or (arg.keyword is not None and arg.keyword.value == "training") for arg in call.args)
        if other and not told:
            reader.replaced[call] = partial(_untrained, reader, call)


def _is_by_phase(name: str) -> bool:
    below = name.removeprefix("tf.keras.")
    return below.startswith("applications.") or (below.startswith("layers.") and below[7:] in _BY_PHASE)


def _sets_by_mode(reader: Rewriter, call: cst.Call, function: cst.FunctionDef) -> bool:
    """Whether a call sets the learning phase to whether the model trains; False where it sets it to no training."""
    value = call.args[0].value if len(call.args) == 1 else None
    within = [one for one in reader.tree.above(call) if isinstance(one, (cst.If, cst.FunctionDef, cst.Lambda))]
    if function not in within[:2]:
        value = None
    if value is not None and reader.is_flag(value):
        return True
    text, around = reader.source(value) if value is not None else "", within[0]
    if text in ("0", "False"):
        return False
    trains = isinstance(around, cst.If) and reader.is_flag(around.test) and around.body in set(reader.tree.above(call))
    if text in ("1", "True") and trains:
        return True
    raise NotConvertible("a learning phase that is not that of the mode", call)


def _untrained(reader: Rewriter, call: cst.Call) -> str:
    kept = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else reader.text(arg.value)
            for arg in call.args]  # fmt: skip
    return reader.call(reader.text(call.func), [*kept, "training=False"], call)

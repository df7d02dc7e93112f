"""`tf.layers.dropout(x, 0.4, training=training)` -> `tf.keras.layers.Dropout(0.4)(x)`.

Keras passes `training` to its layers. Without `training=`, V1's layer does nothing, so the Keras layer gets
`training=False`. `tf.nn.dropout` always drops; a branch for training around it is what the layer of Keras does.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from estimator_pipeline.migrate.convert.names import ALL_MODES, TRAIN
from estimator_pipeline.migrate.convert.rule import NETWORK, Call, operand, rule

__all__ = ["dropout", "nn_dropout"]


@rule("tf.compat.v1.layers.dropout", at=(NETWORK,))
def dropout(call: Call) -> str:
    args = call.args("inputs", "rate", "noise_shape", "seed", "training", "name", required=["inputs"])
    inputs, trains = call.text(args.pop("inputs")), training(call, args)
    args.pop("training", None)
    rate = call.text(args.pop("rate")) if "rate" in args else "0.5"
    return f"{call.tf}.keras.layers.Dropout({', '.join([rate, *call.options(args)])})({inputs}{trains})"


def training(call: Call, args: Mapping[str, cst.BaseExpression], *, default: bool = False) -> str:
    """Return the argument `training` of a layer's call; "" where it is true in training only."""
    value = args.get("training")
    if value is None:
        return f", training={default}"
    if call.is_constant(value, "False"):
        return ", training=False"
    modes = call.names.modes_of(value)
    if modes == {TRAIN}:
        return ""
    if call.is_constant(value, "True") or modes == ALL_MODES:
        return ", training=True"
    raise call.refuse("training, which is not true in training only,", value)


@rule("tf.nn.dropout", "tf.compat.v1.nn.dropout", at=(NETWORK,))
def nn_dropout(call: Call) -> str:
    """`tf.nn.dropout(x, keep_prob=k)`, which drops in every mode; `train_only` converts it in a condition."""
    v1 = call.name.startswith("tf.compat.v1.")
    parameters = ("keep_prob", "noise_shape", "seed", "name", "rate") if v1 else ("rate", "noise_shape", "seed", "name")
    args = call.args("x", *parameters, required=["x"])
    if ("keep_prob" in args) == ("rate" in args) or "noise_shape" in args:
        raise call.refuse("the arguments", call.node)
    rate = call.text(args["rate"]) if "rate" in args else f"1 - {operand(call.text(args['keep_prob']))}"
    options = call.options({name: args[name] for name in args if name == "seed"})
    return f"{call.tf}.keras.layers.Dropout({', '.join([rate, *options])})({call.text(args['x'])}, training=True)"

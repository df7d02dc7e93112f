"""Activation functions: as the argument of a layer by their Keras name, between layers as a layer.

`tf.layers.dense(x, 8, activation=tf.nn.relu)` names a function of TensorFlow, which a saved Keras model does not find
again; its name in Keras is the same function. Source: the definitions in keras/src/activations.
"""

from __future__ import annotations

from estimator_pipeline.migrate.convert.rule import NETWORK, Call, rule

__all__ = ["function", "helper"]

# Functions that both versions of Keras have by the same name and with the same default arguments.
_NAMES = {
    "nn.relu": "relu", "nn.tanh": "tanh", "tanh": "tanh", "math.tanh": "tanh", "nn.sigmoid": "sigmoid",
    "sigmoid": "sigmoid", "math.sigmoid": "sigmoid", "nn.elu": "elu", "nn.selu": "selu", "nn.softplus": "softplus",
    "math.softplus": "softplus", "nn.softsign": "softsign", "nn.softmax": "softmax", "nn.swish": "swish",
    "nn.silu": "swish",
}  # fmt: skip


def helper(full: str) -> str:
    """Return the name of the activation function of `training_helpers.py` for one of TensorFlow's; else ""."""
    return "leaky_relu" if full in ("tf.nn.leaky_relu", "tf.compat.v1.nn.leaky_relu") else ""


def function(full: str, tf: str) -> str:
    """Return the Keras function for an activation function that is passed as a value; "" for another name."""
    below = full.removeprefix("tf.compat.v1.").removeprefix("tf.")
    return f"{tf}.keras.activations.{_NAMES[below]}" if below in _NAMES else ""


def _names() -> list[str]:
    return [f"{prefix}{name}" for prefix in ("tf.", "tf.compat.v1.") for name in _NAMES]


@rule(*_names(), at=(NETWORK,))
def activation(call: Call) -> str:
    """`tf.nn.relu(x)` -> `tf.keras.layers.Activation("relu")(x)`; softmax over the last axis only."""
    args = call.args("features", "axis", "name", "x", "logits", "dim")
    inputs = args.get("features") or args.get("x") or args.get("logits")
    if inputs is None:
        raise call.refuse("the input", call.node)
    for parameter in ("axis", "dim"):
        if parameter in args and not call.is_constant(args[parameter], "-1", "None"):
            raise call.refuse(parameter, args[parameter])
    below = call.name.removeprefix("tf.compat.v1.").removeprefix("tf.")
    return f'{call.tf}.keras.layers.Activation("{_NAMES[below]}")({call.text(inputs)})'

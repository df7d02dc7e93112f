"""`tf.layers.dense(x, 8)` -> `tf.keras.layers.Dense(8)(x)`, and the other layers with the same arguments in Keras.

Defaults are equal, except where a table names another: tests/migrate/test_equals.py compares each with its V1 layer.
"""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.convert.rule import NETWORK, Call, rule
from estimator_pipeline.migrate.convert.rules import activations

__all__ = ["layer", "parameters_of"]

_VARIABLES = ("kernel_initializer", "bias_initializer", "kernel_regularizer", "bias_regularizer",
              "activity_regularizer", "kernel_constraint", "bias_constraint", "trainable", "name", "reuse")  # fmt: skip
_CONV = ("inputs", "filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", "activation",
         "use_bias", *_VARIABLES)  # fmt: skip
_SEPARABLE = (*_CONV[:7], "depth_multiplier", "activation", "use_bias", "depthwise_initializer",
              "pointwise_initializer", "bias_initializer", "depthwise_regularizer", "pointwise_regularizer",
              "bias_regularizer", "activity_regularizer", "depthwise_constraint", "pointwise_constraint",
              "bias_constraint", "trainable", "name", "reuse")  # fmt: skip
_POOL = ("inputs", "pool_size", "strides", "padding", "data_format", "name")
# Function of tf.compat.v1.layers -> (Keras layer, parameters).
_LAYERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dense": ("Dense", ("inputs", "units", "activation", "use_bias", *_VARIABLES)),
    "conv1d": ("Conv1D", _CONV),
    "conv2d": ("Conv2D", _CONV),
    "conv3d": ("Conv3D", _CONV),
    "conv2d_transpose": ("Conv2DTranspose", (*_CONV[:6], "activation", "use_bias", *_VARIABLES)),
    "separable_conv1d": ("SeparableConv1D", _SEPARABLE),
    "separable_conv2d": ("SeparableConv2D", _SEPARABLE),
    "max_pooling1d": ("MaxPooling1D", _POOL),
    "max_pooling2d": ("MaxPooling2D", _POOL),
    "max_pooling3d": ("MaxPooling3D", _POOL),
    "average_pooling1d": ("AveragePooling1D", _POOL),
    "average_pooling2d": ("AveragePooling2D", _POOL),
    "average_pooling3d": ("AveragePooling3D", _POOL),
    "flatten": ("Flatten", ("inputs", "name", "data_format")),
}


def parameters_of(name: str) -> tuple[str, ...]:
    """Return the parameters of a layer function; none for another function."""
    return _LAYERS.get(name.removeprefix("tf.compat.v1.layers."), ("", ()))[1]


_POSITIONAL = {"Dense": 1, "Flatten": 0}  # arguments that read well without their names; else two


@rule(*(f"tf.compat.v1.layers.{name}" for name in _LAYERS), at=(NETWORK,))
def layer(call: Call) -> str:
    """Write the layer and its call."""
    keras, parameters = _LAYERS[call.name.rpartition(".")[2]]
    args = call.args(*parameters, required=["inputs"])
    inputs = args.pop("inputs")
    if "reuse" in args and not call.is_constant(args.pop("reuse"), "None", "False"):
        raise call.refuse("reuse", call.node)
    return f"{call.tf}.keras.layers.{keras}({arguments_of(call, args, parameters[1:], keras)})({call.text(inputs)})"


def arguments_of(
    call: Call, args: dict[str, cst.BaseExpression], parameters: tuple[str, ...], keras: str
) -> str:  # fmt: skip
    """Return the text of a layer's arguments; the first ones by position, as most people write them."""
    written = []
    for position, (parameter, value) in enumerate(args.items()):
        if parameter == "name" and not call.is_only_layer_named(value):
            continue  # scopes made such names of V1 differ; those of Keras have to differ by themselves
        text = call.text(value)
        if parameter == "padding":
            text = text.lower() if isinstance(value, cst.SimpleString) else f"{text}.lower()"
        if parameter == "data_format" and call.is_constant(value, "'channels_first'", '"channels_first"'):
            raise call.refuse("data_format channels_first", value)
        full = call.names.name(value)
        if parameter == "activation" and (known := activations.function(full, "tf")):
            text = repr(known.rpartition(".")[2])
        elif parameter == "activation" and full.startswith("tf.") and not activations.helper(full):
            raise call.refuse(f"activation={full}", value)
        by_position = position < _POSITIONAL.get(keras, 2) and parameters[position] == parameter
        written.append(text if by_position else f"{parameter}={text}")
    return ", ".join(written)

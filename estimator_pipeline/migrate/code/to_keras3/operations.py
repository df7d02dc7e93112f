"""TensorFlow operations and their counterparts in `keras.ops`, which run on each backend of Keras 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ACTIVATIONS", "DTYPES", "INITIALIZERS", "OPERATIONS", "Operation"]


class Operation(NamedTuple):
    """The counterpart of a TensorFlow operation.

    Attributes:
        target: The function to call.
        parameters: TensorFlow's parameter -> that of `target`, in TensorFlow's order.
        defaults: Arguments to write if the call has none, because TensorFlow's default differs.
        options: An argument to add in each case.
        ordered: Whether `target` takes its parameters in the same order.
    """

    target: str
    parameters: Mapping[str, str]
    defaults: Mapping[str, str] = {}
    options: str = ""
    ordered: bool = True


def _parameters(text: str) -> dict[str, str]:
    pairs = (pair.partition(">")[::2] for pair in text.split())
    return {old: new or old for old, new in pairs}


def _operations(names: str, target: str, parameters: str, *, options: str = "", ordered: bool = True,
        **defaults: str) -> dict[str, Operation]:  # fmt: skip
    operation = Operation(f"keras.ops.{target}", _parameters(parameters), defaults, options, ordered)
    return {f"tf.{name}": operation for name in names.split()}


OPERATIONS: Mapping[str, Operation] = {
    **_operations("reshape", "reshape", "tensor>x shape>newshape"),
    **_operations("cast dtypes.cast", "cast", "x dtype"),
    **_operations("expand_dims", "expand_dims", "input>x axis"),
    **_operations("squeeze", "squeeze", "input>x axis"),
    **_operations("transpose", "transpose", "a>x perm>axes"),
    **_operations("concat", "concatenate", "values>xs axis"),
    **_operations("stack", "stack", "values>x axis"),
    **_operations("unstack", "unstack", "value>x num axis"),
    **_operations("tile", "tile", "input>x multiples>repeats"),
    **_operations("gather", "take", "params>x indices axis", ordered=False, axis="0"),
    **_operations("nn.embedding_lookup", "take", "params>x ids>indices", axis="0"),
    **_operations("one_hot", "one_hot", "indices>x depth>num_classes axis dtype", ordered=False),
    **_operations("shape", "shape", "input>x"),
    **_operations("size", "size", "input>x"),
    **_operations("zeros", "zeros", "shape dtype"),
    **_operations("ones", "ones", "shape dtype"),
    **_operations("fill", "full", "dims>shape value>fill_value"),
    **_operations("zeros_like", "zeros_like", "input>x dtype"),
    **_operations("ones_like", "ones_like", "input>x dtype"),
    **_operations("range", "arange", "start limit>stop delta>step"),
    **_operations("constant", "convert_to_tensor", "value>x dtype"),
    **_operations("convert_to_tensor", "convert_to_tensor", "value>x dtype"),
    **_operations("stop_gradient", "stop_gradient", "input>variable"),
    **_operations("where", "where", "condition x>x1 y>x2"),
    **_operations("clip_by_value", "clip", "t>x clip_value_min>x_min clip_value_max>x_max"),
    **_operations("reduce_mean math.reduce_mean", "mean", "input_tensor>x axis keepdims"),
    **_operations("reduce_sum math.reduce_sum", "sum", "input_tensor>x axis keepdims"),
    **_operations("reduce_max math.reduce_max", "max", "input_tensor>x axis keepdims"),
    **_operations("reduce_min math.reduce_min", "min", "input_tensor>x axis keepdims"),
    **_operations("reduce_prod math.reduce_prod", "prod", "input_tensor>x axis keepdims"),
    **_operations("reduce_any math.reduce_any", "any", "input_tensor>x axis keepdims"),
    **_operations("reduce_all math.reduce_all", "all", "input_tensor>x axis keepdims"),
    **_operations("reduce_logsumexp math.reduce_logsumexp", "logsumexp", "input_tensor>x axis keepdims"),
    **_operations("argmax math.argmax", "argmax", "input>x axis output_type>dtype", axis="0"),
    **_operations("argmin math.argmin", "argmin", "input>x axis output_type>dtype", axis="0"),
    **_operations("math.top_k nn.top_k", "top_k", "input>x k sorted"),
    **_operations("math.in_top_k", "in_top_k", "targets predictions k"),
    **_operations("matmul linalg.matmul", "matmul", "a>x1 b>x2"),
    **_operations("einsum", "einsum", "equation inputs"),
    **_operations("add math.add", "add", "x>x1 y>x2"),
    **_operations("subtract math.subtract", "subtract", "x>x1 y>x2"),
    **_operations("multiply math.multiply", "multiply", "x>x1 y>x2"),
    **_operations("divide math.divide math.truediv", "divide", "x>x1 y>x2"),
    **_operations("pow math.pow", "power", "x>x1 y>x2"),
    **_operations("maximum math.maximum", "maximum", "x>x1 y>x2"),
    **_operations("minimum math.minimum", "minimum", "x>x1 y>x2"),
    **_operations("math.mod math.floormod", "mod", "x>x1 y>x2"),
    **_operations("equal math.equal", "equal", "x>x1 y>x2"),
    **_operations("not_equal math.not_equal", "not_equal", "x>x1 y>x2"),
    **_operations("greater math.greater", "greater", "x>x1 y>x2"),
    **_operations("greater_equal math.greater_equal", "greater_equal", "x>x1 y>x2"),
    **_operations("less math.less", "less", "x>x1 y>x2"),
    **_operations("less_equal math.less_equal", "less_equal", "x>x1 y>x2"),
    **_operations("logical_and math.logical_and", "logical_and", "x>x1 y>x2"),
    **_operations("logical_or math.logical_or", "logical_or", "x>x1 y>x2"),
    **_operations("logical_not math.logical_not", "logical_not", "x"),
    **_operations("square math.square", "square", "x"),
    **_operations("sqrt math.sqrt", "sqrt", "x"),
    **_operations("math.rsqrt", "rsqrt", "x"),
    **_operations("exp math.exp", "exp", "x"),
    **_operations("math.log", "log", "x"),
    **_operations("math.log1p", "log1p", "x"),
    **_operations("abs math.abs", "abs", "x"),
    **_operations("sign math.sign", "sign", "x"),
    **_operations("floor math.floor", "floor", "x"),
    **_operations("round math.round", "round", "x"),
    **_operations("negative math.negative", "negative", "x"),
    **_operations("sin math.sin", "sin", "x"),
    **_operations("cos math.cos", "cos", "x"),
    **_operations("math.cumsum cumsum", "cumsum", "x axis", axis="0"),
    **_operations("tanh math.tanh nn.tanh", "tanh", "x"),
    **_operations("sigmoid math.sigmoid nn.sigmoid", "sigmoid", "x"),
    **_operations("nn.relu", "relu", "features>x"),
    **_operations("nn.relu6", "relu6", "features>x"),
    **_operations("nn.elu", "elu", "features>x"),
    **_operations("nn.selu", "selu", "features>x"),
    **_operations("nn.gelu", "gelu", "features>x approximate", approximate="False"),
    **_operations("nn.silu nn.swish", "silu", "features>x"),
    **_operations("nn.softplus math.softplus", "softplus", "features>x"),
    **_operations("nn.softsign math.softsign", "softsign", "features>x"),
    **_operations("nn.leaky_relu", "leaky_relu", "features>x alpha>negative_slope"),
    **_operations("nn.softmax", "softmax", "logits>x axis"),
    **_operations("nn.log_softmax", "log_softmax", "logits>x axis"),
    **_operations("nn.bias_add", "add", "value>x1 bias>x2"),
    **_operations("nn.moments", "moments", "x axes", ordered=True),
    **_operations("nn.sigmoid_cross_entropy_with_logits", "binary_crossentropy", "labels>target logits>output",
          options="from_logits=True"),
    **_operations("nn.softmax_cross_entropy_with_logits", "categorical_crossentropy", "labels>target logits>output",
          options="from_logits=True"),
    **_operations("nn.sparse_softmax_cross_entropy_with_logits", "sparse_categorical_crossentropy",
          "labels>target logits>output", options="from_logits=True"),
}  # fmt: skip
"""TensorFlow operation -> its counterpart. `name` is not a parameter, because Keras 3 has none."""

ACTIVATIONS: Mapping[str, str] = {
    f"tf.{path}{name}": f"keras.activations.{name}"
    for path, names in {
        "nn.": "relu relu6 elu selu gelu silu softplus softsign leaky_relu softmax log_softmax tanh sigmoid",
        "math.": "tanh sigmoid softplus softsign",
        "": "tanh sigmoid",
    }.items()
    for name in names.split()
} | {"tf.nn.swish": "keras.activations.silu", "tf.identity": "keras.activations.linear"}
"""Activation function, passed as a value -> that of Keras."""

INITIALIZERS: Mapping[str, str] = {
    "tf.zeros_initializer": "Zeros",
    "tf.ones_initializer": "Ones",
    "tf.constant_initializer": "Constant",
    "tf.random_normal_initializer": "RandomNormal",
    "tf.random_uniform_initializer": "RandomUniform",
}
"""Initializer of TensorFlow 2 -> its name in `keras.initializers`."""

DTYPES = ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "string")

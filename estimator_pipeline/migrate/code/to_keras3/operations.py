"""TensorFlow's operations and their counterparts in `keras.ops`, which run on every backend of Keras 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ACTIVATIONS", "DTYPES", "INITIALIZERS", "OPERATIONS", "Operation"]


class Operation(NamedTuple):
    """A counterpart.

    Attributes:
        target: what is called.
        parameters: TensorFlow's parameter -> that of `target`, in TensorFlow's order.
        defaults: what has to be said where the call does not, for TensorFlow has another default.
        options: what is added always.
        ordered: whether `target` takes its parameters in the same order.
    """

    target: str
    parameters: Mapping[str, str]
    defaults: Mapping[str, str] = {}
    options: str = ""
    ordered: bool = True


def _parameters(text: str) -> dict[str, str]:
    pairs = (one.partition(">")[::2] for one in text.split())
    return {old: new or old for old, new in pairs}


def _of(names: str, target: str, parameters: str, *, options: str = "", ordered: bool = True,
        **defaults: str) -> dict[str, Operation]:  # fmt: skip
    made = Operation(f"keras.ops.{target}", _parameters(parameters), defaults, options, ordered)
    return {f"tf.{name}": made for name in names.split()}


OPERATIONS: Mapping[str, Operation] = {
    **_of("reshape", "reshape", "tensor>x shape>newshape"),
    **_of("cast dtypes.cast", "cast", "x dtype"),
    **_of("expand_dims", "expand_dims", "input>x axis"),
    **_of("squeeze", "squeeze", "input>x axis"),
    **_of("transpose", "transpose", "a>x perm>axes"),
    **_of("concat", "concatenate", "values>xs axis"),
    **_of("stack", "stack", "values>x axis"),
    **_of("unstack", "unstack", "value>x num axis"),
    **_of("tile", "tile", "input>x multiples>repeats"),
    **_of("gather", "take", "params>x indices axis", ordered=False, axis="0"),
    **_of("nn.embedding_lookup", "take", "params>x ids>indices", axis="0"),
    **_of("one_hot", "one_hot", "indices>x depth>num_classes axis dtype", ordered=False),
    **_of("shape", "shape", "input>x"),
    **_of("size", "size", "input>x"),
    **_of("zeros", "zeros", "shape dtype"),
    **_of("ones", "ones", "shape dtype"),
    **_of("fill", "full", "dims>shape value>fill_value"),
    **_of("zeros_like", "zeros_like", "input>x dtype"),
    **_of("ones_like", "ones_like", "input>x dtype"),
    **_of("range", "arange", "start limit>stop delta>step"),
    **_of("constant", "convert_to_tensor", "value>x dtype"),
    **_of("convert_to_tensor", "convert_to_tensor", "value>x dtype"),
    **_of("stop_gradient", "stop_gradient", "input>variable"),
    **_of("where", "where", "condition x>x1 y>x2"),
    **_of("clip_by_value", "clip", "t>x clip_value_min>x_min clip_value_max>x_max"),
    **_of("reduce_mean math.reduce_mean", "mean", "input_tensor>x axis keepdims"),
    **_of("reduce_sum math.reduce_sum", "sum", "input_tensor>x axis keepdims"),
    **_of("reduce_max math.reduce_max", "max", "input_tensor>x axis keepdims"),
    **_of("reduce_min math.reduce_min", "min", "input_tensor>x axis keepdims"),
    **_of("reduce_prod math.reduce_prod", "prod", "input_tensor>x axis keepdims"),
    **_of("reduce_any math.reduce_any", "any", "input_tensor>x axis keepdims"),
    **_of("reduce_all math.reduce_all", "all", "input_tensor>x axis keepdims"),
    **_of("reduce_logsumexp math.reduce_logsumexp", "logsumexp", "input_tensor>x axis keepdims"),
    **_of("argmax math.argmax", "argmax", "input>x axis output_type>dtype", axis="0"),
    **_of("argmin math.argmin", "argmin", "input>x axis output_type>dtype", axis="0"),
    **_of("math.top_k nn.top_k", "top_k", "input>x k sorted"),
    **_of("math.in_top_k", "in_top_k", "targets predictions k"),
    **_of("matmul linalg.matmul", "matmul", "a>x1 b>x2"),
    **_of("einsum", "einsum", "equation inputs"),
    **_of("add math.add", "add", "x>x1 y>x2"),
    **_of("subtract math.subtract", "subtract", "x>x1 y>x2"),
    **_of("multiply math.multiply", "multiply", "x>x1 y>x2"),
    **_of("divide math.divide math.truediv", "divide", "x>x1 y>x2"),
    **_of("pow math.pow", "power", "x>x1 y>x2"),
    **_of("maximum math.maximum", "maximum", "x>x1 y>x2"),
    **_of("minimum math.minimum", "minimum", "x>x1 y>x2"),
    **_of("math.mod math.floormod", "mod", "x>x1 y>x2"),
    **_of("equal math.equal", "equal", "x>x1 y>x2"),
    **_of("not_equal math.not_equal", "not_equal", "x>x1 y>x2"),
    **_of("greater math.greater", "greater", "x>x1 y>x2"),
    **_of("greater_equal math.greater_equal", "greater_equal", "x>x1 y>x2"),
    **_of("less math.less", "less", "x>x1 y>x2"),
    **_of("less_equal math.less_equal", "less_equal", "x>x1 y>x2"),
    **_of("logical_and math.logical_and", "logical_and", "x>x1 y>x2"),
    **_of("logical_or math.logical_or", "logical_or", "x>x1 y>x2"),
    **_of("logical_not math.logical_not", "logical_not", "x"),
    **_of("square math.square", "square", "x"),
    **_of("sqrt math.sqrt", "sqrt", "x"),
    **_of("math.rsqrt", "rsqrt", "x"),
    **_of("exp math.exp", "exp", "x"),
    **_of("math.log", "log", "x"),
    **_of("math.log1p", "log1p", "x"),
    **_of("abs math.abs", "abs", "x"),
    **_of("sign math.sign", "sign", "x"),
    **_of("floor math.floor", "floor", "x"),
    **_of("round math.round", "round", "x"),
    **_of("negative math.negative", "negative", "x"),
    **_of("sin math.sin", "sin", "x"),
    **_of("cos math.cos", "cos", "x"),
    **_of("math.cumsum cumsum", "cumsum", "x axis", axis="0"),
    **_of("tanh math.tanh nn.tanh", "tanh", "x"),
    **_of("sigmoid math.sigmoid nn.sigmoid", "sigmoid", "x"),
    **_of("nn.relu", "relu", "features>x"),
    **_of("nn.relu6", "relu6", "features>x"),
    **_of("nn.elu", "elu", "features>x"),
    **_of("nn.selu", "selu", "features>x"),
    **_of("nn.gelu", "gelu", "features>x approximate", approximate="False"),
    **_of("nn.silu nn.swish", "silu", "features>x"),
    **_of("nn.softplus math.softplus", "softplus", "features>x"),
    **_of("nn.softsign math.softsign", "softsign", "features>x"),
    **_of("nn.leaky_relu", "leaky_relu", "features>x alpha>negative_slope"),
    **_of("nn.softmax", "softmax", "logits>x axis"),
    **_of("nn.log_softmax", "log_softmax", "logits>x axis"),
    **_of("nn.bias_add", "add", "value>x1 bias>x2"),
    **_of("nn.moments", "moments", "x axes", ordered=True),
    **_of("nn.sigmoid_cross_entropy_with_logits", "binary_crossentropy", "labels>target logits>output",
          options="from_logits=True"),
    **_of("nn.softmax_cross_entropy_with_logits", "categorical_crossentropy", "labels>target logits>output",
          options="from_logits=True"),
    **_of("nn.sparse_softmax_cross_entropy_with_logits", "sparse_categorical_crossentropy",
          "labels>target logits>output", options="from_logits=True"),
}  # fmt: skip
"""What a model may call of TensorFlow -> its counterpart. Names without `name`, which has no meaning in Keras 3."""

ACTIVATIONS: Mapping[str, str] = {
    f"tf.{path}{name}": f"keras.activations.{name}"
    for path, names in {
        "nn.": "relu relu6 elu selu gelu silu softplus softsign leaky_relu softmax log_softmax tanh sigmoid",
        "math.": "tanh sigmoid softplus softsign",
        "": "tanh sigmoid",
    }.items()
    for name in names.split()
} | {"tf.nn.swish": "keras.activations.silu", "tf.identity": "keras.activations.linear"}
"""An activation that is handed on by its name -> that of Keras."""

INITIALIZERS: Mapping[str, str] = {
    "tf.zeros_initializer": "Zeros",
    "tf.ones_initializer": "Ones",
    "tf.constant_initializer": "Constant",
    "tf.random_normal_initializer": "RandomNormal",
    "tf.random_uniform_initializer": "RandomUniform",
}
"""An initializer of TensorFlow 2 -> its name in `keras.initializers`."""

DTYPES = ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "string")

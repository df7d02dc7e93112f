"""Layers of tf.contrib and tf-slim: `fully_connected(x, 8)` -> `Dense(8, activation="relu")(x)`.

Names and defaults differ from those of `tf.layers`: an activation of ReLU, padding "SAME", pooling by steps of 2, and
dropout by the share to keep. Source: tensorflow/contrib/layers/python/layers/layers.py of TensorFlow 1.15.
"""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.convert.rule import NETWORK, SETUP, Call, operand, rule
from estimator_pipeline.migrate.convert.rules.dropout import training
from estimator_pipeline.migrate.convert.rules.layers import arguments_of

__all__ = ["CONTRIB_LAYERS", "contrib_batch_norm", "contrib_dropout", "contrib_layer", "embed_sequence", "regularizer"]

_HOMES = ("tf.contrib.layers.", "tf_slim.layers.", "tf.contrib.slim.", "tf_slim.")
# tf.contrib's parameter -> Keras's; "" where only the default can be converted.
_WEIGHTS = {
    "activation_fn": "activation", "normalizer_fn": "", "normalizer_params": "",
    "weights_initializer": "kernel_initializer", "weights_regularizer": "kernel_regularizer",
    "biases_initializer": "bias_initializer", "biases_regularizer": "bias_regularizer", "reuse": "",
    "variables_collections": "", "outputs_collections": "", "trainable": "trainable", "scope": "name",
}  # fmt: skip
_CONVOLUTION = {"inputs": "inputs", "num_outputs": "filters", "kernel_size": "kernel_size", "stride": "strides",
                "padding": "padding", "data_format": "", "rate": "dilation_rate", **_WEIGHTS}  # fmt: skip
_POOLING = {"inputs": "inputs", "kernel_size": "pool_size", "stride": "strides", "padding": "padding",
            "data_format": "", "outputs_collections": "", "scope": "name"}  # fmt: skip
_DENSE = {"inputs": "inputs", "num_outputs": "units", **_WEIGHTS}
# Function -> (Keras layer, parameters, tf.contrib's defaults that Keras does not share).
_LAYERS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "fully_connected": ("Dense", _DENSE, {"activation": "'relu'"}),
    "linear": ("Dense", _DENSE, {}),
    **{f"{name}{n}d": (f"Conv{n}D", _CONVOLUTION, {"padding": "'same'", "activation": "'relu'"})
       for name in ("conv", "convolution") for n in (1, 2, 3)},
    "max_pool2d": ("MaxPooling2D", _POOLING, {"strides": "2"}),
    "avg_pool2d": ("AveragePooling2D", _POOLING, {"strides": "2"}),
    "flatten": ("Flatten", {"inputs": "inputs", "outputs_collections": "", "scope": "name"}, {}),
}  # fmt: skip
CONTRIB_LAYERS = frozenset(f"{home}{name}" for home in _HOMES for name in (
    *_LAYERS, "dropout", "batch_norm", "embed_sequence"))  # fmt: skip
"""The layers that have a rule here."""


def _names(*names: str) -> list[str]:
    return [f"{home}{name}" for home in _HOMES for name in names]


def _named(call: Call, parameters: dict[str, str]) -> dict[str, cst.BaseExpression]:
    """Return Keras's parameter -> the user's expression; a parameter without a counterpart may have its default."""
    args = {}
    for parameter, value in call.args(*parameters).items():
        if parameters[parameter]:
            args[parameters[parameter]] = value
        elif not call.is_constant(value, "None", "False", "'NHWC'", '"NHWC"'):
            raise call.refuse(parameter, value)
    return args


@rule(*_names(*_LAYERS), at=(NETWORK,))
def contrib_layer(call: Call) -> str:
    """Write the layer and its call."""
    keras, parameters, defaults = _LAYERS[call.name.rpartition(".")[2]]
    args = _named(call, parameters)
    if "inputs" not in args:
        raise call.refuse("inputs", call.node)
    inputs, more = args.pop("inputs"), {name: text for name, text in defaults.items() if name not in args}
    if call.is_constant(args.get("activation"), "None"):
        del args["activation"]
    if call.is_constant(args.get("bias_initializer"), "None"):
        del args["bias_initializer"]
        more["use_bias"] = "False"
    texts = [arguments_of(call, args, tuple(dict.fromkeys([*list(parameters.values())[1:], *args])), keras)]
    texts += [f"{name}={text}" for name, text in more.items()]
    return f"{call.tf}.keras.layers.{keras}({', '.join(text for text in texts if text)})({call.text(inputs)})"


@rule(*_names("dropout"), at=(NETWORK,))
def contrib_dropout(call: Call) -> str:
    """`dropout(x, keep_prob=k, is_training=t)`, which drops by default."""
    args = _named(call, {"inputs": "inputs", "keep_prob": "keep_prob", "noise_shape": "", "is_training": "training",
                         "outputs_collections": "", "scope": "name", "seed": "seed"})  # fmt: skip
    rate = f"1 - {operand(call.text(args['keep_prob']))}" if "keep_prob" in args else "0.5"
    options = ", ".join([rate, *call.options({name: args[name] for name in args if name == "seed"})])
    inputs, trains = call.text(args["inputs"]), training(call, args, default=True)
    return f"{call.tf}.keras.layers.Dropout({options})({inputs}{trains})"


@rule(*_names("batch_norm"), at=(NETWORK,))
def contrib_batch_norm(call: Call) -> str:
    """`batch_norm(x, is_training=t)`: no gamma and a momentum of 0.999 by default."""
    args = _named(call, {
        "inputs": "inputs", "decay": "momentum", "center": "center", "scale": "scale", "epsilon": "epsilon",
        "activation_fn": "", "param_initializers": "", "param_regularizers": "", "updates_collections": "",
        "is_training": "training", "reuse": "", "variables_collections": "", "outputs_collections": "",
        "trainable": "trainable", "batch_weights": "", "fused": "fused", "data_format": "",
        "zero_debias_moving_mean": "", "scope": "name",
    })  # fmt: skip
    if any(arg.keyword is not None and arg.keyword.value == "updates_collections" for arg in call.node.args):
        raise call.refuse("updates_collections", call.node)
    if "trainable" in args and not call.is_constant(args["trainable"], "True"):
        raise call.refuse("trainable", args["trainable"])
    defaults = {"momentum": "0.999", "epsilon": "0.001", "center": "True", "scale": "False"}
    texts = {name: call.text(args[name]) if name in args else default for name, default in defaults.items()}
    options = ", ".join(f"{name}={text}" for name, text in texts.items() if text != "True")  # as Keras has by default
    inputs, trains = call.text(args["inputs"]), training(call, args, default=True)
    return f"{call.tf}.keras.layers.BatchNormalization({options})({inputs}{trains})"


@rule(*_names("embed_sequence"), at=(NETWORK,))
def embed_sequence(call: Call) -> str:
    """`embed_sequence(ids, 1000, 8)` -> `DenseEmbedding(1000, 8, embeddings_initializer="glorot_uniform")(ids)`."""
    args = _named(call, {"ids": "ids", "vocab_size": "input_dim", "embed_dim": "output_dim", "unique": "",
                         "initializer": "embeddings_initializer", "regularizer": "embeddings_regularizer",
                         "trainable": "trainable", "scope": "name", "reuse": ""})  # fmt: skip
    if not args.keys() >= {"ids", "input_dim", "output_dim"}:
        raise call.refuse("the arguments", call.node)
    ids, size, width = (call.text(args.pop(name)) for name in ("ids", "input_dim", "output_dim"))
    options = call.options(args)
    if "embeddings_initializer" not in args:
        options.insert(0, 'embeddings_initializer="glorot_uniform"')
    call.needs.add("DenseEmbedding")
    return f"DenseEmbedding({', '.join([size, width, *options])})({ids})"


@rule(*_names("l2_regularizer", "l1_regularizer"), at=(NETWORK, SETUP))
def regularizer(call: Call) -> str:
    """`l2_regularizer(s)` is half of the squares times s: `L2(0.5 * s)`."""
    scale = call.text(call.args("scale", "scope", required=["scale"])["scale"])
    kind, factor = ("L2", f"0.5 * {operand(scale)}") if "l2" in call.name else ("L1", scale)
    return f"{call.tf}.keras.regularizers.{kind}({factor})"

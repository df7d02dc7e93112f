"""Keras counterparts of V1 layers and initializers, with the arguments that make them equal.

`docs/reference/migrate-equals.md` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import children
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["CREATORS", "install", "name_of", "scopes_of", "shared_layer"]

_KERNEL = (
    "activation", "use_bias", "kernel_initializer", "bias_initializer", "kernel_regularizer", "bias_regularizer",
    "activity_regularizer", "kernel_constraint", "bias_constraint", "trainable", "name", "reuse",
)  # fmt: skip
_CONV = ("inputs", "filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", *_KERNEL)
_POOL = ("inputs", "pool_size", "strides", "padding", "data_format", "name")
# Function of tf.compat.v1.layers -> (Keras layer, the function's parameters, how many of them may be positional after
# the inputs, the default name).
_FUNCTIONS: dict[str, tuple[str, tuple[str, ...], int, str]] = {
    "dense": ("Dense", ("inputs", "units", *_KERNEL), 8, "dense"),
    "conv1d": ("Conv1D", _CONV, 4, "conv1d"),
    "conv2d": ("Conv2D", _CONV, 4, "conv2d"),
    "conv3d": ("Conv3D", _CONV, 4, "conv3d"),
    "max_pooling1d": ("MaxPooling1D", _POOL, 3, ""),
    "max_pooling2d": ("MaxPooling2D", _POOL, 3, ""),
    "average_pooling1d": ("AveragePooling1D", _POOL, 3, ""),
    "average_pooling2d": ("AveragePooling2D", _POOL, 3, ""),
    "flatten": ("Flatten", ("inputs", "name", "data_format"), 0, ""),
    "dropout": ("Dropout", ("inputs", "rate", "noise_shape", "seed", "training", "name"), 3, ""),
    "batch_normalization": (
        "BatchNormalization",
        ("inputs", "axis", "momentum", "epsilon", "center", "scale", "beta_initializer", "gamma_initializer",
         "moving_mean_initializer", "moving_variance_initializer", "beta_regularizer", "gamma_regularizer",
         "beta_constraint", "gamma_constraint", "training", "trainable", "name", "reuse", "renorm", "renorm_clipping",
         "renorm_momentum", "fused", "virtual_batch_size", "adjustment"),
        5, "batch_normalization"),
}  # fmt: skip
_CLASSES = ("Dense", "Conv1D", "Conv2D", "Flatten", "MaxPooling2D", "AveragePooling2D")
_UNSUPPORTED = ("renorm", "renorm_clipping", "renorm_momentum", "virtual_batch_size", "adjustment")
CREATORS = tuple(f"tf.compat.v1.layers.{name}" for name in (*_FUNCTIONS, *_CLASSES))
"""Functions and classes that create variables."""

# V1 initializer -> (Keras class, its parameters, those that must be explicit because the defaults differ).
_INITIALIZERS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "variance_scaling_initializer": ("VarianceScaling", ("scale", "mode", "distribution", "seed"), ()),
    "glorot_uniform_initializer": ("GlorotUniform", ("seed",), ()),
    "glorot_normal_initializer": ("GlorotNormal", ("seed",), ()),
    "truncated_normal_initializer": ("TruncatedNormal", ("mean", "stddev", "seed"), ("stddev",)),
    "random_normal_initializer": ("RandomNormal", ("mean", "stddev", "seed"), ("stddev",)),
    "random_uniform_initializer": ("RandomUniform", ("minval", "maxval", "seed"), ("minval", "maxval")),
    "constant_initializer": ("Constant", ("value",), ()),
    "zeros_initializer": ("Zeros", (), ()),
    "ones_initializer": ("Ones", (), ()),
    "keras.initializers.he_normal": ("HeNormal", ("seed",), ()),
    "keras.initializers.he_uniform": ("HeUniform", ("seed",), ()),
    "keras.initializers.glorot_normal": ("GlorotNormal", ("seed",), ()),
    "keras.initializers.glorot_uniform": ("GlorotUniform", ("seed",), ()),
}
_DEFAULTS = {"mean": "0.0"}


def install(reader: Rewriter) -> None:
    """Register the rewrites of layers and initializers."""
    reader.reuses_variables = _is_used_again(reader)
    for name in _FUNCTIONS:
        reader.calls[f"tf.compat.v1.layers.{name}"] = partial(_rewrite_layer, reader, name)
    for name in _CLASSES:
        reader.calls[f"tf.compat.v1.layers.{name}"] = partial(_rewrite_layer_object, reader, name)
    for name in _INITIALIZERS:
        reader.calls[f"tf.compat.v1.{name}"] = partial(_rewrite_initializer, reader, name)
    reader.calls["tf.compat.v1.nn.dropout"] = partial(_rewrite_nn_dropout, reader)
    for node in _iter_dropout_branches(reader.tree.module):
        reader.replaced[node] = partial(_rewrite_dropout_branch, reader, node)
    reader.calls["tf.compat.v1.random_normal"] = lambda call: reader.call(
        f"{reader.tf}.random.normal", [reader.text(arg) for arg in call.args], call
    )


def _dropout_arguments(reader: Rewriter, call: cst.Call) -> tuple[str, str]:
    """Return (input, dropout rate) of a V1 dropout call."""
    args = arguments(call, ("x", "keep_prob", "noise_shape", "seed", "name", "rate"))
    if args.keys() - {"x", "keep_prob", "rate", "name"} or len(args.keys() & {"keep_prob", "rate"}) != 1:
        raise NotConvertible("arguments of nn.dropout that have no counterpart in Keras", call)
    rate = reader.text(args["rate"].value) if "rate" in args else f"1 - {reader.text(args['keep_prob'].value)}"
    return reader.text(args["x"].value), rate


def _rewrite_nn_dropout(reader: Rewriter, call: cst.Call) -> str:
    x, rate = _dropout_arguments(reader, call)
    return reader.call(f"{reader.tf}.nn.dropout", [x, f"rate={rate}"], call)


def _iter_dropout_branches(node: cst.CSTNode) -> Iterator[cst.If]:
    """Yield the statements `if a and b: x = call(...)` that have no `else`."""
    if isinstance(node, cst.If) and node.orelse is None and _assigned_call(node) is not None and (
        isinstance(node.test, cst.BooleanOperation) and isinstance(node.test.operator, cst.And)
    ):  # fmt: skip
        yield node
    for child in children(node):
        yield from _iter_dropout_branches(child)


def _assigned_call(node: cst.If) -> tuple[cst.Name, cst.Call] | None:
    block = node.body.body
    line = block[0] if len(block) == 1 else None
    assign = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
    if isinstance(target, cst.Name) and isinstance(assign, cst.Assign) and isinstance(assign.value, cst.Call):
        return target, assign.value
    return None


def _rewrite_dropout_branch(reader: Rewriter, node: cst.If) -> str:
    """Rewrite `if training and b: x = nn.dropout(x, keep)` to a Dropout layer, which only acts in training."""
    assignment, test = _assigned_call(node), node.test
    if assignment is not None and isinstance(test, cst.BooleanOperation) and reader.is_flag(test.left):
        name, call = assignment
        if reader.called(call) == "tf.compat.v1.nn.dropout":
            x, rate = _dropout_arguments(reader, call)
            unit, indent = reader.tree.module.default_indent, reader.indent(node)
            layer = f"{name.value} = {reader.tf}.keras.layers.Dropout({rate})({x})"
            return f"if {reader.text(test.right)}:\n{indent}{unit}{layer}"
    return reader.spliced(*reader.span(node), children(node))


def _rewrite_layer(reader: Rewriter, name: str, call: cst.Call) -> str:
    """Rewrite `tf.compat.v1.layers.dense(x, 10, name="a")` to `tf.keras.layers.Dense(10, name="a")(x)`."""
    keras, parameters, positions, default = _FUNCTIONS[name]
    args = arguments(call, parameters)
    if any(arg.star for arg in call.args) or "inputs" not in args:
        raise NotConvertible(f"cannot determine the arguments of {name}", call)
    for parameter in _UNSUPPORTED:
        if parameter in args and reader.source(args[parameter].value) not in ("None", "False"):
            raise NotConvertible(f"{parameter} of {name} has no counterpart in Keras", args[parameter])
    if name == "batch_normalization" and "trainable" in args:
        raise NotConvertible(
            "trainable of batch_normalization: in Keras it changes what the layer does", args["trainable"]
        )
    layer_args: list[str] = []
    by_position = True
    for parameter, arg in args.items():
        if parameter in ("inputs", "training", "reuse", "fused", "name", *_UNSUPPORTED):
            by_position = by_position and parameter == "inputs"
            continue
        place = parameters.index(parameter) - 1
        text = reader.text(arg.value)
        if parameter == "padding" and isinstance(arg.value, cst.SimpleString):
            text = text.lower()  # pooling in Keras 3 accepts only lower case
        by_position = by_position and arg.keyword is None and place < positions and place == len(layer_args)
        layer_args.append(text if by_position else f"{parameter}={text}")
    if name == "dropout" and "rate" not in args:
        layer_args.insert(0, "0.5")  # V1's default; Keras has none
    layer_name = name_of(reader, call, args.get("name"), default)
    if layer_name:
        layer_args.append(f"name={layer_name}")
    training = _training_argument(reader, args.get("training"), name)
    inputs = reader.text(args["inputs"].value)
    if default and reader.reuses_variables:
        return shared_layer(
            reader,
            reader.call(f"{reader.tf}.keras.layers.{keras}", layer_args, call),
            layer_name,
            f"{inputs}{training}",
        )
    return reader.call(f"{reader.tf}.keras.layers.{keras}", layer_args, call, f"({inputs}{training})")


def shared_layer(reader: Rewriter, layer: str, layer_name: str, inputs: str) -> str:
    """Return a layer call that reuses an existing layer of the same name."""
    if not layer_name and reader.separate_predictions:
        raise NotConvertible(
            "a layer without a name, where PREDICT builds a different network", reader.separate_predictions[0]
        )
    if not layer_name:
        return f"{layer}({inputs})"
    reader.needs.add("keras_variables")
    return f"keras_variables.shared({layer})({inputs})"


def _is_used_again(reader: Rewriter) -> bool:
    """Return whether the file reuses variables by name."""
    for call in reader.tree.calls:
        name = reader.called(call)
        if name != "tf.compat.v1.variable_scope" and not name.startswith("tf.compat.v1.layers."):
            continue
        if any(arg.keyword and arg.keyword.value == "reuse" and not reader.is_once(arg) for arg in call.args):
            return True
    return False


def _is_in_reused_scope(reader: Rewriter, call: cst.Call) -> bool:
    scopes = [item.item for above in reader.tree.above(call) if isinstance(above, cst.With) for item in above.items]
    reuse_args = [arg for node in (call, *scopes) if isinstance(node, cst.Call) for arg in node.args
             if arg.keyword and arg.keyword.value == "reuse"]  # fmt: skip
    return any(not reader.is_once(arg) for arg in reuse_args)


def _training_argument(reader: Rewriter, arg: cst.Arg | None, name: str) -> str:
    """Return the `training` argument of a layer call; "" if Keras passes it."""
    if name not in ("dropout", "batch_normalization"):
        return ""
    if arg is None:
        return ", training=False"  # V1's default; Keras's follows the model
    text = reader.source(arg.value)
    if text in ("True", "False"):
        return f", training={text}"
    if reader.is_flag(arg.value):
        return ""
    raise NotConvertible(f"training={text}: cannot determine whether that is True only in training", arg)


def _rewrite_layer_object(reader: Rewriter, name: str, call: cst.Call) -> str:
    keywords = [arg.keyword.value for arg in call.args if arg.keyword]
    if any(arg.star for arg in call.args) or "_reuse" in keywords or "_scope" in keywords:
        raise NotConvertible(f"cannot determine the arguments of {name}", call)
    args = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else reader.text(arg.value)
            for arg in call.args]  # fmt: skip
    return reader.call(f"{reader.tf}.keras.layers.{name}", args, call)


def name_of(reader: Rewriter, call: cst.Call, arg: cst.Arg | None, default: str, joint: str = "") -> str:
    """Return the layer's name, prefixed with the enclosing variable scopes as in V1 variable names."""
    joint = joint or ("/" if reader.reuses_variables else reader.separator)
    layer_name = reader.text(arg.value) if arg is not None else ""
    if default and not layer_name and reader.reuses_variables and _is_in_reused_scope(reader, call):
        raise NotConvertible("a layer without a name, whose variables are reused by name", call)
    if (
        default
        and not layer_name
        and reader.separator == "/"
        and not (reader.prefixes and not _is_one_of_several(reader, call))
    ):
        raise NotConvertible("a layer without a name, where variables are selected by name", call)
    if not reader.prefixes:
        return layer_name
    if not layer_name:
        if not default or _is_one_of_several(reader, call):
            return ""
        layer_name = repr(default)
    parts = [*reader.prefixes, layer_name]
    if all(_is_text(part) for part in parts):
        return repr(joint.join(part[1:-1] for part in parts)).replace("'", parts[-1][0])
    inner = joint.join(part[1:-1] if _is_text(part) else "{" + part + "}" for part in parts)
    if any("'" in part and not _is_text(part) for part in parts):
        return f" + '{joint}' + ".join(part if _is_text(part) or part.isidentifier() else f"({part})" for part in parts)
    return f"f'{inner}'"


def scopes_of(reader: Rewriter, node: cst.CSTNode) -> list[str]:
    """Return the names, as source text, of the variable scopes around a node, outermost first."""
    names = []
    for above in reader.tree.above(node):
        for item in above.items if isinstance(above, cst.With) else ():
            if reader.called(item.item) == "tf.compat.v1.variable_scope" and isinstance(item.item, cst.Call):
                names.append(reader.text(item.item.args[0].value))
    return names[::-1]


def _is_text(text: str) -> bool:
    return len(text) > 1 and text[0] in "'\"" and text[-1] == text[0] and text.count(text[0]) == 2


def _is_one_of_several(reader: Rewriter, call: cst.Call) -> bool:
    """Return whether the scope has several layers of the kind. Keras numbers unnamed layers."""
    for above in reader.tree.above(call):
        if isinstance(above, (cst.For, cst.While, cst.ListComp)):
            return True
        if isinstance(above, cst.With):
            name = reader.called(call)
            layers_of_kind = [
                other for other in reader.tree.calls
                if above in set(reader.tree.above(other)) and reader.called(other) == name
            ]  # fmt: skip
            return len(layers_of_kind) > 1
    return False


def _rewrite_initializer(reader: Rewriter, name: str, call: cst.Call) -> str:
    keras, parameters, required = _INITIALIZERS[name]
    args = {
        parameter: arg for parameter, arg in arguments(call, (*parameters, "dtype")).items() if parameter != "dtype"
    }
    for parameter in args:
        if parameter not in parameters:
            raise NotConvertible(f"{parameter} of {name} has no counterpart in Keras", call)
    for parameter in required:
        if parameter not in args:
            raise NotConvertible(
                f"{name} without {parameter} has a different default than {keras} of Keras: set it explicitly", call
            )
    initializer_args = []
    for place, (parameter, arg) in enumerate(args.items()):
        text = reader.text(arg.value)
        initializer_args.append(
            text if arg.keyword is None and parameters[place] == parameter else f"{parameter}={text}"
        )
    return f"{reader.tf}.keras.initializers.{keras}({', '.join(initializer_args)})"

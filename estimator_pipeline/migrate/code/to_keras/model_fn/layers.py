"""V1's layers and initializers in Keras, with the arguments that make them equal: docs/reference/migrate-equals.md."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import children
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["CREATORS", "again", "install", "name_of", "scopes_of"]

_KERNEL = (
    "activation", "use_bias", "kernel_initializer", "bias_initializer", "kernel_regularizer", "bias_regularizer",
    "activity_regularizer", "kernel_constraint", "bias_constraint", "trainable", "name", "reuse",
)  # fmt: skip
_CONV = ("inputs", "filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", *_KERNEL)
_POOL = ("inputs", "pool_size", "strides", "padding", "data_format", "name")
# Function of tf.compat.v1.layers -> the Keras layer, its parameters, how many of them may stand by position behind
# the inputs, the name that an unnamed one has.
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
_NOWHERE = ("renorm", "renorm_clipping", "renorm_momentum", "virtual_batch_size", "adjustment")
CREATORS = tuple(f"tf.compat.v1.layers.{name}" for name in (*_FUNCTIONS, *_CLASSES))
"""What makes variables."""

# Initializer of V1 -> (Keras class, its parameters, those that must be given: the defaults are other ones).
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
    """Lets a reader write layers and initializers."""
    reader.again = _is_used_again(reader)
    for name in _FUNCTIONS:
        reader.calls[f"tf.compat.v1.layers.{name}"] = partial(_layer, reader, name)
    for name in _CLASSES:
        reader.calls[f"tf.compat.v1.layers.{name}"] = partial(_object, reader, name)
    for name in _INITIALIZERS:
        reader.calls[f"tf.compat.v1.{name}"] = partial(_initializer, reader, name)
    reader.calls["tf.compat.v1.nn.dropout"] = partial(_dropped, reader)
    for node in _branches(reader.tree.module):
        reader.replaced[node] = partial(_dropout, reader, node)
    reader.calls["tf.compat.v1.random_normal"] = lambda call: reader.call(
        f"{reader.tf}.random.normal", [reader.text(arg) for arg in call.args], call
    )


def _kept(reader: Rewriter, call: cst.Call) -> tuple[str, str]:
    """Return (what dropout of V1 is given, the share that it takes away)."""
    given = arguments(call, ("x", "keep_prob", "noise_shape", "seed", "name", "rate"))
    if given.keys() - {"x", "keep_prob", "rate", "name"} or len(given.keys() & {"keep_prob", "rate"}) != 1:
        raise NotConvertible("arguments of nn.dropout that have no counterpart in Keras", call)
    rate = reader.text(given["rate"].value) if "rate" in given else f"1 - {reader.text(given['keep_prob'].value)}"
    return reader.text(given["x"].value), rate


def _dropped(reader: Rewriter, call: cst.Call) -> str:
    x, rate = _kept(reader, call)
    return reader.call(f"{reader.tf}.nn.dropout", [x, f"rate={rate}"], call)


def _branches(node: cst.CSTNode) -> Iterator[cst.If]:
    """`if a and b: x = call(...)`, and nothing else."""
    if isinstance(node, cst.If) and node.orelse is None and _assigned(node) is not None and (
        isinstance(node.test, cst.BooleanOperation) and isinstance(node.test.operator, cst.And)
    ):  # fmt: skip
        yield node
    for child in children(node):
        yield from _branches(child)


def _assigned(node: cst.If) -> tuple[cst.Name, cst.Call] | None:
    block = node.body.body
    line = block[0] if len(block) == 1 else None
    assign = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
    if isinstance(target, cst.Name) and isinstance(assign, cst.Assign) and isinstance(assign.value, cst.Call):
        return target, assign.value
    return None


def _dropout(reader: Rewriter, node: cst.If) -> str:
    """`if training and b: x = nn.dropout(x, keep)`: a layer, which knows whether the model trains."""
    found, test = _assigned(node), node.test
    if found is not None and isinstance(test, cst.BooleanOperation) and reader.is_flag(test.left):
        name, call = found
        if reader.called(call) == "tf.compat.v1.nn.dropout":
            x, rate = _kept(reader, call)
            unit, indent = reader.tree.module.default_indent, reader.indent(node)
            made = f"{name.value} = {reader.tf}.keras.layers.Dropout({rate})({x})"
            return f"if {reader.text(test.right)}:\n{indent}{unit}{made}"
    return reader.spliced(*reader.span(node), children(node))


def _layer(reader: Rewriter, name: str, call: cst.Call) -> str:
    """`tf.compat.v1.layers.dense(x, 10, name="a")` -> `tf.keras.layers.Dense(10, name="a")(x)`."""
    keras, parameters, positions, default = _FUNCTIONS[name]
    given = arguments(call, parameters)
    if any(arg.star for arg in call.args) or "inputs" not in given:
        raise NotConvertible(f"the arguments of {name} cannot be told", call)
    for one in _NOWHERE:
        if one in given and reader.source(given[one].value) not in ("None", "False"):
            raise NotConvertible(f"{one} of {name} has no counterpart in Keras", given[one])
    if name == "batch_normalization" and "trainable" in given:
        raise NotConvertible(
            "trainable of batch_normalization: in Keras it changes what the layer does", given["trainable"]
        )
    kept: list[str] = []
    by_position = True
    for parameter, arg in given.items():
        if parameter in ("inputs", "training", "reuse", "fused", "name", *_NOWHERE):
            by_position = by_position and parameter == "inputs"
            continue
        place = parameters.index(parameter) - 1
        text = reader.text(arg.value)
        if parameter == "padding" and isinstance(arg.value, cst.SimpleString):
            text = text.lower()  # pooling of Keras 3 knows no other
        by_position = by_position and arg.keyword is None and place < positions and place == len(kept)
        kept.append(text if by_position else f"{parameter}={text}")
    named = name_of(reader, call, given.get("name"), default)
    if named:
        kept.append(f"name={named}")
    trained = _training(reader, given.get("training"), name)
    inputs = reader.text(given["inputs"].value)
    if default and reader.again:
        return again(reader, reader.call(f"{reader.tf}.keras.layers.{keras}", kept, call), named, f"{inputs}{trained}")
    return reader.call(f"{reader.tf}.keras.layers.{keras}", kept, call, f"({inputs}{trained})")


def again(reader: Rewriter, layer: str, named: str, inputs: str) -> str:
    """Return the call of a layer that may be there already, by its name."""
    if not named and reader.apart:
        raise NotConvertible("a layer without a name, where predictions are another network's", reader.apart[0])
    if not named:
        return f"{layer}({inputs})"
    reader.needs.add("keras_variables")
    return f"keras_variables.shared({layer})({inputs})"


def _is_used_again(reader: Rewriter) -> bool:
    """Whether some variables of a file are used again by their names."""
    for call in reader.tree.calls:
        name = reader.called(call)
        if name != "tf.compat.v1.variable_scope" and not name.startswith("tf.compat.v1.layers."):
            continue
        if any(arg.keyword and arg.keyword.value == "reuse" and not reader.is_once(arg) for arg in call.args):
            return True
    return False


def _is_in_such_a_scope(reader: Rewriter, call: cst.Call) -> bool:
    scopes = [item.item for one in reader.tree.above(call) if isinstance(one, cst.With) for item in one.items]
    asked = [arg for one in (call, *scopes) if isinstance(one, cst.Call) for arg in one.args
             if arg.keyword and arg.keyword.value == "reuse"]  # fmt: skip
    return any(not reader.is_once(arg) for arg in asked)


def _training(reader: Rewriter, arg: cst.Arg | None, name: str) -> str:
    """Return what a layer is told in the call: nothing where Keras knows."""
    if name not in ("dropout", "batch_normalization"):
        return ""
    if arg is None:
        return ", training=False"  # V1's default; Keras's is what the model does
    text = reader.source(arg.value)
    if text in ("True", "False"):
        return f", training={text}"
    if reader.is_flag(arg.value):
        return ""
    raise NotConvertible(f"training={text}: whether that says that the model trains cannot be told", arg)


def _object(reader: Rewriter, name: str, call: cst.Call) -> str:
    given = [arg.keyword.value for arg in call.args if arg.keyword]
    if any(arg.star for arg in call.args) or "_reuse" in given or "_scope" in given:
        raise NotConvertible(f"the arguments of {name} cannot be told", call)
    kept = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else reader.text(arg.value)
            for arg in call.args]  # fmt: skip
    return reader.call(f"{reader.tf}.keras.layers.{name}", kept, call)


def name_of(reader: Rewriter, call: cst.Call, arg: cst.Arg | None, default: str, joint: str = "") -> str:
    """Return the layer's name: that of the scope around it comes before it, as in the names of V1's variables."""
    joint = joint or ("/" if reader.again else reader.joint)
    own = reader.text(arg.value) if arg is not None else ""
    if default and not own and reader.again and _is_in_such_a_scope(reader, call):
        raise NotConvertible("a layer without a name, whose variables are used again by their names", call)
    if default and not own and reader.joint == "/" and not (reader.prefixes and not _is_one_of_several(reader, call)):
        raise NotConvertible("a layer without a name, where variables are chosen by theirs", call)
    if not reader.prefixes:
        return own
    if not own:
        if not default or _is_one_of_several(reader, call):
            return ""
        own = repr(default)
    parts = [*reader.prefixes, own]
    if all(_is_text(part) for part in parts):
        return repr(joint.join(part[1:-1] for part in parts)).replace("'", parts[-1][0])
    inner = joint.join(part[1:-1] if _is_text(part) else "{" + part + "}" for part in parts)
    if any("'" in part and not _is_text(part) for part in parts):
        return f" + '{joint}' + ".join(part if _is_text(part) or part.isidentifier() else f"({part})" for part in parts)
    return f"f'{inner}'"


def scopes_of(reader: Rewriter, node: cst.CSTNode) -> list[str]:
    """Return the texts of the names of the scopes of variables around a node, the outermost first."""
    found = []
    for above in reader.tree.above(node):
        for item in above.items if isinstance(above, cst.With) else ():
            if reader.called(item.item) == "tf.compat.v1.variable_scope" and isinstance(item.item, cst.Call):
                found.append(reader.text(item.item.args[0].value))
    return found[::-1]


def _is_text(text: str) -> bool:
    return len(text) > 1 and text[0] in "'\"" and text[-1] == text[0] and text.count(text[0]) == 2


def _is_one_of_several(reader: Rewriter, call: cst.Call) -> bool:
    """Whether the scope around has further layers of the kind: Keras numbers those without a name."""
    for above in reader.tree.above(call):
        if isinstance(above, (cst.For, cst.While, cst.ListComp)):
            return True
        if isinstance(above, cst.With):
            name = reader.called(call)
            same = [
                one for one in reader.tree.calls
                if above in set(reader.tree.above(one)) and reader.called(one) == name
            ]  # fmt: skip
            return len(same) > 1
    return False


def _initializer(reader: Rewriter, name: str, call: cst.Call) -> str:
    keras, parameters, needed = _INITIALIZERS[name]
    given = {one: arg for one, arg in arguments(call, (*parameters, "dtype")).items() if one != "dtype"}
    for one in given:
        if one not in parameters:
            raise NotConvertible(f"{one} of {name} has no counterpart in Keras", call)
    for one in needed:
        if one not in given:
            raise NotConvertible(f"{name} without {one} starts otherwise than {keras} of Keras: say which", call)
    kept = []
    for place, (one, arg) in enumerate(given.items()):
        text = reader.text(arg.value)
        kept.append(text if arg.keyword is None and parameters[place] == one else f"{one}={text}")
    return f"{reader.tf}.keras.initializers.{keras}({', '.join(kept)})"

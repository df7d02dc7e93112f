"""tf.contrib's everyday layers and training steps as the calls of tf.compat.v1 that they are made of.

The conversion by layers reads V1's core. `lower` writes a call of tf.contrib, which is tf-slim's or this package's by
its new name, as the call of the core that does the same: `fully_connected(x, 8)` is
`dense(x, 8, activation=tf.nn.relu)`, with the same initial values and regularization losses. Its variables have other
names there, and the same shapes. Lines stay where they are. What has no such call stays, and is declined by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines, apply
from estimator_pipeline.migrate.code.analysis.name_resolution import Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree, parse
from estimator_pipeline.migrate.code.renames import tensorflow_1
from estimator_pipeline.migrate.code.renames.tf_contrib import FACADE
from estimator_pipeline.migrate.code.to_keras.imports_of_tensorflow import v1_import

__all__ = ["CoreText", "lower"]

# Where the names of tf.contrib are by now, and the modules below that have those of the tables.
_HOMES = ("tf_slim", "tensorflow_gan", FACADE)
_MODULES = {"layers", "python", "initializers", "regularizers", "optimizers", "training", "learning", "lookup"}

# Parameters in the order of tf.contrib -> those of the core; "" for what nothing but the default may be given.
_OF_WEIGHTS = {
    "activation_fn": "activation", "normalizer_fn": "", "normalizer_params": "",
    "weights_initializer": "kernel_initializer", "weights_regularizer": "kernel_regularizer",
    "biases_initializer": "bias_initializer", "biases_regularizer": "bias_regularizer", "reuse": "reuse",
    "variables_collections": "", "outputs_collections": "", "trainable": "trainable", "scope": "name",
}  # fmt: skip
_DENSE = {"inputs": "inputs", "num_outputs": "units", **_OF_WEIGHTS}
_CONVOLUTION = {
    "inputs": "inputs", "num_outputs": "filters", "kernel_size": "kernel_size", "stride": "strides",
    "padding": "padding", "data_format": "", "rate": "dilation_rate", **_OF_WEIGHTS,
}  # fmt: skip
_POOLING = {
    "inputs": "inputs", "kernel_size": "pool_size", "stride": "strides", "padding": "padding", "data_format": "",
    "outputs_collections": "", "scope": "name",
}  # fmt: skip
_DROPOUT = {
    "inputs": "inputs", "keep_prob": "rate", "noise_shape": "noise_shape", "is_training": "training",
    "outputs_collections": "", "scope": "name", "seed": "seed",
}  # fmt: skip
_RELU = {"activation": "TF.nn.relu"}


@dataclass(frozen=True)
class _Call:
    """A call of the core.

    Attributes:
        core: its name; `TF` stands for TensorFlow, `V1` for tf.compat.v1.
        parameters: of tf.contrib -> of the core.
        shared: how many of them may stand by position.
        said: what the core is told where tf.contrib was told nothing.
    """

    core: str
    parameters: dict[str, str]
    shared: int
    said: dict[str, str] = field(default_factory=dict)


_CALLS = {
    "fully_connected": _Call("V1.layers.dense", _DENSE, 3, _RELU),
    "linear": _Call("V1.layers.dense", _DENSE, 3),
    "conv1d": _Call("V1.layers.conv1d", _CONVOLUTION, 5, {"padding": "'SAME'", **_RELU}),
    "conv2d": _Call("V1.layers.conv2d", _CONVOLUTION, 5, {"padding": "'SAME'", **_RELU}),
    "conv3d": _Call("V1.layers.conv3d", _CONVOLUTION, 5, {"padding": "'SAME'", **_RELU}),
    "max_pool2d": _Call("V1.layers.max_pooling2d", _POOLING, 4, {"strides": "2"}),
    "avg_pool2d": _Call("V1.layers.average_pooling2d", _POOLING, 4, {"strides": "2"}),
    "flatten": _Call("V1.layers.flatten", {"inputs": "inputs", "outputs_collections": "", "scope": "name"}, 1),
    "dropout": _Call("V1.layers.dropout", _DROPOUT, 1, {"rate": "0.5", "training": "True"}),
    "l1_regularizer": _Call("TF.keras.regularizers.l1", {"scale": "l1", "scope": ""}, 0),
    "l2_regularizer": _Call("TF.keras.regularizers.l2", {"scale": "l2", "scope": ""}, 0),
    "l1_l2_regularizer": _Call(
        "TF.keras.regularizers.l1_l2", {"scale_l1": "l1", "scale_l2": "l2", "scope": ""}, 0,
        {"l1": "1.0", "l2": "0.5"}),
}  # fmt: skip
_CALLS |= {"convolution1d": _CALLS["conv1d"], "convolution2d": _CALLS["conv2d"], "convolution3d": _CALLS["conv3d"]}
# The core is told a number that is worked out of the one of tf.contrib.
_WORKED_OUT = {
    ("dropout", "keep_prob"): "1 - ",
    # scale * l2_loss(w), and l2_loss is half of the sum of squares.
    ("l2_regularizer", "scale"): "0.5 * ",
    ("l1_l2_regularizer", "scale_l2"): "0.5 * ",
}
_DEFAULTS = ("None", "'NHWC'", '"NHWC"', "'NWC'", '"NWC"', "'NDHWC'", '"NDHWC"')

_INITIALIZERS = {
    "xavier_initializer": (("uniform", "seed", "dtype"), "1.0", "FAN_AVG", "True"),
    "xavier_initializer_conv2d": (("uniform", "seed", "dtype"), "1.0", "FAN_AVG", "True"),
    "variance_scaling_initializer": (("factor", "mode", "uniform", "seed", "dtype"), "2.0", "FAN_IN", "False"),
}
# tf.contrib's truncated normal has a variance of 1.3 * factor / n before it is cut, V1's one that is scale / n after.
_OF_TRUNCATED = "1.3 * 0.8796256610342398 ** 2"

_OPTIMIZERS = {
    "Adagrad": "AdagradOptimizer(learning_rate={})", "Adam": "AdamOptimizer(learning_rate={})",
    "Ftrl": "FtrlOptimizer(learning_rate={})", "Momentum": "MomentumOptimizer(learning_rate={}, momentum=0.9)",
    "RMSProp": "RMSPropOptimizer(learning_rate={})", "SGD": "GradientDescentOptimizer(learning_rate={})",
}  # fmt: skip
_OPTIMIZE_LOSS = ("loss", "global_step", "learning_rate", "optimizer", "gradient_noise_scale", "gradient_multipliers",
                  "clip_gradients", "learning_rate_decay_fn", "update_ops", "variables", "name", "summaries",
                  "colocate_gradients_with_ops", "increment_global_step")  # fmt: skip
_CREATE_TRAIN_OP = ("total_loss", "optimizer", "global_step", "update_ops", "variables_to_train", "transform_grads_fn",
                    "summarize_gradients", "gate_gradients", "aggregation_method", "colocate_gradients_with_ops",
                    "check_numerics")  # fmt: skip
# They change no number.
_SILENT = ("name", "summaries", "colocate_gradients_with_ops", "summarize_gradients", "gate_gradients",
           "aggregation_method", "check_numerics")  # fmt: skip


@dataclass
class CoreText:
    """A file without the calls of tf.contrib that the core has.

    Attributes:
        text: of the file.
        left: (name, line) of the first name of tf.contrib in it.
    """

    text: str
    left: tuple[str, int] | None = None


def lower(program: Program, tree: Tree) -> CoreText | None:
    """Write the calls of tf.contrib as calls of the core; None where the file has nothing of tf.contrib.

    Args:
        tree: the file with its new names.
    """
    if not tree.contrib and "tf_slim" not in tree.source.text:
        return None
    root, old = tensorflow_1.root_of_tensorflow(program, tree), v1_import(tree)
    text = tree.source.text
    if root is not None or old is not None:
        v1 = f"{root}.compat.v1" if root else (old.evaluated_alias or "tf") if old is not None else ""
        for step in (_in_place, _training):
            reading = _Reading(program, tree, text, root or v1, v1)
            text = apply(text, step(reading))
    return CoreText(text, _first_left(_Reading(program, tree, text, "", ""), tree.contrib))


class _Reading:
    """A text of the file, in which the imports that its new names need are told."""

    def __init__(self, program: Program, tree: Tree, text: str, tf: str, v1: str) -> None:
        self.tf, self.v1 = tf, v1
        bound = {name for scope in (tree.scope, *tree.scopes.values()) for name in scope.names}
        further = [one for one in tree.needs if one.split()[-1] not in bound]
        source = tree.source.with_text("\n".join([text, *further, ""]))
        made = parse(source)
        assert made is not None
        self.tree, self.lines = made, Lines(text)
        others = [one for one in program.trees.values() if one is not tree]
        self.program = Program([*others, made], program.modules)

    def name(self, node: cst.BaseExpression) -> str:
        """Return what an expression is of the packages that have tf.contrib's names; "" for all else."""
        for value in self.program.meaning(node, self.tree, self.tree.where.get(node, self.tree.scope)):
            if isinstance(value, Outside) and f"{value.dotted}.".startswith(tuple(f"{one}." for one in _HOMES)):
                return value.dotted
        return ""

    def called(self, call: cst.Call) -> str:
        """Return the last name of what a call calls, if it may be one of the tables'."""
        name = self.name(call.func)
        home = next((one for one in _HOMES if f"{name}.".startswith(f"{one}.")), "")
        *modules, last = name.removeprefix(home).split(".")
        return last if home and set(modules[1:]) <= _MODULES else ""

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        line, column, end_line, end_column = self.tree.position(node)
        return self.lines.offset(line, column), self.lines.offset(end_line, end_column)

    def source(self, node: cst.CSTNode) -> str:
        start, end = self.span(node)
        return self.lines.text[start:end]

    def whole(self, node: cst.BaseExpression) -> str:
        """Return an expression's text as a part of another one."""
        text = self.source(node)
        simple = isinstance(
            node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Float, cst.Integer, cst.SimpleString)
        )
        return text if simple else f"({text})"

    def core(self, name: str) -> str:
        """Return a name of the core as the file has it."""
        return re.sub(r"\bV1\b", self.v1, re.sub(r"\bTF\b", self.tf, name))


# Layers, regularizers and initializers: the argument texts stay where they are


def _in_place(reading: _Reading) -> Iterator[Edit]:
    for call in reading.tree.calls:
        name = reading.called(call)
        if name in _CALLS:
            yield from _renamed(reading, call, name, _CALLS[name])
        elif name in _INITIALIZERS:
            yield from _initializer(reading, call, *_INITIALIZERS[name])


def _given(call: cst.Call, parameters: Sequence[str]) -> dict[str, cst.Arg] | None:
    """Parameter -> argument; None where they cannot be told."""
    given = arguments(call, tuple(parameters))
    told = len(given) == len(call.args) and given.keys() <= set(parameters)
    return given if told and not any(arg.star for arg in call.args) else None


def _renamed(reading: _Reading, call: cst.Call, name: str, core: _Call) -> list[Edit]:
    given = _given(call, list(core.parameters))
    if not given or next(iter(core.parameters)) not in given:
        return []
    edits = [Edit(*reading.span(call.func), reading.core(core.core))]
    said = dict(core.said)
    for place, (parameter, arg) in enumerate(given.items()):
        new, text = core.parameters[parameter], reading.source(arg.value)
        start, (begin, end) = reading.span(arg)[0], reading.span(arg.value)
        if not new:
            if text not in _DEFAULTS:
                return []
            edits.append(_without(reading, arg))
            continue
        if parameter == "biases_initializer" and text == "None":
            edits.append(Edit(start, end, "use_bias=False"))
            continue
        said.pop(new, None)
        by_position = arg.keyword is None and place < core.shared
        before, behind = _WORKED_OUT.get((name, parameter), ""), ""
        if before and reading.whole(arg.value) != text:
            before, behind = f"{before}(", ")"
        if name.endswith("_regularizer") and not name.startswith("l1_l2"):
            by_position = True  # its own name is another one in each version of Keras
        head = "" if by_position else f"{new}="
        if start != begin or head or before:
            edits.append(Edit(start, begin, f"{head}{before}"))
        if behind:
            edits.append(Edit(end, end, behind))
    last = reading.span(call.args[-1].value)[1]
    edits += [Edit(last, last, f", {one}={reading.core(text)}") for one, text in said.items()]
    return edits


def _without(reading: _Reading, arg: cst.Arg) -> Edit:
    """Return an argument and the comma behind it; what lines it has stay."""
    start, end = reading.span(arg)[0], reading.span(arg.value)[1]
    behind = re.compile(r"\s*,").match(reading.lines.text, end) if isinstance(arg.comma, cst.Comma) else None
    end = behind.end() if behind else end
    return Edit(start, end, "\n" * reading.lines.text.count("\n", start, end))


def _initializer(
    reading: _Reading, call: cst.Call, parameters: tuple[str, ...], factor: str, mode: str, uniform: str
) -> list[Edit]:
    given = _given(call, parameters)
    if given is None or "#" in reading.source(call):
        return []
    texts = {one: reading.whole(arg.value) for one, arg in given.items()}
    is_uniform = texts.get("uniform", uniform)
    mode = texts.get("mode", repr(mode)).strip("'\"")
    if is_uniform not in ("True", "False") or mode not in ("FAN_IN", "FAN_OUT", "FAN_AVG"):
        return []
    seed = [f"seed={texts['seed']}"] if "seed" in texts else []
    factor = texts.get("factor", factor)
    if is_uniform == "True" and mode == "FAN_AVG" and factor == "1.0":
        return [_written(reading, call, f"V1.glorot_uniform_initializer({', '.join(seed)})")]
    scale = factor if is_uniform == "True" else f"{_OF_TRUNCATED} * {factor}"
    distribution = "uniform" if is_uniform == "True" else "truncated_normal"
    told = [f"scale={scale}", f"mode='{mode.lower()}'", f"distribution='{distribution}'", *seed]
    return [_written(reading, call, f"V1.variance_scaling_initializer({', '.join(told)})")]


def _written(reading: _Reading, call: cst.Call, text: str) -> Edit:
    """Return a call in place of another one, with as many lines."""
    text = reading.core(text)
    lines = reading.source(call).count("\n") - text.count("\n")
    return Edit(*reading.span(call), f"{text[:-1]}{chr(10) * lines})")


# Training steps


def _training(reading: _Reading) -> Iterator[Edit]:
    steps: dict[str, Callable[[_Reading, cst.Call], str]] = {
        "optimize_loss": _optimized,
        "create_train_op": _created,
        "index_table_from_tensor": _table,
        "index_table_from_file": _table_of_file,
    }
    for call in reading.tree.calls:
        write = steps.get(reading.called(call))
        text = write(reading, call) if write is not None and "#" not in reading.source(call) else ""
        if text:
            yield _written(reading, call, text)


def _optimized(reading: _Reading, call: cst.Call) -> str:
    """Return what `optimize_loss` does; "" where that is more than one step of an optimizer."""
    given = _given(call, _OPTIMIZE_LOSS)
    told = _plain(reading, given, ("loss", "global_step", "learning_rate", "optimizer", "clip_gradients"))
    if given is None or told is None or "loss" not in told or "optimizer" not in told:
        return ""
    rate, optimizer = told.get("learning_rate", "None"), _optimizer(reading, given["optimizer"].value)
    if not optimizer or ("{}" in optimizer and rate == "None"):
        return ""
    step = told.get("global_step", "None")
    step = "V1.train.get_global_step()" if step == "None" else step
    return _step(reading, optimizer.format(rate), told["loss"], step, told.get("clip_gradients", "None"))


def _created(reading: _Reading, call: cst.Call) -> str:
    """Return what `create_train_op` does."""
    given = _given(call, _CREATE_TRAIN_OP)
    told = _plain(reading, given, ("total_loss", "optimizer", "global_step"))
    if given is None or told is None or not {"total_loss", "optimizer"} <= told.keys():
        return ""
    step = told.get("global_step", "V1.train.get_or_create_global_step()")
    optimizer = reading.whole(given["optimizer"].value)
    return _step(reading, optimizer, told["total_loss"], step) if step != "None" else ""


def _plain(reading: _Reading, given: dict[str, cst.Arg] | None, read: Iterable[str]) -> dict[str, str] | None:
    """Return the texts of the arguments that are read; None where another one changes a number."""
    texts = {one: reading.source(arg.value) for one, arg in (given or {}).items()}
    others = {one: text for one, text in texts.items() if one not in (*read, *_SILENT)}
    plain = all(text == ("True" if one == "increment_global_step" else "None") for one, text in others.items())
    return texts if plain else None


def _optimizer(reading: _Reading, node: cst.BaseExpression) -> str:
    """Return the text of an optimizer, in which `{}` stands for the learning rate."""
    if isinstance(node, cst.SimpleString):
        name = str(node.evaluated_value)
        return f"V1.train.{_OPTIMIZERS[name]}" if name in _OPTIMIZERS else ""
    text = reading.source(node).replace("{", "{{").replace("}", "}}")
    values = reading.program.meaning(node, reading.tree, reading.tree.where.get(node, reading.tree.scope))
    if any(isinstance(one, Outside) and one.dotted.endswith("Optimizer") for one in values):
        return f"{text}(learning_rate={{}})"
    made = isinstance(node, cst.Call) or (isinstance(node, cst.Name) and _is_made(reading, node))
    return text if made else ""


def _is_made(reading: _Reading, node: cst.Name) -> bool:
    """Whether a name has an object, by a call."""
    bindings = reading.program.bindings(node.value, reading.tree.where.get(node, reading.tree.scope))
    return bool(bindings) and all(one.kind == "value" and isinstance(one.node, cst.Call) for one in bindings)


def _step(reading: _Reading, optimizer: str, loss: str, step: str, clip: str = "None") -> str:
    """One step of an optimizer; the statistics of normalizations are moved beside it, as tf.contrib does."""
    made = f"{optimizer}.minimize({loss}, global_step={step})"
    if clip != "None":
        if re.fullmatch(r"\d+\.\d*|\w+", clip) is None:  # it may be a function
            return ""
        trained = "V1.trainable_variables()"
        clipped = f"TF.clip_by_global_norm(V1.gradients({loss}, {trained}), {clip})[0]"
        made = f"{optimizer}.apply_gradients(zip({clipped}, {trained}), global_step={step})"
    if "batch_norm" in reading.lines.text:
        return f"TF.group({made}, *V1.get_collection(V1.GraphKeys.UPDATE_OPS))"
    return made


# Tables of words


def _table(reading: _Reading, call: cst.Call) -> str:
    """Return a table of the words of a list, as `tf.lookup` has it."""
    given = _given(call, ("mapping", "num_oov_buckets", "default_value", "hasher_spec", "dtype", "name"))
    told = {one: reading.source(arg.value) for one, arg in (given or {}).items()}
    if "mapping" not in told or told.get("dtype", "tf.string").rpartition(".")[2] != "string":
        return ""
    words = told["mapping"]
    numbers = f"TF.range(TF.size({words}, out_type=TF.int64))"
    return _made_table(told, f"TF.lookup.KeyValueTensorInitializer({words}, {numbers}, TF.string, TF.int64)")


def _table_of_file(reading: _Reading, call: cst.Call) -> str:
    """Return a table of the lines of a file."""
    given = _given(call, ("vocabulary_file", "num_oov_buckets", "vocab_size", "default_value", "hasher_spec",
                          "key_dtype", "name", "key_column_index", "value_column_index", "delimiter"))  # fmt: skip
    told = {one: reading.source(arg.value) for one, arg in (given or {}).items()}
    known = {"vocabulary_file", "num_oov_buckets", "vocab_size", "default_value", "name"}
    if "vocabulary_file" not in told or not told.keys() <= known:
        return ""
    index = "TF.lookup.TextFileIndex"
    parts = [told["vocabulary_file"], "TF.string", f"{index}.WHOLE_LINE", "TF.int64", f"{index}.LINE_NUMBER"]
    parts += [f"vocab_size={told['vocab_size']}"] if "vocab_size" in told else []
    return _made_table(told, f"TF.lookup.TextFileInitializer({', '.join(parts)})")


def _made_table(told: dict[str, str], initializer: str) -> str:
    buckets, default = told.get("num_oov_buckets", "0"), told.get("default_value", "-1")
    if "hasher_spec" in told or not (buckets == "0" or buckets.isdigit()):
        return ""
    if buckets != "0":  # words that are not in it have a bucket, and never the default
        return f"TF.lookup.StaticVocabularyTable({initializer}, {buckets})"
    return f"TF.lookup.StaticHashTable({initializer}, {default})"


# What is left


def _first_left(reading: _Reading, names: Sequence[tuple[str, int]]) -> tuple[str, int] | None:
    found = []
    count = len(reading.lines.starts)
    for node in reading.tree.chains:
        name, (line, column, *_) = reading.name(node), reading.tree.position(node)
        if name and line <= count and not _is_alias(reading.tree, node):
            found.append((line, column, name))
    for statement, binding in reading.tree.imports:
        if binding.name == "*" and f"{binding.module}.".startswith(tuple(f"{one}." for one in _HOMES)):
            found.append((*reading.tree.position(statement)[:2], binding.module))
    if not found:
        return None
    line, _, name = min(found)
    last = name.rpartition(".")[2]
    told = [one for one, at in names if at == line]
    return next((one for one in told if one.rpartition(".")[2] == last), told[0] if told else name), line


def _is_alias(tree: Tree, node: cst.BaseExpression) -> bool:
    """Whether an expression gets another name, as in `layers = tf.contrib.layers`: what is called by it counts."""
    parent = tree.parents.get(node)
    return isinstance(parent, cst.Assign) and all(isinstance(one.target, cst.Name) for one in parent.targets)

"""Conversion of common tf.contrib layers and training steps to the equivalent tf.compat.v1 calls.

The layer conversion reads tf.compat.v1 ("the core"). `lower` replaces a tf.contrib call, which the renames have already
moved to tf-slim or this package, by the equivalent core call: `fully_connected(x, 8)` becomes
`dense(x, 8, activation=tf.nn.relu)`, with the same initial values and regularization losses. The variables keep their
shapes but get different names. Line numbers do not change. A call without an equivalent is unchanged, and the file is
rejected with the name of that call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines, Step
from estimator_pipeline.migrate.code.analysis.name_resolution import Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree, dotted_of, parse
from estimator_pipeline.migrate.code.renames import tensorflow_1
from estimator_pipeline.migrate.code.renames.tf_contrib import FACADE
from estimator_pipeline.migrate.code.to_keras.imports_of_tensorflow import v1_import

__all__ = ["CoreText", "lower"]

# The packages that replace tf.contrib, and their modules with the names in the tables below.
_HOMES = ("tf_slim", "tensorflow_gan", FACADE)
_MODULES = {"layers", "python", "initializers", "regularizers", "optimizers", "training", "learning", "lookup"}

# tf.contrib's parameters, in order -> the core's; "" where only the default value can be converted.
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
    """An equivalent call of the core.

    Attributes:
        core: Name of the core function; `TF` is TensorFlow, `V1` is tf.compat.v1.
        parameters: tf.contrib's parameter -> the core's parameter.
        shared: Number of leading parameters that can be positional in both.
        defaults: Keyword arguments to add where tf.contrib's default differs from the core's.
    """

    core: str
    parameters: dict[str, str]
    shared: int
    defaults: dict[str, str] = field(default_factory=dict)


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
# The core's value is computed from tf.contrib's.
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
# tf.contrib's truncated normal has variance 1.3 * factor / n before truncation, V1's has scale / n after truncation.
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
# Parameters without an effect on the computed values.
_SILENT = ("name", "summaries", "colocate_gradients_with_ops", "summarize_gradients", "gate_gradients",
           "aggregation_method", "check_numerics")  # fmt: skip


@dataclass
class CoreText:
    """A file's text after its tf.contrib calls were converted to the core.

    Attributes:
        text: The file's new text.
        steps: The edits that it consists of.
        left: (name, line) of the first remaining name of tf.contrib.
    """

    text: str
    steps: list[Step]
    left: tuple[str, int] | None = None


def lower(program: Program, tree: Tree) -> CoreText | None:
    """Convert tf.contrib calls to core calls; None for a file without tf.contrib.

    Args:
        program: The program that the file belongs to.
        tree: The file after the renames.
    """
    if not tree.contrib and "tf_slim" not in tree.source.text:
        return None
    root, old = tensorflow_1.root_of_tensorflow(program, tree), v1_import(tree)
    text, steps = tree.source.text, list[Step]()
    if root is not None or old is not None:
        v1 = f"{root}.compat.v1" if root else (old.evaluated_alias or "tf") if old is not None else ""
        for edits in (_layer_edits, _training_edits):
            steps.append(Step.of("contrib-layers", text, edits(_Reading(program, tree, text, root or v1, v1))))
            text = steps[-1].after
    return CoreText(text, steps, _first_remaining(_Reading(program, tree, text, "", ""), tree.contrib))


class _Reading:
    """A parsed version of the file's text that includes the imports its new names need."""

    def __init__(self, program: Program, tree: Tree, text: str, tf: str, v1: str) -> None:
        self.tf, self.v1 = tf, v1
        bound = {name for scope in (tree.scope, *tree.scopes.values()) for name in scope.names}
        further = [line for line in tree.needs if line.split()[-1] not in bound]
        source = tree.source.with_text("\n".join([text, *further, ""]))
        parsed = parse(source)
        assert parsed is not None
        self.tree, self.lines = parsed, Lines(text)
        others = [other for other in program.trees.values() if other is not tree]
        self.program = Program([*others, parsed], program.modules)

    def name(self, node: cst.BaseExpression) -> str:
        """Return an expression's full name in a package that replaces tf.contrib, else ""."""
        for value in self.program.meaning(node, self.tree, self.tree.where.get(node, self.tree.scope)):
            if isinstance(value, Outside) and f"{value.dotted}.".startswith(tuple(f"{home}." for home in _HOMES)):
                return value.dotted
        return ""

    def called(self, call: cst.Call) -> str:
        """Return the last part of the called name if the tables may list it, else ""."""
        name = self.name(call.func)
        home = next((prefix for prefix in _HOMES if f"{name}.".startswith(f"{prefix}.")), "")
        *modules, last = name.removeprefix(home).split(".")
        return last if home and set(modules[1:]) <= _MODULES else ""

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        line, column, end_line, end_column = self.tree.position(node)
        return self.lines.offset(line, column), self.lines.offset(end_line, end_column)

    def source(self, node: cst.CSTNode) -> str:
        start, end = self.span(node)
        return self.lines.text[start:end]

    def whole(self, node: cst.BaseExpression) -> str:
        """Return an expression's text, in parentheses unless it is simple."""
        text = self.source(node)
        simple = isinstance(
            node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Float, cst.Integer, cst.SimpleString)
        )
        return text if simple else f"({text})"

    def core(self, name: str) -> str:
        """Return a core name in the file's spelling."""
        return re.sub(r"\bV1\b", self.v1, re.sub(r"\bTF\b", self.tf, name))


# Layers, regularizers and initializers: the argument texts keep their positions


def _layer_edits(reading: _Reading) -> Iterator[Edit]:
    for call in reading.tree.calls:
        name = reading.called(call)
        if name in _CALLS:
            yield from _rename_call(reading, call, name, _CALLS[name])
        elif name in _INITIALIZERS:
            yield from _initializer(reading, call, *_INITIALIZERS[name])


def _bind_arguments(call: cst.Call, parameters: Sequence[str]) -> dict[str, cst.Arg] | None:
    """Return parameter -> argument, or None if the binding is not known statically."""
    bound = arguments(call, tuple(parameters))
    complete = len(bound) == len(call.args) and bound.keys() <= set(parameters)
    return bound if complete and not any(arg.star for arg in call.args) else None


def _rename_call(reading: _Reading, call: cst.Call, name: str, core: _Call) -> list[Edit]:
    bound = _bind_arguments(call, list(core.parameters))
    if not bound or next(iter(core.parameters)) not in bound:
        return []
    edits = [Edit(*reading.span(call.func), reading.core(core.core))]
    defaults = dict(core.defaults)
    for place, (parameter, arg) in enumerate(bound.items()):
        new, text = core.parameters[parameter], reading.source(arg.value)
        start, (begin, end) = reading.span(arg)[0], reading.span(arg.value)
        if not new:
            if text not in _DEFAULTS:
                return []
            edits.append(_remove_argument(reading, arg))
            continue
        if parameter == "biases_initializer" and text == "None":
            edits.append(Edit(start, end, "use_bias=False"))
            continue
        defaults.pop(new, None)
        by_position = arg.keyword is None and place < core.shared
        before, behind = _WORKED_OUT.get((name, parameter), ""), ""
        if before and reading.whole(arg.value) != text:
            before, behind = f"{before}(", ")"
        if name.endswith("_regularizer") and not name.startswith("l1_l2"):
            by_position = True  # each version of Keras names this parameter differently
        head = "" if by_position else f"{new}="
        if start != begin or head or before:
            edits.append(Edit(start, begin, f"{head}{before}"))
        if behind:
            edits.append(Edit(end, end, behind))
    last = reading.span(call.args[-1].value)[1]
    edits += [Edit(last, last, f", {keyword}={reading.core(text)}") for keyword, text in defaults.items()]
    return edits


def _remove_argument(reading: _Reading, arg: cst.Arg) -> Edit:
    """Return the edit that removes an argument and its comma but keeps the line breaks."""
    start, end = reading.span(arg)[0], reading.span(arg.value)[1]
    behind = re.compile(r"\s*,").match(reading.lines.text, end) if isinstance(arg.comma, cst.Comma) else None
    end = behind.end() if behind else end
    return Edit(start, end, "\n" * reading.lines.text.count("\n", start, end))


def _initializer(
    reading: _Reading, call: cst.Call, parameters: tuple[str, ...], factor: str, mode: str, uniform: str
) -> list[Edit]:
    bound = _bind_arguments(call, parameters)
    if bound is None or "#" in reading.source(call):
        return []
    texts = {parameter: reading.whole(arg.value) for parameter, arg in bound.items()}
    is_uniform = texts.get("uniform", uniform)
    mode = texts.get("mode", repr(mode)).strip("'\"")
    if is_uniform not in ("True", "False") or mode not in ("FAN_IN", "FAN_OUT", "FAN_AVG"):
        return []
    seed = [f"seed={texts['seed']}"] if "seed" in texts else []
    factor = texts.get("factor", factor)
    if is_uniform == "True" and mode == "FAN_AVG" and factor == "1.0":
        return [_replace_call(reading, call, f"{reading.v1}.glorot_uniform_initializer({', '.join(seed)})")]
    scale = factor if is_uniform == "True" else f"{_OF_TRUNCATED} * {factor}"
    distribution = "uniform" if is_uniform == "True" else "truncated_normal"
    keywords = [f"scale={scale}", f"mode='{mode.lower()}'", f"distribution='{distribution}'", *seed]
    return [_replace_call(reading, call, f"{reading.v1}.variance_scaling_initializer({', '.join(keywords)})")]


def _replace_call(reading: _Reading, call: cst.Call, text: str) -> Edit:
    """Return the edit that replaces a call by a text with the same number of lines."""
    lines = reading.source(call).count("\n") - text.count("\n")
    return Edit(*reading.span(call), f"{text[:-1]}{chr(10) * lines})")


# Training steps


def _training_edits(reading: _Reading) -> Iterator[Edit]:
    steps: dict[str, Callable[[_Reading, cst.Call], str]] = {
        "optimize_loss": _optimize_loss,
        "create_train_op": _create_train_op,
        "index_table_from_tensor": _table_from_list,
        "index_table_from_file": _table_from_file,
    }
    for call in reading.tree.calls:
        write = steps.get(reading.called(call))
        text = write(reading, call) if write is not None and "#" not in reading.source(call) else ""
        if text:
            yield _replace_call(reading, call, text)


def _optimize_loss(reading: _Reading, call: cst.Call) -> str:
    """Return `optimize_loss` as an optimizer call; "" where it does more than one step."""
    bound = _bind_arguments(call, _OPTIMIZE_LOSS)
    texts = _argument_texts(reading, bound, ("loss", "global_step", "learning_rate", "optimizer", "clip_gradients"))
    if bound is None or texts is None or "loss" not in texts or "optimizer" not in texts:
        return ""
    rate, optimizer = texts.get("learning_rate", "None"), _optimizer(reading, bound["optimizer"].value)
    if not optimizer or ("{}" in optimizer and rate == "None"):
        return ""
    step = texts.get("global_step", "None")
    step = f"{reading.v1}.train.get_global_step()" if step == "None" else step
    return _train_op(reading, optimizer.format(rate), texts["loss"], step, texts.get("clip_gradients", "None"))


def _create_train_op(reading: _Reading, call: cst.Call) -> str:
    """Return `create_train_op` as an optimizer call; "" if it cannot be converted."""
    bound = _bind_arguments(call, _CREATE_TRAIN_OP)
    texts = _argument_texts(reading, bound, ("total_loss", "optimizer", "global_step"))
    if bound is None or texts is None or not {"total_loss", "optimizer"} <= texts.keys():
        return ""
    step = texts.get("global_step", f"{reading.v1}.train.get_or_create_global_step()")
    optimizer = reading.whole(bound["optimizer"].value)
    return _train_op(reading, optimizer, texts["total_loss"], step) if step != "None" else ""


def _argument_texts(reading: _Reading, bound: dict[str, cst.Arg] | None, read: Iterable[str]) -> dict[str, str] | None:
    """Return the arguments' texts, or None if an unsupported argument affects the values."""
    texts = {name: reading.source(arg.value) for name, arg in (bound or {}).items()}
    others = {name: text for name, text in texts.items() if name not in (*read, *_SILENT)}
    plain = all(text == ("True" if name == "increment_global_step" else "None") for name, text in others.items())
    return texts if plain else None


def _optimizer(reading: _Reading, node: cst.BaseExpression) -> str:
    """Return an optimizer's text, with `{}` as the placeholder of the learning rate."""
    if isinstance(node, cst.SimpleString):
        name = str(node.evaluated_value)
        return f"{reading.v1}.train.{_OPTIMIZERS[name]}" if name in _OPTIMIZERS else ""
    text = reading.source(node).replace("{", "{{").replace("}", "}}")
    values = reading.program.meaning(node, reading.tree, reading.tree.where.get(node, reading.tree.scope))
    if any(isinstance(value, Outside) and value.dotted.endswith("Optimizer") for value in values):
        return f"{text}(learning_rate={{}})"
    is_object = isinstance(node, cst.Call) or (isinstance(node, cst.Name) and _is_call_result(reading, node))
    return text if is_object else ""


def _is_call_result(reading: _Reading, node: cst.Name) -> bool:
    """Whether every value of a name is the result of a call."""
    bindings = reading.program.bindings(node.value, reading.tree.where.get(node, reading.tree.scope))
    return bool(bindings) and all(
        binding.kind == "value" and isinstance(binding.node, cst.Call) for binding in bindings
    )


def _train_op(reading: _Reading, optimizer: str, loss: str, step: str, clip: str = "None") -> str:
    """Return an optimizer step that also runs the batch-norm updates, as tf.contrib does."""
    train_op = f"{optimizer}.minimize({loss}, global_step={step})"
    if clip != "None":
        if re.fullmatch(r"\d+\.\d*|\w+", clip) is None:  # the value may be a function
            return ""
        trained = f"{reading.v1}.trainable_variables()"
        clipped = f"{reading.tf}.clip_by_global_norm({reading.v1}.gradients({loss}, {trained}), {clip})[0]"
        train_op = f"{optimizer}.apply_gradients(zip({clipped}, {trained}), global_step={step})"
    if any((dotted_of(chain) or "").rpartition(".")[2].startswith("batch_norm") for chain in reading.tree.chains):
        updates = f"{reading.v1}.get_collection({reading.v1}.GraphKeys.UPDATE_OPS)"
        return f"{reading.tf}.group({train_op}, *{updates})"
    return train_op


# Tables of words


def _table_from_list(reading: _Reading, call: cst.Call) -> str:
    """Return the `tf.lookup` table for the words of a list."""
    bound = _bind_arguments(call, ("mapping", "num_oov_buckets", "default_value", "hasher_spec", "dtype", "name"))
    texts = {name: reading.source(arg.value) for name, arg in (bound or {}).items()}
    if "mapping" not in texts or texts.get("dtype", "tf.string").rpartition(".")[2] != "string":
        return ""
    words, tf = texts["mapping"], reading.tf
    numbers = f"{tf}.range({tf}.size({words}, out_type={tf}.int64))"
    initializer = f"{tf}.lookup.KeyValueTensorInitializer({words}, {numbers}, {tf}.string, {tf}.int64)"
    return _lookup_table(reading, texts, initializer)


def _table_from_file(reading: _Reading, call: cst.Call) -> str:
    """Return the `tf.lookup` table for the lines of a file."""
    bound = _bind_arguments(call, ("vocabulary_file", "num_oov_buckets", "vocab_size", "default_value", "hasher_spec",
                          "key_dtype", "name", "key_column_index", "value_column_index", "delimiter"))  # fmt: skip
    texts = {name: reading.source(arg.value) for name, arg in (bound or {}).items()}
    known = {"vocabulary_file", "num_oov_buckets", "vocab_size", "default_value", "name"}
    if "vocabulary_file" not in texts or not texts.keys() <= known:
        return ""
    tf, index = reading.tf, f"{reading.tf}.lookup.TextFileIndex"
    parts = [texts["vocabulary_file"], f"{tf}.string", f"{index}.WHOLE_LINE", f"{tf}.int64", f"{index}.LINE_NUMBER"]
    parts += [f"vocab_size={texts['vocab_size']}"] if "vocab_size" in texts else []
    return _lookup_table(reading, texts, f"{tf}.lookup.TextFileInitializer({', '.join(parts)})")


def _lookup_table(reading: _Reading, texts: dict[str, str], initializer: str) -> str:
    buckets, default = texts.get("num_oov_buckets", "0"), texts.get("default_value", "-1")
    if "hasher_spec" in texts or not (buckets == "0" or buckets.isdigit()):
        return ""
    if buckets != "0":  # unknown words get a bucket, never the default
        return f"{reading.tf}.lookup.StaticVocabularyTable({initializer}, {buckets})"
    return f"{reading.tf}.lookup.StaticHashTable({initializer}, {default})"


# Remaining names of tf.contrib


def _first_remaining(reading: _Reading, names: Sequence[tuple[str, int]]) -> tuple[str, int] | None:
    uses = []
    count = len(reading.lines.starts)
    for node in reading.tree.chains:
        name, (line, column, *_) = reading.name(node), reading.tree.position(node)
        if name and line <= count and not _is_alias(reading.tree, node):
            uses.append((line, column, name))
    for statement, binding in reading.tree.imports:
        if binding.name == "*" and f"{binding.module}.".startswith(tuple(f"{home}." for home in _HOMES)):
            uses.append((*reading.tree.position(statement)[:2], binding.module))
    if not uses:
        return None
    line, _, name = min(uses)
    last = name.rpartition(".")[2]
    on_line = [spelled for spelled, at in names if at == line]
    return next(
        (spelled for spelled in on_line if spelled.rpartition(".")[2] == last), on_line[0] if on_line else name
    ), line


def _is_alias(tree: Tree, node: cst.BaseExpression) -> bool:
    """Whether an expression is only assigned to a name, as in `layers = tf.contrib.layers`."""
    parent = tree.parents.get(node)
    return isinstance(parent, cst.Assign) and all(isinstance(target.target, cst.Name) for target in parent.targets)

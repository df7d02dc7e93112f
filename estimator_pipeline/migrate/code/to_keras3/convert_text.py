"""Conversion of a Keras 2 program, as written by `to_keras`, to `keras` and `keras.ops` of Keras 3.

Functions of the model are those that its class and its `make_model` function reach. TensorFlow operations in them
become `keras.ops`, which run on each backend. TensorFlow is unchanged elsewhere, for example where data is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines, Step, keep_comments
from estimator_pipeline.migrate.code.analysis.syntax import dotted_of, iter_nodes
from estimator_pipeline.migrate.code.to_keras.unused_names import names_read
from estimator_pipeline.migrate.code.to_keras3.calls import expression, operation_call
from estimator_pipeline.migrate.code.to_keras3.imports import import_edits, names_of_tensorflow
from estimator_pipeline.migrate.code.to_keras3.methods import call_predictions
from estimator_pipeline.migrate.code.to_keras3.not_convertible import NotInKeras3
from estimator_pipeline.migrate.code.to_keras3.operations import (
    ACTIVATIONS,
    DTYPES,
    INITIALIZERS,
    OPERATIONS,
)
from estimator_pipeline.migrate.code.to_keras3.support import MODULE, OF_DENSE_GRADIENTS, PARTS

__all__ = ["Keras3Text", "convert_text", "model_functions"]

# Module of this package that the Keras 2 program may call -> (the feature that Keras 3 lacks, a pattern of its names in
# the user's file).
_HELPERS = {
    "keras_averages": ("averages of the weights", r"ExponentialMovingAverage"),
    "keras_cells": ("cells of tf.compat.v1.nn.rnn_cell", r"Cell\("),
    "keras_cluster": (
        "a cluster of workers, which MultiWorkerMirroredStrategy trains on",
        r"Strategy|TF_CONFIG|train_and",
    ),
    "keras_heads": ("a head, which makes the loss and the metrics", r"[hH]ead\("),
    "keras_variables": ("a variable outside of layers", r"get_variable|tf\.Variable|AUTO_REUSE|reuse|var_list"),
    "keras_weights": ("a warm start from a checkpoint", r"warm_start|WarmStart|get_variable_"),
}
# Names of tf.keras that Keras 3 does not have.
_REMOVED = re.compile(
    r"keras\.(estimator|experimental|wrappers|legacy|mixed_precision\.experimental|"
    r"layers\.(experimental|DenseFeatures|SequenceFeatures|CuDNN\w+|LocallyConnected\w+|StackedRNNCells\.state_size|"
    r"ThresholdedReLU|AbstractRNNCell)|preprocessing\.(text|image\.ImageDataGenerator)|backend\.(?!epsilon|floatx|"
    r"image_data_format|clear_session)|utils\.(Sequence|multi_gpu_model|unpack_x_y_sample_weight)|"
    r"optimizers\.(schedules\.\w+\.legacy|legacy\.(?!Adam|SGD|Adagrad|Adadelta|Adamax|Ftrl|Nadam|RMSprop)))\b"
)
_REDUCTIONS = {"SUM_OVER_BATCH_SIZE": "'sum_over_batch_size'", "AUTO": "'sum_over_batch_size'", "SUM": "'sum'",
               "NONE": "'none'"}  # fmt: skip
_OPTIMIZERS = {"momentum": "Momentum", "nesterov": "Momentum", "rmsprop": "RMSProp"}
_CLIPPING = {"clip_norm": "global_clipnorm", "clip_value": "clipvalue"}
_OPTIMIZER = re.compile(rf"keras\.optimizers\.({'|'.join(OF_DENSE_GRADIENTS)})$")
# Modules of this package whose functions and classes keras_support.py has under the same names.
_SUPPORT_MODULES = ("keras_canned", "keras_columns", "keras_evaluation")
_TWO_OPTIMIZERS = (
    "a canned Estimator of two optimizers, which needs a custom training step: it differs between Keras 3 backends"
)
_UNSUPPORTED_CANNED = {"DNNLinearCombinedClassifier": _TWO_OPTIMIZERS, "DNNLinearCombinedRegressor": _TWO_OPTIMIZERS}
# Optimizers that treat embedding rows outside of the batch as TensorFlow 1 does: unchanged, or updated by their slots.
_EMBEDDING_OPTIMIZERS = ("Adagrad", "Adam", "SGD")
_EMBEDDING_REASON = "{} of a model with embeddings: TensorFlow 1 updates only the rows in a batch, Keras 3 all rows"
_STEP_METHODS = ("train_step", "test_step")  # custom steps of a model


@dataclass
class Keras3Text:
    """A converted file.

    Attributes:
        step: The edits that it consists of, and the whole text.
        parts: Names that it imports from keras_support.py.
    """

    step: Step
    parts: list[str] = field(default_factory=list)


def model_functions(texts: Iterable[str], *, user_names: Collection[str] = ()) -> set[str]:
    """Return the top-level functions and classes that a model's class or `make_model` function reaches.

    Args:
        texts: The files of the program.
        user_names: Top-level names of the user's files, which take precedence over those of keras_support.py.
    """
    bodies: dict[str, list[cst.CSTNode]] = {}
    roots: list[str] = []
    for text in texts:
        for node in cst.parse_module(text).body:
            if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
                name = node.name.value
                bodies.setdefault(name, []).append(node)
                if isinstance(node, cst.ClassDef) and _is_model(node):
                    roots.append(name)
                if any(isinstance(child, cst.FunctionDef) and re.match(r"make_(\w+_)?model$", child.name.value)
                       for child in iter_nodes(node)):  # fmt: skip
                    roots.append(name)
    reached: set[str] = set()
    while roots:
        name = roots.pop()
        if name in reached or (name in PARTS and name not in user_names):
            continue
        reached.add(name)
        for body in bodies.get(name, ()):
            names = _iter_names_read(body)
            roots += [name for name in names if name in bodies]
    return reached & bodies.keys()


def convert_text(
    text: str, functions: set[str], *, embeds: bool = False, user_names: Collection[str] = (), package: str = ""
) -> Keras3Text:
    """Convert a file from Keras 2 to Keras 3.

    Args:
        functions: The functions of the model, from `model_functions`.
        embeds: Whether the model looks up rows of a variable, whose gradients are then sparse.
        user_names: Top-level names of the user's file, which take precedence over those of keras_support.py.
        package: The prefix of keras_support in an import, such as "." or "trainer.".

    Raises:
        NotInKeras3: Keras 3 lacks something that the file uses.
    """
    support = PARTS.keys() - set(user_names)
    module = cst.parse_module(text)
    _check(module)
    names = names_of_tensorflow(module)
    positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    lines = Lines(text)
    gone = [node for node in module.body
            if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node.name.value in support]  # fmt: skip
    program = module.with_changes(body=[node for node in module.body if node not in gone])
    transformer = _Keras3Transformer(names, functions, support, embeds, _bound_names(program))
    canned = {name for name in _dotted_names(program) if name.startswith("keras_canned.")}
    transformer.canned = bool(canned)
    transformer.starts_at_zero = bool(canned) and not any(name.startswith("keras_canned.DNN") for name in canned)
    program.visit(transformer)
    edits = [_deletion(node, positions, lines) for node in gone]
    edits += _edits(program, transformer, positions, lines)
    new_text = Step.of("keras3", text, edits).after
    statements = [(node, positions[node].start.line, positions[node].end.line) for node in module.body]
    edits += import_edits(
        statements, lines, transformer.parts, package=package, read=set().union(*names_read(new_text).values()),
        by_module=transformer.by_module,
    )  # fmt: skip
    return Keras3Text(Step.of("keras3", text, keep_comments(text, edits)), sorted(transformer.parts))


def _check(module: cst.Module) -> None:
    """Raise for a program that uses what Keras 3 lacks as a whole."""
    dotted = set(_dotted_names(module))
    roots = {name.partition(".")[0] for name in dotted if "." in name}
    for name, (feature, pattern) in _HELPERS.items():
        if name in roots:
            raise NotInKeras3("", f"{feature}, which the conversion to Keras 3 does not support", pattern)
    if "keras_canned" in roots:
        attributes = {node.attr.value for node in iter_nodes(module) if isinstance(node, cst.Attribute)}
        for attribute, feature, pattern in (
            ("head", "an export", "export_saved|xporter"), ("named_values", "names of variables", "get_variable_")
        ):  # fmt: skip
            if attribute in attributes:
                reason = f"{feature} of a canned Estimator, which the conversion to Keras 3 does not support"
                raise NotInKeras3("", reason, pattern)
    if any(".distribute." in name for name in dotted):
        raise NotInKeras3("distribute", "a strategy of tf.distribute: Keras 3 uses keras.distribution")


def _dotted_names(node: cst.CSTNode) -> Iterator[str]:
    return (name for child in iter_nodes(node) if isinstance(child, cst.Attribute) and (name := dotted_of(child)))


def _deletion(node: cst.CSTNode, positions: Mapping[cst.CSTNode, CodeRange], lines: Lines) -> Edit:
    return lines.deletion(positions[node].start.line, positions[node].end.line)


def _edits(
    node: cst.CSTNode, transformer: _Keras3Transformer, positions: Mapping[cst.CSTNode, CodeRange], lines: Lines
) -> Iterator[Edit]:
    """Yield the edits of the outermost nodes that the transformer changed."""

    def span(first: cst.CSTNode, last: cst.CSTNode) -> tuple[int, int]:
        start, end = positions[first].start, positions[last].end
        return lines.offset(start.line, start.column + 1), lines.offset(end.line, end.column + 1)

    covered = {top for *nodes, _ in transformer.replaced for top in nodes}
    for *nodes, text in transformer.replaced:
        yield Edit(*span(nodes[0], nodes[-1]), text)
    for param, text in transformer.inserted:
        at = span(param, param.default or param.name)[1]
        yield Edit(at, at, text)
    waiting = [(node, "")]
    while waiting:
        below, indent = waiting.pop()
        if below in covered:
            continue
        if isinstance(below, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            indent = lines.indent(positions[below].start.line)
        if below not in transformer.changed:
            waiting += [(child, indent) for child in below.children]
            continue
        new = transformer.changed[below]
        if isinstance(new, cst.RemovalSentinel):
            yield _deletion(below, positions, lines)
        else:
            if getattr(below, "lpar", ()):  # its parentheses are not part of its position
                new = new.with_changes(lpar=[], rpar=[])
            yield Edit(*span(below, below), _code(new, indent))


def _code(node: cst.BaseExpression, indent: str) -> str:
    """Return the text of an expression in a block with an indentation, which libcst adds to its further lines."""
    statement = cst.SimpleStatementLine([cst.Expr(node)])
    if not indent:
        return cst.Module([statement]).code.removesuffix("\n")
    block = cst.If(cst.Name("x"), cst.IndentedBlock([statement], indent=indent))
    return cst.Module([block]).code.removeprefix(f"if x:\n{indent}").removesuffix("\n")


def _iter_names_read(node: cst.CSTNode, bound: Collection[str] = ()) -> Iterator[str]:
    """Yield the names that a node reads, without parameters of functions in it."""
    if isinstance(node, cst.Name) and node.value not in bound:
        yield node.value
    if isinstance(node, cst.Attribute):
        yield node.attr.value
    if isinstance(node, cst.FunctionDef):
        bound = {*bound, *(param.name.value for param in iter_nodes(node.params) if isinstance(param, cst.Param))}
    for child in node.children:
        if not isinstance(node, cst.Attribute) or child is node.value:
            yield from _iter_names_read(child, bound)


def _bound_names(module: cst.Module) -> set[str]:
    """Return the names that a module binds, at its top level or in functions."""
    names = set()
    for node in iter_nodes(module):
        if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Param)):
            names.add(node.name.value)
        elif isinstance(node, (cst.AssignTarget, cst.AnnAssign, cst.For, cst.CompFor, cst.NamedExpr)):
            names |= {name.value for name in iter_nodes(node.target) if isinstance(name, cst.Name)}
    return names


def _is_model(node: cst.ClassDef) -> bool:
    return any((dotted_of(base.value) or "").endswith("keras.Model") for base in node.bases)


class _Keras3Transformer(cst.CSTTransformer):
    """Rewrites names and calls."""

    def __init__(self, names: dict[str, str], functions: set[str], support: Collection[str], embeds: bool,
                 bound: Collection[str]) -> None:  # fmt: skip
        super().__init__()
        self.names, self.functions, self.support, self.embeds, self.bound = names, functions, support, embeds, bound
        self.parts: set[str] = set()
        self.by_module: set[str] = set()  # of these, those that the program reads from the module
        self.depth = 0  # of functions and classes
        self.in_model = False
        self.model_class: cst.ClassDef | None = None
        self.called: set[cst.CSTNode] = set()
        self.changed: dict[cst.CSTNode, Any] = {}  # node -> its replacement
        self.replaced: list[tuple[Any, ...]] = []  # (statements that follow each other, their replacement)
        self.inserted: list[tuple[cst.Param, str]] = []  # (parameter, what follows it)
        self.canned = False  # whether the file's optimizers are those of canned Estimators
        self.starts_at_zero = False  # whether all weights start at 0, so that Ftrl does not change unread rows

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        new = super().on_leave(original_node, updated_node)
        if new is not updated_node:
            self.changed[original_node] = new
        return new

    # Position in the file

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return self._enter(node) and not self._is_predict_step(node)

    def _is_predict_step(self, node: cst.FunctionDef) -> bool:
        """Return whether it is the `predict_step` of a model, which differs between Keras 3 backends."""
        return self.depth == 2 and self.model_class is not None and node.name.value == "predict_step"

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        if _is_model(node) and node.name.value in self.functions:
            self.model_class = node
            for method in node.body.body:
                if isinstance(method, cst.FunctionDef) and method.name.value in _STEP_METHODS:
                    raise NotInKeras3("train_op", "a custom training step, which differs between Keras 3 backends")
        return self._enter(node)

    def _enter(self, node: cst.FunctionDef | cst.ClassDef) -> bool:
        if self.depth == 0:
            self.in_model = node.name.value in self.functions
        self.depth += 1
        return True

    def _leave(self) -> None:
        self.depth -= 1
        self.in_model = self.in_model and self.depth > 0

    # Names

    def meaning(self, node: cst.CSTNode) -> str:
        """Return the name below `tf` of a dotted expression; "" for others."""
        dotted = dotted_of(node) if isinstance(node, (cst.Name, cst.Attribute)) else None
        if not dotted:
            return ""
        first, _, rest = dotted.partition(".")
        if first not in self.names:
            return ""
        name = f"{self.names[first]}.{rest}" if rest else self.names[first]
        # The V1 function of that name, if both accept the arguments of a call.
        both = f"tf.{name.removeprefix('tf.compat.v1.')}"
        return both if both in OPERATIONS or both in ACTIVATIONS else name

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return not self.meaning(node)

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        if original_node.value in self.names and self.names[original_node.value] != "tf":
            return self._rewrite_name(original_node, updated_node)
        return updated_node

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self.called.add(node.keyword)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if self.in_model and original_node.attr.value == "value" and isinstance(original_node.value, cst.Subscript):
            inner = original_node.value.value
            if isinstance(inner, cst.Attribute) and inner.attr.value == "shape":
                return updated_node.value
        module, _, name = (dotted_of(original_node) or "").partition(".")
        return (
            self._support_name(name) if module in _SUPPORT_MODULES else self._rewrite_name(original_node, updated_node)
        )

    def _support_name(self, name: str) -> cst.BaseExpression:
        """Return the name of a function or class of keras_support.py."""
        if name not in PARTS:
            reason = _UNSUPPORTED_CANNED.get(
                name,
                f"{name} of a canned Estimator or of feature columns, which the conversion to Keras 3 does not support",
            )
            raise NotInKeras3(
                name if name in _UNSUPPORTED_CANNED else "", reason, r"add_metrics|export_saved|xporter|linear_model"
            )
        self.parts.add(name)
        if name not in self.bound:
            return cst.Name(name)
        self.by_module.add(name)
        return expression(f"{MODULE}.{name}")

    def _rewrite_name(
        self, original: cst.Name | cst.Attribute, updated: cst.Name | cst.Attribute
    ) -> cst.BaseExpression:
        name = self.meaning(original)
        if not name or original in self.called:
            return updated
        keras = self._keras_name(name)
        optimizer = _OPTIMIZER.match(keras)
        if optimizer is not None and self.embeds and (self.in_model or self.canned):
            if optimizer[1] not in _EMBEDDING_OPTIMIZERS and not (optimizer[1] == "Ftrl" and self.starts_at_zero):
                raise NotInKeras3("", _EMBEDDING_REASON.format(optimizer[1]), rf"{optimizer[1]}\w*\(")
            self.parts.add(f"{optimizer[1]}WithDenseGradients")
            return cst.Name(f"{optimizer[1]}WithDenseGradients")
        if keras:
            return expression(keras)
        if not self.in_model:
            return updated
        if name.startswith("tf.") and name.removeprefix("tf.") in DTYPES:
            return cst.SimpleString(f"'{name.removeprefix('tf.')}'")
        if name in ACTIVATIONS:
            return expression(ACTIVATIONS[name])
        if name in OPERATIONS:
            return expression(OPERATIONS[name].target)
        if name == "tf.newaxis":
            return cst.Name("None")
        raise NotInKeras3(name, f"{name} in a model, which keras.ops does not have")

    def _keras_name(self, name: str) -> str:
        """Return the Keras 3 name of a name below `tf.keras`; "" for others."""
        if name in INITIALIZERS:
            return f"keras.initializers.{INITIALIZERS[name]}"
        for prefix in ("tf.initializers.", "tf.losses.", "tf.metrics.", "tf.optimizers."):
            if name.startswith(prefix):
                name = f"tf.keras.{name.removeprefix('tf.')}"
        if name != "tf.keras" and not name.startswith("tf.keras."):
            return ""
        path = name.removeprefix("tf.")
        reduction = path.removeprefix("keras.losses.Reduction.")
        if reduction in _REDUCTIONS and reduction != path:
            return _REDUCTIONS[reduction]
        if _REMOVED.match(path):
            raise NotInKeras3(name, f"{name}, which Keras 3 does not have")
        return path.replace(".legacy.", ".").replace("keras.backend.", "keras.config.", 1)

    # Calls

    def visit_Call(self, node: cst.Call) -> None:
        name = self.meaning(node.func)
        if self.in_model and (name in OPERATIONS or name in _SPECIAL):
            self.called.add(node.func)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        name, dotted = self.meaning(original_node.func), dotted_of(original_node.func) or ""
        if self.in_model and name in _SPECIAL:
            return self._rewrite_special(name, updated_node)
        if self.in_model and name in OPERATIONS:
            return operation_call(name, OPERATIONS[name], updated_node, v1=".compat.v1." in dotted)
        if dotted.startswith("keras_canned."):
            self._check_canned(original_node)
        keywords = [arg.keyword.value for arg in updated_node.args if arg.keyword is not None]
        if dotted.startswith("keras_evaluation.") and "throttle_secs" in keywords:
            raise NotInKeras3("throttle_secs", "evaluations at intervals in seconds")
        if dotted == "keras_optimizers.make":
            if self.embeds:
                pattern = r"(Momentum|RMSProp|Ftrl|Adadelta)\w*\("
                raise NotInKeras3("", _EMBEDDING_REASON.format("this optimizer"), pattern)
            return self._rewrite_optimizer(updated_node)
        if self.embeds and self._keras_name(name) == "keras.optimizers.SGD" and "momentum" in keywords:
            raise NotInKeras3("", _EMBEDDING_REASON.format("SGD with momentum"), r"Momentum\w*\(|momentum=")
        if dotted.startswith("keras_optimizers."):
            raise NotInKeras3("", f"the optimizer {dotted.partition('.')[2]}, which Keras 3 does not have")
        if dotted in self.support:
            self.parts.add(dotted)
        if isinstance(original_node.func, cst.Attribute):
            return self._rewrite_method(original_node.func, updated_node)
        return updated_node

    def _check_canned(self, call: cst.Call) -> None:
        """Reject optimizers of canned Estimators that differ in Keras 3."""
        for arg in call.args:
            if not isinstance(arg.value, cst.SimpleString):
                continue
            if arg.value.evaluated_value == "RMSProp":
                raise NotInKeras3("'RMSProp'", "RMSProp of a canned Estimator: epsilon differs in Keras 3", "RMSProp")
            if arg.value.evaluated_value == "Ftrl" and not self.starts_at_zero and "embedding_column" in self.parts:
                raise NotInKeras3("'Ftrl'", _EMBEDDING_REASON.format("Ftrl"), "Ftrl")

    def _rewrite_method(self, func: cst.Attribute, call: cst.Call) -> cst.BaseExpression:
        name, owner = func.attr.value, call.func.value if isinstance(call.func, cst.Attribute) else func.value
        if name == "save_weights" and call.args:
            first = cst.parse_module("").code_for_node(call.args[0].value)
            if first.endswith("'weights')"):
                value = cst.parse_expression(f"{first[: -len(chr(39) + 'weights' + chr(39) + ')')]}'model.weights.h5')")
                return call.with_changes(args=[call.args[0].with_changes(value=value), *call.args[1:]])
        if not self.in_model:
            return self._rewrite_fit(call) if name == "fit" else call
        if name == "get_shape" and not call.args:
            return cst.Attribute(owner, cst.Name("shape"))
        if name == "as_list" and isinstance(owner, cst.Attribute) and owner.attr.value == "shape":
            return cst.Call(cst.Name("list"), [cst.Arg(owner)])
        return call

    def _rewrite_fit(self, call: cst.Call) -> cst.Call:
        """Add `StopAfter` to a call of `fit`, because BackupAndRestore repeats a whole epoch after an interruption."""
        args = {arg.keyword.value: arg for arg in call.args if arg.keyword is not None}
        steps, callbacks = args.get("steps_per_epoch"), args.get("callbacks")
        if steps is None or callbacks is None:
            return call
        code = cst.parse_module("").code_for_node
        text = code(callbacks.value)
        callbacks_text = text[1:-1] if isinstance(callbacks.value, cst.List) else f"*{text}"
        self.parts.add("StopAfter")
        value = expression(f"[StopAfter({code(steps.value)}), {callbacks_text}]")
        return call.with_changes(args=[arg.with_changes(value=value) if arg is callbacks else arg for arg in call.args])

    def _rewrite_special(self, name: str, call: cst.Call) -> cst.BaseExpression:
        """Return the expression for a function without a direct counterpart in `keras.ops`."""
        args = [arg for arg in call.args if arg.keyword is None or arg.keyword.value != "name"]
        if name == "tf.identity" and len(args) == 1:
            return args[0].value
        first = cst.parse_module("").code_for_node(args[0].value) if len(args) == 1 else ""
        if name in ("tf.add_n", "tf.math.add_n") and first:
            return expression(f"sum({first})")
        if name == "tf.nn.l2_loss" and first:
            return expression(f"(keras.ops.sum(keras.ops.square({first})) / 2)")
        raise NotInKeras3(name, f"{name} with these arguments, which keras.ops does not have")

    def _rewrite_optimizer(self, call: cst.Call) -> cst.BaseExpression:
        """Convert `keras_optimizers.make(Optimizer(...))` to an optimizer of keras_support.py."""
        spec = call.args[0].value
        assert isinstance(spec, cst.Call)
        args = {arg.keyword.value: arg.value for arg in spec.args if arg.keyword is not None}
        kind = cst.ensure_type(args["name"], cst.SimpleString).evaluated_value
        if kind not in _OPTIMIZERS:
            raise NotInKeras3("", f"the optimizer {kind!r} of TensorFlow 1, which Keras 3 does not have")
        self.parts.add(_OPTIMIZERS[str(kind)])
        code = cst.parse_module("").code_for_node
        new_args = [code(args["learning_rate"])]
        options = args.get("options")
        for element in options.elements if isinstance(options, cst.Dict) else ():
            pair = cst.ensure_type(element, cst.DictElement)
            key = str(cst.ensure_type(pair.key, cst.SimpleString).evaluated_value)
            new_args.append(f"{key}={code(pair.value)}")
        new_args += ["nesterov=True"] if kind == "nesterov" else []
        new_args += [f"{_CLIPPING[arg.keyword.value]}={code(arg.value)}" for arg in call.args[1:] if arg.keyword]
        return expression(f"{_OPTIMIZERS[str(kind)]}({', '.join(new_args)})")

    # Statements and functions

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        if self.model_class is not None and self.depth > 1:
            # Keras 3 tracks the mean loss.
            code = cst.parse_module("").code_for_node(original_node).strip()
            if code.startswith(("self.mean_loss = ", "self.mean_loss.update_state(")):
                return cst.RemoveFromParent()
        return updated_node

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef | cst.RemovalSentinel:
        self._leave()
        name = original_node.name.value
        if self.model_class is None or self.depth != 1:
            return updated_node
        if name == "predict_step":
            return cst.RemoveFromParent()
        if name == "compute_loss":
            self.inserted.append((original_node.params.params[-1], ", training=True"))
        if name == "compute_metrics":
            for method in self.model_class.body.body:
                if isinstance(method, cst.FunctionDef) and method.name.value == "predictions":
                    self.replaced += call_predictions(original_node, method)
        return updated_node

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        self._leave()
        if self.depth == 0:
            self.model_class = None
        return updated_node


_SPECIAL = ("tf.identity", "tf.add_n", "tf.math.add_n", "tf.nn.l2_loss")

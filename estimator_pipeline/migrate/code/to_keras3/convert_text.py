"""A Keras program by layers, as `to_keras` writes it, in the words of Keras 3: `keras`, and `keras.ops` in its model.

A model's functions are those that its maker and its class reach. Within them each operation of TensorFlow becomes one
of `keras.ops`, so that they run on every backend; outside of them, where data are read, TensorFlow stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import dotted_of
from estimator_pipeline.migrate.code.to_keras3.calls import expression, operation_call
from estimator_pipeline.migrate.code.to_keras3.declined import Declined
from estimator_pipeline.migrate.code.to_keras3.imports import names_of_tensorflow, with_imports
from estimator_pipeline.migrate.code.to_keras3.methods import not_twice
from estimator_pipeline.migrate.code.to_keras3.operations import (
    ACTIVATIONS,
    DTYPES,
    INITIALIZERS,
    OPERATIONS,
)
from estimator_pipeline.migrate.code.to_keras3.support import MODULE, OF_DENSE_GRADIENTS, PARTS

__all__ = ["Keras3Text", "convert_text", "model_functions"]

# Modules of this package that a program by layers may call -> what Keras 3 has no counterpart for, and how the user's
# file spells it.
_HELPERS = {
    "keras_averages": ("averages of the weights", r"ExponentialMovingAverage"),
    "keras_cells": ("cells of tf.compat.v1.nn.rnn_cell", r"Cell\("),
    "keras_cluster": (
        "a cluster of workers, which MultiWorkerMirroredStrategy trains on",
        r"Strategy|TF_CONFIG|train_and",
    ),
    "keras_heads": ("a head, which makes the loss and the metrics", r"[hH]ead\("),
    "keras_variables": ("a variable that is no layer's", r"get_variable|tf\.Variable|AUTO_REUSE|reuse|var_list"),
    "keras_weights": ("a warm start from a checkpoint", r"warm_start|WarmStart|get_variable_"),
}
# Below tf.keras, and not in Keras 3.
_GONE = re.compile(
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
# Modules of this package whose functions and classes the module beside the program has by the same names.
_BESIDE = ("keras_canned", "keras_columns", "keras_evaluation")
_TWO = "a canned Estimator of two optimizers, which needs a training step: each backend of Keras 3 has another one"
_WITHOUT = {"DNNLinearCombinedClassifier": _TWO, "DNNLinearCombinedRegressor": _TWO}
# They change rows that a batch does not read as those do that TensorFlow 1 has for rows alone: not, or by their slots.
_OF_ROWS = ("Adagrad", "Adam", "SGD")
_ROWS = "{} of a model with embeddings: TensorFlow 1 changes the rows that a batch reads, and Keras 3 all of them"
_STEPS = ("train_step", "test_step")  # of a model's own


@dataclass
class Keras3Text:
    """A file of the program.

    Attributes:
        text: all of it.
        parts: what it takes from the module beside it.
    """

    text: str
    parts: list[str] = field(default_factory=list)


def model_functions(texts: Iterable[str], *, own: Collection[str] = ()) -> set[str]:
    """Return the names of functions and classes at the top of a program's files that a model's class or maker reaches.

    Args:
        own: names at the top of the user's files, which are none of the module beside them.
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
                if any(isinstance(one, cst.FunctionDef) and re.match(r"make_(\w+_)?model$", one.name.value)
                       for one in _nodes(node)):  # fmt: skip
                    roots.append(name)
    reached: set[str] = set()
    while roots:
        name = roots.pop()
        if name in reached or (name in PARTS and name not in own):
            continue
        reached.add(name)
        for body in bodies.get(name, ()):
            found = _asked(body)
            roots += [one for one in found if one in bodies]
    return reached & bodies.keys()


def convert_text(
    text: str, functions: set[str], *, embeds: bool = False, own: Collection[str] = (), package: str = ""
) -> Keras3Text:
    """Write a file of Keras 2 in the words of Keras 3.

    Args:
        functions: those of the model, as `model_functions` gives them.
        embeds: whether the model reads rows of a variable, whose gradients are of rows too.
        own: names at the top of the user's file, which are none of the module beside it.
        package: what stands before the name of the module beside it in an import, as "." or "trainer.".

    Raises:
        Declined: something of it that Keras 3 does not have.
    """
    text = _with_names_of_data(text)
    support = PARTS.keys() - set(own)
    module = _without(cst.parse_module(text), support)
    names = names_of_tensorflow(module)
    for name, (what, pattern) in _HELPERS.items():
        if re.search(rf"\b{name}\.", text):
            raise Declined("", f"{what}: a conversion to Keras 3 has none", pattern)
    for asked, what, pattern in (
        (".head.", "an export", "export_saved|xporter"), (".named_values(", "names of variables", "get_variable_")
    ):  # fmt: skip
        if "keras_canned." in text and asked in text:
            raise Declined("", f"{what} of a canned Estimator: a conversion to Keras 3 has none", pattern)
    if re.search(r"\bdistribute\.", text):
        raise Declined("distribute", "a strategy of tf.distribute: Keras 3 distributes by keras.distribution")
    words = _Words(names, functions, support, embeds, _bound(module))
    words.canned = "keras_canned." in text
    words.starts_at_zero = words.canned and "keras_canned.DNN" not in text
    made = module.visit(words)
    assert isinstance(made, cst.Module)
    return Keras3Text(with_imports(made.code, words.parts, package), sorted(words.parts))


def _without(module: cst.Module, names: Collection[str]) -> cst.Module:
    """Return a module without the functions and classes that the one beside it has; comments before them stay."""
    body: list[Any] = []
    comments: list[cst.EmptyLine] = []
    for node in module.body:
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node.name.value in names:
            comments += [line for line in node.leading_lines if line.comment is not None]
        elif comments:
            body.append(node.with_changes(leading_lines=[*comments, *node.leading_lines]))
            comments = []
        else:
            body.append(node)
    return module.with_changes(body=body, footer=[*comments, *module.footer])


def _with_names_of_data(text: str) -> str:
    """`train_input_fn = batches(...)` is data, and no function."""
    for name in dict.fromkeys(re.findall(r"(?m)^\s*(\w*input_fn) = batches\(", text)):
        names = [f"{name.removesuffix('input_fn')}{one}" for one in ("data", "batches", "dataset")]
        new = next((one for one in names if not re.search(rf"\b{one}\b", text)), "")
        if new and not re.search(rf"def {name}\b", text):
            text = re.sub(rf"(?<![\w.'\"]){name}\b(?!\s*=[^=]\s*[^b\s])", new, text)
    return text


def _nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _nodes(child)


def _asked(node: cst.CSTNode, given: Collection[str] = ()) -> Iterator[str]:
    """Yield the names that a node asks for, without the parameters of the functions within it."""
    if isinstance(node, cst.Name) and node.value not in given:
        yield node.value
    if isinstance(node, cst.Attribute):
        yield node.attr.value
    if isinstance(node, cst.FunctionDef):
        given = {*given, *(one.name.value for one in _nodes(node.params) if isinstance(one, cst.Param))}
    for child in node.children:
        if not isinstance(node, cst.Attribute) or child is node.value:
            yield from _asked(child, given)


def _bound(module: cst.Module) -> set[str]:
    """Names that a module gives to something of its own, at its top or within functions."""
    found = set()
    for node in _nodes(module):
        if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Param)):
            found.add(node.name.value)
        elif isinstance(node, (cst.AssignTarget, cst.AnnAssign, cst.For, cst.CompFor, cst.NamedExpr)):
            found |= {one.value for one in _nodes(node.target) if isinstance(one, cst.Name)}
    return found


def _is_model(node: cst.ClassDef) -> bool:
    return any((dotted_of(base.value) or "").endswith("keras.Model") for base in node.bases)


class _Words(cst.CSTTransformer):
    """Writes names and calls anew."""

    def __init__(self, names: dict[str, str], functions: set[str], support: Collection[str], embeds: bool,
                 bound: Collection[str]) -> None:  # fmt: skip
        super().__init__()
        self.names, self.functions, self.support, self.embeds, self.bound = names, functions, support, embeds, bound
        self.parts: set[str] = set()
        self.depth = 0  # of functions and classes
        self.of_model = False
        self.model_class: cst.ClassDef | None = None
        self.called: set[cst.CSTNode] = set()
        self.canned = False  # whether optimizers of the file are those of canned Estimators
        self.starts_at_zero = False  # whether all weights do, so that Ftrl leaves rows that are not read as they are

    # Where it is

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return self._enter(node) and not self._is_predict_step(node)

    def _is_predict_step(self, node: cst.FunctionDef) -> bool:
        """Whether it is the step of predictions, which each backend of Keras 3 has another one of."""
        return self.depth == 2 and self.model_class is not None and node.name.value == "predict_step"

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        if _is_model(node) and node.name.value in self.functions:
            self.model_class = node
            for one in node.body.body:
                if isinstance(one, cst.FunctionDef) and one.name.value in _STEPS:
                    raise Declined("train_op", "a training step of its own: each backend of Keras 3 has another one")
        return self._enter(node)

    def _enter(self, node: cst.FunctionDef | cst.ClassDef) -> bool:
        if self.depth == 0:
            self.of_model = node.name.value in self.functions
        self.depth += 1
        return True

    def _leave(self) -> None:
        self.depth -= 1
        self.of_model = self.of_model and self.depth > 0

    # Names

    def meaning(self, node: cst.CSTNode) -> str:
        """Return the name of a chain below `tf`; "" of others."""
        dotted = dotted_of(node) if isinstance(node, (cst.Name, cst.Attribute)) else None
        if not dotted:
            return ""
        first, _, rest = dotted.partition(".")
        if first not in self.names:
            return ""
        name = f"{self.names[first]}.{rest}" if rest else self.names[first]
        # V1's function of that name, where the arguments of a call are those of both.
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
            return self._named(original_node, updated_node)
        return updated_node

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self.called.add(node.keyword)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if self.of_model and original_node.attr.value == "value" and isinstance(original_node.value, cst.Subscript):
            inner = original_node.value.value
            if isinstance(inner, cst.Attribute) and inner.attr.value == "shape":
                return updated_node.value
        module, _, name = (dotted_of(original_node) or "").partition(".")
        return self._beside(name) if module in _BESIDE else self._named(original_node, updated_node)

    def _beside(self, name: str) -> cst.BaseExpression:
        """Return a function or class of the module beside the program."""
        if name not in PARTS:
            reason = _WITHOUT.get(
                name, f"{name} of a canned Estimator, or of columns: a conversion to Keras 3 has none"
            )
            raise Declined(name if name in _WITHOUT else "", reason, r"add_metrics|export_saved|xporter|linear_model")
        self.parts.add(name)
        return expression(f"{MODULE}.{name}" if name in self.bound else name)

    def _named(self, original: cst.Name | cst.Attribute, updated: cst.Name | cst.Attribute) -> cst.BaseExpression:
        name = self.meaning(original)
        if not name or original in self.called:
            return updated
        keras = self._of_keras(name)
        found = _OPTIMIZER.match(keras)
        if found is not None and self.embeds and (self.of_model or self.canned):
            if found[1] not in _OF_ROWS and not (found[1] == "Ftrl" and self.starts_at_zero):
                raise Declined("", _ROWS.format(found[1]), rf"{found[1]}\w*\(")
            self.parts.add(f"{found[1]}WithDenseGradients")
            return cst.Name(f"{found[1]}WithDenseGradients")
        if keras:
            return expression(keras)
        if not self.of_model:
            return updated
        if name.startswith("tf.") and name.removeprefix("tf.") in DTYPES:
            return cst.SimpleString(f"'{name.removeprefix('tf.')}'")
        if name in ACTIVATIONS:
            return expression(ACTIVATIONS[name])
        if name in OPERATIONS:
            return expression(OPERATIONS[name].target)
        if name == "tf.newaxis":
            return cst.Name("None")
        raise Declined(name, f"{name} in a model, which keras.ops does not have")

    def _of_keras(self, name: str) -> str:
        """Return the name in Keras 3 of one below `tf.keras`; "" of others."""
        if name in INITIALIZERS:
            return f"keras.initializers.{INITIALIZERS[name]}"
        for below in ("tf.initializers.", "tf.losses.", "tf.metrics.", "tf.optimizers."):
            if name.startswith(below):
                name = f"tf.keras.{name.removeprefix('tf.')}"
        if name != "tf.keras" and not name.startswith("tf.keras."):
            return ""
        found = name.removeprefix("tf.")
        reduction = re.match(r"keras\.losses\.Reduction\.(\w+)$", found)
        if reduction:
            return _REDUCTIONS[reduction[1]]
        if _GONE.match(found):
            raise Declined(name, f"{name}, which Keras 3 does not have")
        return found.replace(".legacy.", ".").replace("keras.backend.", "keras.config.", 1)

    # Calls

    def visit_Call(self, node: cst.Call) -> None:
        name = self.meaning(node.func)
        if self.of_model and (name in OPERATIONS or name in _SPECIAL):
            self.called.add(node.func)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        name, dotted = self.meaning(original_node.func), dotted_of(original_node.func) or ""
        if self.of_model and name in _SPECIAL:
            return self._special(name, updated_node)
        if self.of_model and name in OPERATIONS:
            return operation_call(name, OPERATIONS[name], updated_node, v1=".compat.v1." in dotted)
        if dotted.startswith("keras_canned."):
            self._check_canned(original_node)
        given = [one.keyword.value for one in updated_node.args if one.keyword is not None]
        if dotted.startswith("keras_evaluation.") and "throttle_secs" in given:
            raise Declined("throttle_secs", "evaluations by seconds")
        if dotted == "keras_optimizers.make":
            if self.embeds:
                raise Declined("", _ROWS.format("this optimizer"), r"(Momentum|RMSProp|Ftrl|Adadelta)\w*\(")
            return self._optimizer(updated_node)
        if self.embeds and self._of_keras(name) == "keras.optimizers.SGD" and "momentum" in given:
            raise Declined("", _ROWS.format("SGD with momentum"), r"Momentum\w*\(|momentum=")
        if dotted.startswith("keras_optimizers."):
            raise Declined("", f"the optimizer {dotted.partition('.')[2]}, which Keras 3 does not have")
        if dotted in self.support:
            self.parts.add(dotted)
        if isinstance(original_node.func, cst.Attribute):
            return self._method(original_node.func, updated_node)
        return updated_node

    def _check_canned(self, call: cst.Call) -> None:
        """Declines what the models of canned Estimators do otherwise in Keras 3."""
        for arg in call.args:
            if not isinstance(arg.value, cst.SimpleString):
                continue
            if arg.value.evaluated_value == "RMSProp":
                raise Declined("'RMSProp'", "RMSProp of a canned Estimator: Keras 3 has another epsilon", "RMSProp")
            if arg.value.evaluated_value == "Ftrl" and not self.starts_at_zero and "embedding_column" in self.parts:
                raise Declined("'Ftrl'", _ROWS.format("Ftrl"), "Ftrl")

    def _method(self, func: cst.Attribute, call: cst.Call) -> cst.BaseExpression:
        name, owner = func.attr.value, call.func.value if isinstance(call.func, cst.Attribute) else func.value
        if name == "save_weights" and call.args:
            first = cst.parse_module("").code_for_node(call.args[0].value)
            if first.endswith("'weights')"):
                value = cst.parse_expression(f"{first[: -len(chr(39) + 'weights' + chr(39) + ')')]}'model.weights.h5')")
                return call.with_changes(args=[call.args[0].with_changes(value=value), *call.args[1:]])
        if not self.of_model:
            return self._fit(call) if name == "fit" else call
        if name == "get_shape" and not call.args:
            return cst.Attribute(owner, cst.Name("shape"))
        if name == "as_list" and isinstance(owner, cst.Attribute) and owner.attr.value == "shape":
            return cst.Call(cst.Name("list"), [cst.Arg(owner)])
        return call

    def _fit(self, call: cst.Call) -> cst.Call:
        """A call of `fit` whose steps are counted over an interruption: BackupAndRestore restores whole epochs."""
        given = {one.keyword.value: one for one in call.args if one.keyword is not None}
        steps, callbacks = given.get("steps_per_epoch"), given.get("callbacks")
        if steps is None or callbacks is None:
            return call
        code = cst.parse_module("").code_for_node
        told = code(callbacks.value)
        behind = told[1:-1] if isinstance(callbacks.value, cst.List) else f"*{told}"
        self.parts.add("StopAfter")
        value = expression(f"[StopAfter({code(steps.value)}), {behind}]")
        return call.with_changes(args=[one.with_changes(value=value) if one is callbacks else one for one in call.args])

    def _special(self, name: str, call: cst.Call) -> cst.BaseExpression:
        """Return what has no single operation of the same arguments."""
        args = [one for one in call.args if one.keyword is None or one.keyword.value != "name"]
        if name == "tf.identity" and len(args) == 1:
            return args[0].value
        first = cst.parse_module("").code_for_node(args[0].value) if len(args) == 1 else ""
        if name in ("tf.add_n", "tf.math.add_n") and first:
            return expression(f"sum({first})")
        if name == "tf.nn.l2_loss" and first:
            return expression(f"(keras.ops.sum(keras.ops.square({first})) / 2)")
        raise Declined(name, f"{name} with these arguments, which keras.ops does not have")

    def _optimizer(self, call: cst.Call) -> cst.BaseExpression:
        """`keras_optimizers.make(Optimizer(...))`: one of the module beside the program."""
        spec = call.args[0].value
        assert isinstance(spec, cst.Call)
        given = {one.keyword.value: one.value for one in spec.args if one.keyword is not None}
        kind = cst.ensure_type(given["name"], cst.SimpleString).evaluated_value
        if kind not in _OPTIMIZERS:
            raise Declined("", f"the optimizer {kind!r} of TensorFlow 1, which Keras 3 does not have")
        self.parts.add(_OPTIMIZERS[str(kind)])
        code = cst.parse_module("").code_for_node
        told = [code(given["learning_rate"])]
        options = given.get("options")
        for element in options.elements if isinstance(options, cst.Dict) else ():
            pair = cst.ensure_type(element, cst.DictElement)
            key = str(cst.ensure_type(pair.key, cst.SimpleString).evaluated_value)
            told.append(f"{key}={code(pair.value)}")
        told += ["nesterov=True"] if kind == "nesterov" else []
        told += [f"{_CLIPPING[one.keyword.value]}={code(one.value)}" for one in call.args[1:] if one.keyword]
        return expression(f"{_OPTIMIZERS[str(kind)]}({', '.join(told)})")

    # Statements and functions

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        if self.model_class is not None and self.depth > 1:
            # Keras 3 keeps the mean of the losses itself.
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
            updated_node = _with_parameter(updated_node, "training=True")
        if name == "compute_metrics":
            predictions = [one for one in self.model_class.body.body
                           if isinstance(one, cst.FunctionDef) and one.name.value == "predictions"]  # fmt: skip
            if predictions:
                updated_node = not_twice(original_node, updated_node, predictions[0])
        return updated_node

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        self._leave()
        if self.depth == 0:
            self.model_class = None
        return updated_node


_SPECIAL = ("tf.identity", "tf.add_n", "tf.math.add_n", "tf.nn.l2_loss")


def _with_parameter(function: cst.FunctionDef, text: str) -> cst.FunctionDef:
    added = cst.ensure_type(cst.parse_statement(f"def f({text}): pass"), cst.FunctionDef).params.params
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    params = [*function.params.params[:-1], function.params.params[-1].with_changes(comma=comma), *added]
    return function.with_changes(params=function.params.with_changes(params=params))

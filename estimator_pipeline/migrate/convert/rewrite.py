"""Rewriting of statements and expressions: a rule for each call, and refusal of what no rule knows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import libcst as cst

from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf
from estimator_pipeline.migrate.code.analysis.syntax import iter_nodes, root_of
from estimator_pipeline.migrate.convert import allowed
from estimator_pipeline.migrate.convert.flags import is_flags
from estimator_pipeline.migrate.convert.names import TRAIN, FileNames, Refused, names_read
from estimator_pipeline.migrate.convert.rule import NETWORK, TENSORS, Call, rule_of
from estimator_pipeline.migrate.convert.rules import activations
from estimator_pipeline.migrate.convert.rules.losses import is_regularization

__all__ = ["CodeRewriter"]

# Layers and models that compute something else in training.
_OF_TRAINING = frozenset({
    "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "AlphaDropout", "GaussianDropout",
    "GaussianNoise", "BatchNormalization", "Sequential", "Model",
})  # fmt: skip
_ACTIVATIONS = ("activation", "activation_fn")
_TRAINING_FALSE = cst.ensure_type(cst.parse_expression("f(training=False)"), cst.Call).args[0]


@dataclass
class CodeRewriter:
    """Rewrites the code of one place.

    Attributes:
        names: the meanings of the file's expressions.
        place: NETWORK, TENSORS or SETUP.
        replaced: node -> its new text, decided by the caller.
        helpers: functions of the program that the rewritten code calls, with the place that calls them.
        registered: those of them that layers of Keras keep, so that a saved model has to find them.
        passed: (function, parameter) of helpers whose arguments are passed as before.
        tensors: names that may hold a tensor of Keras; only used at NETWORK.
        needs: the helpers of `program_helpers.py` that the new text calls.
        learning_phase: whether the model_fn sets the learning phase of Keras by the mode; otherwise its layers do not
            train in the graph of an Estimator, unless the call has `training=True`.
    """

    names: FileNames
    place: str
    replaced: Mapping[cst.CSTNode, str] = field(default_factory=dict)
    helpers: dict[FunctionOf, str] = field(default_factory=dict)
    registered: set[FunctionOf] = field(default_factory=set)
    passed: set[tuple[cst.CSTNode, str]] = field(default_factory=set)
    tensors: frozenset[str] = frozenset()
    needs: set[str] = field(default_factory=set)
    learning_phase: bool = False

    def at(self, place: str, replaced: Mapping[cst.CSTNode, str] | None = None) -> CodeRewriter:
        """Return a rewriter of another place, with the same records."""
        return replace(self, place=place, replaced=self.replaced if replaced is None else replaced)

    def node(self, node: Any) -> Any:
        """Return a statement or expression after all rewrites, with the comments of what was replaced.

        Raises:
            Refused: no rule knows a part of it.
        """
        return node.visit(_Transformer(self))

    def text(self, node: cst.CSTNode) -> str:
        """Return the text of a node after all rewrites."""
        if node in self.replaced:
            return self.replaced[node]
        return self.names.text(self.node(node))

    def call(self, node: cst.Call) -> Call:
        """Return a call for the rules, with its arguments after all rewrites."""
        new = {arg.value: self.names.text(self.node(arg).value) for arg in node.args}
        return Call(node, self.names.name(node.func), self.place, self.names, new, self.needs)

    def is_flag(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is true in training and false otherwise."""
        return self.names.modes_of(node) == {TRAIN}

    def of_mode(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is the mode, or a condition of it."""
        flag = self.names.flag(node)
        if flag is not None and (flag[1] == "mode" or flag in self.names.flags):
            return True
        return self.names.modes_of(node) is not None


class _Transformer(cst.CSTTransformer):
    def __init__(self, rewriter: CodeRewriter) -> None:
        super().__init__()
        self.rewriter, self.names = rewriter, rewriter.names

    def on_visit(self, node: cst.CSTNode) -> bool:
        if node in self.rewriter.replaced:
            return False
        if isinstance(node, cst.IfExp) and self.names.modes_of(node.test) is not None:
            raise Refused("a value that depends on the mode", node)
        if isinstance(node, cst.Annotation) or is_regularization(self.names, node):
            return False
        if isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "reduction":
            return False  # an enumeration that only Keras 2 has: its rule reads it
        if isinstance(node, cst.Arg) and self._is_dropped(node):
            return False
        if isinstance(node, cst.Arg):
            return not (isinstance(self.parent(node), cst.Call) and self._is_training(node))
        return True

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self.names.tree.parents.get(node)

    def _is_dropped(self, arg: cst.Arg) -> bool:
        """Return whether an argument passes the mode to a function of the program, which loses the parameter."""
        call = self.parent(arg)
        function = self.names.function(call.func) if isinstance(call, cst.Call) else None
        return function is not None and self.rewriter.of_mode(arg.value)

    def _is_training(self, arg: cst.Arg) -> bool:
        """Return whether an argument is the `training` of a layer, which Keras passes itself."""
        return arg.keyword is not None and arg.keyword.value in ("training", "is_training") and (
            self.rewriter.is_flag(arg.value)
        )  # fmt: skip

    def on_leave(self, original: Any, updated: Any) -> Any:
        if original in self.rewriter.replaced:
            return cst.parse_expression(self.rewriter.replaced[original])
        if isinstance(original, cst.Call):
            return self._call(original, updated)
        if isinstance(original, cst.BinaryOperation) and isinstance(original.operator, cst.Multiply):
            return self._product(original, updated)
        if isinstance(original, (cst.Name, cst.Attribute)) and isinstance(self.parent(original), cst.Attribute):
            return updated  # a part of a dotted name
        if isinstance(original, cst.Attribute):
            return self._name(original, updated)
        if isinstance(original, cst.Name):
            return self._plain_name(original, updated)
        if isinstance(original, (cst.Await, cst.Yield, cst.NamedExpr, cst.Global, cst.Nonlocal, cst.Del)):
            raise Refused(f"`{type(original).__name__.lower()}` in a model_fn", original)
        return updated

    def _plain_name(self, original: cst.Name, updated: cst.Name) -> cst.BaseExpression:
        parent = self.parent(original)
        if original not in self.names.tree.where or isinstance(parent, (cst.Param, cst.AssignTarget)):
            return updated  # a keyword, or a name that is defined
        if isinstance(parent, cst.Call) and parent.func is original:
            return updated
        if self.rewriter.of_mode(original):
            raise Refused(f"{original.value}, which depends on the mode, as a value", original)
        if self.names.is_variable(original):
            return updated
        return self._name(original, updated)

    def _name(self, original: cst.Name | cst.Attribute, updated: cst.BaseExpression) -> cst.BaseExpression:
        parent = self.parent(original)
        if isinstance(parent, cst.Call) and parent.func is original:
            return updated  # the rule of the call decides
        full = self.names.name(original)
        if not full.startswith("tf.") or (is_flags(full) and self._is_of_variable(original)):
            return updated
        if helper := activations.helper(full):
            self.rewriter.needs.add(helper)
            return cst.Name(helper)
        known = activations.function(full, self.names.tf)
        new = known or allowed.name(full, self.rewriter.place, self.names.tf)
        if new is None or (not known and self.rewriter.place == NETWORK and allowed.is_function(full)):
            raise Refused(full, original)
        return cst.parse_expression(new) if new else updated

    def _is_of_variable(self, node: cst.CSTNode) -> bool:
        """Return whether a name is `FLAGS.x` of the program's own `FLAGS`, which `flags.py` converts."""
        return self.names.is_variable(root_of(node))

    def _product(self, original: cst.BinaryOperation, updated: cst.BinaryOperation) -> cst.BaseExpression:
        """Return a product of tensors of Keras: Keras 3 takes its own product with a number for a sparse tensor."""
        if self.rewriter.place != NETWORK or not (self._is_tensor(original.left) or self._is_tensor(original.right)):
            return updated
        self.rewriter.needs.add("operation")
        left, right = self.names.text(updated.left), self.names.text(updated.right)
        return cst.parse_expression(f"operation('multiply', {left}, {right})")

    def _is_tensor(self, node: cst.BaseExpression, hops: int = 8) -> bool:
        """Return whether an expression is a tensor of Keras for certain: a feature, or what is computed from one."""
        if isinstance(node, cst.Subscript):
            return self.names.text(node.value) == "features" or self._is_tensor(node.value, hops)
        if isinstance(node, cst.BinaryOperation):
            return self._is_tensor(node.left, hops) or self._is_tensor(node.right, hops)
        if isinstance(node, cst.Call):
            return self.names.name(node.func).startswith(("tf.compat.v1.layers.", "tf.nn.", "tf.math.")) or (
                any(self._is_tensor(arg.value, hops) for arg in node.args)
            )
        if isinstance(node, cst.Name) and hops:
            bindings = self.names.program.bindings(node.value, self.names.scope(node))
            values = [binding.node for binding in bindings if binding.kind == "value"]
            return any(isinstance(value, cst.BaseExpression) and self._is_tensor(value, hops - 1) for value in values)
        return False

    def _call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        new = self._replacement(original, updated)
        if self.rewriter.place != NETWORK or not isinstance(new, cst.Call):
            return new
        training = next((arg for arg in new.args if arg.keyword is not None and arg.keyword.value == "training"), None)
        if training is None:
            return new
        # A functional model of Keras 3 replaces an argument `training` of its layers' calls.
        self.rewriter.needs.add("ConstantTraining")
        layer = f"ConstantTraining({self.names.text(new.func)}, {self.names.text(training.value)})"
        args = _separated([arg for arg in new.args if arg is not training])
        if len(args) != 1:
            raise Refused("a layer's call with `training` and further arguments", original)
        return new.with_changes(func=cst.parse_expression(layer), args=args)

    def _replacement(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        full = self.names.name(original.func)
        new = {
            arg.value: self.names.text(changed.value) for arg, changed in zip(original.args, updated.args, strict=True)
        }
        if self.rewriter.place == NETWORK and full.startswith("tf.") and "feature_column" not in full:
            is_layer = ".layers." in full and not full.endswith(".Lambda")
            self._register_functions(original, keywords=_ACTIVATIONS if is_layer else ())
        written = rule_of(full, self.rewriter.place) if full else None
        if full == "tf.keras.layers.Embedding" and self.rewriter.place == NETWORK:
            self.rewriter.needs.add("DenseEmbedding")
            return updated.with_changes(func=cst.Name("DenseEmbedding"))
        if written is not None:
            call = Call(original, full, self.rewriter.place, self.names, new, self.rewriter.needs)
            expression = cst.parse_expression(written(call))
            return self._operation(expression) if self._is_operation(expression, original) else expression
        if full.startswith("tf."):
            return self._tensorflow(full, original, updated)
        function = self.names.function(original.func)
        if function is not None:
            return self._helper(function, original, updated)
        return self._object(original, updated)

    def _register_functions(self, call: cst.Call, keywords: Collection[str] | None) -> None:
        """Register the functions of the program that layers take as activations, for a saved model to find them.

        Args:
            keywords: the arguments that may be such; None for any argument.
        """
        for arg in call.args:
            function = self.names.function(arg.value)
            if function is None and not isinstance(arg.value, cst.Lambda):
                continue
            known = keywords is None or (arg.keyword.value in keywords if arg.keyword else bool(keywords))
            if function is None or not known or not isinstance(function.node, cst.FunctionDef) or (
                function.node.decorators or function.tree.parents.get(function.node) is not function.tree.module
            ):  # fmt: skip
                raise Refused("a function in a layer, which a saved model does not find again", arg)
            self.rewriter.helpers.setdefault(function, TENSORS)
            self.rewriter.registered.add(function)

    def _tensorflow(self, full: str, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        new = allowed.name(full, self.rewriter.place, self.names.tf)
        if new is None:
            raise Refused(full, original)
        call = updated.with_changes(func=cst.parse_expression(new) if new else updated.func)
        if self._is_operation(call, original):
            return self._operation(call)
        if self.rewriter.place == NETWORK and full.startswith(allowed.RANDOM):
            raise Refused(f"{full} in the network, which would be drawn once", original)
        return call.with_changes(args=_without_training(updated.args, original, self))

    def _is_operation(self, new: cst.BaseExpression, original: cst.Call) -> TypeGuard[cst.Call]:
        """Return whether a new call is of a function of TensorFlow that takes tensors of Keras."""
        func = self.names.text(new.func) if isinstance(new, cst.Call) else ""
        home, _, below = func.partition(".")
        is_function = home == self.names.tf and not below.startswith(("keras.", "get_logger"))
        return self.rewriter.place == NETWORK and is_function and self._has_tensor(original)

    def _operation(self, new: cst.Call) -> cst.Call:
        """Return the call of a function of TensorFlow as an operation between layers."""
        self.rewriter.needs.add("operation")
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")) if new.args else cst.MaybeSentinel.DEFAULT
        first = cst.Arg(cst.SimpleString(repr(self.names.text(new.func).partition(".")[2])), comma=comma)
        return new.with_changes(func=cst.Name("operation"), args=[first, *new.args])

    def _has_tensor(self, call: cst.Call) -> bool:
        return any(
            (isinstance(node, cst.Name) and node.value in self.rewriter.tensors) or isinstance(node, cst.Call)
            for arg in call.args for node in iter_nodes(arg.value)
        )  # fmt: skip

    def _trains(self, call: cst.Call, updated: cst.Call, layer: cst.BaseExpression) -> cst.Call:
        """Return a call of a Keras layer or model, with the `training` that it had in the graph of an Estimator."""
        args = _without_training(updated.args, call, self)
        kind = self.names.kind(layer)
        passes = any(arg.keyword is not None and arg.keyword.value == "training" for arg in call.args)
        if kind.rpartition(".")[2] in _OF_TRAINING and not passes and not self.rewriter.learning_phase:
            if args:
                args = [*args[:-1], args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))]
            args.append(_TRAINING_FALSE)
        return updated.with_changes(args=args)

    def _helper(self, function: FunctionOf, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """Convert a function of the program along with its call; the mode is not passed to it any more."""
        node = function.node
        if isinstance(node, cst.Lambda):
            if allowed.has_tensorflow(function, self.names.program):
                raise Refused("a lambda that calls TensorFlow", node)
            return updated
        if self._is_plain(function, original):
            return updated
        if self.rewriter.place == NETWORK:
            self._register_functions(original, keywords=None)
        params = [param.name.value for param in (*node.params.posonly_params, *node.params.params)]
        by_position = [*params, *([""] * len(original.args))]
        args = [(arg.keyword.value if arg.keyword else "" if arg.star else name, arg, changed) for name, arg, changed
                in zip(by_position, original.args, updated.args, strict=False)]  # fmt: skip
        modes = {
            name: self.names.modes_of(arg.value) for name, arg, _ in args if name and self.rewriter.of_mode(arg.value)
        }
        for name in dict.fromkeys([*params, *(name for name, _, _ in args if name)]):
            flag, flags = (node, name), self.names.flags
            if name in modes and (flag in self.rewriter.passed or flags.get(flag, modes[name]) != modes[name]):
                raise Refused(f"{name}, which depends on the mode in one call only, or otherwise", original)
            if name not in modes and flag in flags:
                raise Refused(f"{name}, which depends on the mode in another call", original)
            if name in modes:
                flags[flag] = modes[name]
            elif self._is_compared_with_modes(function, name):
                raise Refused(f"{name}, a mode that is not that of the model_fn", original)
            else:
                self.rewriter.passed.add(flag)
        if function not in self.rewriter.helpers or self.rewriter.place == NETWORK:
            self.rewriter.helpers[function] = self.rewriter.place
        return updated.with_changes(args=_separated([changed for name, _, changed in args if name not in modes]))

    def _is_compared_with_modes(self, function: FunctionOf, name: str) -> bool:
        names = self.names.of(function.tree)
        return any(isinstance(node, cst.Comparison) and name in names_read(node) and names.modes_of(node) is not None
                   for node in iter_nodes(function.node.body))  # fmt: skip

    def _is_plain(self, function: FunctionOf, call: cst.Call) -> bool:
        """Return whether a function of the program computes Python values: it remains as it is."""
        if any(self.rewriter.of_mode(arg.value) for arg in call.args):
            return False
        on_tensors = self.rewriter.place == NETWORK and self._has_tensor(call)
        return not on_tensors and not allowed.has_tensorflow(function, self.names.program)

    def _object(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """Return a call of something that is not of TensorFlow by its name: a layer, a method, a builtin function."""
        func = original.func
        if self.names.kind(func).startswith("tf.keras."):
            return self._trains(original, updated, func)
        if isinstance(func, cst.Attribute) and func.attr.value == "apply" and (
            self.names.kind(func.value).startswith("tf.keras.layers.")
        ):  # fmt: skip
            called = updated.with_changes(func=cst.ensure_type(updated.func, cst.Attribute).value)
            return self._trains(original, called, func.value)
        layer = self.names.value(func)
        if isinstance(layer, cst.Call) and self.names.name(layer.func).endswith("keras.layers.DenseFeatures"):
            return updated
        if isinstance(func, cst.Name) and func.value in allowed.BUILTINS:
            return updated
        if isinstance(func, cst.Attribute):
            of = self.names.text(cst.ensure_type(updated.func, cst.Attribute).value)
            if func.attr.value == "get_shape" and not original.args:
                return cst.parse_expression(f"{of}.shape")
            if func.attr.value == "as_list" and not original.args:
                return cst.parse_expression(f"list({of})")  # of a tuple in Keras 3, of a TensorShape in Keras 2
            if func.attr.value in allowed.METHODS:
                return updated
        full = self.names.name(func)
        if full.split(".")[0] in ("math", "np", "numpy", "logging", "absl"):
            return updated
        raise Refused(f"a call of {self.names.text(func)}", original)


def _without_training(args: Any, original: cst.Call, transformer: _Transformer) -> list[cst.Arg]:
    kept = [changed for arg, changed in zip(original.args, args, strict=True) if not transformer._is_training(arg)]
    return _separated(kept) if len(kept) < len(original.args) else list(args)


def _separated(args: list[cst.Arg]) -> list[cst.Arg]:
    if args and args[-1].comma is not cst.MaybeSentinel.DEFAULT:
        args = [*args[:-1], args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
    return args

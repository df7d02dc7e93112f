"""The gradients that names of a model_fn hold: computed for all variables, clipped, and passed on.

    grads, variables = zip(*optimizer.compute_gradients(loss))
    grads, _ = tf.clip_by_global_norm(grads, 5.0)

V1 clips before the optimizer's arithmetic, as Keras does with `global_clipnorm`, `clipnorm` and `clipvalue`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.convert.model_fn import ModelFnSource, Statement
from estimator_pipeline.migrate.convert.names import TRAIN, FileNames

__all__ = ["WITHOUT_EFFECT", "Gradients", "GradientsOfModelFn"]

_COMPUTE = ("loss", "var_list", "gate_gradients", "aggregation_method", "colocate_gradients_with_ops", "grad_loss")
_GRADIENTS = ("ys", "xs", "grad_ys", "name", "colocate_gradients_with_ops", "gate_gradients", "aggregation_method")
WITHOUT_EFFECT = ("name", "gate_gradients", "aggregation_method", "colocate_gradients_with_ops")
"""Arguments that change where and in which order gradients are computed, and not the gradients."""


@dataclass(frozen=True)
class Gradients:
    """Gradients of a loss for all trainable variables, as a value of the model_fn.

    Attributes:
        kind: `pairs` of a gradient and its variable, `gradients`, `variables`, `both` lists, or `clipped` gradients
            with their norm.
        loss: the loss; None for variables.
        optimizer: the object that computed them; None for `tf.gradients`.
        clipping: (argument of Keras, limit) of each clipping.
        steps: the statements that made them.
        source: the call that computed them.
    """

    kind: str
    loss: cst.BaseExpression | None = None
    optimizer: cst.BaseExpression | None = None
    clipping: tuple[tuple[str, cst.BaseExpression], ...] = ()
    steps: frozenset[Statement] = frozenset()
    source: cst.CSTNode | None = None

    def clipped(self, by: tuple[str, cst.BaseExpression] | None, kind: str) -> Gradients:
        return replace(self, kind=kind, clipping=(*self.clipping, *([by] if by else [])))


class GradientsOfModelFn:
    """The gradients that names of a model_fn hold, statement by statement."""

    def __init__(self, names: FileNames) -> None:
        self.names = names
        self.held: dict[str, Gradients] = {}

    def read(self, model_fn: ModelFnSource) -> GradientsOfModelFn:
        for step in model_fn.in_mode(TRAIN):
            held = self.assigned(step)
            for name in step.defines:
                self.held.pop(name, None)
            self.held.update({name: replace(value, steps=value.steps | {step}) for name, value in held.items()})
        return self

    def assigned(self, step: Statement) -> dict[str, Gradients]:
        """Return the gradients that a statement assigns."""
        if isinstance(step.node, cst.For):
            return self.loop(step.node)
        value = self.value(step.value) if step.value is not None else None
        if value is None or not isinstance(step.node, cst.Assign) or len(step.node.targets) != 1:
            return {}
        target = step.node.targets[0].target
        if isinstance(target, cst.Name):
            return {target.value: value}
        first, second = _pair(target)
        if value.kind == "both" and first and second:
            return {first: replace(value, kind="gradients"), second: Gradients("variables", steps=value.steps)}
        return {first: replace(value, kind="gradients")} if value.kind == "clipped" and first else {}

    def loop(self, node: cst.For) -> dict[str, Gradients]:
        """Read `for i, (g, v) in enumerate(pairs): pairs[i] = (tf.clip_by_norm(g, 1.0), v)`."""
        text, body, statement = self.names.text, node.body.body, node.body.body[0] if node.body.body else None
        target = node.target
        if not isinstance(target, cst.Tuple) or len(target.elements) != 2 or not isinstance(node.iter, cst.Call):
            return {}
        index, (g, v) = text(target.elements[0].value), _pair(target.elements[1].value)
        if text(node.iter.func) != "enumerate" or len(node.iter.args) != 1 or len(body) != 1:
            return {}
        if isinstance(statement, cst.If) and text(statement.test) == f"{g} is not None" and statement.orelse is None:
            statement = statement.body.body[0] if len(statement.body.body) == 1 else None
        assign = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        pairs = self.value(node.iter.args[0].value)
        name = text(node.iter.args[0].value)
        if pairs is None or pairs.kind != "pairs" or not isinstance(assign, cst.Assign):
            return {}
        if text(assign.targets[0].target) != f"{name}[{index}]" or not isinstance(assign.value, cst.Tuple):
            return {}
        new, variable = (element.value for element in assign.value.elements)
        clipped = self.clip(new, g)
        return {name: pairs.clipped(clipped, "pairs")} if clipped and text(variable) == v else {}

    def value(self, node: cst.BaseExpression) -> Gradients | None:
        """Return the gradients that an expression is; None for anything else."""
        if isinstance(node, cst.Name):
            return self.held.get(node.value)
        if isinstance(node, cst.ListComp):
            return self.comprehension(node)
        if isinstance(node, cst.Subscript):
            inner = self.value(node.value)
            first = self.names.text(node.slice[0]) == "0" and len(node.slice) == 1
            return replace(inner, kind="gradients") if inner and inner.kind == "clipped" and first else None
        return self.call(node) if isinstance(node, cst.Call) else None

    def call(self, node: cst.Call) -> Gradients | None:
        builtin = node.func.value if isinstance(node.func, cst.Name) else ""
        values = [self.value(arg.value) for arg in node.args]
        if builtin in ("list", "tuple") and len(values) == 1:
            return values[0]
        if builtin == "zip":
            return self.zipped(node, values)
        full = self.names.name(node.func).removeprefix("tf.compat.v1.").removeprefix("tf.")
        if full == "trainable_variables" and not node.args:
            return Gradients("variables")
        if full == "get_collection" and len(node.args) == 1:
            of_all = self.names.name(node.args[0].value).endswith("GraphKeys.TRAINABLE_VARIABLES")
            return Gradients("variables") if of_all else None
        if full == "clip_by_global_norm":
            passed = arguments(node, ("t_list", "clip_norm", "use_norm", "name"))
            args = {name: arg.value for name, arg in passed.items()}
            gradients = self.value(args["t_list"]) if "t_list" in args else None
            if gradients is None or gradients.kind != "gradients" or "use_norm" in args or "clip_norm" not in args:
                return None
            return gradients.clipped(("global_clipnorm", args["clip_norm"]), "clipped")
        if full == "gradients":
            return self.computed(node, _GRADIENTS, "gradients")
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "compute_gradients":
            pairs = self.computed(node, _COMPUTE, "pairs")
            return replace(pairs, optimizer=node.func.value) if pairs is not None else None
        return None

    def computed(self, node: cst.Call, parameters: tuple[str, ...], kind: str) -> Gradients | None:
        args = {name: arg.value for name, arg in arguments(node, parameters).items()}
        loss, of = parameters[:2]
        variables = self.value(args[of]) if of in args else Gradients("variables")
        known = args.keys() <= {loss, of, *WITHOUT_EFFECT} and not any(arg.star for arg in node.args)
        if loss not in args or not known or variables is None or variables.kind != "variables":
            return None
        return (
            Gradients(kind, args[loss], steps=variables.steps, source=node) if kind == "pairs" or of in args else None
        )

    def zipped(self, node: cst.Call, values: list[Gradients | None]) -> Gradients | None:
        kinds = [value.kind if value is not None else "" for value in values]
        if kinds == ["pairs"] and node.args[0].star == "*":
            return replace(values[0], kind="both") if values[0] else None
        if kinds == ["gradients", "variables"] and values[0] and values[1]:
            return replace(values[0], kind="pairs", steps=values[0].steps | values[1].steps)
        return None

    def comprehension(self, node: cst.ListComp) -> Gradients | None:
        """Read `[(tf.clip_by_norm(g, 1.0), v) for g, v in pairs if g is not None]` and its parts."""
        loop, text = node.for_in, self.names.text
        over = self.value(loop.iter)
        if over is None or loop.inner_for_in is not None or over.kind not in ("pairs", "gradients"):
            return None
        g, v = _pair(loop.target) if over.kind == "pairs" else (text(loop.target), "")
        element = node.elt
        if isinstance(element, cst.Tuple) and over.kind == "pairs" and len(element.elements) == 2:
            clipped = self.clip(element.elements[0].value, g)
            if clipped is None or text(element.elements[1].value) != v:
                return None
            if any(text(condition.test) not in (f"{g} is not None", f"not {g} is None") for condition in loop.ifs):
                return None
            return over.clipped(clipped or None, "pairs")
        if loop.ifs:
            return None  # a list that is shorter than that of the variables
        if v and text(element) == v:
            return Gradients("variables", steps=over.steps)
        clipped = self.clip(element, g)
        return over.clipped(clipped or None, "gradients") if clipped is not None else None

    def clip(self, node: cst.BaseExpression, g: str) -> tuple[str, cst.BaseExpression] | tuple[()] | None:
        """Return how an expression clips the gradient g: () for the gradient itself, None for anything else."""
        text = self.names.text
        if g and text(node) == g:
            return ()
        if isinstance(node, cst.IfExp) and text(node.test) in (f"{g} is not None", f"{g} is None"):
            some, none = (node.body, node.orelse) if "not" in text(node.test) else (node.orelse, node.body)
            return self.clip(some, g) if text(none) in ("None", g) else None
        if not isinstance(node, cst.Call):
            return None
        full = self.names.name(node.func).removeprefix("tf.compat.v1.").removeprefix("tf.")
        parameters = {"clip_by_norm": ("t", "clip_norm"), "clip_by_value": ("t", "clip_value_min", "clip_value_max")}
        if full not in parameters:
            return None
        args = {name: arg.value for name, arg in arguments(node, (*parameters[full], "name")).items()}
        args.pop("name", None)
        # The first parameter of clip_by_norm in TensorFlow 1 is `t`, too.
        if tuple(args) != parameters[full] or text(args["t"]) != g:
            return None
        if full == "clip_by_norm":
            return "clipnorm", args["clip_norm"]
        low, high = args["clip_value_min"], args["clip_value_max"]
        return ("clipvalue", high) if text(low).replace(" ", "") == f"-{text(high)}".replace(" ", "") else None


def _pair(node: cst.CSTNode) -> tuple[str, str]:
    """Return the names of the target `g, v`; empty for another target."""
    if isinstance(node, (cst.Tuple, cst.List)) and len(node.elements) == 2:
        first, second = (element.value for element in node.elements)
        if isinstance(first, cst.Name) and isinstance(second, cst.Name):
            return first.value, second.value
    return "", ""

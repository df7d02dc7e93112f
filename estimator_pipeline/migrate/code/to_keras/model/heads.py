"""Heads as those of `keras_heads`, and a model_fn whose specs a head makes."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from functools import partial
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.model import train_op as training_step
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import FlowStep, ModelFn, first_of, step_of
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, names_in

__all__ = ["install", "methods", "trains"]

# Head -> what it takes in keras_heads, in the order of the Estimator's.
_HEADS = {
    "BinaryClassHead": ("weight_column", "thresholds", "label_vocabulary", "loss_reduction", "", "name"),
    "MultiClassHead": ("n_classes", "weight_column", "label_vocabulary", "loss_reduction", "", "name"),
    "RegressionHead": ("label_dimension", "weight_column", "loss_reduction", "", "", "name"),
    "MultiHead": ("heads", "head_weights"),
}
_CLASSES = "{'classes': found['all_classes'], 'scores': found['probabilities']}"
_SIGNATURES = {
    "BinaryClassHead": {"serving_default": _CLASSES, "classification": _CLASSES,
                        "regression": "{'outputs': found['logistic']}", "predict": "found"},
    "MultiClassHead": {"serving_default": _CLASSES, "classification": _CLASSES, "predict": "found"},
    "RegressionHead": {"serving_default": "{'outputs': found['predictions']}",
                       "regression": "{'outputs': found['predictions']}", "predict": "found"},
}  # fmt: skip


def install(reader: Rewriter) -> None:
    """Lets a reader write heads."""
    for name in _HEADS:
        reader.calls[f"tf.estimator.{name}"] = partial(_head, reader, name)


def _head(reader: Rewriter, name: str, call: cst.Call) -> str:
    parameters = _HEADS[name]
    given = arguments(call, parameters)
    for one, arg in given.items():
        if one not in parameters or arg.star:
            raise NotConvertible(f"{one or 'an argument'} of {name} has no counterpart in keras_heads", arg)
    if len(given) < len(call.args):
        raise NotConvertible(f"the arguments of {name} cannot be told", call)
    kept = []
    for place, (one, arg) in enumerate(given.items()):
        text = reader.text(arg.value)
        kept.append(text if arg.keyword is None and place < 3 and parameters[place] == one else f"{one}={text}")
    reader.needs.add("keras_heads")
    return reader.call(f"keras_heads.{name}", kept, call)


def methods(writer: Any, further: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return (the methods of the model's class, its signatures) of a model_fn whose specs are those of a head.

    Args:
        writer: of the model.
        further: metrics beside those of the head, as the writer has them.

    Raises:
        NotConvertible: the head is given what Keras has no place for.
    """
    reader: Rewriter = writer.reader
    made: ModelFn = writer.made
    given = made.head
    for name in ("logits", "labels", "features"):
        if name not in given:
            raise NotConvertible(f"a head that is given no {name}", made.node.name)
    said, kind = _text(reader, made)
    if "trainable_variables" in given and not training_step.are_all(reader, made, given["trainable_variables"]):
        raise NotConvertible("a head that trains some of the variables", given["trainable_variables"])
    if writer.distributed and "loss_reduction" in reader.lines.text:
        raise NotConvertible("a head with a loss_reduction of its own, on several replicas", made.node.name)
    added = _losses(reader, given.get("regularization_losses"))
    parts = [given["labels"], given["logits"]]
    parts += [given["features"]] if "weight_column" in reader.lines.text else []
    names = {name for one in parts for name in names_in(one)}
    evaluated = names | {name for _, _, used in further.values() for one in used for name in names_in(one)}
    writer.find_outputs([("eval", evaluated), ("predict", {*names_in(given["logits"])})])
    told = ", ".join(reader.text(one) for one in parts)
    if added:
        told += f", regularization={added}"
    kept = f"self.head.metrics({'regularized=bool(self.losses)' if added else ''})"
    found = []

    lines = _lines(writer, "train", names)
    lines += [f"loss = self.head.loss({told})", "self.mean_loss.update_state(loss)"]
    if writer.distributed:
        lines += ["# The gradients of the replicas are summed.",
                  "return loss / self.distribute_strategy.num_replicas_in_sync"]  # fmt: skip
    else:
        lines.append("return loss")
    found.append(writer.method("def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):", lines))

    lines = _lines(writer, "eval", evaluated)
    lines += [
        f"self.head.update(self.head_metrics, {told})",
        *writer.updates(further),
        "return self.head.further(self.get_metrics_result())",
    ]
    found.append(writer.method("def compute_metrics(self, x, y, y_pred, sample_weight):", lines))

    steps, reads = writer.part("predict", names_in(given["logits"]))
    lines = [*writer.given(reads, "features", "outputs", ""), *writer.body(steps)]
    lines.append(f"return self.head.predictions({reader.text(given['logits'])})")
    found.append(writer.method("def predictions(self, features, outputs):", lines))
    begin = writer.init(further, [f"self.head = {said}", f"self.head_metrics = {kept}"])
    return [begin, *found, writer.predict_step()], _SIGNATURES.get(kind, {})


def _lines(writer: Any, mode: str, names: set[str]) -> list[str]:
    steps, reads = writer.part(mode, names)
    return [*writer.given(reads), *writer.body(steps)]


def _text(reader: Rewriter, made: ModelFn) -> tuple[str, str]:
    """Return (what gives the head, its class where that can be told), where the model's parameters are known."""
    node = reader.value(made.head["head"])
    if not set(names_in(node)) <= {"params", *reader.tree.scope.names, *dir(builtins)}:
        raise NotConvertible("a head that the model cannot know", made.head["head"])
    return reader.text(node), reader.called(node).removeprefix("tf.estimator.")


def _losses(reader: Rewriter, node: cst.BaseExpression | None) -> str:
    """Return the losses of the layers, as the model has them; "" where the head is given none."""
    if node is None or reader.source(node) == "None":
        return ""
    first = node
    if isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or):
        first = node.left if reader.source(node.right) in ("None", "[]") else node
    if isinstance(first, cst.Attribute) and first.attr.value == "losses":
        return reader.text(first)
    if reader.called(first) == "tf.compat.v1.losses.get_regularization_losses":
        return "self.losses"
    raise NotConvertible("losses of its own that a head adds", node)


def trains(reader: Rewriter, made: ModelFn) -> tuple[cst.BaseExpression, str]:
    """Return what makes the optimizer of a head, and the name of the loss there; "" where the head makes the step.

    Raises:
        NotConvertible: it cannot be told.
    """
    given = {name: node for name, node in made.head.items() if reader.source(node) != "None"}
    if "optimizer" in given and "train_op_fn" not in given:
        return given["optimizer"], ""
    function = given.get("train_op_fn")
    if isinstance(function, cst.Lambda) and len(function.params.params) == 1:
        loss, body = function.params.params[0].name, function.body
        inner = _one_function(reader, body.func) if isinstance(body, cst.Call) else None
        if inner is not None and isinstance(body, cst.Call):
            told = {param.name.value: reader.given(body, place, param.name.value) or param.default
                    for place, param in enumerate(inner.params.params)}  # fmt: skip
            return _of_function(reader, made, inner, told, loss.value)
        return body, loss.value
    inner = _one_function(reader, function) if function is not None else None
    if inner is not None and len(inner.params.params) == 1:
        loss = inner.params.params[0].name
        return _of_function(reader, made, inner, {loss.value: loss}, loss.value)
    raise NotConvertible("a head whose train_op cannot be told", made.node.name)


def _one_function(reader: Rewriter, node: cst.BaseExpression) -> cst.FunctionDef | None:
    """Return the function of this file that an expression is."""
    found = [one.node for one in reader.functions(node)]
    return found[0] if len(found) == 1 and isinstance(found[0], cst.FunctionDef) else None


def _of_function(
    reader: Rewriter, made: ModelFn, function: cst.FunctionDef, told: dict[str, cst.BaseExpression | None], loss: str
) -> tuple[cst.BaseExpression, str]:
    """Return what a function returns that makes the train_op; its statements go behind those of the model_fn.

    Args:
        told: what it gets by each of its parameters.
        loss: what the loss is called where it is called.
    """
    body = list(function.body.body) if isinstance(function.body, cst.IndentedBlock) else []
    returned = first_of(body[-1]) if body else None
    own, flow = set(reader.tree.scopes[function].names), made.flows["train"]
    # A name that is another thing in the function would take the place of the model_fn's.
    same = {name for name, node in told.items() if isinstance(node, cst.Name) and node.value == name}
    taken = {name for step in flow for name in step.sets if step.node is not function} | made.parameters
    plain = isinstance(function.params.star_arg, cst.MaybeSentinel) and not function.params.star_kwarg
    if not isinstance(returned, cst.Return) or returned.value is None or not plain or None in told.values():
        raise NotConvertible("a head whose train_op cannot be told", function.name)
    if (own - same) & taken:
        raise NotConvertible(
            "a function that makes the train_op, with names of the model_fn for other things", function.name
        )
    losses = [name for name, node in told.items() if isinstance(node, cst.Name) and node.value == loss]
    if len(losses) != 1:
        raise NotConvertible("a head whose train_op is not made of its loss", function.name)
    for name, node in told.items():
        if name not in same and name != losses[0] and node is not None:
            flow.append(FlowStep(node, frozenset({name}), frozenset(names_in(node)), name=name))
    flow += [step_of(node) for node in body[:-1]]
    if reader.tree.parents.get(function) is reader.tree.module:
        made.helpers.append(function)
    return returned.value, losses[0]

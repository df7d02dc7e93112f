"""Conversion of heads to `keras_heads`, and of a model_fn with a head."""

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

__all__ = ["format_methods", "install", "resolve_optimizer"]

# Head -> its parameters in keras_heads, in the order of tf.estimator; "" for unsupported parameters.
_HEADS = {
    "BinaryClassHead": ("weight_column", "thresholds", "label_vocabulary", "loss_reduction", "", "name"),
    "MultiClassHead": ("n_classes", "weight_column", "label_vocabulary", "loss_reduction", "", "name"),
    "RegressionHead": ("label_dimension", "weight_column", "loss_reduction", "", "", "name"),
    "MultiHead": ("heads", "head_weights"),
}
_CLASSES = "{'classes': predictions['all_classes'], 'scores': predictions['probabilities']}"
_SIGNATURES = {
    "BinaryClassHead": {"serving_default": _CLASSES, "classification": _CLASSES,
                        "regression": "{'outputs': predictions['logistic']}", "predict": "predictions"},
    "MultiClassHead": {"serving_default": _CLASSES, "classification": _CLASSES, "predict": "predictions"},
    "RegressionHead": {"serving_default": "{'outputs': predictions['predictions']}",
                       "regression": "{'outputs': predictions['predictions']}", "predict": "predictions"},
}  # fmt: skip


def install(reader: Rewriter) -> None:
    """Register the conversion of heads."""
    for name in _HEADS:
        reader.calls[f"tf.estimator.{name}"] = partial(_convert_head, reader, name)


def _convert_head(reader: Rewriter, name: str, call: cst.Call) -> str:
    parameters = _HEADS[name]
    args = arguments(call, parameters)
    for field, arg in args.items():
        if field not in parameters or arg.star:
            raise NotConvertible(f"{field or 'an argument'} of {name} has no counterpart in keras_heads", arg)
    if len(args) < len(call.args):
        raise NotConvertible(f"arguments of {name} that cannot be determined", call)
    kept = []
    for place, (field, arg) in enumerate(args.items()):
        text = reader.text(arg.value)
        kept.append(text if arg.keyword is None and place < 3 and parameters[place] == field else f"{field}={text}")
    reader.needs.add("keras_heads")
    return reader.call(f"keras_heads.{name}", kept, call)


def format_methods(writer: Any, further: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return (methods of the model's class, its signatures) for a model_fn with a head.

    Args:
        writer: converter of the model_fn.
        further: metrics in addition to those of the head, as in `metrics.Metrics`.

    Raises:
        NotConvertible: an argument of the head has no counterpart in Keras.
    """
    reader: Rewriter = writer.reader
    model_fn: ModelFn = writer.model_fn
    args = model_fn.head
    for name in ("logits", "labels", "features"):
        if name not in args:
            raise NotConvertible(f"a head without the argument {name}", model_fn.node.name)
    head_text, kind = _format_head(reader, model_fn)
    if "trainable_variables" in args and not training_step.has_all_trainable(
        reader, model_fn, args["trainable_variables"]
    ):
        raise NotConvertible("a head that trains only some of the variables", args["trainable_variables"])
    if writer.distributed and reader.has_keyword("loss_reduction"):
        raise NotConvertible("a head with a loss_reduction, on several replicas", model_fn.node.name)
    added = _format_losses(reader, args.get("regularization_losses"))
    parts = [args["labels"], args["logits"]]
    parts += [args["features"]] if reader.has_keyword("weight_column") else []
    names = {name for node in parts for name in names_in(node)}
    evaluated = names | {name for _, _, used in further.values() for node in used for name in names_in(node)}
    writer.find_outputs([("eval", evaluated), ("predict", {*names_in(args["logits"])})])
    call_args = ", ".join(reader.text(node) for node in parts)
    if added:
        call_args += f", regularization={added}"
    kept = f"self.head.metrics({'regularized=bool(self.losses)' if added else ''})"
    method_texts = []

    lines = _format_lines(writer, "train", names)
    lines += [f"loss = self.head.loss({call_args})", "self.mean_loss.update_state(loss)"]
    if writer.distributed:
        lines += ["# The gradients of the replicas are summed.",
                  "return loss / self.distribute_strategy.num_replicas_in_sync"]  # fmt: skip
    else:
        lines.append("return loss")
    method_texts.append(
        writer.format_method("def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):", lines)
    )

    lines = _format_lines(writer, "eval", evaluated)
    lines += [
        f"self.head.update(self.head_metrics, {call_args})",
        *writer.format_updates(further),
        "return self.head.further(self.get_metrics_result())",
    ]
    method_texts.append(writer.format_method("def compute_metrics(self, x, y, y_pred, sample_weight):", lines))

    steps, reads = writer.select_steps("predict", names_in(args["logits"]))
    lines = [*writer.bind_names(reads, "features", "outputs", ""), *writer.format_steps(steps)]
    lines.append(f"return self.head.predictions({reader.text(args['logits'])})")
    method_texts.append(writer.format_method("def predictions(self, features, outputs):", lines))
    begin = writer.format_init(further, [f"self.head = {head_text}", f"self.head_metrics = {kept}"])
    return [begin, *method_texts, writer.format_predict_step()], _SIGNATURES.get(kind, {})


def _format_lines(writer: Any, mode: str, names: set[str]) -> list[str]:
    steps, reads = writer.select_steps(mode, names)
    return [*writer.bind_names(reads), *writer.format_steps(steps)]


def _format_head(reader: Rewriter, model_fn: ModelFn) -> tuple[str, str]:
    """Return (expression of the head, name of its class), for use within the model's class."""
    node = reader.value(model_fn.head["head"])
    if not set(names_in(node)) <= {"params", *reader.tree.scope.names, *dir(builtins)}:
        raise NotConvertible("a head that depends on local names of the model_fn", model_fn.head["head"])
    return reader.text(node), reader.called(node).removeprefix("tf.estimator.")


def _format_losses(reader: Rewriter, node: cst.BaseExpression | None) -> str:
    """Return the expression of the regularization losses; "" if the head gets none."""
    if node is None or reader.source(node) == "None":
        return ""
    first = node
    if isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or):
        first = node.left if reader.source(node.right) in ("None", "[]") else node
    if isinstance(first, cst.Attribute) and first.attr.value == "losses":
        return reader.text(first)
    if reader.called(first) == "tf.compat.v1.losses.get_regularization_losses":
        return "self.losses"
    raise NotConvertible("regularization_losses of a head that are not the losses of the layers", node)


def resolve_optimizer(reader: Rewriter, model_fn: ModelFn) -> tuple[cst.BaseExpression, str]:
    """Return (expression that creates the optimizer of a head, name of the loss in it).

    The name is "" if the head itself calls the optimizer.

    Raises:
        NotConvertible: the train_op cannot be determined.
    """
    args = {name: node for name, node in model_fn.head.items() if reader.source(node) != "None"}
    if "optimizer" in args and "train_op_fn" not in args:
        return args["optimizer"], ""
    function = args.get("train_op_fn")
    if isinstance(function, cst.Lambda) and len(function.params.params) == 1:
        loss, body = function.params.params[0].name, function.body
        inner = _resolve_function(reader, body.func) if isinstance(body, cst.Call) else None
        if inner is not None and isinstance(body, cst.Call):
            bindings = {param.name.value: reader.argument(body, place, param.name.value) or param.default
                    for place, param in enumerate(inner.params.params)}  # fmt: skip
            return _inline_function(reader, model_fn, inner, bindings, loss.value)
        return body, loss.value
    inner = _resolve_function(reader, function) if function is not None else None
    if inner is not None and len(inner.params.params) == 1:
        loss = inner.params.params[0].name
        return _inline_function(reader, model_fn, inner, {loss.value: loss}, loss.value)
    raise NotConvertible("a head whose train_op cannot be determined", model_fn.node.name)


def _resolve_function(reader: Rewriter, node: cst.BaseExpression) -> cst.FunctionDef | None:
    """Return the function of this file that an expression refers to, or None."""
    functions = [function.node for function in reader.functions(node)]
    return functions[0] if len(functions) == 1 and isinstance(functions[0], cst.FunctionDef) else None


def _inline_function(
    reader: Rewriter,
    model_fn: ModelFn,
    function: cst.FunctionDef,
    bindings: dict[str, cst.BaseExpression | None],
    loss: str,
) -> tuple[cst.BaseExpression, str]:
    """Append a function's statements to the model_fn; return (train_op, name of its loss).

    Args:
        bindings: parameter name -> argument.
        loss: name of the loss at the call.
    """
    body = list(function.body.body) if isinstance(function.body, cst.IndentedBlock) else []
    returned = first_of(body[-1]) if body else None
    local_names, flow = set(reader.tree.scopes[function].names), model_fn.flows["train"]
    # A local name of the function would overwrite the same name of the model_fn.
    same = {name for name, node in bindings.items() if isinstance(node, cst.Name) and node.value == name}
    taken = {name for step in flow for name in step.sets if step.node is not function} | model_fn.parameters
    plain = isinstance(function.params.star_arg, cst.MaybeSentinel) and not function.params.star_kwarg
    if not isinstance(returned, cst.Return) or returned.value is None or not plain or None in bindings.values():
        raise NotConvertible("a head whose train_op cannot be determined", function.name)
    if (local_names - same) & taken:
        raise NotConvertible("a function that creates the train_op and reuses names of the model_fn", function.name)
    losses = [name for name, node in bindings.items() if isinstance(node, cst.Name) and node.value == loss]
    if len(losses) != 1:
        raise NotConvertible("a head whose train_op does not use the loss", function.name)
    for name, node in bindings.items():
        if name not in same and name != losses[0] and node is not None:
            flow.append(FlowStep(node, frozenset({name}), frozenset(names_in(node)), name=name))
    flow += [step_of(node) for node in body[:-1]]
    if reader.tree.parents.get(function) is reader.tree.module:
        model_fn.helpers.append(function)
    return returned.value, losses[0]

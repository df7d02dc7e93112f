"""Tensors that hooks fetch by name, which the train step adds to the logs of callbacks."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.hooks.hook_classes import HookClass
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import FlowStep, ModelFn
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["find", "methods"]

_STEP = """def train_step(self, data):
    x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        y_pred = self(x, training=True)
        loss = self.compute_loss(x, y, y_pred, sample_weight)
    tensors = self.logged_tensors(x, y, y_pred)
    self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
    return {**self.compute_metrics(x, y, y_pred, sample_weight), **tensors}"""


_LINE = "    tensors = self.logged_tensors(x, y, y_pred)\n"


def find(reader: Rewriter, classes: list[HookClass]) -> None:
    """Collect the tensors that hooks fetch, and convert their names to keys of the logs.

    Raises:
        NotConvertible: A name is not known statically, or is not a tensor of `tf.identity`.
    """
    for hook_class in classes:
        for tensor in hook_class.tensors:
            for literal in _literals(reader, hook_class, tensor):
                name = str(literal.evaluated_value)
                if not re.fullmatch(r"\w+:0", name):
                    raise NotConvertible(f"the tensor {name}, which has no name in Keras", literal)
                reader.fetched_tensors.setdefault(name[:-2], literal)
                reader.replaced[literal] = repr(name[:-2])


def _literals(reader: Rewriter, hook_class: HookClass, tensor: cst.BaseExpression) -> list[cst.SimpleString]:
    """Return the literals behind a tensor name: a string, or arguments of the constructor."""
    if isinstance(tensor, cst.SimpleString):
        return [tensor]
    body = hook_class.node.body.body if isinstance(hook_class.node.body, cst.IndentedBlock) else ()
    init = next(
        (
            statement
            for statement in body
            if isinstance(statement, cst.FunctionDef) and statement.name.value == "__init__"
        ),
        None,
    )
    if not isinstance(tensor, cst.Attribute) or reader.source(tensor.value) != "self" or init is None:
        raise NotConvertible("a tensor whose name is not known statically", tensor)
    sets = [statement.body[0] for statement in init.body.body if isinstance(statement, cst.SimpleStatementLine)]
    values = [statement.value for statement in sets if isinstance(statement, cst.Assign)
             and reader.source(statement.targets[0].target) == reader.source(tensor)]  # fmt: skip
    names = [param.name.value for param in init.params.params]
    if len(values) != 1 or not isinstance(values[0], cst.Name) or values[0].value not in names:
        raise NotConvertible("a tensor whose name is not known statically", tensor)
    place = names.index(values[0].value)
    literals = []
    for call in hook_class.calls:
        value = reader.argument(call, place - 1, values[0].value) or init.params.params[place].default
        if not isinstance(value, cst.SimpleString):
            raise NotConvertible("a tensor whose name is not known statically", value or call)
        literals.append(value)
    return literals


def methods(reader: Rewriter, writer: Any, model_fn: ModelFn, taken: set[str], *, distributed: bool) -> list[str]:
    """Return the model's methods that add the fetched tensors to the logs.

    Args:
        reader: The rewriter of the file.
        writer: The writer of the model class.
        model_fn: The analyzed model_fn.
        taken: Names of the model's metrics.
        distributed: Whether a step's loss is only the replica's share.
    """
    named = {
        name: step
        for step in model_fn.flows["train"]
        for call in [_value(step)]
        if reader.called(call) == "tf.identity" and isinstance(call, cst.Call)
        for name in [_name(call)]
        if name in reader.fetched_tensors
    }
    if not named:
        return []
    targets: dict[str, str] = {}
    for name, step in named.items():
        (target,) = step.sets
        later = model_fn.flows["train"][model_fn.flows["train"].index(step) + 1 :]
        if any(target in later_step.sets for later_step in later) or name in taken:
            raise NotConvertible(f"the tensor {name}, whose name is also used for something else", step.node)
        targets[name] = target
        del reader.fetched_tensors[name]
    text = _STEP.replace("tf.", f"{reader.tf}.").replace("    ", writer.unit)
    if not distributed and set(targets.values()) == {reader.source(model_fn.specs["train"]["loss"])}:
        logs = ", ".join(f"{name!r}: loss" for name in targets)
        return [text.replace(_LINE.replace("    ", writer.unit), "").replace("**tensors", logs)]
    steps, reads = writer.select_steps("train", set(targets.values()))
    lines = [
        '"""Return the tensors of this step that callbacks log."""',
        *writer.bind_names(reads),
        *writer.format_steps(steps),
    ]
    lines.append("return {" + ", ".join(f"{name!r}: {target}" for name, target in targets.items()) + "}")
    return [writer.format_method("def logged_tensors(self, x, y, y_pred):", lines), text]


def _value(step: FlowStep) -> cst.BaseExpression | None:
    """Return the value that a statement assigns to a single name."""
    small = step.node.body[0] if isinstance(step.node, cst.SimpleStatementLine) else None
    return small.value if isinstance(small, cst.Assign) and len(step.sets) == 1 else None


def _name(call: cst.Call) -> str:
    args = arguments(call, ("input", "name"))
    value = args["name"].value if "name" in args else None
    return str(value.evaluated_value) if isinstance(value, cst.SimpleString) else ""

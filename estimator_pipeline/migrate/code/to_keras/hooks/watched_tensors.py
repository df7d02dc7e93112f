"""Tensors that hooks ask for by their names: what a step of the model tells callbacks besides its metrics."""

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
    watched = self.watched(x, y, y_pred)
    self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
    return {**self.compute_metrics(x, y, y_pred, sample_weight), **watched}"""


_LINE = "    watched = self.watched(x, y, y_pred)\n"


def find(reader: Rewriter, classes: list[HookClass]) -> None:
    """Note the tensors that hooks ask for, and let a reader write their names as keys of a step's logs.

    Raises:
        NotConvertible: a name cannot be told, or is not that of an operation `tf.identity`.
    """
    for made in classes:
        for asked in made.tensors:
            for literal in _literals(reader, made, asked):
                name = str(literal.evaluated_value)
                if not re.fullmatch(r"\w+:0", name):
                    raise NotConvertible(f"the tensor {name}, which has no name of its own in Keras", literal)
                reader.watched.setdefault(name[:-2], literal)
                reader.replaced[literal] = repr(name[:-2])


def _literals(reader: Rewriter, made: HookClass, asked: cst.BaseExpression) -> list[cst.SimpleString]:
    """Return the names that an expression of a hook may be: a text, or an attribute that its constructor is handed."""
    if isinstance(asked, cst.SimpleString):
        return [asked]
    body = made.node.body.body if isinstance(made.node.body, cst.IndentedBlock) else ()
    init = next((one for one in body if isinstance(one, cst.FunctionDef) and one.name.value == "__init__"), None)
    if not isinstance(asked, cst.Attribute) or reader.source(asked.value) != "self" or init is None:
        raise NotConvertible("a tensor whose name cannot be told", asked)
    sets = [one.body[0] for one in init.body.body if isinstance(one, cst.SimpleStatementLine)]
    given = [one.value for one in sets if isinstance(one, cst.Assign)
             and reader.source(one.targets[0].target) == reader.source(asked)]  # fmt: skip
    names = [one.name.value for one in init.params.params]
    if len(given) != 1 or not isinstance(given[0], cst.Name) or given[0].value not in names:
        raise NotConvertible("a tensor whose name cannot be told", asked)
    place = names.index(given[0].value)
    found = []
    for call in made.calls:
        value = reader.given(call, place - 1, given[0].value) or init.params.params[place].default
        if not isinstance(value, cst.SimpleString):
            raise NotConvertible("a tensor whose name cannot be told", value or call)
        found.append(value)
    return found


def methods(reader: Rewriter, writer: Any, made: ModelFn, taken: set[str], *, distributed: bool) -> list[str]:
    """Return the methods that tell callbacks what they ask for.

    Args:
        writer: of the model's class.
        taken: names of its metrics.
        distributed: whether the loss of a step is a replica's share of it.
    """
    named = {
        name: step
        for step in made.flows["train"]
        for call in [_value(step)]
        if reader.called(call) == "tf.identity" and isinstance(call, cst.Call)
        for name in [_name(call)]
        if name in reader.watched
    }
    if not named:
        return []
    wanted: dict[str, str] = {}
    for name, step in named.items():
        (target,) = step.sets
        later = made.flows["train"][made.flows["train"].index(step) + 1 :]
        if any(target in one.sets for one in later) or name in taken:
            raise NotConvertible(f"the tensor {name}, whose name is another thing's as well", step.node)
        wanted[name] = target
        del reader.watched[name]
    text = _STEP.replace("tf.", f"{reader.tf}.").replace("    ", writer.unit)
    if not distributed and set(wanted.values()) == {reader.source(made.specs["train"]["loss"])}:
        logs = ", ".join(f"{name!r}: loss" for name in wanted)
        return [text.replace(_LINE.replace("    ", writer.unit), "").replace("**watched", logs)]
    steps, reads = writer.select_steps("train", set(wanted.values()))
    lines = [
        '"""What callbacks look at, for the step that is done."""',
        *writer.bind_names(reads),
        *writer.format_steps(steps),
    ]
    lines.append("return {" + ", ".join(f"{name!r}: {target}" for name, target in wanted.items()) + "}")
    return [writer.format_method("def watched(self, x, y, y_pred):", lines), text]


def _value(step: FlowStep) -> cst.BaseExpression | None:
    """Return what a statement gives its one name."""
    one = step.node.body[0] if isinstance(step.node, cst.SimpleStatementLine) else None
    return one.value if isinstance(one, cst.Assign) and len(step.sets) == 1 else None


def _name(call: cst.Call) -> str:
    given = arguments(call, ("input", "name"))
    value = given["name"].value if "name" in given else None
    return str(value.evaluated_value) if isinstance(value, cst.SimpleString) else ""

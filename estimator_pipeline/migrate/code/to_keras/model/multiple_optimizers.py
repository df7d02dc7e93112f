"""A train_op of several optimizers, each with a loss and variables of its own, some of them not in every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.model import train_op as training_step
from estimator_pipeline.migrate.code.to_keras.model_fn import losses_and_optimizers as arithmetic
from estimator_pipeline.migrate.code.to_keras.model_fn.layers import scopes_of
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import FlowStep, ModelFn, calls_in, needed
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, names_in

__all__ = ["MultipleOptimizers", "are_in", "find", "methods", "optimizer", "told", "used"]

_NORMALISATION = "tf.compat.v1.layers.batch_normalization"


@dataclass
class _Part:
    """An optimizer's step.

    Attributes:
        made: what makes the optimizer.
        loss: the name of what it minimises.
        scope: the text of the scope of its variables.
        when: the condition on which it steps; None where it always does.
        counts: whether it counts the steps.
    """

    made: cst.Call
    loss: str
    scope: str
    when: cst.BaseExpression | None = None
    counts: bool = False


@dataclass
class MultipleOptimizers:
    """The steps of a train_op.

    Attributes:
        parts: in the order of the program.
        counting: the place of the one whose steps are those of the training.
        settings: statements that the conditions need.
    """

    parts: list[_Part]
    counting: int
    settings: list[FlowStep]


@dataclass
class _Found:
    optimizers: dict[str, cst.Call] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)
    gradients: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    parts: dict[str, tuple[str, _Part]] = field(default_factory=dict)
    plain: list[FlowStep] = field(default_factory=list)
    counters: list[str] = field(default_factory=list)


def find(reader: Rewriter, made: ModelFn) -> MultipleOptimizers | None:
    """Return what the train_op does; None where it is not that of several optimizers, or a group of them.

    Raises:
        NotConvertible: it does what a step of a Keras model cannot.
    """
    train_op = made.field("train", "train_op")
    flow = made.flows["train"]
    if train_op is None:
        return None
    calls = [call for step in flow for call in calls_in(step.node)]
    group = reader.value(train_op)
    grouped = isinstance(group, cst.Call) and _plain(reader, group) == "tf.group"
    if sum(training_step.is_optimizer(reader, call) for call in calls) < 2 or grouped:
        return None
    found = _Found()
    after: dict[str, set[str]] = {}
    for step in flow:
        if step in made.network or step.name:
            continue
        for node, held in _statements(reader, step.node, ()):
            _read(reader, made, found, after, node, held)
    run = _reached(after, set(names_in(train_op)))
    for name in found.parts.keys() | set(found.counters):
        if name not in run:
            raise NotConvertible(f"a step {name} that the train_op does not need", train_op)
    parts = [part for _, part in found.parts.values()]
    if len(parts) < 2 or len({id(part.made) for part in parts}) != len(parts):
        raise NotConvertible("several optimizers whose steps cannot be told", train_op)
    counted = [place for place, part in enumerate(parts) if part.counts]
    always = [place for place, part in enumerate(parts) if part.when is None]
    if len(counted) + len(found.counters) != 1 or not always or any(parts[one].when is not None for one in counted):
        raise NotConvertible("several optimizers, and not one count of the steps", train_op)
    for name, (_, part) in found.parts.items():
        # The global step is read before it is counted.
        if part.when is not None and (counted or name not in _reached(after, set(found.counters))):
            raise NotConvertible(
                "an optimizer that steps by a condition, and the steps are not counted behind it", train_op
            )
    _check_moved(reader, made, after, run, train_op)
    asked = {name for part in parts if part.when is not None for name in names_in(part.when)}
    settings = [step for step in needed(found.plain, asked) if not step.sets & made.steps]
    reads = (asked | {name for step in settings for name in step.reads}) - {n for one in settings for n in one.sets}
    for name in reads - made.steps - {"params", *reader.tree.scope.names}:
        raise NotConvertible(f"an optimizer that steps by {name}, which the model does not know", train_op)
    return MultipleOptimizers(parts, (counted or always)[0], settings)


def _statements(
    reader: Rewriter, node: cst.CSTNode, held: tuple[str, ...]
) -> Iterator[tuple[cst.CSTNode, tuple[str, ...]]]:
    """Yield the statements within `with tf.control_dependencies`, with the names that they wait for."""
    if isinstance(node, cst.With) and isinstance(node.body, cst.IndentedBlock):
        calls = [item.item for item in node.items if isinstance(item.item, cst.Call)]
        if len(calls) == len(node.items) and all(_plain(reader, one) == "tf.control_dependencies" for one in calls):
            inner = (*held, *(name for call in calls for arg in call.args for name in names_in(arg)))
            for one in node.body.body:
                yield from _statements(reader, one, inner)
            return
    yield node, held


def _read(
    reader: Rewriter, made: ModelFn, found: _Found, after: dict[str, set[str]], node: cst.CSTNode, held: tuple[str, ...]
) -> None:
    """What one statement is of a train_op."""
    first = node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
    target = first.targets[0].target if isinstance(first, cst.Assign) and len(first.targets) == 1 else None
    calls = list(calls_in(node))
    if not isinstance(first, cst.Assign) or not isinstance(target, cst.Name):
        if any(training_step.is_optimizer(reader, call) or _method(call) in _STEPS for call in calls):
            raise NotConvertible("several optimizers whose steps cannot be told", node)
        return
    name, value = target.value, first.value
    if name in after:
        raise NotConvertible(f"{name} of a train_op with several optimizers, which is given twice", node)
    after[name] = {*held, *names_in(value)}
    if not isinstance(value, cst.Call):
        found.plain.append(FlowStep(node, frozenset({name}), frozenset(names_in(value))))
        return
    plain = _plain(reader, value)
    if training_step.is_optimizer(reader, value):
        found.optimizers[name] = value
    elif plain == "tf.trainable_variables" or (
        plain == "tf.get_collection" and _key(reader, value) == "TRAINABLE_VARIABLES"
    ):
        found.scopes[name] = _scope(reader, value)
    elif _method(value) == "compute_gradients":
        given = arguments(value, ("loss", "var_list"))
        if given.keys() != {"loss", "var_list"}:
            raise NotConvertible("gradients of several optimizers that cannot be told", value)
        loss, variables = (reader.source(given[one].value) for one in ("loss", "var_list"))
        found.gradients[name] = (_owner(value), loss, variables)
    elif _method(value) in _STEPS:
        found.parts[name] = (name, _part(reader, made, found, value))
    elif plain == "tf.cond":
        found.parts[name] = (name, _conditional(reader, made, found, value))
    elif _counts(reader, made, value):
        found.counters.append(name)
    elif any(_method(call) in _STEPS or _method(call).startswith("assign") for call in calls):
        raise NotConvertible("several optimizers whose steps cannot be told", value)
    else:
        found.plain.append(FlowStep(node, frozenset({name}), frozenset(names_in(value))))


_STEPS = ("minimize", "apply_gradients")


def _part(reader: Rewriter, made: ModelFn, found: _Found, call: cst.Call) -> _Part:
    """`opt.minimize(loss, var_list=names)`, or `opt.apply_gradients(gradients)` of such a loss."""
    owner = _owner(call)
    if _method(call) == "minimize":
        given = arguments(call, ("loss", "global_step", "var_list"))
        if given.keys() - {"loss", "global_step", "var_list", "name"} or not {"loss", "var_list"} <= given.keys():
            raise NotConvertible("several optimizers whose variables cannot be told", call)
        loss, variables = (reader.source(given[one].value) for one in ("loss", "var_list"))
    else:
        given = arguments(call, ("grads_and_vars", "global_step"))
        gradients = reader.source(given["grads_and_vars"].value) if "grads_and_vars" in given else ""
        of, loss, variables = found.gradients.get(gradients, ("", "", ""))
        if given.keys() - {"grads_and_vars", "global_step", "name"} or of != owner:
            raise NotConvertible("gradients of several optimizers that are changed, or another one's", call)
    if owner not in found.optimizers or variables not in found.scopes or not loss.isidentifier():
        raise NotConvertible("several optimizers whose losses or variables cannot be told", call)
    return _Part(found.optimizers[owner], loss, found.scopes[variables], counts="global_step" in given)


def _conditional(reader: Rewriter, made: ModelFn, found: _Found, call: cst.Call) -> _Part:
    """`tf.cond(when, lambda: opt.apply_gradients(gradients), tf.no_op)`."""
    given = arguments(call, ("pred", "true_fn", "false_fn"))
    step = given["true_fn"].value if given.keys() == {"pred", "true_fn", "false_fn"} else None
    inner = step.body if isinstance(step, cst.Lambda) and not step.params.params else None
    other = given["false_fn"].value if step is not None else None
    if isinstance(other, cst.Lambda):
        other = other.body
    nothing = other is not None and "tf.no_op" in (_without_v1(reader.name(other)), _plain(reader, other))
    if not isinstance(inner, cst.Call) or _method(inner) not in _STEPS or not nothing:
        raise NotConvertible("tf.cond in the train_op, with more than the step of an optimizer", call)
    part = _part(reader, made, found, inner)
    part.when = given["pred"].value
    rate = training_step.rate_of(part.made)
    if rate is not None and reader.called(reader.value(rate)) in arithmetic.SCHEDULES:
        raise NotConvertible(
            "a rate by the steps of the training, of an optimizer that does not step in all of them", call
        )
    return part


def _counts(reader: Rewriter, made: ModelFn, call: cst.Call) -> bool:
    """`tf.assign_add(global_step, 1)`."""
    given = [reader.source(arg.value) for arg in call.args]
    if _plain(reader, call) == "tf.assign_add":
        return len(given) == 2 and given[0] in made.steps and given[1] == "1"
    return _method(call) == "assign_add" and _owner(call) in made.steps and given == ["1"]


def _scope(reader: Rewriter, call: cst.Call) -> str:
    given = arguments(call, ("scope",) if _plain(reader, call) == "tf.trainable_variables" else ("key", "scope"))
    if "scope" not in given or not isinstance(given["scope"].value, cst.SimpleString):
        raise NotConvertible("several optimizers whose variables are not those of a scope", call)
    return reader.source(given["scope"].value)


def _reached(after: dict[str, set[str]], names: set[str]) -> set[str]:
    """Return what a train_op needs, by its names."""
    seen: set[str] = set()
    while names - seen:
        name = (names - seen).pop()
        seen.add(name)
        names |= after.get(name, set())
    return seen


def _check_moved(
    reader: Rewriter, made: ModelFn, after: dict[str, set[str]], run: set[str], train_op: cst.BaseExpression
) -> None:
    """Batch normalisation moves its statistics in `fit`: each has to have been moved here."""
    normalised = [call for call in reader.tree.calls if reader.called(call) == _NORMALISATION]
    scopes = []
    for call in reader.tree.calls:
        if _plain(reader, call) != "tf.get_collection" or _key(reader, call) != "UPDATE_OPS":
            continue
        statement = reader.statement_of(call)
        assign = statement.body[0] if statement is not None else None
        target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
        if isinstance(target, cst.Name) and target.value in run and target.value in after:
            scope = arguments(call, ("key", "scope")).get("scope")
            scopes.append(reader.source(scope.value) if scope is not None else "")
    for call in normalised:
        around = scopes_of(reader, call)[:1]
        if not any(scope == "" or [scope] == around for scope in scopes):
            raise NotConvertible("its train_op does not move the statistics of the normalisation, and fit would", call)


def optimizer(reader: Rewriter, found: MultipleOptimizers, model: str) -> str:
    """Return the optimizer of compile."""
    told = []
    for part in found.parts:
        rate = training_step.rate_of(part.made)
        scheduled = rate is not None and reader.called(reader.value(rate)) in arithmetic.SCHEDULES
        text = arithmetic.optimizer(reader, part.made, scheduled=scheduled, clipping={})
        told.append((text, f"keras_variables.in_scope({model}, {part.scope})"))
    reader.needs.add("keras_variables")
    unit = reader.tree.module.default_indent
    lines = "".join(f"\n{unit}({one},\n{unit} {variables})," for one, variables in told)
    return f"keras_variables.by_variables([{lines}\n], counts={found.counting})"


def used(found: MultipleOptimizers) -> set[str]:
    """Return the names that the optimizers' arguments have."""
    return {name for part in found.parts for arg in part.made.args for name in names_in(arg.value)}


def told(found: MultipleOptimizers) -> str:
    """Return the names of the losses, in the optimizers' order."""
    return ", ".join(part.loss for part in found.parts)


def are_in(found: MultipleOptimizers, loss: cst.BaseExpression) -> bool:
    """Whether the loss of the EstimatorSpec is made of those of the optimizers alone."""
    return set(names_in(loss)) <= {part.loss for part in found.parts}


def methods(writer: Any, found: MultipleOptimizers, loss: cst.BaseExpression, *, alone: bool) -> list[str]:
    """Return the methods of a model: each optimizer's loss, and a step of all of them.

    Args:
        writer: of the model.
        loss: that of the EstimatorSpec.
        alone: whether no hook asks for what a step works out.

    Raises:
        NotConvertible: one does.
    """
    if not alone:
        raise NotConvertible("a hook that asks for a tensor, where there are several optimizers", loss)
    reader, unit, tf = writer.reader, writer.unit, writer.reader.tf
    steps, reads = writer.part("train", [part.loss for part in found.parts])
    lines = ['"""What each optimizer makes small."""', *writer.given(reads), *writer.body(steps)]
    lines.append(f"return {told(found)}")
    each = writer.method("def each_loss(self, x, y, y_pred):", lines)
    whole = are_in(found, loss)
    body = [
        f"x, y, sample_weight = {tf}.keras.utils.unpack_x_y_sample_weight(data)",
        f"with {tf}.GradientTape(persistent=True) as tape:",
        f"{unit}y_pred = self(x, training=True)",
        f"{unit}{told(found)} = self.each_loss(x, y, y_pred)",
        f"self.mean_loss.update_state({reader.text(loss)})"
        if whole
        else "self.compute_loss(x, y, y_pred, sample_weight)",
    ]
    asked = {name for step in found.settings for name in step.reads}
    asked |= {name for part in found.parts if part.when is not None for name in names_in(part.when)}
    body += [f"{name} = self.optimizer.iterations" for name in sorted(asked & writer.made.steps)]
    if "params" in asked:
        writer.uses_params = True
        body.append("params = self.params")
    body += writer.body(found.settings)
    when = ["True" if part.when is None else reader.text(part.when) for part in found.parts]
    body.append(f"self.optimizer.minimize_each([{told(found)}], tape, when=[{', '.join(when)}])")
    body.append("return self.compute_metrics(x, y, y_pred, sample_weight)")
    return [each, writer.method("def train_step(self, data):", body)]


def _plain(reader: Rewriter, node: cst.CSTNode | None) -> str:
    return _without_v1(reader.called(node))


def _without_v1(name: str) -> str:
    return name.replace("tf.compat.v1.", "tf.", 1)


def _key(reader: Rewriter, call: cst.Call) -> str:
    given = arguments(call, ("key", "scope"))
    return reader.name(given["key"].value).rpartition(".")[2] if "key" in given else ""


def _method(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def _owner(call: cst.Call) -> str:
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    return owner.value if isinstance(owner, cst.Name) else ""

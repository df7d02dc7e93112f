"""Conversion of a train_op with several optimizers, as in a GAN."""

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

__all__ = [
    "MultipleOptimizers",
    "find_optimizers",
    "format_methods",
    "format_optimizer",
    "is_of_losses",
    "loss_names",
    "names_used",
]

_NORMALISATION = "tf.compat.v1.layers.batch_normalization"


@dataclass
class _Part:
    """The step of one optimizer.

    Attributes:
        constructor: the call that creates the optimizer.
        loss: name of the loss that it minimizes.
        scope: text of the scope of its variables.
        when: condition of the step; None if it runs always.
        counts: whether it increments the global step.
    """

    constructor: cst.Call
    loss: str
    scope: str
    when: cst.BaseExpression | None = None
    counts: bool = False


@dataclass
class MultipleOptimizers:
    """The optimizer steps of a train_op.

    Attributes:
        parts: the steps in the order of the program.
        counting: index of the step that increments the global step.
        settings: statements that the conditions need.
    """

    parts: list[_Part]
    counting: int
    settings: list[FlowStep]


@dataclass
class _Statements:
    optimizers: dict[str, cst.Call] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)
    gradients: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    parts: dict[str, tuple[str, _Part]] = field(default_factory=dict)
    plain: list[FlowStep] = field(default_factory=list)
    counters: list[str] = field(default_factory=list)


def find_optimizers(reader: Rewriter, model_fn: ModelFn) -> MultipleOptimizers | None:
    """Return the optimizer steps of a train_op; None for a single optimizer or a `tf.group`.

    Raises:
        NotConvertible: the train_op has no counterpart in a step of a Keras model.
    """
    train_op = model_fn.field("train", "train_op")
    flow = model_fn.flows["train"]
    if train_op is None:
        return None
    calls = [call for step in flow for call in calls_in(step.node)]
    group = reader.value(train_op)
    grouped = isinstance(group, cst.Call) and _called_name(reader, group) == "tf.group"
    if sum(training_step.is_optimizer(reader, call) for call in calls) < 2 or grouped:
        return None
    collected = _Statements()
    after: dict[str, set[str]] = {}
    for step in flow:
        if step in model_fn.network or step.name:
            continue
        for node, held in _iter_statements(reader, step.node, ()):
            _read_statement(reader, model_fn, collected, after, node, held)
    run = _dependencies_of(after, set(names_in(train_op)))
    for name in collected.parts.keys() | set(collected.counters):
        if name not in run:
            raise NotConvertible(f"the step {name}, which the train_op does not run", train_op)
    parts = [part for _, part in collected.parts.values()]
    if len(parts) < 2 or len({id(part.constructor) for part in parts}) != len(parts):
        raise NotConvertible("several optimizers whose steps cannot be determined", train_op)
    counted = [place for place, part in enumerate(parts) if part.counts]
    always = [place for place, part in enumerate(parts) if part.when is None]
    if (
        len(counted) + len(collected.counters) != 1
        or not always
        or any(parts[place].when is not None for place in counted)
    ):
        raise NotConvertible("several optimizers that do not increment the global step exactly once", train_op)
    for name, (_, part) in collected.parts.items():
        # The condition reads the global step before it is incremented.
        if part.when is not None and (counted or name not in _dependencies_of(after, set(collected.counters))):
            raise NotConvertible(
                "an optimizer with a conditional step that does not run before the global step is incremented", train_op
            )
    _check_moving_statistics(reader, model_fn, after, run, train_op)
    condition_names = {name for part in parts if part.when is not None for name in names_in(part.when)}
    settings = [step for step in needed(collected.plain, condition_names) if not step.sets & model_fn.steps]
    reads = (condition_names | {name for step in settings for name in step.reads}) - {
        n for step in settings for n in step.sets
    }
    for name in reads - model_fn.steps - {"params", *reader.tree.scope.names}:
        raise NotConvertible(f"an optimizer whose condition reads {name}, which the model does not have", train_op)
    return MultipleOptimizers(parts, (counted or always)[0], settings)


def _iter_statements(
    reader: Rewriter, node: cst.CSTNode, held: tuple[str, ...]
) -> Iterator[tuple[cst.CSTNode, tuple[str, ...]]]:
    """Yield the statements of a block with the names of their control dependencies."""
    if isinstance(node, cst.With) and isinstance(node.body, cst.IndentedBlock):
        calls = [item.item for item in node.items if isinstance(item.item, cst.Call)]
        if len(calls) == len(node.items) and all(
            _called_name(reader, call) == "tf.control_dependencies" for call in calls
        ):
            inner = (*held, *(name for call in calls for arg in call.args for name in names_in(arg)))
            for statement in node.body.body:
                yield from _iter_statements(reader, statement, inner)
            return
    yield node, held


def _read_statement(
    reader: Rewriter,
    model_fn: ModelFn,
    collected: _Statements,
    after: dict[str, set[str]],
    node: cst.CSTNode,
    held: tuple[str, ...],
) -> None:
    """Add a statement of the train_op to `collected`."""
    first = node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
    target = first.targets[0].target if isinstance(first, cst.Assign) and len(first.targets) == 1 else None
    calls = list(calls_in(node))
    if not isinstance(first, cst.Assign) or not isinstance(target, cst.Name):
        if any(training_step.is_optimizer(reader, call) or _called_method(call) in _STEPS for call in calls):
            raise NotConvertible("several optimizers whose steps cannot be determined", node)
        return
    name, value = target.value, first.value
    if name in after:
        raise NotConvertible(f"{name} of a train_op with several optimizers, which is assigned twice", node)
    after[name] = {*held, *names_in(value)}
    if not isinstance(value, cst.Call):
        collected.plain.append(FlowStep(node, frozenset({name}), frozenset(names_in(value))))
        return
    plain = _called_name(reader, value)
    if training_step.is_optimizer(reader, value):
        collected.optimizers[name] = value
    elif plain == "tf.trainable_variables" or (
        plain == "tf.get_collection" and _collection_key(reader, value) == "TRAINABLE_VARIABLES"
    ):
        collected.scopes[name] = _read_scope(reader, value)
    elif _called_method(value) == "compute_gradients":
        args = arguments(value, ("loss", "var_list"))
        if args.keys() != {"loss", "var_list"}:
            raise NotConvertible("gradients of several optimizers that cannot be determined", value)
        loss, variables = (reader.source(args[field].value) for field in ("loss", "var_list"))
        collected.gradients[name] = (_owner_name(value), loss, variables)
    elif _called_method(value) in _STEPS:
        collected.parts[name] = (name, _read_step(reader, model_fn, collected, value))
    elif plain == "tf.cond":
        collected.parts[name] = (name, _read_conditional(reader, model_fn, collected, value))
    elif _is_increment(reader, model_fn, value):
        collected.counters.append(name)
    elif any(_called_method(call) in _STEPS or _called_method(call).startswith("assign") for call in calls):
        raise NotConvertible("several optimizers whose steps cannot be determined", value)
    else:
        collected.plain.append(FlowStep(node, frozenset({name}), frozenset(names_in(value))))


_STEPS = ("minimize", "apply_gradients")


def _read_step(reader: Rewriter, model_fn: ModelFn, collected: _Statements, call: cst.Call) -> _Part:
    """Read `opt.minimize(loss, var_list=names)`, or `opt.apply_gradients(gradients)` of such a loss."""
    owner = _owner_name(call)
    if _called_method(call) == "minimize":
        args = arguments(call, ("loss", "global_step", "var_list"))
        if args.keys() - {"loss", "global_step", "var_list", "name"} or not {"loss", "var_list"} <= args.keys():
            raise NotConvertible("several optimizers whose variables cannot be determined", call)
        loss, variables = (reader.source(args[field].value) for field in ("loss", "var_list"))
    else:
        args = arguments(call, ("grads_and_vars", "global_step"))
        gradients = reader.source(args["grads_and_vars"].value) if "grads_and_vars" in args else ""
        optimizer_name, loss, variables = collected.gradients.get(gradients, ("", "", ""))
        if args.keys() - {"grads_and_vars", "global_step", "name"} or optimizer_name != owner:
            raise NotConvertible(
                "gradients of several optimizers that are changed or applied by a different optimizer", call
            )
    if owner not in collected.optimizers or variables not in collected.scopes or not loss.isidentifier():
        raise NotConvertible("several optimizers whose losses or variables cannot be determined", call)
    return _Part(collected.optimizers[owner], loss, collected.scopes[variables], counts="global_step" in args)


def _read_conditional(reader: Rewriter, model_fn: ModelFn, collected: _Statements, call: cst.Call) -> _Part:
    """Read `tf.cond(when, lambda: opt.apply_gradients(gradients), tf.no_op)`."""
    args = arguments(call, ("pred", "true_fn", "false_fn"))
    step = args["true_fn"].value if args.keys() == {"pred", "true_fn", "false_fn"} else None
    inner = step.body if isinstance(step, cst.Lambda) and not step.params.params else None
    other = args["false_fn"].value if step is not None else None
    if isinstance(other, cst.Lambda):
        other = other.body
    nothing = other is not None and "tf.no_op" in (_without_v1(reader.name(other)), _called_name(reader, other))
    if not isinstance(inner, cst.Call) or _called_method(inner) not in _STEPS or not nothing:
        raise NotConvertible("tf.cond in the train_op that does more than one step of an optimizer", call)
    part = _read_step(reader, model_fn, collected, inner)
    part.when = args["pred"].value
    rate = training_step.learning_rate_of(part.constructor)
    if rate is not None and reader.called(reader.value(rate)) in arithmetic.SCHEDULES:
        raise NotConvertible(
            "a learning rate schedule on the global step, of an optimizer that does not run in every step", call
        )
    return part


def _is_increment(reader: Rewriter, model_fn: ModelFn, call: cst.Call) -> bool:
    """Return whether a call is `tf.assign_add(global_step, 1)`."""
    texts = [reader.source(arg.value) for arg in call.args]
    if _called_name(reader, call) == "tf.assign_add":
        return len(texts) == 2 and texts[0] in model_fn.steps and texts[1] == "1"
    return _called_method(call) == "assign_add" and _owner_name(call) in model_fn.steps and texts == ["1"]


def _read_scope(reader: Rewriter, call: cst.Call) -> str:
    args = arguments(call, ("scope",) if _called_name(reader, call) == "tf.trainable_variables" else ("key", "scope"))
    if "scope" not in args or not isinstance(args["scope"].value, cst.SimpleString):
        raise NotConvertible("several optimizers whose variables are not selected by a scope", call)
    return reader.source(args["scope"].value)


def _dependencies_of(after: dict[str, set[str]], names: set[str]) -> set[str]:
    """Return the names that `names` depend on, themselves included."""
    seen: set[str] = set()
    while names - seen:
        name = (names - seen).pop()
        seen.add(name)
        names |= after.get(name, set())
    return seen


def _check_moving_statistics(
    reader: Rewriter, model_fn: ModelFn, after: dict[str, set[str]], run: set[str], train_op: cst.BaseExpression
) -> None:
    """Check that each batch normalization updates its moving statistics, as `fit` does."""
    normalised = [call for call in reader.tree.calls if reader.called(call) == _NORMALISATION]
    scopes = []
    for call in reader.tree.calls:
        if _called_name(reader, call) != "tf.get_collection" or _collection_key(reader, call) != "UPDATE_OPS":
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
            raise NotConvertible(
                "a train_op that does not update the moving statistics of batch normalization, which fit does", call
            )


def format_optimizer(reader: Rewriter, optimizers: MultipleOptimizers, model: str) -> str:
    """Return the expression of the optimizer for `compile`."""
    pairs = []
    for part in optimizers.parts:
        rate = training_step.learning_rate_of(part.constructor)
        scheduled = rate is not None and reader.called(reader.value(rate)) in arithmetic.SCHEDULES
        text = arithmetic.optimizer(reader, part.constructor, scheduled=scheduled, clipping={})
        pairs.append((text, f"keras_variables.in_scope({model}, {part.scope})"))
    reader.needs.add("keras_variables")
    unit = reader.tree.module.default_indent
    lines = "".join(f"\n{unit}({constructor},\n{unit} {variables})," for constructor, variables in pairs)
    return f"keras_variables.by_variables([{lines}\n], counts={optimizers.counting})"


def names_used(optimizers: MultipleOptimizers) -> set[str]:
    """Return the names that the arguments of the optimizers read."""
    return {name for part in optimizers.parts for arg in part.constructor.args for name in names_in(arg.value)}


def loss_names(optimizers: MultipleOptimizers) -> str:
    """Return the names of the losses, in the order of the optimizers."""
    return ", ".join(part.loss for part in optimizers.parts)


def is_of_losses(optimizers: MultipleOptimizers, loss: cst.BaseExpression) -> bool:
    """Return whether a loss only depends on the losses of the optimizers."""
    return set(names_in(loss)) <= {part.loss for part in optimizers.parts}


def format_methods(writer: Any, optimizers: MultipleOptimizers, loss: cst.BaseExpression, *, alone: bool) -> list[str]:
    """Return the methods of a model that compute the losses and run all optimizers.

    Args:
        writer: converter of the model_fn.
        loss: loss of the EstimatorSpec.
        alone: whether no hook reads tensors of a step.

    Raises:
        NotConvertible: a hook reads tensors of a step.
    """
    if not alone:
        raise NotConvertible("a hook that reads a tensor, in a model with several optimizers", loss)
    reader, unit, tf = writer.reader, writer.unit, writer.reader.tf
    steps, reads = writer.select_steps("train", [part.loss for part in optimizers.parts])
    lines = ['"""Return the loss of each optimizer."""', *writer.bind_names(reads), *writer.format_steps(steps)]
    lines.append(f"return {loss_names(optimizers)}")
    each = writer.format_method("def each_loss(self, x, y, y_pred):", lines)
    whole = is_of_losses(optimizers, loss)
    body = [
        f"x, y, sample_weight = {tf}.keras.utils.unpack_x_y_sample_weight(data)",
        f"with {tf}.GradientTape(persistent=True) as tape:",
        f"{unit}y_pred = self(x, training=True)",
        f"{unit}{loss_names(optimizers)} = self.each_loss(x, y, y_pred)",
        f"self.mean_loss.update_state({reader.text(loss)})"
        if whole
        else "self.compute_loss(x, y, y_pred, sample_weight)",
    ]
    condition_names = {name for step in optimizers.settings for name in step.reads}
    condition_names |= {name for part in optimizers.parts if part.when is not None for name in names_in(part.when)}
    body += [f"{name} = self.optimizer.iterations" for name in sorted(condition_names & writer.model_fn.steps)]
    if "params" in condition_names:
        writer.uses_params = True
        body.append("params = self.params")
    body += writer.format_steps(optimizers.settings)
    when = ["True" if part.when is None else reader.text(part.when) for part in optimizers.parts]
    body.append(f"self.optimizer.minimize_each([{loss_names(optimizers)}], tape, when=[{', '.join(when)}])")
    body.append("return self.compute_metrics(x, y, y_pred, sample_weight)")
    return [each, writer.format_method("def train_step(self, data):", body)]


def _called_name(reader: Rewriter, node: cst.CSTNode | None) -> str:
    return _without_v1(reader.called(node))


def _without_v1(name: str) -> str:
    return name.replace("tf.compat.v1.", "tf.", 1)


def _collection_key(reader: Rewriter, call: cst.Call) -> str:
    args = arguments(call, ("key", "scope"))
    return reader.name(args["key"].value).rpartition(".")[2] if "key" in args else ""


def _called_method(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def _owner_name(call: cst.Call) -> str:
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    return owner.value if isinstance(owner, cst.Name) else ""

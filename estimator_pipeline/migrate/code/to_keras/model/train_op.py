"""Conversion of a train_op to the optimizer of `compile`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import children, dotted_of, iter_nodes
from estimator_pipeline.migrate.code.to_keras.model_fn import losses_and_optimizers as arithmetic
from estimator_pipeline.migrate.code.to_keras.model_fn import variables
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import FlowStep, ModelFn, calls_in, needed
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, names_in

__all__ = ["convert", "convert_selection", "has_all_trainable", "is_optimizer", "learning_rate_of", "selects_by_name"]

# Functions in a train_op that do not change gradients.
_HARMLESS = ("tf.gradients", "tf.group", "tf.control_dependencies", "tf.get_collection", "tf.trainable_variables",
             "tf.identity", "tf.no_op", "tf.global_norm", "tf.linalg.global_norm")  # fmt: skip
_METHODS = ("minimize", "apply_gradients", "compute_gradients", "get_updates", "get_updates_for", "append", "info")


def convert(
    reader: Rewriter,
    model_fn: ModelFn,
    known: Collection[cst.Call] = (),
    by_head: tuple[cst.BaseExpression, str] | None = None,
) -> tuple[list[FlowStep], str]:
    """Return (statements that the optimizer needs, expression of the optimizer).

    Args:
        known: calls that are already converted.
        by_head: (optimizer or train_op of a head, name of the loss in it; "" if the head calls the optimizer).

    Raises:
        NotConvertible: the train_op does more than minimize the loss with one optimizer.
    """
    train_op = by_head[0] if by_head else model_fn.field("train", "train_op")
    if train_op is None:
        raise NotConvertible("an EstimatorSpec for training without a train_op", model_fn.node.name)
    loss = by_head[1] if by_head else reader.source(model_fn.specs["train"]["loss"])
    flow = model_fn.flows["train"]
    nodes = [train_op, *(step.node for step in needed(flow, set(names_in(train_op)), ()))]
    calls = list(dict.fromkeys(call for node in nodes for call in calls_in(node) if call not in known))
    constructors = [call for call in calls if is_optimizer(reader, call)]
    if len(constructors) > 1 and not by_head:
        return _convert_group(reader, model_fn, train_op, constructors, loss)
    if len(constructors) != 1:
        node = constructors[1] if constructors else train_op
        raise NotConvertible(
            "an optimizer that cannot be determined" if not constructors else "several optimizers", node
        )
    (constructor,) = constructors
    steps = [call for call in calls if isinstance(call.func, cst.Attribute)
             and call.func.attr.value in ("minimize", "apply_gradients", "get_updates")]  # fmt: skip
    if len(steps) != (1 if loss else 0):
        raise NotConvertible("a train_op of several steps", train_op)
    clipping = _read_clipping(reader, calls)
    _check_gradients(reader, flow, train_op, known)
    if loss:
        _check_minimize(reader, model_fn, steps[0], calls, loss)
    if "update_ops" not in model_fn.head:
        _check_moving_statistics(reader, model_fn, calls)
    rate = learning_rate_of(constructor)
    settings: list[FlowStep] = []
    scheduled = False
    if rate is not None:
        value = reader.value(rate)
        scheduled = reader.called(value) in arithmetic.SCHEDULES
    used = {name for arg in constructor.args for name in names_in(arg.value)}
    settings = needed(flow, used - model_fn.steps, ())
    settings = [step for step in settings if not step.sets & model_fn.steps]
    text = arithmetic.optimizer(reader, constructor, scheduled=scheduled, clipping=clipping)
    return settings, text


def _convert_group(
    reader: Rewriter, model_fn: ModelFn, train_op: cst.BaseExpression, constructors: list[cst.Call], loss: str
) -> tuple[list[FlowStep], str]:
    """Convert `tf.group(A().minimize(loss, var_list=a), B().minimize(loss, step, var_list=b))`."""
    flow = model_fn.flows["train"]
    group = reader.value(train_op)
    if not isinstance(group, cst.Call) or _called_name(reader, group) != "tf.group":
        raise NotConvertible("several optimizers", constructors[1])
    pairs, names, counting = [], set(), []
    for place, arg in enumerate(group.args):
        step = reader.value(arg.value)
        method = step.func if isinstance(step, cst.Call) else None
        if not isinstance(step, cst.Call) or not isinstance(method, cst.Attribute) or method.attr.value != "minimize":
            raise NotConvertible("several optimizers, one of which does more than minimize", arg)
        args = arguments(step, ("loss", "global_step", "var_list"))
        constructor = reader.value(method.value)
        chosen = args["var_list"].value if "var_list" in args else None
        known = constructor in constructors and isinstance(constructor, cst.Call)
        if args.keys() - {"loss", "global_step", "var_list", "name"} or not known or not isinstance(chosen, cst.Name):
            raise NotConvertible("several optimizers whose variables cannot be determined", arg)
        if reader.source(args["loss"].value) != loss:
            raise NotConvertible("an optimizer that does not minimize the loss of the EstimatorSpec", step)
        if "global_step" in args:
            counting.append(place)
        assert isinstance(constructor, cst.Call)
        names |= {chosen.value, *(name for option in constructor.args for name in names_in(option.value))}
        rate = learning_rate_of(constructor)
        scheduled = rate is not None and reader.called(reader.value(rate)) in arithmetic.SCHEDULES
        text = arithmetic.optimizer(reader, constructor, scheduled=scheduled, clipping={})
        pairs.append(f"({text}, {chosen.value})")
    if len(pairs) != len(constructors) or len(counting) != 1:
        raise NotConvertible("several optimizers that do not increment the global step exactly once", train_op)
    _check_moving_statistics(reader, model_fn, list(calls_in(train_op)))
    settings = [
        step for step in needed(flow, names - model_fn.steps, model_fn.network) if not step.sets & model_fn.steps
    ]
    reader.needs.add("keras_variables")
    parts = [f"[{', '.join(pairs)}]", f"counts={counting[0]}"]
    return settings, reader.call("keras_variables.by_variables", parts, train_op)


def selects_by_name(reader: Rewriter, model_fn: ModelFn) -> bool:
    """Return whether the train_op selects variables by their names in TensorFlow 1."""
    train_op = model_fn.field("train", "train_op")
    if train_op is None:
        return False
    steps = needed(model_fn.flows["train"], set(names_in(train_op)))
    return any(_reads_name(node) for step in steps for node in iter_nodes(step.node))


def _reads_name(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Call) and (dotted_of(node.func) or "").rpartition(".")[2] == "trainable_variables":
        return bool(node.args) and isinstance(node.args[0].value, cst.SimpleString)
    return isinstance(node, cst.Attribute) and (dotted_of(node) or "").endswith(".op.name")


def convert_selection(reader: Rewriter, model_fn: ModelFn, settings: list[FlowStep], model: str) -> None:
    """Convert statements that select variables, to select them from the model."""
    variable_names = {
        name for step in model_fn.network for name in step.sets if variables.creates_variable(reader, step.node)
    }
    for step in settings:
        for node in iter_nodes(step.node):
            if isinstance(node, cst.Call) and _called_name(reader, node) == "tf.trainable_variables" and not node.args:
                reader.replaced[node] = f"{model}.trainable_variables"
            elif isinstance(node, cst.Name) and node.value in variable_names:
                reader.replaced[node] = f"keras_variables.variable_of({node.value})"
            elif isinstance(node, cst.Attribute) and reader.source(node).endswith(".op.name"):
                inner = cst.ensure_type(node.value, cst.Attribute).value
                reader.replaced[node] = f"keras_variables.name_of({reader.source(inner)})"
                reader.needs.add("keras_variables")


def is_optimizer(reader: Rewriter, call: cst.Call) -> bool:
    """Return whether a call creates an optimizer."""
    name = reader.called(call)
    if arithmetic.optimizer_name_expression(reader, call) is not None:
        return True
    if re.match(r"tf\.compat\.v1\.train\.\w+Optimizer$", name):
        return True
    return bool(re.match(r"tf\.keras\.optimizers\.(legacy\.)?[A-Z]\w+$", name))


def learning_rate_of(constructor: cst.Call) -> cst.BaseExpression | None:
    """Return the learning rate argument of an optimizer."""
    for position, arg in enumerate(constructor.args):
        if (arg.keyword and arg.keyword.value == "learning_rate") or (not arg.keyword and position == 0):
            return arg.value
    return None


def _check_minimize(reader: Rewriter, model_fn: ModelFn, step: cst.Call, calls: list[cst.Call], loss: str) -> None:
    """Check that the step only minimizes the loss over all trainable variables."""
    method = step.func.attr.value if isinstance(step.func, cst.Attribute) else ""
    if method != "apply_gradients":
        first = step.args[0].value if step.args else None
        if first is None or reader.source(first) != loss:
            raise NotConvertible("an optimizer that does not minimize the loss of the EstimatorSpec", step)
        for arg in step.args[1:]:
            if arg.keyword and arg.keyword.value == "var_list" and has_all_trainable(reader, model_fn, arg.value):
                continue
            if arg.keyword and arg.keyword.value not in ("global_step", "name"):
                raise NotConvertible(f"{arg.keyword.value} of minimize", arg)
    for call in calls:
        name = _called_name(reader, call)
        if name in ("tf.cond", "tf.while_loop", "tf.assign", "tf.assign_add", "tf.train.ExponentialMovingAverage"):
            raise NotConvertible(f"{name} in the train_op", call)
        if name == "tf.gradients" or (isinstance(call.func, cst.Attribute)
                                      and call.func.attr.value == "compute_gradients"):  # fmt: skip
            first = call.args[0].value if call.args else None
            if first is None or reader.source(first) != loss:
                raise NotConvertible("gradients that are not of the loss of the EstimatorSpec", call)


def has_all_trainable(reader: Rewriter, model_fn: ModelFn, node: cst.BaseExpression) -> bool:
    """Return whether a list of variables holds all trainable variables."""
    for _ in range(8):
        if not isinstance(node, cst.Name) or node.value == "None":
            break
        bound = model_fn.bound.get(node.value)
        # An argument may have the same name as the parameter that it is passed to.
        node = bound if bound is not None and bound is not node else reader.value(node)
    if reader.source(node) == "None":
        return True
    name = _called_name(reader, node) if isinstance(node, cst.Call) else ""
    if name == "tf.trainable_variables" and isinstance(node, cst.Call):
        return not node.args
    if name == "tf.get_collection" and isinstance(node, cst.Call):
        args = arguments(node, ("key", "scope"))
        if reader.name(args["key"].value).rpartition(".")[2] != "TRAINABLE_VARIABLES":
            return False
        return "scope" not in args or _is_scope_of_all(reader, model_fn, args["scope"].value)
    model = node.value if isinstance(node, cst.Attribute) and node.attr.value == "trainable_variables" else None
    makers = [step for step in model_fn.network if _creates_layers(reader, step)]
    return isinstance(model, cst.Name) and model.value in model_fn.models and all(
        step.sets <= model_fn.models for step in makers
    )  # fmt: skip


def _creates_layers(reader: Rewriter, step: FlowStep) -> bool:
    return any(reader.called(call).startswith(("tf.keras.layers.", "tf.compat.v1.layers."))
               or call in reader.embeddings for call in calls_in(step.node))  # fmt: skip


def _is_scope_of_all(reader: Rewriter, model_fn: ModelFn, scope: cst.BaseExpression) -> bool:
    """Return whether all layers are created within the variable scope of this name."""
    if not isinstance(scope, cst.SimpleString):
        return False
    wanted = str(scope.evaluated_value).rstrip("/")
    for step in model_fn.network:
        makes = any(_creates_layers(reader, step) or reader.functions(call.func) for call in calls_in(step.node))
        item = step.node.items[0].item if isinstance(step.node, cst.With) else None
        named = isinstance(item, cst.Call) and reader.called(item) == "tf.compat.v1.variable_scope"
        if makes and not (named and _scope_name(item) == wanted):
            return False
    return True


def _scope_name(call: cst.CSTNode | None) -> str:
    first = call.args[0].value if isinstance(call, cst.Call) and call.args else None
    return str(first.evaluated_value) if isinstance(first, cst.SimpleString) else ""


def _called_name(reader: Rewriter, call: cst.Call) -> str:
    """Return the name of the called function, with tf.compat.v1 shortened to tf."""
    return reader.called(call).replace("tf.compat.v1.", "tf.", 1)


def _check_gradients(
    reader: Rewriter, flow: Iterable[FlowStep], train_op: cst.BaseExpression, known: Collection[cst.Call]
) -> None:
    """Check that gradients are only clipped between their computation and apply_gradients."""
    names: set[str] = set()
    for step in flow:
        makes = any(_computes_gradients(reader, call) for call in calls_in(step.node))
        if not makes and not step.reads & names:
            continue
        names |= step.sets
        _check_only_clipped(reader, step.node, known)
    if names & set(names_in(train_op)) or any(_computes_gradients(reader, call) for call in calls_in(train_op)):
        _check_only_clipped(reader, train_op, known)


def _computes_gradients(reader: Rewriter, call: cst.Call) -> bool:
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    return _called_name(reader, call) == "tf.gradients" or method == "compute_gradients"


def _check_only_clipped(reader: Rewriter, node: cst.CSTNode, without: Collection[cst.Call]) -> None:
    for call in calls_in(node):
        if call in without:
            continue
        name = _called_name(reader, call)
        known = name.startswith(("tf.clip_by", "tf.train.", "tf.summary.", "tf.keras.")) or name in _HARMLESS
        plain = isinstance(call.func, cst.Name) and call.func.value in ("zip", "list", "tuple", "getattr", "len")
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if (
            not known
            and not plain
            and method not in _METHODS
            and arithmetic.optimizer_name_expression(reader, call) is None
        ):
            raise NotConvertible("gradients that are changed other than by clipping", call)
    for change in _iter_arithmetic(node):
        raise NotConvertible("gradients that are changed other than by clipping", change)


def _iter_arithmetic(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
    """Yield calculations outside of the arguments of calls: `[(2. * g, v) for g, v in grads]`."""
    if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation)) and not isinstance(
        getattr(node, "operator", None), cst.Not
    ):
        yield node
    elif not isinstance(node, cst.Call) or (isinstance(node.func, cst.Name) and node.func.value in ("zip", "list")):
        for child in children(node):
            yield from _iter_arithmetic(child)
    elif isinstance(node.func, cst.Attribute) and node.func.attr.value == "apply_gradients":
        for arg in node.args:
            yield from _iter_arithmetic(arg)


def _read_clipping(reader: Rewriter, calls: Iterable[cst.Call]) -> dict[str, str]:
    options: dict[str, str] = {}
    for call in calls:
        name = _called_name(reader, call)
        if name == "tf.clip_by_global_norm" and len(call.args) == 2:
            options["global_clipnorm"] = reader.text(call.args[1].value)
        elif name == "tf.clip_by_norm" and len(call.args) == 2:
            options["clipnorm"] = reader.text(call.args[1].value)
        elif name == "tf.clip_by_value" and len(call.args) == 3:
            low, high = (reader.source(arg.value) for arg in call.args[1:])
            if low != f"-{high}":
                raise NotConvertible("gradients that are clipped to asymmetric bounds", call)
            options["clipvalue"] = high
        elif name.startswith("tf.clip_by"):
            raise NotConvertible("a way to clip gradients that Keras optimizers do not support", call)
    if len(options) > 1:
        raise NotConvertible("gradients that are clipped twice", next(iter(calls)))
    return options


def _check_moving_statistics(reader: Rewriter, model_fn: ModelFn, calls: list[cst.Call]) -> None:
    """Check that the train_op updates the moving statistics of batch normalization."""
    normalises = [call for call in reader.tree.calls if reader.called(call) in (
        "tf.compat.v1.layers.batch_normalization", "tf.keras.layers.BatchNormalization")]  # fmt: skip
    trains = [call for call in normalises if any(arg.keyword and arg.keyword.value == "training" for arg in call.args)
              or reader.called(call) == "tf.keras.layers.BatchNormalization"]  # fmt: skip
    if not trains:
        return
    named = [node for call in calls for node in iter_nodes(call) if isinstance(node, cst.Attribute)]
    moved = any(node.attr.value == "UPDATE_OPS" for node in named) or any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value in ("get_updates_for", "updates")
        for call in calls
    )
    if not moved:
        raise NotConvertible(
            "a train_op that does not update the moving statistics of batch normalization, which fit does", trains[0]
        )

"""From a train_op to the optimizer of `compile`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import children
from estimator_pipeline.migrate.code.to_keras.model_fn import losses_and_optimizers as arithmetic
from estimator_pipeline.migrate.code.to_keras.model_fn import variables
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import FlowStep, ModelFn, needed
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, names_in

__all__ = ["are_all", "choose", "chooses_by_name", "is_optimizer", "rate_of", "write"]

# What is done with gradients, or beside them, and does not change them.
_HARMLESS = ("tf.gradients", "tf.group", "tf.control_dependencies", "tf.get_collection", "tf.trainable_variables",
             "tf.identity", "tf.no_op", "tf.global_norm", "tf.linalg.global_norm")  # fmt: skip
_METHODS = ("minimize", "apply_gradients", "compute_gradients", "get_updates", "get_updates_for", "append", "info")


def write(
    reader: Rewriter,
    made: ModelFn,
    known: Collection[cst.Call] = (),
    by_head: tuple[cst.BaseExpression, str] | None = None,
) -> tuple[list[FlowStep], str]:
    """Return (the statements that the optimizer needs, the optimizer).

    Args:
        known: calls that others have written.
        by_head: what a head is given to train with, and the name of the loss there; "" where it steps by itself.

    Raises:
        NotConvertible: the train_op is something else than one optimizer that minimises the loss.
    """
    train_op = by_head[0] if by_head else made.field("train", "train_op")
    if train_op is None:
        raise NotConvertible("an EstimatorSpec for training without a train_op", made.node.name)
    loss = by_head[1] if by_head else reader.source(made.specs["train"]["loss"])
    flow = made.flows["train"]
    nodes = [train_op, *(step.node for step in needed(flow, set(names_in(train_op)), ()))]
    calls = list(dict.fromkeys(call for node in nodes for call in _calls(node) if call not in known))
    constructors = [call for call in calls if is_optimizer(reader, call)]
    if len(constructors) > 1 and not by_head:
        return _several(reader, made, train_op, constructors, loss)
    if len(constructors) != 1:
        node = constructors[1] if constructors else train_op
        raise NotConvertible("no single optimizer can be told" if not constructors else "several optimizers", node)
    (constructor,) = constructors
    steps = [call for call in calls if isinstance(call.func, cst.Attribute)
             and call.func.attr.value in ("minimize", "apply_gradients", "get_updates")]  # fmt: skip
    if len(steps) != (1 if loss else 0):
        raise NotConvertible("a train_op of several steps", train_op)
    clipping = _clipping(reader, calls)
    _check_gradients(reader, flow, train_op, known)
    if loss:
        _check(reader, made, steps[0], calls, loss)
    if "update_ops" not in made.head:
        _check_updates(reader, made, calls)
    rate = rate_of(constructor)
    settings: list[FlowStep] = []
    scheduled = False
    if rate is not None:
        value = reader.value(rate)
        scheduled = reader.called(value) in arithmetic.SCHEDULES
    used = {name for arg in constructor.args for name in names_in(arg.value)}
    settings = needed(flow, used - made.steps, ())
    settings = [step for step in settings if not step.sets & made.steps]
    text = arithmetic.optimizer(reader, constructor, scheduled=scheduled, clipping=clipping)
    return settings, text


def _several(
    reader: Rewriter, made: ModelFn, train_op: cst.BaseExpression, constructors: list[cst.Call], loss: str
) -> tuple[list[FlowStep], str]:
    """`tf.group(A().minimize(loss, var_list=a), B().minimize(loss, step, var_list=b))`: an optimizer for each list."""
    flow = made.flows["train"]
    group = reader.value(train_op)
    if not isinstance(group, cst.Call) or _plain(reader, group) != "tf.group":
        raise NotConvertible("several optimizers", constructors[1])
    told, names, counting = [], set(), []
    for place, arg in enumerate(group.args):
        step = reader.value(arg.value)
        method = step.func if isinstance(step, cst.Call) else None
        if not isinstance(step, cst.Call) or not isinstance(method, cst.Attribute) or method.attr.value != "minimize":
            raise NotConvertible("several optimizers, one of which does more than minimize", arg)
        given = arguments(step, ("loss", "global_step", "var_list"))
        constructor = reader.value(method.value)
        chosen = given["var_list"].value if "var_list" in given else None
        known = constructor in constructors and isinstance(constructor, cst.Call)
        if given.keys() - {"loss", "global_step", "var_list", "name"} or not known or not isinstance(chosen, cst.Name):
            raise NotConvertible("several optimizers whose variables cannot be told", arg)
        if reader.source(given["loss"].value) != loss:
            raise NotConvertible("an optimizer that minimises something else than the loss of the EstimatorSpec", step)
        if "global_step" in given:
            counting.append(place)
        assert isinstance(constructor, cst.Call)
        names |= {chosen.value, *(name for one in constructor.args for name in names_in(one.value))}
        rate = rate_of(constructor)
        scheduled = rate is not None and reader.called(reader.value(rate)) in arithmetic.SCHEDULES
        text = arithmetic.optimizer(reader, constructor, scheduled=scheduled, clipping={})
        told.append(f"({text}, {chosen.value})")
    if len(told) != len(constructors) or len(counting) != 1:
        raise NotConvertible("several optimizers, and not one that counts the steps", train_op)
    _check_updates(reader, made, list(_calls(train_op)))
    settings = [step for step in needed(flow, names - made.steps, made.network) if not step.sets & made.steps]
    reader.needs.add("keras_variables")
    parts = [f"[{', '.join(told)}]", f"counts={counting[0]}"]
    return settings, reader.call("keras_variables.by_variables", parts, train_op)


def chooses_by_name(reader: Rewriter, made: ModelFn) -> bool:
    """Whether variables are chosen by the names that they have in V1."""
    train_op = made.field("train", "train_op")
    if train_op is None:
        return False
    steps = needed(made.flows["train"], set(names_in(train_op)))
    names = r"\.op\.name\b|trainable_variables\(\s*(scope\s*=\s*)?['\"]"
    return any(re.search(names, reader.source(step.node)) for step in steps)


def choose(reader: Rewriter, made: ModelFn, settings: list[FlowStep], model: str) -> None:
    """Lets the statements before `compile` choose among the variables of the model."""
    own = {name for step in made.network for name in step.sets if variables.creates_variable(reader, step.node)}
    for step in settings:
        for node in _nodes(step.node):
            if isinstance(node, cst.Call) and _plain(reader, node) == "tf.trainable_variables" and not node.args:
                reader.replaced[node] = f"{model}.trainable_variables"
            elif isinstance(node, cst.Name) and node.value in own:
                reader.replaced[node] = f"keras_variables.variable_of({node.value})"
            elif isinstance(node, cst.Attribute) and reader.source(node).endswith(".op.name"):
                inner = cst.ensure_type(node.value, cst.Attribute).value
                reader.replaced[node] = f"keras_variables.name_of({reader.source(inner)})"
                reader.needs.add("keras_variables")


def _nodes(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
    yield node
    for child in children(node):
        yield from _nodes(child)


def is_optimizer(reader: Rewriter, call: cst.Call) -> bool:
    """Whether a call makes an optimizer."""
    name = reader.called(call)
    if arithmetic.optimizer_name_expression(reader, call) is not None:
        return True
    if re.match(r"tf\.compat\.v1\.train\.\w+Optimizer$", name):
        return True
    return bool(re.match(r"tf\.keras\.optimizers\.(legacy\.)?[A-Z]\w+$", name))


def rate_of(constructor: cst.Call) -> cst.BaseExpression | None:
    """Return the learning rate that an optimizer is given."""
    for position, arg in enumerate(constructor.args):
        if (arg.keyword and arg.keyword.value == "learning_rate") or (not arg.keyword and position == 0):
            return arg.value
    return None


def _check(reader: Rewriter, made: ModelFn, step: cst.Call, calls: list[cst.Call], loss: str) -> None:
    """Whether the step minimises the loss over all trained variables, and does nothing else."""
    method = step.func.attr.value if isinstance(step.func, cst.Attribute) else ""
    if method != "apply_gradients":
        first = step.args[0].value if step.args else None
        if first is None or reader.source(first) != loss:
            raise NotConvertible("an optimizer that minimises something else than the loss of the EstimatorSpec", step)
        for arg in step.args[1:]:
            if arg.keyword and arg.keyword.value == "var_list" and are_all(reader, made, arg.value):
                continue
            if arg.keyword and arg.keyword.value not in ("global_step", "name"):
                raise NotConvertible(f"{arg.keyword.value} of minimize", arg)
    for call in calls:
        name = _plain(reader, call)
        if name in ("tf.cond", "tf.while_loop", "tf.assign", "tf.assign_add", "tf.train.ExponentialMovingAverage"):
            raise NotConvertible(f"{name} in the train_op", call)
        if name == "tf.gradients" or (isinstance(call.func, cst.Attribute)
                                      and call.func.attr.value == "compute_gradients"):  # fmt: skip
            first = call.args[0].value if call.args else None
            if first is None or reader.source(first) != loss:
                raise NotConvertible("gradients of something else than the loss of the EstimatorSpec", call)


def are_all(reader: Rewriter, made: ModelFn, node: cst.BaseExpression) -> bool:
    """Whether a list of variables is that of all that are trained."""
    for _ in range(8):
        if not isinstance(node, cst.Name) or node.value == "None":
            break
        bound = made.bound.get(node.value)
        # What a function gets by a name may have that name where it is called, too.
        node = bound if bound is not None and bound is not node else reader.value(node)
    if reader.source(node) == "None":
        return True
    name = _plain(reader, node) if isinstance(node, cst.Call) else ""
    if name == "tf.trainable_variables" and isinstance(node, cst.Call):
        return not node.args
    if name == "tf.get_collection" and isinstance(node, cst.Call):
        told = arguments(node, ("key", "scope"))
        if reader.name(told["key"].value).rpartition(".")[2] != "TRAINABLE_VARIABLES":
            return False
        return "scope" not in told or _is_around_all(reader, made, told["scope"].value)
    model = node.value if isinstance(node, cst.Attribute) and node.attr.value == "trainable_variables" else None
    makers = [step for step in made.network if _reads_makers(reader, step)]
    return isinstance(model, cst.Name) and model.value in made.models and all(
        step.sets <= made.models for step in makers
    )  # fmt: skip


def _reads_makers(reader: Rewriter, step: FlowStep) -> bool:
    return any(reader.called(call).startswith(("tf.keras.layers.", "tf.compat.v1.layers."))
               or call in reader.embeddings for call in _calls(step.node))  # fmt: skip


def _is_around_all(reader: Rewriter, made: ModelFn, scope: cst.BaseExpression) -> bool:
    """Whether the whole network is made within a scope of variables of that name."""
    if not isinstance(scope, cst.SimpleString):
        return False
    wanted = str(scope.evaluated_value).rstrip("/")
    for step in made.network:
        makes = any(_reads_makers(reader, step) or reader.functions(call.func) for call in _calls(step.node))
        item = step.node.items[0].item if isinstance(step.node, cst.With) else None
        named = isinstance(item, cst.Call) and reader.called(item) == "tf.compat.v1.variable_scope"
        if makes and not (named and _text_of(item) == wanted):
            return False
    return True


def _text_of(call: cst.CSTNode | None) -> str:
    first = call.args[0].value if isinstance(call, cst.Call) and call.args else None
    return str(first.evaluated_value) if isinstance(first, cst.SimpleString) else ""


def _plain(reader: Rewriter, call: cst.Call) -> str:
    """Return the name of what a call calls, whether by tf or by tf.compat.v1."""
    return reader.called(call).replace("tf.compat.v1.", "tf.", 1)


def _check_gradients(
    reader: Rewriter, flow: Iterable[FlowStep], train_op: cst.BaseExpression, known: Collection[cst.Call]
) -> None:
    """Between their making and apply_gradients nothing but clipping may be done to gradients."""
    names: set[str] = set()
    for step in flow:
        makes = any(_makes_gradients(reader, call) for call in _calls(step.node))
        if not makes and not step.reads & names:
            continue
        names |= step.sets
        _check_changes(reader, step.node, known)
    if names & set(names_in(train_op)) or any(_makes_gradients(reader, call) for call in _calls(train_op)):
        _check_changes(reader, train_op, known)


def _makes_gradients(reader: Rewriter, call: cst.Call) -> bool:
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    return _plain(reader, call) == "tf.gradients" or method == "compute_gradients"


def _check_changes(reader: Rewriter, node: cst.CSTNode, without: Collection[cst.Call]) -> None:
    for call in _calls(node):
        if call in without:
            continue
        name = _plain(reader, call)
        known = name.startswith(("tf.clip_by", "tf.train.", "tf.summary.", "tf.keras.")) or name in _HARMLESS
        plain = isinstance(call.func, cst.Name) and call.func.value in ("zip", "list", "tuple", "getattr", "len")
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if (
            not known
            and not plain
            and method not in _METHODS
            and arithmetic.optimizer_name_expression(reader, call) is None
        ):
            raise NotConvertible("gradients that are changed otherwise than clipped", call)
    for one in _arithmetic(node):
        raise NotConvertible("gradients that are changed otherwise than clipped", one)


def _arithmetic(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
    """Yield calculations outside of the arguments of calls: `[(2. * g, v) for g, v in grads]`."""
    if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation)) and not isinstance(
        getattr(node, "operator", None), cst.Not
    ):
        yield node
    elif not isinstance(node, cst.Call) or (isinstance(node.func, cst.Name) and node.func.value in ("zip", "list")):
        for child in children(node):
            yield from _arithmetic(child)
    elif isinstance(node.func, cst.Attribute) and node.func.attr.value == "apply_gradients":
        for arg in node.args:
            yield from _arithmetic(arg)


def _clipping(reader: Rewriter, calls: Iterable[cst.Call]) -> dict[str, str]:
    found: dict[str, str] = {}
    for call in calls:
        name = _plain(reader, call)
        if name == "tf.clip_by_global_norm" and len(call.args) == 2:
            found["global_clipnorm"] = reader.text(call.args[1].value)
        elif name == "tf.clip_by_norm" and len(call.args) == 2:
            found["clipnorm"] = reader.text(call.args[1].value)
        elif name == "tf.clip_by_value" and len(call.args) == 3:
            low, high = (reader.source(arg.value) for arg in call.args[1:])
            if low != f"-{high}":
                raise NotConvertible("gradients that are clipped to bounds of two sizes", call)
            found["clipvalue"] = high
        elif name.startswith("tf.clip_by"):
            raise NotConvertible("a way to clip gradients that optimizers of Keras do not have", call)
    if len(found) > 1:
        raise NotConvertible("gradients that are clipped twice", next(iter(calls)))
    return found


def _check_updates(reader: Rewriter, made: ModelFn, calls: list[cst.Call]) -> None:
    """Batch normalisation moves its statistics in `fit`: here they have to have been moved as well."""
    normalises = [call for call in reader.tree.calls if reader.called(call) in (
        "tf.compat.v1.layers.batch_normalization", "tf.keras.layers.BatchNormalization")]  # fmt: skip
    trains = [call for call in normalises if any(arg.keyword and arg.keyword.value == "training" for arg in call.args)
              or reader.called(call) == "tf.keras.layers.BatchNormalization"]  # fmt: skip
    if not trains:
        return
    moved = any("UPDATE_OPS" in reader.source(call) for call in calls) or any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value in ("get_updates_for", "updates")
        for call in calls
    )
    if not moved:
        raise NotConvertible("its train_op does not move the statistics of the normalisation, and fit would", trains[0])


def _calls(node: cst.CSTNode) -> Iterable[cst.Call]:
    if isinstance(node, cst.Call):
        yield node
    for child in children(node):
        yield from _calls(child)

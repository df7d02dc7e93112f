"""A model_fn as a list of statements for each mode, and the statements that a value needs."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis import modes
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import children
from estimator_pipeline.migrate.code.to_keras.model_fn.layers import CREATORS
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, names_in

__all__ = ["FlowStep", "ModelFn", "assigns", "calls_in", "first_of", "needed", "read", "step_of"]

_GLOBAL_STEP_GETTERS = ("tf.compat.v1.train.get_global_step", "tf.compat.v1.train.get_or_create_global_step")
_HEAD_ARGS = ("features", "mode", "logits", "labels", "optimizer", "trainable_variables", "train_op_fn", "update_ops",
              "regularization_losses")  # fmt: skip


@dataclass(eq=False)
class FlowStep:
    """A statement, with the names that it sets and reads.

    Attributes:
        node: The statement; an argument's expression if `name` is set.
        sets: Names that it binds or changes.
        keeps: Whether it may change a value instead of replacing it.
        name: The parameter of a function that the expression is passed to.
    """

    node: cst.CSTNode
    sets: frozenset[str]
    reads: frozenset[str]
    keeps: bool = False
    name: str = ""


@dataclass
class ModelFn:
    """A parsed model_fn.

    Attributes:
        node: The function.
        parameters: Names of its parameters.
        doc: Source of its docstring.
        flows: Mode -> the statements that run in it, in order.
        specs: Mode -> the fields of its EstimatorSpec.
        network: The statements that create layers, and the statements that these need.
        variable_names: Names of variables outside of layers, and of objects that have such variables.
        steps: Names of the global step.
        models: Names of Keras models that the function creates.
        choices: Branch on the mode -> (name, value in training, value otherwise; None for an unchanged value).
        helpers: Functions of the file that create its specs.
        bound: Parameter of a helper -> its argument.
        extra: Names of its parameters that are bound.
        partial: Statements of some modes, followed by statements of all modes.
        head: Arguments of `create_estimator_spec` if a head creates the specs; "head" is the head itself.
        has_separate_predictions: Whether PREDICT builds a different network of the same layers.
        head_call: The call of `create_estimator_spec`.
        added_metrics: Name -> metric that the model_fn adds to those of the head.
    """

    node: cst.FunctionDef
    parameters: frozenset[str]
    doc: str = ""
    flows: dict[str, list[FlowStep]] = field(default_factory=dict)
    specs: dict[str, dict[str, cst.BaseExpression]] = field(default_factory=dict)
    network: list[FlowStep] = field(default_factory=list)
    variable_names: set[str] = field(default_factory=set)
    steps: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    choices: dict[cst.If, tuple[cst.Name, cst.BaseExpression | None, cst.BaseExpression | None]] = field(
        default_factory=dict
    )
    helpers: list[cst.FunctionDef] = field(default_factory=list)
    bound: dict[str, cst.BaseExpression] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    partial: set[FlowStep] = field(default_factory=set)
    head: dict[str, cst.BaseExpression] = field(default_factory=dict)
    has_separate_predictions: bool = False
    head_call: cst.Call | None = None
    added_metrics: dict[str, cst.BaseExpression] = field(default_factory=dict)

    def field(self, mode: str, name: str) -> cst.BaseExpression | None:
        return self.specs.get(mode, {}).get(name)


def read(reader: Rewriter, function: cst.FunctionDef, extra: Sequence[str] = ()) -> ModelFn:
    """Parse a model_fn into its statements for each mode.

    Args:
        extra: Names of parameters that are bound, for example by `functools.partial`.

    Raises:
        NotConvertible: Its statements are not a list with a branch for each mode.
    """
    if not isinstance(function.body, cst.IndentedBlock):
        raise NotConvertible("a model_fn in one line", function.name)
    params = function.params
    if params.star_arg is not cst.MaybeSentinel.DEFAULT or params.star_kwarg or params.kwonly_params:
        raise NotConvertible("a model_fn with * among its parameters", function.name)
    model_fn = ModelFn(function, frozenset(param.name.value for param in params.params), extra=tuple(extra))
    for name in model_fn.parameters - {"features", "labels", "mode", "params", "config", "self", *extra}:
        raise NotConvertible(f"a model_fn with a parameter {name}", function.name)
    body = list(function.body.body)
    if body and _is_doc(body[0]):
        model_fn.doc = reader.source(body.pop(0))
    for node in body:
        for name in _iter_names_set(node):
            value = reader.value(cst.ensure_type(first_of(node), cst.Assign).value) if assigns(node) else None
            if value is not None and reader.called(value) in _GLOBAL_STEP_GETTERS:
                model_fn.steps.add(name)
    _parse_statements(reader, model_fn, body, {mode: [] for mode in modes.MODES}, list(modes.MODES))
    for mode in ("train", "eval"):
        if mode not in model_fn.flows:
            raise NotConvertible(f"cannot find the EstimatorSpec for {mode}", function.name)
    _merge_training_calls(reader, model_fn)
    if model_fn.head and (model_fn.specs or model_fn.flows.keys() != set(modes.MODES)):
        raise NotConvertible("specs of a head in only some modes", function.name)
    for step in model_fn.flows["train"]:
        if assigns(step.node):
            value = cst.ensure_type(first_of(step.node), cst.Assign).value
            if reader.is_flag(value):
                reader.flags |= {(function, name) for name in step.sets}
        if "self" in step.sets:
            raise NotConvertible("a model_fn that changes its object", step.node)
    return model_fn


def _merge_training_calls(reader: Rewriter, model_fn: ModelFn) -> None:
    """Merge statements of branches that differ only in `training`, such as `logits = model(x, training=True)`."""
    train = model_fn.flows["train"]
    for index, step in enumerate(train):
        joined = False
        for flow in model_fn.flows.values():
            for place, other in enumerate(flow if step not in flow else ()):
                both = step.reads & other.reads
                alike = _call_key(reader, other.node, False) == _call_key(reader, step.node, True) is not None
                if alike and _last_definitions(train[:index], both) == _last_definitions(flow[:place], both):
                    flow[place], joined = step, True
                    break
        if joined and all(step in flow for flow in model_fn.flows.values()):
            model_fn.partial.discard(step)
        call = _assigned_call(step.node)
        if joined and call is not None and any(_is_training_argument(arg) for arg in call.args):
            reader.replaced[call] = functools.partial(_without_training, reader, call)


def _assigned_call(node: cst.CSTNode) -> cst.Call | None:
    """Return the call that a statement assigns to a name; None for other statements."""
    value = cst.ensure_type(first_of(node), cst.Assign).value if assigns(node) else None
    return value if isinstance(value, cst.Call) else None


def _call_key(reader: Rewriter, node: cst.CSTNode, trains: bool) -> str | None:
    """Return the source of `name = call(...)` without `training`; None if `training` differs from `trains`."""
    call = _assigned_call(node)
    if call is None:
        return None
    for arg in call.args:
        if _is_training_argument(arg) and reader.source(arg.value) != str(trains) and not reader.is_flag(arg.value):
            return None
    name = reader.source(cst.ensure_type(first_of(node), cst.Assign).targets[0].target)
    args = ", ".join(reader.source(arg) for arg in call.args if not _is_training_argument(arg))
    return f"{name} = {reader.source(call.func)}({args})"


def _is_training_argument(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value == "training"


def _without_training(reader: Rewriter, call: cst.Call) -> str:
    """Return a call without `training`, which Keras passes to layers."""
    args = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else arg.star + reader.text(arg.value)
            for arg in call.args if not _is_training_argument(arg)]  # fmt: skip
    return reader.call(reader.text(call.func), args, call)


def _last_definitions(flow: Sequence[FlowStep], names: Iterable[str]) -> list[FlowStep | None]:
    """Return the last statement that sets each name."""
    return [next((step for step in reversed(flow) if name in step.sets), None) for name in sorted(names)]


_Flows = dict[str, list[FlowStep]]


def _parse_statements(
    reader: Rewriter, model_fn: ModelFn, body: Sequence[cst.CSTNode], before: _Flows, pending: list[str], name: str = ""
) -> None:
    """Parse statements for the pending modes. `name` is the name that the caller returns after them, or ""."""
    flows = {mode: list(before[mode]) for mode in pending}
    returned = name or _returned_name(body)
    for place, node in enumerate(body):
        first = first_of(node)
        if isinstance(first, cst.Return) or (name and node is body[-1] and _assigns_only(node, name)):
            assert isinstance(first, (cst.Return, cst.Assign))
            _parse_return(reader, model_fn, first, flows, pending)
            return
        choice = _mode_dependent_value(reader, node)
        if isinstance(node, cst.If) and choice is not None:
            model_fn.choices[node] = choice
            keeps = choice[1] is None or choice[2] is None
            _add(flows, pending, FlowStep(node, frozenset(_iter_names_set(node)), frozenset(names_in(node)), keeps))
            continue
        branches = _mode_branches(reader, node, pending)
        if branches:
            for suite, among in branches:
                inner = list(suite.body) if isinstance(suite, cst.IndentedBlock) else []
                # `spec = EstimatorSpec(...)` at the end of each branch, followed by `return spec`.
                spec = returned if inner and place == len(body) - (1 if name else 2) else ""
                spec = spec if spec and _assigns_only(inner[-1], spec) else ""
                if modes._ends(suite) or spec:
                    _parse_statements(reader, model_fn, inner, flows, among, spec)
                    pending = [mode for mode in pending if mode not in among]
                else:
                    _add_block(reader, model_fn, inner, flows, among)
            if not pending:
                return
            continue
        if isinstance(first, (cst.Assert, cst.Del, cst.Pass, cst.Raise)):
            continue
        _add(flows, pending, step_of(node))


def _returned_name(body: Sequence[cst.CSTNode]) -> str:
    """Return the name that a list of statements returns at its end; "" if it returns no name."""
    last = first_of(body[-1]) if body else None
    value = last.value if isinstance(last, cst.Return) else None
    return value.value if isinstance(value, cst.Name) else ""


def _assigns_only(node: cst.CSTNode, name: str) -> bool:
    """Return whether a statement assigns to this name only."""
    first = first_of(node)
    target = first.targets[0].target if isinstance(first, cst.Assign) and len(first.targets) == 1 else None
    return isinstance(target, cst.Name) and target.value == name


def step_of(node: cst.CSTNode) -> FlowStep:
    """Return the FlowStep of a statement."""
    return FlowStep(node, frozenset(_iter_names_set(node)), frozenset(names_in(node)), _keeps(node))


def _add(flows: _Flows, among: list[str], step: FlowStep) -> None:
    for mode in among:
        flows[mode].append(step)


def _mode_branches(reader: Rewriter, node: cst.CSTNode, pending: list[str]) -> list[tuple[cst.BaseSuite, list[str]]]:
    """Return the blocks of a branch on the mode, with their modes; an empty list for other statements."""
    blocks: list[tuple[cst.BaseSuite, list[str]]] = []
    rest: cst.CSTNode | None = node
    while isinstance(rest, cst.If):
        allowed = modes.condition(reader.program, reader.tree, rest.test, reader.scope(rest.test))
        if allowed is None:
            if blocks:
                raise NotConvertible("a branch on the mode and another condition", cst.ensure_type(node, cst.If).test)
            return []
        blocks.append((rest.body, [mode for mode in pending if mode in allowed]))
        pending = [mode for mode in pending if mode not in allowed]
        rest = rest.orelse
    if isinstance(rest, cst.Else):
        blocks.append((rest.body, pending))
    return blocks


def _add_block(
    reader: Rewriter, model_fn: ModelFn, body: Sequence[cst.CSTNode], flows: _Flows, among: list[str]
) -> None:
    """Add a block that only some modes run, before statements of all modes."""
    for node in body:
        if isinstance(node, cst.If) and _mode_branches(reader, node, list(modes.MODES)):
            raise NotConvertible("a branch on the mode inside one that does not return", node.test)
        step = step_of(node)
        model_fn.partial.add(step)
        _add(flows, among, step)


def _parse_return(
    reader: Rewriter, model_fn: ModelFn, node: cst.Return | cst.Assign, flows: _Flows, pending: list[str]
) -> None:  # fmt: skip
    """Parse the result in some modes: an EstimatorSpec, a spec of a head, or a call of another function."""
    value = reader.value(node.value) if node.value is not None else None
    if reader.called(value) == "tf.estimator.EstimatorSpec":
        for mode in pending:
            model_fn.flows[mode], model_fn.specs[mode] = flows[mode], _spec_fields(reader, node, value)
        return
    if _called_method(value) == "_replace":
        assert isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute)
        changed = reader.value(value.func.value)
        if _called_method(changed) == "create_estimator_spec" and pending == ["eval"]:
            model_fn.added_metrics = _added_metrics(reader, value)
            value = changed
    if _called_method(value) == "create_estimator_spec":
        assert isinstance(value, cst.Call)
        if model_fn.specs or (model_fn.head and model_fn.head_call is not value):
            raise NotConvertible("specs of a head in only some modes", node)
        _parse_head(model_fn, value)
        model_fn.flows |= {mode: flows[mode] for mode in pending}
        return
    functions = reader.functions(value.func) if isinstance(value, cst.Call) else []
    if len(functions) != 1 or not isinstance(functions[0].node, cst.FunctionDef) or len(model_fn.helpers) > 4:
        raise NotConvertible("a model_fn that returns something other than its EstimatorSpec", node)
    assert isinstance(value, cst.Call)
    _inline(reader, model_fn, value, functions[0].node, flows, pending)


def _called_method(value: cst.BaseExpression | None) -> str:
    """Return the name of the called method; "" for other expressions."""
    of_object = isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute)
    return value.func.attr.value if of_object else ""  # type: ignore[union-attr]


def _parse_head(model_fn: ModelFn, call: cst.Call) -> None:
    model_fn.head = {name: arg.value for name, arg in arguments(call, _HEAD_ARGS).items()}
    model_fn.head["head"] = cst.ensure_type(call.func, cst.Attribute).value
    model_fn.head_call = call


def _added_metrics(reader: Rewriter, call: cst.Call) -> dict[str, cst.BaseExpression]:
    """Return name -> metric of `spec._replace(eval_metric_ops=dict(spec.eval_metric_ops, name=metric))`."""
    args = arguments(call, ())
    only_metrics = args.keys() == {"eval_metric_ops"} and len(call.args) == 1
    metrics = reader.value(args["eval_metric_ops"].value) if only_metrics else None
    base_metrics = f"{reader.source(cst.ensure_type(call.func, cst.Attribute).value)}.eval_metric_ops"
    added: dict[str, cst.BaseExpression] = {}
    if isinstance(metrics, cst.Call) and reader.source(metrics.func) == "dict":
        first, *rest = metrics.args
        if reader.source(first) == base_metrics and all(arg.keyword is not None for arg in rest):
            added = {arg.keyword.value: arg.value for arg in rest if arg.keyword is not None}
    elif isinstance(metrics, cst.Dict):
        head, *others = metrics.elements
        keys = [element.key for element in others if isinstance(element, cst.DictElement)]
        plain = [key for key in keys if isinstance(key, cst.SimpleString)]
        starred = isinstance(head, cst.StarredDictElement) and reader.source(head.value) == base_metrics
        if starred and len(plain) == len(others):
            added = {str(key.evaluated_value): element.value for key, element in zip(plain, others, strict=True)}
    if not added:
        raise NotConvertible("a spec of a head that is changed in other ways than by adding metrics", call)
    return added


def _inline(
    reader: Rewriter, model_fn: ModelFn, call: cst.Call, inner: cst.FunctionDef, flows: _Flows, pending: list[str]
) -> None:
    """Parse the statements of a function of the file that returns the spec."""
    params = inner.params
    plain = params.star_arg is cst.MaybeSentinel.DEFAULT and not params.star_kwarg and not inner.decorators
    if reader.tree.parents.get(inner) is not reader.tree.module or not plain or any(arg.star for arg in call.args):
        raise NotConvertible("a model_fn that returns something other than its EstimatorSpec", call)
    if not isinstance(inner.body, cst.IndentedBlock) or inner is model_fn.node or inner in model_fn.helpers:
        raise NotConvertible("a function in one line, or a recursive function", call)
    body = list(inner.body.body)
    if body and _is_doc(body[0]):
        body.pop(0)
    local_names = {*reader.tree.scopes[inner].names}
    outer_names = {name for mode in pending for step in flows[mode] for name in step.sets} | model_fn.parameters
    for node in body:
        for name in names_in(node):
            if name in outer_names and name not in local_names and name in reader.tree.scope.names:
                raise NotConvertible(
                    f"{name} means different things in a model_fn and in the function that creates its spec", call
                )
    for position, param in enumerate([*params.params, *params.kwonly_params]):
        name = param.name.value
        value = reader.argument(call, position, name) or param.default
        if value is None:
            raise NotConvertible("a model_fn that returns something other than its EstimatorSpec", call)
        model_fn.bound[name] = value
        if (isinstance(value, cst.Name) and value.value == name) or (inner, name) in reader.flags:
            continue
        _add(flows, pending, FlowStep(value, frozenset({name}), frozenset(names_in(value)), name=name))
    model_fn.helpers.append(inner)
    _parse_statements(reader, model_fn, body, flows, pending)


def _mode_dependent_value(
    reader: Rewriter, node: cst.CSTNode
) -> tuple[cst.Name, cst.BaseExpression | None, cst.BaseExpression | None] | None:
    """Return (name, value in training, value otherwise) of `if mode == TRAIN: x = a`, with or without `else: x = b`."""
    if not isinstance(node, cst.If):
        return None
    allowed = modes.condition(reader.program, reader.tree, node.test, reader.scope(node.test))
    trains = allowed == {"train"}
    if not trains and allowed != set(modes.MODES) - {"train"}:
        return None
    first = _single_assignment(node.body)
    if first is None or (node.orelse is not None and not isinstance(node.orelse, cst.Else)):
        return None
    name, value = first
    other = None
    if isinstance(node.orelse, cst.Else):
        second = _single_assignment(node.orelse.body)
        if second is None or second[0].value != name.value:
            return None
        other = second[1]
    for branch in (value, other):
        for call in calls_in(branch) if branch is not None else ():
            if reader.called(call) in CREATORS and reader.called(call) != "tf.compat.v1.layers.dropout":
                return None
            if reader.functions(call.func):  # it may create variables
                return None
    return (name, value, other) if trains else (name, other, value)


def _single_assignment(body: cst.BaseSuite) -> tuple[cst.Name, cst.BaseExpression] | None:
    """Return the name and the value of a block with a single assignment."""
    if not isinstance(body, cst.IndentedBlock) or len(body.body) != 1 or not assigns(body.body[0]):
        return None
    assign = cst.ensure_type(first_of(body.body[0]), cst.Assign)
    target = assign.targets[0].target
    return (target, assign.value) if len(assign.targets) == 1 and isinstance(target, cst.Name) else None


def _spec_fields(reader: Rewriter, node: cst.CSTNode, call: cst.BaseExpression | None) -> dict[str, cst.BaseExpression]:
    assert isinstance(call, cst.Call)
    args = arguments(call, catalogue.row("tf.estimator.EstimatorSpec").fields)
    if any(arg.star for arg in call.args):
        raise NotConvertible("an EstimatorSpec with fields that cannot be determined", node)
    return {name: arg.value for name, arg in args.items()}


def needed(flow: Iterable[FlowStep], names: Collection[str], without: Collection[FlowStep] = ()) -> list[FlowStep]:
    """Return the steps of a flow that the names depend on, directly or indirectly, without those of `without`."""
    waiting, steps = set(names), []
    for step in reversed(list(flow)):
        if not step.sets & waiting or step in without:
            continue
        steps.append(step)
        if not step.keeps:
            waiting -= step.sets
        waiting |= step.reads
    return steps[::-1]


def calls_in(node: cst.CSTNode) -> Iterable[cst.Call]:
    """Yield the calls within a node."""
    if isinstance(node, cst.Call):
        yield node
    for child in children(node):
        yield from calls_in(child)


def first_of(node: cst.CSTNode) -> cst.CSTNode:
    """Return the first statement of a line, or the compound statement itself."""
    return node.body[0] if isinstance(node, cst.SimpleStatementLine) else node


def assigns(node: cst.CSTNode) -> bool:
    """Return whether a statement assigns a value to a name."""
    first = first_of(node)
    return isinstance(first, cst.Assign) and isinstance(first.targets[0].target, cst.Name)


def _is_doc(node: cst.CSTNode) -> bool:
    first = first_of(node)
    return isinstance(first, cst.Expr) and isinstance(first.value, (cst.SimpleString, cst.ConcatenatedString))


def _iter_names_set(node: cst.CSTNode) -> Iterable[str]:
    """Yield the names that a statement binds, or whose values it changes."""
    first = first_of(node)
    if isinstance(first, cst.Assign):
        for target in first.targets:
            yield from names_in(target.target)
    elif isinstance(first, (cst.AugAssign, cst.AnnAssign)):
        yield from names_in(first.target)
    elif isinstance(first, cst.Expr) and isinstance(first.value, cst.Call):
        func = first.value.func
        if isinstance(func, cst.Attribute) and isinstance(func.value, cst.Name):
            yield func.value.value
    elif isinstance(first, (cst.FunctionDef, cst.ClassDef)):
        yield first.name.value
    elif isinstance(first, (cst.For, cst.With, cst.If, cst.While, cst.Try)):
        for child in _iter_statements(first):
            yield from _iter_names_set(child)
        if isinstance(first, cst.For):
            yield from names_in(first.target)


def _iter_statements(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
    for child in children(node):
        if isinstance(child, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            yield child
        else:
            yield from _iter_statements(child)


def _keeps(node: cst.CSTNode) -> bool:
    """Return whether a statement may change a value instead of replacing it."""
    first = first_of(node)
    if isinstance(first, cst.Assign):
        return not isinstance(first.targets[0].target, (cst.Name, cst.Tuple))
    return not isinstance(first, (cst.AnnAssign, cst.FunctionDef))

"""A model_fn as a list of statements for each mode, and which of them a value needs."""

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

_STEPS = ("tf.compat.v1.train.get_global_step", "tf.compat.v1.train.get_or_create_global_step")


_OF_HEADS = ("features", "mode", "logits", "labels", "optimizer", "trainable_variables", "train_op_fn", "update_ops",
             "regularization_losses")  # fmt: skip


@dataclass(eq=False)
class FlowStep:
    """A statement with the names that it sets and reads; `keeps` where it changes what was there.

    Where `name` says so, it is no statement: an expression that a function gets by that name.
    """

    node: cst.CSTNode
    sets: frozenset[str]
    reads: frozenset[str]
    keeps: bool = False
    name: str = ""


@dataclass
class ModelFn:
    """A model_fn.

    Attributes:
        node: the function.
        parameters: its names for what the Estimator hands it.
        flows: mode -> what is run in it, in order.
        specs: mode -> the fields of its EstimatorSpec.
        network: what makes layers, and what that needs.
        own: names of what has variables outside of layers.
        steps: names of the global step.
        models: names of Keras models that the function makes.
        choices: branch by the mode -> (name, its value in training, its value otherwise; None for what it was).
        helpers: functions of the file that make its specs.
        bound: what such a function gets by a name.
        extra: names of its parameters that are bound.
        partial: statements of some modes before what all modes do.
        head: what a head is given, where it makes the specs; "head" is the head itself.
        apart: whether its predictions are another network's, of the same layers.
        head_call: the call that makes them.
        further: metrics that the model_fn adds to those of the head, by their names.
    """

    node: cst.FunctionDef
    parameters: frozenset[str]
    doc: str = ""
    flows: dict[str, list[FlowStep]] = field(default_factory=dict)
    specs: dict[str, dict[str, cst.BaseExpression]] = field(default_factory=dict)
    network: list[FlowStep] = field(default_factory=list)
    own: set[str] = field(default_factory=set)
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
    apart: bool = False
    head_call: cst.Call | None = None
    further: dict[str, cst.BaseExpression] = field(default_factory=dict)

    def field(self, mode: str, name: str) -> cst.BaseExpression | None:
        return self.specs.get(mode, {}).get(name)


def read(reader: Rewriter, function: cst.FunctionDef, extra: Sequence[str] = ()) -> ModelFn:
    """Take a model_fn apart.

    Args:
        extra: names of arguments that are bound to it.

    Raises:
        NotConvertible: its statements are no list with a branch for each mode.
    """
    if not isinstance(function.body, cst.IndentedBlock):
        raise NotConvertible("a model_fn in one line", function.name)
    params = function.params
    if params.star_arg is not cst.MaybeSentinel.DEFAULT or params.star_kwarg or params.kwonly_params:
        raise NotConvertible("a model_fn with * among its parameters", function.name)
    made = ModelFn(function, frozenset(one.name.value for one in params.params), extra=tuple(extra))
    for name in made.parameters - {"features", "labels", "mode", "params", "config", "self", *extra}:
        raise NotConvertible(f"a model_fn with a parameter {name}", function.name)
    body = list(function.body.body)
    if body and _is_doc(body[0]):
        made.doc = reader.source(body.pop(0))
    for node in body:
        for name in _sets(node):
            value = reader.value(cst.ensure_type(first_of(node), cst.Assign).value) if assigns(node) else None
            if value is not None and reader.called(value) in _STEPS:
                made.steps.add(name)
    _walk(reader, made, body, {mode: [] for mode in modes.MODES}, list(modes.MODES))
    for mode in ("train", "eval"):
        if mode not in made.flows:
            raise NotConvertible(f"no EstimatorSpec for {mode} can be told", function.name)
    _join(reader, made)
    if made.head and (made.specs or made.flows.keys() != set(modes.MODES)):
        raise NotConvertible("specs of a head in some modes alone", function.name)
    for step in made.flows["train"]:
        if assigns(step.node):
            value = cst.ensure_type(first_of(step.node), cst.Assign).value
            if reader.is_flag(value):
                reader.flags |= {(function, name) for name in step.sets}
        if "self" in step.sets:
            raise NotConvertible("a model_fn that changes the object that it belongs to", step.node)
    return made


def _join(reader: Rewriter, made: ModelFn) -> None:
    """Make one statement of those that each branch has: `logits = model(x, training=True)`, and `training=False`."""
    train = made.flows["train"]
    for at, one in enumerate(train):
        joined = False
        for flow in made.flows.values():
            for place, other in enumerate(flow if one not in flow else ()):
                both = one.reads & other.reads
                alike = _told(reader, other.node, False) == _told(reader, one.node, True) is not None
                if alike and _definers(train[:at], both) == _definers(flow[:place], both):
                    flow[place], joined = one, True
                    break
        if joined and all(one in flow for flow in made.flows.values()):
            made.partial.discard(one)
        call = _call_of(one.node)
        if joined and call is not None and any(_says_training(arg) for arg in call.args):
            reader.replaced[call] = functools.partial(_as_told, reader, call)


def _call_of(node: cst.CSTNode) -> cst.Call | None:
    """Return the call whose value a statement gives a name."""
    value = cst.ensure_type(first_of(node), cst.Assign).value if assigns(node) else None
    return value if isinstance(value, cst.Call) else None


def _told(reader: Rewriter, node: cst.CSTNode, trains: bool) -> str | None:
    """A statement that gives a name what a call gives, without what says whether it trains, as it does; else None."""
    call = _call_of(node)
    if call is None:
        return None
    for arg in call.args:
        if _says_training(arg) and reader.source(arg.value) != str(trains) and not reader.is_flag(arg.value):
            return None
    name = reader.source(cst.ensure_type(first_of(node), cst.Assign).targets[0].target)
    given = ", ".join(reader.source(arg) for arg in call.args if not _says_training(arg))
    return f"{name} = {reader.source(call.func)}({given})"


def _says_training(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value == "training"


def _as_told(reader: Rewriter, call: cst.Call) -> str:
    """Return a call without what says whether it trains: layers of Keras know it by themselves."""
    kept = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else arg.star + reader.text(arg.value)
            for arg in call.args if not _says_training(arg)]  # fmt: skip
    return reader.call(reader.text(call.func), kept, call)


def _definers(flow: Sequence[FlowStep], names: Iterable[str]) -> list[FlowStep | None]:
    """Return the last statement that sets each name."""
    return [next((one for one in reversed(flow) if name in one.sets), None) for name in sorted(names)]


_Flows = dict[str, list[FlowStep]]


def _walk(
    reader: Rewriter,
    made: ModelFn,
    body: Sequence[cst.CSTNode],
    before: _Flows,
    left: list[str],
    given: str = "",
) -> None:
    """Follows a list of statements to its end, for some modes; `given` is the name of what is returned behind it."""
    flows = {mode: list(before[mode]) for mode in left}
    returned = given or _returned(body)
    for place, node in enumerate(body):
        first = first_of(node)
        if isinstance(first, cst.Return) or (given and node is body[-1] and _gives(node, given)):
            assert isinstance(first, (cst.Return, cst.Assign))
            _end(reader, made, first, flows, left)
            return
        choice = _choice(reader, node)
        if isinstance(node, cst.If) and choice is not None:
            made.choices[node] = choice
            keeps = choice[1] is None or choice[2] is None
            _add(flows, left, FlowStep(node, frozenset(_sets(node)), frozenset(names_in(node)), keeps))
            continue
        branches = _branches(reader, node, left)
        if branches:
            for suite, among in branches:
                inner = list(suite.body) if isinstance(suite, cst.IndentedBlock) else []
                # `spec = EstimatorSpec(...)` at the end of each branch, and `return spec` behind them.
                spec = returned if inner and place == len(body) - (1 if given else 2) else ""
                spec = spec if spec and _gives(inner[-1], spec) else ""
                if modes._ends(suite) or spec:
                    _walk(reader, made, inner, flows, among, spec)
                    left = [mode for mode in left if mode not in among]
                else:
                    _go_on(reader, made, inner, flows, among)
            if not left:
                return
            continue
        if isinstance(first, (cst.Assert, cst.Del, cst.Pass, cst.Raise)):
            continue
        _add(flows, left, step_of(node))


def _returned(body: Sequence[cst.CSTNode]) -> str:
    """Return the name that a list of statements returns at its end; "" where that is none."""
    last = first_of(body[-1]) if body else None
    value = last.value if isinstance(last, cst.Return) else None
    return value.value if isinstance(value, cst.Name) else ""


def _gives(node: cst.CSTNode, name: str) -> bool:
    """Whether a statement gives a name a value, and does nothing else."""
    first = first_of(node)
    target = first.targets[0].target if isinstance(first, cst.Assign) and len(first.targets) == 1 else None
    return isinstance(target, cst.Name) and target.value == name


def step_of(node: cst.CSTNode) -> FlowStep:
    """Return a statement, with the names that it sets and reads."""
    return FlowStep(node, frozenset(_sets(node)), frozenset(names_in(node)), _keeps(node))


def _add(flows: _Flows, among: list[str], step: FlowStep) -> None:
    for mode in among:
        flows[mode].append(step)


def _branches(reader: Rewriter, node: cst.CSTNode, left: list[str]) -> list[tuple[cst.BaseSuite, list[str]]]:
    """Return the blocks of a branch by the mode, with their modes; none for other statements."""
    found: list[tuple[cst.BaseSuite, list[str]]] = []
    rest: cst.CSTNode | None = node
    while isinstance(rest, cst.If):
        allowed = modes._condition(reader.program, reader.tree, rest.test, reader.scope(rest.test))
        if allowed is None:
            if found:
                raise NotConvertible("a branch by the mode and something else", cst.ensure_type(node, cst.If).test)
            return []
        found.append((rest.body, [mode for mode in left if mode in allowed]))
        left = [mode for mode in left if mode not in allowed]
        rest = rest.orelse
    if isinstance(rest, cst.Else):
        found.append((rest.body, left))
    return found


def _go_on(reader: Rewriter, made: ModelFn, body: Sequence[cst.CSTNode], flows: _Flows, among: list[str]) -> None:
    """What is done in some modes alone, before what is done in all."""
    for node in body:
        if isinstance(node, cst.If) and _branches(reader, node, list(modes.MODES)):
            raise NotConvertible("a branch by the mode that goes on behind it", node.test)
        step = step_of(node)
        made.partial.add(step)
        _add(flows, among, step)


def _end(
    reader: Rewriter, made: ModelFn, node: cst.Return | cst.Assign, flows: _Flows, left: list[str]
) -> None:  # fmt: skip
    """What is returned in some modes: a spec, that of a head, or what another function gives."""
    value = reader.value(node.value) if node.value is not None else None
    if reader.called(value) == "tf.estimator.EstimatorSpec":
        for mode in left:
            made.flows[mode], made.specs[mode] = flows[mode], _spec(reader, node, value)
        return
    if _method(value) == "_replace":
        assert isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute)
        changed = reader.value(value.func.value)
        if _method(changed) == "create_estimator_spec" and left == ["eval"]:
            made.further = _added(reader, value)
            value = changed
    if _method(value) == "create_estimator_spec":
        assert isinstance(value, cst.Call)
        if made.specs or (made.head and made.head_call is not value):
            raise NotConvertible("specs of a head in some modes alone", node)
        _of_head(made, value)
        made.flows |= {mode: flows[mode] for mode in left}
        return
    functions = reader.functions(value.func) if isinstance(value, cst.Call) else []
    if len(functions) != 1 or not isinstance(functions[0].node, cst.FunctionDef) or len(made.helpers) > 4:
        raise NotConvertible("a model_fn that returns something else than an EstimatorSpec of its own", node)
    assert isinstance(value, cst.Call)
    _inline(reader, made, value, functions[0].node, flows, left)


def _method(value: cst.BaseExpression | None) -> str:
    """Return the name of the method that a call calls; "" for all else."""
    of_object = isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute)
    return value.func.attr.value if of_object else ""  # type: ignore[union-attr]


def _of_head(made: ModelFn, call: cst.Call) -> None:
    made.head = {name: arg.value for name, arg in arguments(call, _OF_HEADS).items()}
    made.head["head"] = cst.ensure_type(call.func, cst.Attribute).value
    made.head_call = call


def _added(reader: Rewriter, call: cst.Call) -> dict[str, cst.BaseExpression]:
    """The metrics of `spec._replace(eval_metric_ops=dict(spec.eval_metric_ops, name=metric))`, by their names."""
    given = arguments(call, ())
    alone = given.keys() == {"eval_metric_ops"} and len(call.args) == 1
    metrics = reader.value(given["eval_metric_ops"].value) if alone else None
    own = f"{reader.source(cst.ensure_type(call.func, cst.Attribute).value)}.eval_metric_ops"
    found: dict[str, cst.BaseExpression] = {}
    if isinstance(metrics, cst.Call) and reader.source(metrics.func) == "dict":
        first, *rest = metrics.args
        if reader.source(first) == own and all(arg.keyword is not None for arg in rest):
            found = {arg.keyword.value: arg.value for arg in rest if arg.keyword is not None}
    elif isinstance(metrics, cst.Dict):
        head, *others = metrics.elements
        keys = [one.key for one in others if isinstance(one, cst.DictElement)]
        plain = [key for key in keys if isinstance(key, cst.SimpleString)]
        starred = isinstance(head, cst.StarredDictElement) and reader.source(head.value) == own
        if starred and len(plain) == len(others):
            found = {str(key.evaluated_value): one.value for key, one in zip(plain, others, strict=True)}
    if not found:
        raise NotConvertible("a spec of a head that is changed otherwise than by further metrics", call)
    return found


def _inline(
    reader: Rewriter, made: ModelFn, call: cst.Call, inner: cst.FunctionDef, flows: _Flows, left: list[str]
) -> None:
    """Goes on with the statements of a function of the file, which gives the spec."""
    params = inner.params
    plain = params.star_arg is cst.MaybeSentinel.DEFAULT and not params.star_kwarg and not inner.decorators
    if reader.tree.parents.get(inner) is not reader.tree.module or not plain or any(arg.star for arg in call.args):
        raise NotConvertible("a model_fn that returns something else than an EstimatorSpec of its own", call)
    if not isinstance(inner.body, cst.IndentedBlock) or inner is made.node or inner in made.helpers:
        raise NotConvertible("a function in one line, or one that calls itself", call)
    body = list(inner.body.body)
    if body and _is_doc(body[0]):
        body.pop(0)
    own = {*reader.tree.scopes[inner].names}
    around = {name for mode in left for step in flows[mode] for name in step.sets} | made.parameters
    for node in body:
        for name in names_in(node):
            if name in around and name not in own and name in reader.tree.scope.names:
                raise NotConvertible(f"{name} is one thing in a model_fn, and another where its spec is made", call)
    for position, param in enumerate([*params.params, *params.kwonly_params]):
        name = param.name.value
        given = reader.given(call, position, name) or param.default
        if given is None:
            raise NotConvertible("a model_fn that returns something else than an EstimatorSpec of its own", call)
        made.bound[name] = given
        if (isinstance(given, cst.Name) and given.value == name) or (inner, name) in reader.flags:
            continue
        _add(flows, left, FlowStep(given, frozenset({name}), frozenset(names_in(given)), name=name))
    made.helpers.append(inner)
    _walk(reader, made, body, flows, left)


def _choice(
    reader: Rewriter, node: cst.CSTNode
) -> tuple[cst.Name, cst.BaseExpression | None, cst.BaseExpression | None] | None:
    """`if mode == TRAIN: x = a`, with `else: x = b` or without."""
    if not isinstance(node, cst.If):
        return None
    allowed = modes._condition(reader.program, reader.tree, node.test, reader.scope(node.test))
    trains = allowed == {"train"}
    if not trains and allowed != set(modes.MODES) - {"train"}:
        return None
    first = _one_value(node.body)
    if first is None or (node.orelse is not None and not isinstance(node.orelse, cst.Else)):
        return None
    name, value = first
    other = None
    if isinstance(node.orelse, cst.Else):
        second = _one_value(node.orelse.body)
        if second is None or second[0].value != name.value:
            return None
        other = second[1]
    for one in (value, other):
        for call in calls_in(one) if one is not None else ():
            if reader.called(call) in CREATORS and reader.called(call) != "tf.compat.v1.layers.dropout":
                return None
            if reader.functions(call.func):  # it may make variables
                return None
    return (name, value, other) if trains else (name, other, value)


def _one_value(body: cst.BaseSuite) -> tuple[cst.Name, cst.BaseExpression] | None:
    """Return the name and the value of a block that is one assignment."""
    if not isinstance(body, cst.IndentedBlock) or len(body.body) != 1 or not assigns(body.body[0]):
        return None
    assign = cst.ensure_type(first_of(body.body[0]), cst.Assign)
    target = assign.targets[0].target
    return (target, assign.value) if len(assign.targets) == 1 and isinstance(target, cst.Name) else None


def _spec(reader: Rewriter, node: cst.CSTNode, call: cst.BaseExpression | None) -> dict[str, cst.BaseExpression]:
    assert isinstance(call, cst.Call)
    given = arguments(call, catalogue.row("tf.estimator.EstimatorSpec").fields)
    if any(arg.star for arg in call.args):
        raise NotConvertible("an EstimatorSpec whose fields cannot be told", node)
    return {name: arg.value for name, arg in given.items()}


def needed(flow: Iterable[FlowStep], names: Collection[str], without: Collection[FlowStep] = ()) -> list[FlowStep]:
    """Return what of a flow sets the names, and what that needs in its turn; steps of `without` are taken for done."""
    waiting, found = set(names), []
    for step in reversed(list(flow)):
        if not step.sets & waiting or step in without:
            continue
        found.append(step)
        if not step.keeps:
            waiting -= step.sets
        waiting |= step.reads
    return found[::-1]


def calls_in(node: cst.CSTNode) -> Iterable[cst.Call]:
    """Yield the calls within a node."""
    if isinstance(node, cst.Call):
        yield node
    for child in children(node):
        yield from calls_in(child)


def first_of(node: cst.CSTNode) -> cst.CSTNode:
    """Return what a line has, or the statement itself."""
    return node.body[0] if isinstance(node, cst.SimpleStatementLine) else node


def assigns(node: cst.CSTNode) -> bool:
    """Whether a statement gives a name a value."""
    first = first_of(node)
    return isinstance(first, cst.Assign) and isinstance(first.targets[0].target, cst.Name)


def _is_doc(node: cst.CSTNode) -> bool:
    first = first_of(node)
    return isinstance(first, cst.Expr) and isinstance(first.value, (cst.SimpleString, cst.ConcatenatedString))


def _sets(node: cst.CSTNode) -> Iterable[str]:
    """Yield the names that a statement gives a value, or changes the value of."""
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
        for child in _statements(first):
            yield from _sets(child)
        if isinstance(first, cst.For):
            yield from names_in(first.target)


def _statements(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
    for child in children(node):
        if isinstance(child, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            yield child
        else:
            yield from _statements(child)


def _keeps(node: cst.CSTNode) -> bool:
    """Whether a name may have, behind a statement, something of what it had before."""
    first = first_of(node)
    if isinstance(first, cst.Assign):
        return not isinstance(first.targets[0].target, (cst.Name, cst.Tuple))
    return not isinstance(first, (cst.AnnAssign, cst.FunctionDef))

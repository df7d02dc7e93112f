"""What a model_fn computes in each mode: its statements in order, and the arguments of its EstimatorSpecs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis import modes
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import iter_nodes
from estimator_pipeline.migrate.convert.names import (
    ALL_MODES,
    PREDICT,
    FileNames,
    Refused,
    calls_in,
    names_bound,
    names_read,
)

__all__ = ["ModelFnSource", "Statement", "check_scope", "dict_items", "is_string", "key_of", "needed",
           "parameters", "reached_calls", "read_model_fn"]  # fmt: skip

SPEC = "tf.estimator.EstimatorSpec"
_FIELDS = ("mode", "predictions", "loss", "train_op", "eval_metric_ops", "export_outputs", "training_chief_hooks",
           "training_hooks", "scaffold", "evaluation_hooks", "prediction_hooks")  # fmt: skip
_NAME_SCOPES = ("tf.name_scope", "tf.compat.v1.name_scope", "tf.device", "tf.compat.v1.device")
_VARIABLE_SCOPES = ("tf.compat.v1.variable_scope",)


def reached_calls(names: FileNames, nodes: Iterable[cst.CSTNode]) -> Iterator[tuple[cst.Call, FileNames]]:
    """Yield the calls in nodes of a file, also in the functions that they call, with the names of their files."""
    waiting = [(node, names) for node in nodes]
    seen: set[cst.CSTNode] = set()
    while waiting:
        node, of = waiting.pop()
        for call in calls_in(node) if node not in seen else ():
            yield call, of
            function = of.function(call.func)
            if function is not None:
                waiting.append((function.node.body, of.of(function.tree)))
        seen.add(node)


@dataclass(frozen=True)
class Statement:
    """A statement of a function, and when it runs.

    Attributes:
        node: the statement; a small statement of its line.
        modes: the modes in which it runs.
        guards: the arguments of the `tf.control_dependencies` around it.
    """

    node: cst.CSTNode
    modes: frozenset[str]
    guards: tuple[cst.BaseExpression, ...] = ()
    defines: frozenset[str] = field(default=frozenset(), compare=False)
    uses: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def value(self) -> cst.BaseExpression | None:
        """Return the assigned expression of `name = value`, or the expression of the statement."""
        if isinstance(self.node, (cst.Assign, cst.AnnAssign, cst.Expr)):
            return self.node.value
        return None

    @property
    def target(self) -> str:
        """Return the name of `name = value`; "" for any other statement."""
        node = self.node
        if isinstance(node, cst.Assign) and len(node.targets) == 1 and isinstance(node.targets[0].target, cst.Name):
            return node.targets[0].target.value
        if isinstance(node, cst.AnnAssign) and isinstance(node.target, cst.Name) and node.value is not None:
            return node.target.value
        return ""

    @property
    def replaces(self) -> bool:
        """Return whether the statement gives its names new values, whatever they were."""
        return isinstance(self.node, (cst.Assign, cst.AnnAssign)) and not self.defines & self.uses


@dataclass(frozen=True)
class ModelFnSource:
    """A model_fn.

    Attributes:
        function: its definition.
        features, labels, mode, params: its names of these parameters; "" where it has none.
        steps: its statements, in the order of the text.
        specs: mode -> argument -> expression of the EstimatorSpec that it returns.
    """

    function: cst.FunctionDef
    features: str
    labels: str
    mode: str
    params: str
    steps: tuple[Statement, ...]
    specs: Mapping[str, Mapping[str, cst.BaseExpression]]

    def in_mode(self, mode: str) -> tuple[Statement, ...]:
        """Return the statements that run in a mode."""
        return tuple(step for step in self.steps if mode in step.modes)

    def argument(self, mode: str, name: str) -> cst.BaseExpression | None:
        """Return an argument of the EstimatorSpec of a mode; None without."""
        return self.specs.get(mode, {}).get(name)

    def definition(self, name: str, mode: str) -> Statement | None:
        """Return the only statement that defines a name in a mode, if there is one such beside `name = None`."""
        steps = [step for step in self.in_mode(mode) if name in step.defines]
        while len(steps) > 1 and isinstance(steps[0].value, cst.Name) and steps[0].value.value == "None":
            steps = steps[1:]
        return steps[0] if len(steps) == 1 and steps[0].target == name else None

    def resolve(self, node: cst.BaseExpression, mode: str) -> cst.BaseExpression:
        """Return the expression behind a name or an item of a dict that the function defines once."""
        for _ in range(8):
            if isinstance(node, cst.Name):
                step = self.definition(node.value, mode)
                if step is None or step.value is None:
                    break
                node = step.value
            elif isinstance(node, cst.Subscript) and (item := self.item(node, mode)) is not None:
                node = item
            else:
                break
        return node

    def item(self, node: cst.Subscript, mode: str) -> cst.BaseExpression | None:
        """Return the value of an item of a dict that the function defines once; None if it is not known."""
        table, key = self.resolve(node.value, mode), key_of(node)
        return dict(dict_items(table)).get(key) if key and isinstance(table, cst.Dict) else None


def key_of(node: cst.Subscript) -> str:
    """Return the text that is the index of an item; "" for another index."""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    return _text(index.value) if isinstance(index, cst.Index) else ""


def dict_items(table: cst.Dict | cst.Call) -> list[tuple[str, cst.BaseExpression]]:
    """Return (key, value) of the items of `{"key": value}` or `dict(key=value)`; "" for a key that is not known."""
    if isinstance(table, cst.Call):
        return [(arg.keyword.value if arg.keyword else "", arg.value) for arg in table.args]
    return [(_text(element.key) if isinstance(element, cst.DictElement) else "", element.value)
            for element in table.elements]  # fmt: skip


def _text(node: cst.BaseExpression) -> str:
    return str(node.evaluated_value) if isinstance(node, cst.SimpleString) else ""


def parameters(function: cst.FunctionDef | cst.Lambda) -> tuple[str, ...]:
    """Return the names of a function's parameters without `*args` and `**kwargs`."""
    params = function.params
    return tuple(param.name.value for param in (*params.posonly_params, *params.params, *params.kwonly_params))


def read_model_fn(names: FileNames, function: cst.FunctionDef) -> ModelFnSource:
    """Return what a model_fn does in each mode.

    Raises:
        Refused: it has a statement or a parameter that cannot be followed.
    """
    names_of_parameters = parameters(function)
    by_role = {"labels": "", "mode": "", "params": "", "config": ""}
    for name in names_of_parameters[1:]:
        if name not in by_role and not (name == names_of_parameters[1] and name == "label"):
            raise Refused(f"a model_fn with the parameter {name}", function)
        by_role["labels" if name == "label" else name] = name
    if not names_of_parameters or not by_role["labels"]:
        raise Refused("a model_fn without the parameters features and labels", function)
    flags = _flags(names, function)
    names.flags.update({(function, name): modes for name, modes in flags.items()})
    reader = _Reader(names, by_role["labels"])
    if function.decorators:
        raise Refused("a model_fn with decorators", function)
    steps = tuple(reader.block(function.body, ALL_MODES, ()))
    if function.get_docstring() is not None and steps and is_string(steps[0].node):
        steps = steps[1:]
    steps = tuple(step for step in steps if step.target not in flags)
    for position, step in enumerate(steps if any(isinstance(step.node, cst.FunctionDef) for step in steps) else ()):
        later = {name for other in steps[position + 1 :] for name in other.defines} & step.uses
        if later and isinstance(step.node, cst.FunctionDef):
            raise Refused(f"{min(later)}, which is assigned behind a function that reads it", step.node)
    if ALL_MODES - reader.specs.keys():
        missing = ", ".join(sorted(ALL_MODES - reader.specs.keys()))
        if ALL_MODES - reader.specs.keys() != {PREDICT}:
            raise Refused(f"a model_fn that returns nothing in the modes {missing}", function)
    used = {name for step in steps for name in step.uses} | {
        name for spec in reader.specs.values() for value in spec.values() for name in names_read(value)
    }
    if by_role["config"] in used:
        raise Refused("a model_fn that reads its config", function)
    params = by_role["params"]
    for step in steps:
        if params in step.defines and (not step.replaces or params in step.uses):
            raise Refused("a model_fn that changes its params", step.node)
    return ModelFnSource(
        function, names_of_parameters[0], by_role["labels"], by_role["mode"], params, steps, reader.specs
    )


def _flags(names: FileNames, function: cst.FunctionDef) -> dict[str, frozenset[str]]:
    """Return name -> the modes in which it is true, for `training = False; if mode == TRAIN: training = True`."""
    tree, scope = names.tree, names.tree.scopes[function]
    flags = {}
    for name, bindings in scope.names.items():
        values = [binding.node for binding in bindings if binding.kind == "value"]
        if (
            len(values) < 2
            or len(values) < len(bindings)
            or any(names.text(v) not in ("True", "False") for v in values)
        ):
            continue
        true: dict[str, bool] = {}
        for value in sorted(values, key=tree.position):
            around = [above for above in tree.above(value) if not isinstance(above, (cst.IndentedBlock, cst.Else))]
            conditions = around[2 : around.index(function)]  # above the assignment and its line
            if any(not isinstance(each, cst.If) or names.modes_of(each.test) is None for each in conditions):
                break
            true |= dict.fromkeys(modes.at(names.program, tree, value, scope), names.text(value) == "True")
            last = tree.position(value)
        else:
            reads = [use for use in names.places(name) if names.scope(use) is scope and tree.position(use) < last]
            if true.keys() == ALL_MODES and all(isinstance(tree.parents.get(use), cst.AssignTarget) for use in reads):
                flags[name] = frozenset(mode for mode, value in true.items() if value)
    return flags


def check_scope(names: FileNames, item: cst.WithItem) -> None:
    """Check that a `with` only names what is in it.

    Raises:
        Refused: it does more.
    """
    if _Reader(names, "").guards(item):
        raise Refused("tf.control_dependencies in a function that a model_fn calls", item)


def needed(steps: Iterable[Statement], wanted: Iterable[str]) -> list[Statement]:
    """Return the statements that compute the wanted names, in order."""
    chosen, want = [], set(wanted)
    for step in reversed(list(steps)):
        if step.defines & want:
            chosen.append(step)
            if step.replaces:
                want -= step.defines
            want |= step.uses
    return chosen[::-1]


_Guards = tuple[cst.BaseExpression, ...]


class _Reader:
    """Reads the statements of a function, and follows the modes through its branches."""

    def __init__(self, names: FileNames, labels: str) -> None:
        self.names, self.labels = names, labels
        self.open = ALL_MODES  # the modes in which the function has not returned
        self.specs: dict[str, Mapping[str, cst.BaseExpression]] = {}
        self.assigned: dict[tuple[str, str], Mapping[str, cst.BaseExpression]] = {}  # (name, mode) -> the spec

    def block(self, body: cst.BaseSuite, modes: frozenset[str], guards: _Guards) -> Iterator[Statement]:
        for statement in body.body:
            here = modes & self.open
            if not here:
                continue  # after a return
            if isinstance(statement, cst.SimpleStatementLine):
                yield from self.line(statement, here, guards)
            elif isinstance(statement, cst.If):
                yield from self.branch(statement, here, guards)
            elif isinstance(statement, cst.With):
                inside = [guard for item in statement.items for guard in self.guards(item)]
                yield from self.block(statement.body, here, (*guards, *inside))
            elif isinstance(statement, (cst.For, cst.FunctionDef)):
                yield self.statement(statement, here, guards)
            else:
                raise Refused(f"a statement `{type(statement).__name__.lower()}` in a model_fn", statement)

    def line(self, line: cst.SimpleStatementLine, modes: frozenset[str], guards: _Guards) -> Iterator[Statement]:
        for small in line.body:
            if isinstance(small, cst.Return):
                self.returns(small, modes)
            elif isinstance(small, cst.Raise):
                self.open -= modes
                yield self.statement(small, modes, guards)
            elif self.has_no_effect(small, modes) or self.assigns_spec(small, modes):
                continue
            else:
                yield self.statement(small, modes, guards)

    def has_no_effect(self, node: cst.CSTNode, modes: frozenset[str]) -> bool:
        """Return whether a statement is `pass`, or asserts the mode that it is in."""
        if isinstance(node, cst.Pass):
            return True
        allowed = self.names.modes_of(node.test) if isinstance(node, cst.Assert) else None
        return allowed is not None and modes <= allowed

    def returns(self, node: cst.Return, modes: frozenset[str]) -> None:
        value = node.value
        for mode in modes:
            known = self.assigned.get((value.value, mode)) if isinstance(value, cst.Name) else self.spec(value)
            if known is None:
                raise Refused("a model_fn that returns something else than EstimatorSpec(...)", node)
            self.specs[mode] = known
        self.open -= modes

    def spec(self, call: cst.BaseExpression | None) -> Mapping[str, cst.BaseExpression] | None:
        """Return the arguments of `EstimatorSpec(...)`; None for another expression."""
        if not isinstance(call, cst.Call) or self.names.name(call.func) != SPEC:
            return None
        if any(arg.star for arg in call.args):
            raise Refused("an EstimatorSpec with * or **", call)
        return {name: arg.value for name, arg in arguments(call, _FIELDS).items()}

    def assigns_spec(self, node: cst.CSTNode, modes: frozenset[str]) -> bool:
        """Return whether a statement is `spec = EstimatorSpec(...)`, and note what it is in these modes."""
        if not isinstance(node, cst.Assign) or len(node.targets) != 1:
            return False
        target, spec = node.targets[0].target, self.spec(node.value)
        if spec is None or not isinstance(target, cst.Name):
            return False
        self.assigned.update({(target.value, mode): spec for mode in modes})
        return True

    def branch(self, node: cst.If, modes: frozenset[str], guards: _Guards) -> Iterator[Statement]:
        allowed = self.names.modes_of(node.test)
        if allowed is None and self.labels:
            allowed = self._with_labels(node.test)
        if allowed is None:
            if any(isinstance(inner, cst.Return) for inner in iter_nodes(node)):
                raise Refused("a return under a condition that is not of the mode", node)
            yield self.statement(node, modes, guards)
            return
        yield from self.block(node.body, modes & allowed, guards)
        rest = modes - allowed
        if isinstance(node.orelse, cst.If):
            yield from self.branch(node.orelse, rest, guards)
        elif isinstance(node.orelse, cst.Else):
            yield from self.block(node.orelse.body, rest, guards)

    def _with_labels(self, test: cst.BaseExpression) -> frozenset[str] | None:
        """Return the modes of `labels is not None` and `labels is None`."""
        text = self.names.text(test)
        return {
            f"{self.labels} is not None": ALL_MODES - {PREDICT},
            f"{self.labels} is None": frozenset({PREDICT}),
        }.get(text)

    def guards(self, item: cst.WithItem) -> _Guards:
        """Return the arguments of `tf.control_dependencies`; nothing for a `with` that only names what is in it."""
        call = item.item
        name = self.names.name(call.func) if isinstance(call, cst.Call) else ""
        if isinstance(call, cst.Call) and item.asname is None:
            if name in _NAME_SCOPES:
                return ()
            if name == "tf.control_dependencies" and len(call.args) == 1:
                return (call.args[0].value,)
            if name in _VARIABLE_SCOPES:
                parameters = ("name_or_scope", "default_name", "values")
                args = arguments(call, parameters)
                if {"name_or_scope"} <= args.keys() <= {*parameters} and len(args) == len(call.args):
                    return ()
                raise Refused("a variable_scope with options, which shares or initializes variables", item)
        raise Refused(f"`with {self.names.text(call)}` in a model_fn", item)

    def statement(self, node: cst.CSTNode, modes: frozenset[str], guards: _Guards) -> Statement:
        if isinstance(node, (cst.Import, cst.ImportFrom)):
            return Statement(node, modes, guards, self.imported(node))
        return Statement(node, modes, guards, names_bound(node), names_read(node))

    def imported(self, node: cst.Import | cst.ImportFrom) -> frozenset[str]:
        """Return the names that an import of another module than TensorFlow binds."""
        if "tensorflow" in self.names.text(node) or isinstance(node.names, cst.ImportStar):
            raise Refused("an import in a model_fn", node)
        return frozenset(alias.evaluated_alias or alias.evaluated_name.split(".")[0] for alias in node.names)


def is_string(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Expr) and isinstance(node.value, (cst.SimpleString, cst.ConcatenatedString))

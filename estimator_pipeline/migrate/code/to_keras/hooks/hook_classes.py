"""From a program's own hooks and listeners to callbacks: what they read of a session, a callback is told or has."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import children, dotted_of
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, indented

__all__ = ["HookClass", "find", "write"]

_HOOKS = ("tf.estimator.SessionRunHook", "tf.compat.v1.train.SessionRunHook")
_LISTENERS = ("tf.estimator.CheckpointSaverListener", "tf.compat.v1.train.CheckpointSaverListener")
_ARGS = ("tf.estimator.SessionRunArgs", "tf.compat.v1.train.SessionRunArgs")
_TIMERS = ("tf.estimator.SecondOrStepTimer", "tf.compat.v1.train.SecondOrStepTimer")
_STEPS = ("tf.compat.v1.train.get_global_step", "tf.compat.v1.train.get_or_create_global_step")
_TRAINED = "tf.compat.v1.trainable_variables"
# Method -> how many parameters it has behind self.
_METHODS = {"begin": 0, "after_create_session": 2, "before_run": 1, "after_run": 2, "end": 1}
_OF_LISTENERS = {"begin": 0, "before_save": 2, "after_save": 2, "end": 2}
# What a tf.keras.callbacks.Callback has.
_TAKEN = ("model", "params", "validation_data", "set_model", "set_params")
_HARMLESS = r"tf\.(compat\.v1\.logging|io\.gfile|compat\.v1\.gfile|get_logger|summary|errors)\b"


@dataclass
class _Handle:
    """An attribute that is something of the graph.

    Attributes:
        kind: step, tensor (by its name), or values (worked out of the trained variables).
        node: of a tensor its name; of values the expression.
        statement: what sets it.
    """

    kind: str
    node: cst.BaseExpression
    statement: cst.CSTNode


@dataclass
class HookClass:
    """A class of hooks or of listeners.

    Attributes:
        tensors: the names of the tensors that it asks for, as expressions of its constructor's parameters or literals.
        calls: what makes its objects.
    """

    node: cst.ClassDef
    is_listener: bool
    calls: list[cst.Call] = field(default_factory=list)
    tensors: list[cst.BaseExpression] = field(default_factory=list)
    handles: dict[str, _Handle] = field(default_factory=dict)


def find(reader: Rewriter) -> list[HookClass]:
    """Return the classes of hooks and listeners of a file."""
    found = []
    for node in reader.tree.module.body:
        if not isinstance(node, cst.ClassDef) or len(node.bases) != 1:
            continue
        base = reader.name(node.bases[0].value)
        if base in (*_HOOKS, *_LISTENERS):
            made = HookClass(node, base in _LISTENERS)
            made.calls = [call for call in reader.tree.calls if _is(call.func, node.name.value)]
            found.append(made)
    names = {one.node.name.value for one in found}
    for inner in (node for node in _nodes(reader.tree.module) if isinstance(node, cst.ClassDef)):
        for one in inner.bases:
            if isinstance(one.value, cst.Name) and one.value.value in names:
                raise NotConvertible("a hook that comes from another one of this file", inner.name)
    return found


def _is(node: cst.CSTNode | None, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


def write(reader: Rewriter, made: HookClass) -> None:
    """Lets a reader write a class of hooks as one of callbacks, and one of listeners as one without a base.

    Raises:
        NotConvertible: it does something with its session that a callback cannot.
    """
    _Class(reader, made).write()


class _Class:
    def __init__(self, reader: Rewriter, made: HookClass) -> None:
        self.reader, self.made, self.node = reader, made, made.node
        self.unit = reader.tree.module.default_indent
        if made.node.decorators or not isinstance(made.node.body, cst.IndentedBlock):
            raise NotConvertible("a hook with a decorator, or in one line", made.node.name)
        self.body = list(made.node.body.body)
        self.methods = {one.name.value: one for one in self.body if isinstance(one, cst.FunctionDef)}
        self.asked: cst.BaseExpression | None = None
        self.gone: set[cst.CSTNode] = set()

    def write(self) -> None:
        known = _OF_LISTENERS if self.made.is_listener else _METHODS
        for name, method in self.methods.items():
            if name in known:
                self._check_head(method, known[name])
            if name in _TAKEN:
                raise NotConvertible(f"a hook with a method {name}, which callbacks have", method.name)
        self._find_handles()
        if "before_run" in self.methods and not self.made.is_listener:
            self._find_what_is_asked(self.methods["before_run"])
        for call in _calls(self.node):
            if self.reader.called(call) in _TIMERS:
                self.reader.needs.update(("Timer", "time"))
                self.reader.replaced[call.func] = "Timer"
        for name in known:
            if name in self.methods:
                self._replace_in(self.methods[name])
        self._check_attributes()
        self.reader.replaced[self.node] = self._text

    def _check_head(self, method: cst.FunctionDef, count: int) -> None:
        params = method.params
        if method.decorators or len(params.params) != count + 1 or params.kwonly_params or params.star_kwarg:
            raise NotConvertible(f"{method.name.value} of a hook with other parameters than it has", method.name)
        if not isinstance(method.body, cst.IndentedBlock):
            raise NotConvertible("a method of a hook in one line", method.name)
        taken = {"batch", "logs"} & set(self.reader.tree.scopes[method].names)
        if taken:
            raise NotConvertible(f"a hook with a variable {min(taken)}, which is a parameter of callbacks", method.name)

    # What is of the graph

    def _find_handles(self) -> None:
        """Attributes that begin gives something of the graph."""
        method = self.methods.get("begin")
        graphs: set[str] = set()
        for statement in _statements(method):
            assign = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
            target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
            if not isinstance(assign, cst.Assign):
                continue
            value = assign.value
            name = self.reader.called(value)
            if isinstance(target, cst.Name) and name == "tf.compat.v1.get_default_graph":
                graphs.add(target.value)
                self.gone.add(statement)
                continue
            if not isinstance(target, cst.Attribute) or not _is(target.value, "self"):
                continue
            handle = self._handle(value, graphs, statement)
            if handle is not None:
                self.made.handles[target.attr.value] = handle
                self.gone.add(statement)

    def _handle(self, value: cst.BaseExpression, graphs: set[str], statement: cst.CSTNode) -> _Handle | None:
        name = self.reader.called(value)
        if name in _STEPS:
            return _Handle("step", value, statement)
        if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and (
            value.func.attr.value == "get_tensor_by_name"
        ):  # fmt: skip
            owner = value.func.value
            known = isinstance(owner, cst.Name) and owner.value in graphs
            if not known and self.reader.called(owner) != "tf.compat.v1.get_default_graph":
                raise NotConvertible("a tensor of a graph that cannot be told", value)
            if len(value.args) != 1:
                raise NotConvertible("a tensor whose name cannot be told", value)
            self.made.tensors.append(value.args[0].value)
            return _Handle("tensor", value.args[0].value, statement)
        if any(self.reader.called(call) == _TRAINED for call in _calls(value)):
            return _Handle("values", value, statement)
        return None

    def _find_what_is_asked(self, method: cst.FunctionDef) -> None:
        """What before_run asks for; whatever else it does stays."""
        *_, last = method.body.body
        returned = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
        if not isinstance(returned, cst.Return):
            if any(isinstance(one, cst.Return) for one in _nodes(method)):
                raise NotConvertible("before_run that asks for other things at other times", method.name)
            return
        self.gone.add(last)
        value = returned.value
        if value is None or _is(value, "None"):
            return
        if self.reader.called(value) not in _ARGS or not isinstance(value, cst.Call):
            raise NotConvertible("before_run that returns something else than its SessionRunArgs", returned)
        given = arguments(value, ("fetches", "feed_dict", "options"))
        if given.keys() - {"fetches"} or "fetches" not in given:
            raise NotConvertible("before_run that feeds the session, or sets its options", value)
        self.asked = given["fetches"].value
        for one in self._parts(self.asked):
            handle = self._handle_of(one)
            if handle is None or handle.kind == "values":
                raise NotConvertible("what before_run asks for cannot be told by a callback", one)

    def _parts(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        if isinstance(node, (cst.List, cst.Tuple)):
            return [one.value for one in node.elements]
        if isinstance(node, cst.Dict):
            return [one.value for one in node.elements if isinstance(one, cst.DictElement)]
        return [node]

    def _handle_of(self, node: cst.BaseExpression) -> _Handle | None:
        """Return what of the graph an expression is: an attribute that was given it, or a call that gives it."""
        if isinstance(node, cst.Attribute) and _is(node.value, "self"):
            return self.made.handles.get(node.attr.value)
        return self._handle(node, set(), node)

    # Text

    def _value(self, handle: _Handle, *, after: bool) -> str:
        """Return a value of the graph as a callback has it.

        Args:
            after: asked of a session that has done the step, and not together with it.
        """
        if handle.kind == "step":
            # Together with a step a hook reads the number of the steps before it.
            return "int(self.model.optimizer.iterations)" + ("" if after else " - 1")
        if handle.kind == "tensor":
            if after:
                raise NotConvertible("a tensor that is worked out by a session of its own", handle.node)
            return f"logs[{self.reader.text(handle.node)}]"
        for call in _calls(handle.node):
            if self.reader.called(call) == _TRAINED:
                self.reader.replaced[call] = "self.model.trainable_variables"
        for node in _nodes(handle.node):
            owner = node.value if isinstance(node, cst.Attribute) and node.attr.value == "name" else None
            if isinstance(owner, cst.Attribute) and owner.attr.value == "op":
                self.reader.replaced[node] = f"{self.reader.text(owner.value)}.name.partition(':')[0]"
        told = ["lambda one: one.numpy()", self.reader.text(handle.node)]
        return self.reader.call(f"{self.reader.tf}.nest.map_structure", told, handle.node)

    def _structure(self, *, bare: bool) -> str:
        """`run_values.results`, as what before_run asked for says."""
        node = self.asked
        if node is None:
            raise NotConvertible("results of a step that before_run did not ask for", self.node.name)
        handles = [(one, self._handle_of(one)) for one in self._parts(node)]
        values = [self._value(handle, after=False) for _, handle in handles if handle is not None]
        if isinstance(node, cst.Dict):
            keys = [self.reader.text(one.key) for one in node.elements if isinstance(one, cst.DictElement)]
            return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"
        if isinstance(node, (cst.List, cst.Tuple)):
            joined = ", ".join(values)
            return joined if bare and len(values) > 1 else f"[{joined}]"
        return values[0] if bare or values[0].endswith("]") else f"({values[0]})"

    def _replace_in(self, method: cst.FunctionDef) -> None:
        """What a method does with what a session hands it."""
        reader = self.reader
        names = [one.name.value for one in method.params.params[1:]]
        kind = method.name.value
        roles = dict(
            zip(
                names,
                {
                    "after_create_session": ["session", "coord"],
                    "before_run": ["context"],
                    "after_run": ["context", "values"],
                    "end": ["session"],
                }.get(kind, []),
                strict=False,
            )
        )
        if self.made.is_listener:
            roles = {names[0]: "session"} if kind != "begin" else {}
        self.gone.update(one for one in _statements(method) if _deletes(one, set(names)))
        done: set[cst.CSTNode] = set()
        for node in _nodes(method.body):
            self._replace(node, roles, done)
        for node in _nodes(method.body):
            if not isinstance(node, cst.Name) or node.value not in roles or node in done:
                continue
            if not any(above in self.gone for above in (node, *reader.tree.above(node))):
                raise NotConvertible(f"what a hook does with {node.value} has no equal in a callback", node)

    def _replace(self, node: cst.CSTNode, roles: dict[str, str], done: set[cst.CSTNode]) -> None:
        reader = self.reader
        spelled = dotted_of(node.func) if isinstance(node, cst.Call) else None
        first, _, rest = (spelled or "").partition(".")
        role = roles.get(first)
        if isinstance(node, cst.Call) and role == "context" and rest == "request_stop" and not node.args:
            if not isinstance(reader.tree.parents.get(node), cst.Expr):
                raise NotConvertible("request_stop within another expression", node)
            reader.replaced[node] = "self.model.stop_training = True"
            done.add(_root(node.func))
        is_run = (role, rest) in (("context", "session.run"), ("session", "run"))
        if isinstance(node, cst.Call) and is_run:
            handle = self._handle_of(node.args[0].value) if len(node.args) == 1 else None
            if handle is None:
                raise NotConvertible("a session that is asked for what cannot be told", node)
            reader.replaced[node] = lambda: self._value(handle, after=True)
            done.add(_root(node.func))
        values = next((name for name, role in roles.items() if role == "values"), "")
        if isinstance(node, cst.Attribute) and _is(node.value, values):
            if node.attr.value != "results":
                raise NotConvertible(f"{node.attr.value} of what a session gave", node)
            done.add(_root(node))
            parent = reader.tree.parents.get(node)
            bare = isinstance(parent, cst.Assign) and parent.value is node
            reader.replaced[node] = lambda: self._structure(bare=bare)
        if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Attribute) and _is(node.value.value, values):
            one = self._element(node)
            if one is not None:
                reader.replaced[node] = lambda: self._value(one, after=False)

    def _element(self, node: cst.Subscript) -> _Handle | None:
        """Return what `run_values.results["a"]` is, by what before_run asked for."""
        index = node.slice[0].slice
        source = self.reader.source(index.value) if isinstance(index, cst.Index) else ""
        if isinstance(self.asked, cst.Dict):
            pairs = [one for one in self.asked.elements if isinstance(one, cst.DictElement)]
            found = [one.value for one in pairs if self.reader.source(one.key) == source]
        elif isinstance(self.asked, (cst.List, cst.Tuple)) and source.isdigit():
            found = [one.value for one in self.asked.elements][int(source) : int(source) + 1]
        else:
            return None
        return self._handle_of(found[0]) if len(found) == 1 else None

    def _check_attributes(self) -> None:
        """What of the graph an attribute was is not there any more where something else is done with it."""
        reader = self.reader
        for method in self.methods.values():
            for node in _nodes(method):
                if not isinstance(node, cst.Attribute) or not _is(node.value, "self"):
                    continue
                name = node.attr.value
                around = [node, *reader.tree.above(node)]
                if name in _TAKEN and not self.made.is_listener:
                    raise NotConvertible(f"a hook with an attribute {name}, which callbacks have", node)
                if name in self.made.handles and not any(one in self.gone or one in reader.replaced for one in around):
                    raise NotConvertible(f"what of the graph self.{name} is, is used otherwise than asked for", node)
        for method in self.methods.values():
            for node in _nodes(method):
                if isinstance(node, (cst.Attribute, cst.Name)) and not any(
                    one in self.gone or one in reader.replaced for one in (node, *reader.tree.above(node))
                ):
                    name = reader.name(node)
                    parent = reader.tree.parents.get(node)
                    if (
                        name.startswith("tf.")
                        and not re.match(_HARMLESS, name)
                        and not isinstance(parent, cst.Attribute)
                    ):
                        raise NotConvertible(f"{name} in a hook: a callback has no graph", node)

    def _text(self) -> str:
        base = "" if self.made.is_listener else f"({self.reader.tf}.keras.callbacks.Callback)"
        lines = [f"class {self.node.name.value}{base}:"]
        parts = []
        for one in self.body:
            text = self._method(one) if isinstance(one, cst.FunctionDef) else self._plain(one)
            if text:
                parts.append((indented(text, self.unit), isinstance(one, cst.FunctionDef)))
        for place, (text, is_method) in enumerate(parts):
            apart = place and (is_method or parts[place - 1][1])
            lines.append(f"\n{text}" if apart else text)
        return "\n".join(lines) if parts else f"{lines[0]}\n{self.unit}pass"

    def _plain(self, node: cst.CSTNode) -> str:
        return textwrap.dedent(self.reader.statement(node))

    def _method(self, node: cst.FunctionDef) -> str:
        name = node.name.value
        if self.made.is_listener:
            if name not in _OF_LISTENERS or name == "begin":
                return self._plain(node)
            return self._written(f"def {name}(self, {node.params.params[2].name.value}):", self._body(node), node)
        if name == "__init__":
            return self._init(node)
        if name not in _METHODS:
            return self._plain(node)
        if name == "after_create_session" and "begin" in self.methods:
            return ""
        body = self._body(node)
        if name in ("begin", "after_create_session"):
            later = self.methods.get("after_create_session") if name == "begin" else None
            body += self._body(later) if later is not None else []
            return self._written("def on_train_begin(self, logs=None):", body, node)
        heads = {"before_run": "on_train_batch_begin(self, batch, logs=None)",
                 "after_run": "on_train_batch_end(self, batch, logs=None)",
                 "end": "on_train_end(self, logs=None)"}  # fmt: skip
        return self._written(f"def {heads[name]}:", body, node)

    def _body(self, node: cst.FunctionDef) -> list[str]:
        statements = node.body.body
        if all(one in self.gone or _is_doc(one) for one in statements):
            return []
        return [textwrap.dedent(self.reader.statement(one)) for one in statements if one not in self.gone]

    def _written(self, head: str, body: list[str], node: cst.FunctionDef) -> str:
        if not body:
            return ""
        return f"{head}\n" + "\n".join(indented(one, self.unit) for one in body)

    def _init(self, node: cst.FunctionDef) -> str:
        if re.search(r"\bsuper\(", self.reader.source(node.body)):
            return self._plain(node)
        head = f"def __init__({self.reader.text(node.params)}):"
        body = [textwrap.dedent(self.reader.statement(one)) for one in node.body.body]
        place = 1 if _is_doc(node.body.body[0]) else 0
        body.insert(place, "super().__init__()")
        return self._written(head, body, node)


def _nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in children(node):
        yield from _nodes(child)


def _calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    return (one for one in _nodes(node) if isinstance(one, cst.Call))


def _root(node: cst.CSTNode) -> cst.CSTNode:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


def _statements(method: cst.FunctionDef | None) -> list[cst.CSTNode]:
    return list(method.body.body) if method is not None else []


def _deletes(node: cst.CSTNode, names: set[str]) -> bool:
    """`del session`, and its like."""
    one = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    if not isinstance(one, cst.Del):
        return False
    target = one.target
    told = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]
    return all(isinstance(each, cst.Name) and each.value in names for each in told)


def _is_doc(node: cst.CSTNode) -> bool:
    one = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    return isinstance(one, cst.Expr) and isinstance(one.value, (cst.SimpleString, cst.ConcatenatedString))

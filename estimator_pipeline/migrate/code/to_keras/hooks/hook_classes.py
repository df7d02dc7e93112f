"""Conversion of a program's hook and listener classes to Keras callbacks."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import dotted_of, iter_nodes
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import calls_in
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, indented

__all__ = ["HookClass", "find", "write"]

_HOOKS = ("tf.estimator.SessionRunHook", "tf.compat.v1.train.SessionRunHook")
_LISTENERS = ("tf.estimator.CheckpointSaverListener", "tf.compat.v1.train.CheckpointSaverListener")
_ARGS = ("tf.estimator.SessionRunArgs", "tf.compat.v1.train.SessionRunArgs")
_TIMERS = ("tf.estimator.SecondOrStepTimer", "tf.compat.v1.train.SecondOrStepTimer")
_STEPS = ("tf.compat.v1.train.get_global_step", "tf.compat.v1.train.get_or_create_global_step")
_TRAINED = "tf.compat.v1.trainable_variables"
# Method -> its number of parameters after self.
_METHODS = {"begin": 0, "after_create_session": 2, "before_run": 1, "after_run": 2, "end": 1}
_OF_LISTENERS = {"begin": 0, "before_save": 2, "after_save": 2, "end": 2}
# Attributes of tf.keras.callbacks.Callback.
_TAKEN = ("model", "params", "validation_data", "set_model", "set_params")
_HARMLESS = r"tf\.(compat\.v1\.logging|io\.gfile|compat\.v1\.gfile|get_logger|summary|errors)\b"


@dataclass
class _Handle:
    """An attribute that refers to the graph.

    Attributes:
        kind: "step", "tensor" (by name) or "values" (computed from the trainable variables).
        node: For a tensor its name, for values the expression.
        statement: The statement that sets the attribute.
    """

    kind: str
    node: cst.BaseExpression
    statement: cst.CSTNode


@dataclass
class HookClass:
    """A hook class or a listener class.

    Attributes:
        node: The class.
        is_listener: Whether it is a CheckpointSaverListener.
        calls: The calls that create its objects.
        tensors: Names of the fetched tensors, as literals or constructor parameters.
        handles: Attribute -> what it refers to in the graph.
    """

    node: cst.ClassDef
    is_listener: bool
    calls: list[cst.Call] = field(default_factory=list)
    tensors: list[cst.BaseExpression] = field(default_factory=list)
    handles: dict[str, _Handle] = field(default_factory=dict)


def find(reader: Rewriter) -> list[HookClass]:
    """Return a file's hook and listener classes."""
    classes = []
    for node in reader.tree.module.body:
        if not isinstance(node, cst.ClassDef) or len(node.bases) != 1:
            continue
        base = reader.name(node.bases[0].value)
        if base in (*_HOOKS, *_LISTENERS):
            hook_class = HookClass(node, base in _LISTENERS)
            hook_class.calls = [call for call in reader.tree.calls if _is_name(call.func, node.name.value)]
            classes.append(hook_class)
    names = {known.node.name.value for known in classes}
    for inner in (node for node in iter_nodes(reader.tree.module) if isinstance(node, cst.ClassDef)):
        for base_arg in inner.bases:
            if isinstance(base_arg.value, cst.Name) and base_arg.value.value in names:
                raise NotConvertible("a subclass of another hook in this file", inner.name)
    return classes


def _is_name(node: cst.CSTNode | None, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


def write(reader: Rewriter, hook_class: HookClass) -> None:
    """Let a rewriter convert a hook class to a callback, or remove a listener's base class.

    Raises:
        NotConvertible: The class uses its session in a way that a callback cannot.
    """
    _Class(reader, hook_class).write()


class _Class:
    def __init__(self, reader: Rewriter, hook_class: HookClass) -> None:
        self.reader, self.hook_class, self.node = reader, hook_class, hook_class.node
        self.unit = reader.tree.module.default_indent
        if hook_class.node.decorators or not isinstance(hook_class.node.body, cst.IndentedBlock):
            raise NotConvertible("a hook class with a decorator, or on a single line", hook_class.node.name)
        self.body = list(hook_class.node.body.body)
        self.methods = {member.name.value: member for member in self.body if isinstance(member, cst.FunctionDef)}
        self.fetches: cst.BaseExpression | None = None
        self.gone: set[cst.CSTNode] = set()

    def write(self) -> None:
        known = _OF_LISTENERS if self.hook_class.is_listener else _METHODS
        for name, method in self.methods.items():
            if name in known:
                self._check_head(method, known[name])
            if name in _TAKEN:
                raise NotConvertible(f"a hook with a method {name}, which callbacks have", method.name)
        self._find_handles()
        if "before_run" in self.methods and not self.hook_class.is_listener:
            self._find_fetches(self.methods["before_run"])
        for call in calls_in(self.node):
            if self.reader.called(call) in _TIMERS:
                self.reader.needs.add("time")
                self.reader.replaced[call.func] = self.reader.helper("Timer")
        for name in known:
            if name in self.methods:
                self._replace_in(self.methods[name])
        self._check_attributes()
        self.reader.replaced[self.node] = self._text

    def _check_head(self, method: cst.FunctionDef, count: int) -> None:
        params = method.params
        if method.decorators or len(params.params) != count + 1 or params.kwonly_params or params.star_kwarg:
            raise NotConvertible(f"{method.name.value} of a hook with unexpected parameters", method.name)
        if not isinstance(method.body, cst.IndentedBlock):
            raise NotConvertible("a method of a hook on a single line", method.name)
        taken = {"batch", "logs"} & set(self.reader.tree.scopes[method].names)
        if taken:
            raise NotConvertible(f"a hook with a variable {min(taken)}, which is a parameter of callbacks", method.name)

    # References to the graph

    def _find_handles(self) -> None:
        """Find the attributes that `begin` sets to objects of the graph."""
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
            if not isinstance(target, cst.Attribute) or not _is_name(target.value, "self"):
                continue
            handle = self._handle(value, graphs, statement)
            if handle is not None:
                self.hook_class.handles[target.attr.value] = handle
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
                raise NotConvertible("a tensor of a graph that is not known statically", value)
            if len(value.args) != 1:
                raise NotConvertible("a tensor whose name is not known statically", value)
            self.hook_class.tensors.append(value.args[0].value)
            return _Handle("tensor", value.args[0].value, statement)
        if any(self.reader.called(call) == _TRAINED for call in calls_in(value)):
            return _Handle("values", value, statement)
        return None

    def _find_fetches(self, method: cst.FunctionDef) -> None:
        """Find what `before_run` fetches; its other statements are unchanged."""
        *_, last = method.body.body
        returned = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
        if not isinstance(returned, cst.Return):
            if any(isinstance(inner, cst.Return) for inner in iter_nodes(method)):
                raise NotConvertible("before_run that fetches different values at different times", method.name)
            return
        self.gone.add(last)
        value = returned.value
        if value is None or _is_name(value, "None"):
            return
        if self.reader.called(value) not in _ARGS or not isinstance(value, cst.Call):
            raise NotConvertible("before_run that does not return SessionRunArgs", returned)
        args = arguments(value, ("fetches", "feed_dict", "options"))
        if args.keys() - {"fetches"} or "fetches" not in args:
            raise NotConvertible("before_run that sets feed_dict or options", value)
        self.fetches = args["fetches"].value
        for part in self._parts(self.fetches):
            handle = self._handle_of(part)
            if handle is None or handle.kind == "values":
                raise NotConvertible("before_run fetches values that a callback does not have", part)

    def _parts(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        if isinstance(node, (cst.List, cst.Tuple)):
            return [element.value for element in node.elements]
        if isinstance(node, cst.Dict):
            return [element.value for element in node.elements if isinstance(element, cst.DictElement)]
        return [node]

    def _handle_of(self, node: cst.BaseExpression) -> _Handle | None:
        """Return the graph reference of an expression: an attribute or a call."""
        if isinstance(node, cst.Attribute) and _is_name(node.value, "self"):
            return self.hook_class.handles.get(node.attr.value)
        return self._handle(node, set(), node)

    # Text

    def _value(self, handle: _Handle, *, after: bool) -> str:
        """Return the callback's expression for a value of the graph.

        Args:
            handle: The reference to the value.
            after: Whether a separate session call reads it after the step.
        """
        if handle.kind == "step":
            # Fetched together with a step, the global step does not count this step yet.
            return "int(self.model.optimizer.iterations)" + ("" if after else " - 1")
        if handle.kind == "tensor":
            if after:
                raise NotConvertible("a tensor that is computed by a separate session call", handle.node)
            return f"logs[{self.reader.text(handle.node)}]"
        for call in calls_in(handle.node):
            if self.reader.called(call) == _TRAINED:
                self.reader.replaced[call] = "self.model.trainable_variables"
        for node in iter_nodes(handle.node):
            owner = node.value if isinstance(node, cst.Attribute) and node.attr.value == "name" else None
            if isinstance(owner, cst.Attribute) and owner.attr.value == "op":
                self.reader.replaced[node] = f"{self.reader.text(owner.value)}.name.partition(':')[0]"
        texts = ["lambda value: value.numpy()", self.reader.text(handle.node)]
        return self.reader.call(f"{self.reader.tf}.nest.map_structure", texts, handle.node)

    def _structure(self, *, bare: bool) -> str:
        """Return the expression for `run_values.results`, in the structure of the fetches."""
        node = self.fetches
        if node is None:
            raise NotConvertible("results of a step without fetches in before_run", self.node.name)
        handles = [(part, self._handle_of(part)) for part in self._parts(node)]
        values = [self._value(handle, after=False) for _, handle in handles if handle is not None]
        if isinstance(node, cst.Dict):
            keys = [self.reader.text(element.key) for element in node.elements if isinstance(element, cst.DictElement)]
            return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"
        if isinstance(node, (cst.List, cst.Tuple)):
            joined = ", ".join(values)
            return joined if bare and len(values) > 1 else f"[{joined}]"
        return values[0] if bare or values[0].endswith("]") else f"({values[0]})"

    def _replace_in(self, method: cst.FunctionDef) -> None:
        """Replace a method's uses of the session's arguments."""
        reader = self.reader
        names = [param.name.value for param in method.params.params[1:]]
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
        if self.hook_class.is_listener:
            roles = {names[0]: "session"} if kind != "begin" else {}
        self.gone.update(statement for statement in _statements(method) if _deletes(statement, set(names)))
        done: set[cst.CSTNode] = set()
        for node in iter_nodes(method.body):
            self._replace(node, roles, done)
        for node in iter_nodes(method.body):
            if not isinstance(node, cst.Name) or node.value not in roles or node in done:
                continue
            if not any(above in self.gone for above in (node, *reader.tree.above(node))):
                raise NotConvertible(f"a use of {node.value} in a hook that has no equivalent in a callback", node)

    def _replace(self, node: cst.CSTNode, roles: dict[str, str], done: set[cst.CSTNode]) -> None:
        reader = self.reader
        spelled = dotted_of(node.func) if isinstance(node, cst.Call) else None
        first, _, rest = (spelled or "").partition(".")
        role = roles.get(first)
        if isinstance(node, cst.Call) and role == "context" and rest == "request_stop" and not node.args:
            if not isinstance(reader.tree.parents.get(node), cst.Expr):
                raise NotConvertible("request_stop inside another expression", node)
            reader.replaced[node] = "self.model.stop_training = True"
            done.add(_root(node.func))
        is_run = (role, rest) in (("context", "session.run"), ("session", "run"))
        if isinstance(node, cst.Call) and is_run:
            handle = self._handle_of(node.args[0].value) if len(node.args) == 1 else None
            if handle is None:
                raise NotConvertible("a session call whose fetches are not known statically", node)
            reader.replaced[node] = lambda: self._value(handle, after=True)
            done.add(_root(node.func))
        values = next((name for name, role in roles.items() if role == "values"), "")
        if isinstance(node, cst.Attribute) and _is_name(node.value, values):
            if node.attr.value != "results":
                raise NotConvertible(f"{node.attr.value} of the session's results", node)
            done.add(_root(node))
            parent = reader.tree.parents.get(node)
            bare = isinstance(parent, cst.Assign) and parent.value is node
            reader.replaced[node] = lambda: self._structure(bare=bare)
        if (
            isinstance(node, cst.Subscript)
            and isinstance(node.value, cst.Attribute)
            and _is_name(node.value.value, values)
        ):
            handle_of_element = self._element(node)
            if handle_of_element is not None:
                reader.replaced[node] = lambda: self._value(handle_of_element, after=False)

    def _element(self, node: cst.Subscript) -> _Handle | None:
        """Return the graph reference of `run_values.results["a"]`."""
        index = node.slice[0].slice
        source = self.reader.source(index.value) if isinstance(index, cst.Index) else ""
        if isinstance(self.fetches, cst.Dict):
            pairs = [element for element in self.fetches.elements if isinstance(element, cst.DictElement)]
            values = [element.value for element in pairs if self.reader.source(element.key) == source]
        elif isinstance(self.fetches, (cst.List, cst.Tuple)) and source.isdigit():
            values = [element.value for element in self.fetches.elements][int(source) : int(source) + 1]
        else:
            return None
        return self._handle_of(values[0]) if len(values) == 1 else None

    def _check_attributes(self) -> None:
        """Check that graph references are not used in other ways than by fetching."""
        reader = self.reader
        for method in self.methods.values():
            for node in iter_nodes(method):
                if not isinstance(node, cst.Attribute) or not _is_name(node.value, "self"):
                    continue
                name = node.attr.value
                around = [node, *reader.tree.above(node)]
                if name in _TAKEN and not self.hook_class.is_listener:
                    raise NotConvertible(f"a hook with an attribute {name}, which callbacks have", node)
                if name in self.hook_class.handles and not any(
                    ancestor in self.gone or ancestor in reader.replaced for ancestor in around
                ):
                    raise NotConvertible(
                        f"self.{name} is a part of the graph and is used in other ways than by fetching it", node
                    )
        for method in self.methods.values():
            for node in iter_nodes(method):
                if isinstance(node, (cst.Attribute, cst.Name)) and not any(
                    ancestor in self.gone or ancestor in reader.replaced
                    for ancestor in (node, *reader.tree.above(node))
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
        base = "" if self.hook_class.is_listener else f"({self.reader.tf}.keras.callbacks.Callback)"
        lines = [f"class {self.node.name.value}{base}:"]
        parts = []
        for member in self.body:
            text = self._method(member) if isinstance(member, cst.FunctionDef) else self._plain(member)
            if text:
                parts.append((indented(text, self.unit), isinstance(member, cst.FunctionDef)))
        for place, (text, is_method) in enumerate(parts):
            separate = place and (is_method or parts[place - 1][1])
            lines.append(f"\n{text}" if separate else text)
        return "\n".join(lines) if parts else f"{lines[0]}\n{self.unit}pass"

    def _plain(self, node: cst.CSTNode) -> str:
        return textwrap.dedent(self.reader.statement(node))

    def _method(self, node: cst.FunctionDef) -> str:
        name = node.name.value
        if self.hook_class.is_listener:
            if name not in _OF_LISTENERS or name == "begin":
                return self._plain(node)
            return self._format_method(f"def {name}(self, {node.params.params[2].name.value}):", self._body(node), node)
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
            return self._format_method("def on_train_begin(self, logs=None):", body, node)
        heads = {"before_run": "on_train_batch_begin(self, batch, logs=None)",
                 "after_run": "on_train_batch_end(self, batch, logs=None)",
                 "end": "on_train_end(self, logs=None)"}  # fmt: skip
        return self._format_method(f"def {heads[name]}:", body, node)

    def _body(self, node: cst.FunctionDef) -> list[str]:
        statements = node.body.body
        if all(statement in self.gone or _is_doc(statement) for statement in statements):
            return []
        return [
            textwrap.dedent(self.reader.statement(statement)) for statement in statements if statement not in self.gone
        ]

    def _format_method(self, head: str, body: list[str], node: cst.FunctionDef) -> str:
        if not body:
            return ""
        return f"{head}\n" + "\n".join(indented(statement, self.unit) for statement in body)

    def _init(self, node: cst.FunctionDef) -> str:
        if any(isinstance(below, cst.Name) and below.value == "super" for below in iter_nodes(node.body)):
            return self._plain(node)
        head = f"def __init__({self.reader.text(node.params)}):"
        body = [textwrap.dedent(self.reader.statement(statement)) for statement in node.body.body]
        place = 1 if _is_doc(node.body.body[0]) else 0
        body.insert(place, "super().__init__()")
        return self._format_method(head, body, node)


def _root(node: cst.CSTNode) -> cst.CSTNode:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


def _statements(method: cst.FunctionDef | None) -> list[cst.CSTNode]:
    return list(method.body.body) if method is not None else []


def _deletes(node: cst.CSTNode, names: set[str]) -> bool:
    """Whether a statement only deletes some names, as in `del session`."""
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    if not isinstance(small, cst.Del):
        return False
    target = small.target
    targets = [target_node.value for target_node in target.elements] if isinstance(target, cst.Tuple) else [target]
    return all(isinstance(target_node, cst.Name) and target_node.value in names for target_node in targets)


def _is_doc(node: cst.CSTNode) -> bool:
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    return isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))

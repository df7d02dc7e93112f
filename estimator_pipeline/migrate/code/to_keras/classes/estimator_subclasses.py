"""Conversion of subclasses of `tf.estimator.Estimator`.

`lower` replaces such a class by functions and its constructor calls by Estimators. The resulting program is equivalent
and is converted like any other. `Lowered.restore_methods` then turns the functions into methods of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst import matchers

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.name_resolution import ClassOf, FunctionOf, Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree
from estimator_pipeline.migrate.code.to_keras.classes.inherited_methods import as_methods
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, names_in

__all__ = ["Lowered", "lower"]

_ESTIMATOR = "tf.estimator.Estimator"
_FIELDS = ("model_fn", "model_dir", "config", "params", "warm_start_from")
# Methods with these names would override or be called by the Estimator or the Keras model.
_RESERVED = ("config", "eval_dir", "evaluate", "experimental_export_all_saved_models", "export_saved_model",
        "export_savedmodel", "get_variable_names", "get_variable_value", "latest_checkpoint", "model_dir", "model_fn",
        "params", "predict", "train", "compile", "fit", "call", "build", "compute_loss", "compute_metrics", "init",
        "predictions", "predict_step", "train_step", "test_step", "save", "summary", "head",
        "head_metrics")  # fmt: skip


@dataclass
class _Class:
    """A subclass of Estimator.

    Attributes:
        node: The class.
        name: Its name.
        base: Text of its base class.
        stem: Prefix of the names of its functions.
        init: Its `__init__`.
        model_fn: The model_fn, a function in `__init__`.
        before: The statements of `__init__` before the call of the base class.
        estimator_args: The arguments of that call.
        methods: Its other methods.
        network: Names of the methods that the model_fn needs; the others are called on the Estimator.
    """

    node: cst.ClassDef
    name: str
    base: str
    stem: str
    init: cst.FunctionDef
    model_fn: cst.FunctionDef
    before: list[cst.SimpleStatementLine | cst.FunctionDef]
    estimator_args: dict[str, cst.Arg]
    methods: dict[str, cst.FunctionDef]
    network: set[str] = field(default_factory=set)

    def function(self, name: str) -> str:
        return f"{self.stem}__{name}"


@dataclass
class Lowered:
    """A file after its Estimator subclasses were replaced by functions.

    Attributes:
        text: The file's new text.
        before: The file's original text.
        classes: The replaced classes.
    """

    text: str
    before: str
    classes: list[_Class]

    @property
    def first(self) -> cst.CSTNode:
        """The name node of the first class."""
        return self.classes[0].node.name

    def line(self, number: int) -> int:
        """Return the original line of a line of the new text, or 0."""
        stripped = self.text.splitlines()[number - 1].strip() if number else ""
        places = [at for at, line in enumerate(self.before.splitlines(), 1) if stripped and line.strip() == stripped]
        return min(places, key=lambda at: abs(at - number), default=0)

    def restore_names(self, reason: str) -> str:
        """Return a message with the program's original names."""
        for lowered_class in self.classes:
            reason = reason.replace(f"{lowered_class.stem}_model_fn", lowered_class.model_fn.name.value).replace(
                f"{lowered_class.stem}__", ""
            )
        return reason

    def restore_methods(self, text: str) -> str:
        """Return the converted text with the functions as methods of the models."""
        for lowered_class in self.classes:
            life = [
                name
                for name, node in lowered_class.methods.items()
                if name not in lowered_class.network and not _is_static(node)
            ]
            text = as_methods(
                text, stem=lowered_class.stem, name=lowered_class.name, network=lowered_class.network, life=life
            )
        return text


def lower(program: Program, tree: Tree) -> Lowered | None:
    """Replace a file's Estimator subclasses by functions; None if it has no such class.

    Raises:
        NotConvertible: A class has more than a model_fn and methods.
    """
    classes: list[_Class] = []
    for node in tree.classes:
        bases = {catalogue.spell(base.dotted) for base in program.ancestors(ClassOf(node, tree))}
        if _ESTIMATOR in bases:
            classes.append(_read_class(program, tree, node, f"ep_class_{len(classes)}"))
    if not classes:
        return None
    module = tree.module.visit(_Lowering(program, tree, classes))
    assert isinstance(module, cst.Module)
    return Lowered(module.code, tree.source.text, classes)


# Analysis of a class


def _read_class(program: Program, tree: Tree, node: cst.ClassDef, stem: str) -> _Class:
    base = node.bases[0].value if len(node.bases) == 1 else None
    plain = not node.decorators and not node.keywords and tree.parents.get(node) is tree.module
    if base is None or not plain or not isinstance(node.body, cst.IndentedBlock):
        raise NotConvertible("a subclass of Estimator with several bases, or inside another block", node.name)
    if not any(isinstance(value, Outside) for value in program.meaning(base, tree, tree.scope)):
        raise NotConvertible("a subclass of another subclass of Estimator", node.name)
    methods: dict[str, cst.FunctionDef] = {}
    for member in node.body.body:
        if isinstance(member, cst.FunctionDef):
            methods[member.name.value] = member
        elif not _is_doc(member):
            raise NotConvertible("a subclass of Estimator with members other than methods", member)
    init = methods.pop("__init__", None)
    if init is None:
        raise NotConvertible("a subclass of Estimator without its own __init__", node.name)
    for name, method in methods.items():
        decorators = [cst.Module([]).code_for_node(decorator.decorator) for decorator in method.decorators]
        if name in _RESERVED or name.startswith("__") or decorators not in ([], ["staticmethod"]):
            raise NotConvertible(f"a method {name} of a subclass of Estimator", method.name)
    before, estimator_args, model_fn = _init_parts(tree, node, init)
    subclass = _Class(
        node, node.name.value, tree.module.code_for_node(base), stem, init, model_fn, before, estimator_args, methods
    )
    waiting: list[cst.CSTNode] = [model_fn, *before]
    while waiting:
        for name in _referenced_methods(subclass, waiting.pop()):
            if name not in subclass.network:
                subclass.network.add(name)
                waiting.append(methods[name])
    for part in (model_fn, *before, *(methods[name] for name in subclass.network)):
        _check_self(subclass, part)
    return subclass


def _init_parts(
    tree: Tree, node: cst.ClassDef, init: cst.FunctionDef
) -> tuple[list[cst.SimpleStatementLine | cst.FunctionDef], dict[str, cst.Arg], cst.FunctionDef]:
    """Return the statements before `super().__init__`, its arguments, and the model_fn."""
    params = init.params
    if not isinstance(params.star_arg, cst.MaybeSentinel) or params.star_kwarg or init.decorators:
        raise NotConvertible(
            "a subclass of Estimator whose __init__ has a decorator, *args, **kwargs or keyword-only parameters",
            init.name,
        )
    before: list[cst.SimpleStatementLine | cst.FunctionDef] = []
    estimator_args: dict[str, cst.Arg] | None = None
    for statement in init.body.body:
        call = _call_of_super(statement)
        if call is not None and estimator_args is None:
            if any(arg.star for arg in call.args):
                raise NotConvertible(
                    "a subclass of Estimator whose arguments for its base class are not known statically", call
                )
            estimator_args = arguments(call, _FIELDS)
            continue
        assign = (
            statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1 else None
        )
        plain = isinstance(assign, cst.Assign) and len(assign.targets) == 1 and (
            isinstance(assign.targets[0].target, cst.Name)
        )  # fmt: skip
        if estimator_args is None and isinstance(statement, cst.FunctionDef) and not statement.decorators:
            before.append(statement)
            continue
        if estimator_args is None and isinstance(statement, cst.SimpleStatementLine) and plain:
            before.append(statement)
        elif not _is_doc(statement):
            raise NotConvertible(
                "a subclass of Estimator whose __init__ does more than pass on its model_fn", statement
            )
    functions = {statement.name.value: statement for statement in before if isinstance(statement, cst.FunctionDef)}
    model_fn_arg = estimator_args["model_fn"].value if estimator_args and "model_fn" in estimator_args else None
    model_fn = functions.get(model_fn_arg.value) if isinstance(model_fn_arg, cst.Name) else None
    if estimator_args is None or model_fn is None or estimator_args.keys() - set(_FIELDS):
        raise NotConvertible("a subclass of Estimator whose model_fn is not defined in its __init__", init.name)
    names = [name for statement in before for name in _bound_names(statement)]
    if len(set(names)) < len(names) or set(names) & {param.name.value for param in _parameters(init)}:
        raise NotConvertible("a subclass of Estimator whose __init__ assigns a name several times", init.name)
    before.remove(model_fn)
    return before, estimator_args, model_fn


def _call_of_super(node: cst.CSTNode) -> cst.Call | None:
    """Return a statement's call of `super().__init__` or `super(Name, self).__init__`."""
    first = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    call = first.value if isinstance(first, cst.Expr) else None
    if isinstance(call, cst.Call) and matchers.matches(
        call.func, matchers.Attribute(matchers.Call(matchers.Name("super")), matchers.Name("__init__"))
    ):
        return call
    return None


def _bound_names(node: cst.SimpleStatementLine | cst.FunctionDef) -> Iterator[str]:
    if isinstance(node, cst.FunctionDef):
        yield node.name.value
    else:
        yield from names_in(cst.ensure_type(node.body[0], cst.Assign).targets[0].target)


def _parameters(function: cst.FunctionDef) -> list[cst.Param]:
    """Return the parameters without `self`."""
    params = [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]
    return [param for param in params if param.name.value != "self"]


def _is_static(method: cst.FunctionDef) -> bool:
    return bool(method.decorators)


def _referenced_methods(subclass: _Class, node: cst.CSTNode) -> set[str]:
    """Return the names of the class's methods that a node refers to."""
    attributes = matchers.findall(node, matchers.Attribute(matchers.Name("self") | matchers.Name(subclass.name)))
    return {cst.ensure_type(each, cst.Attribute).attr.value for each in attributes} & subclass.methods.keys()


def _check_self(subclass: _Class, part: cst.CSTNode) -> None:
    """Check that a part of a model_fn uses `self` only to call methods."""
    for chain in matchers.findall(part, matchers.Attribute(matchers.Name("self"))):
        if cst.ensure_type(chain, cst.Attribute).attr.value not in subclass.methods:
            raise NotConvertible("a model_fn that uses attributes of its Estimator other than methods", chain)
    named = len(matchers.findall(part, matchers.Name("self")))
    declared = isinstance(part, cst.FunctionDef) and any(each.name.value == "self" for each in part.params.params)
    if named != len(matchers.findall(part, matchers.Attribute(matchers.Name("self")))) + declared:
        raise NotConvertible("a model_fn that passes on its Estimator", part)


def _is_doc(node: cst.CSTNode) -> bool:
    return matchers.matches(node, matchers.SimpleStatementLine([matchers.Expr(
        matchers.SimpleString() | matchers.ConcatenatedString())]))  # fmt: skip


# The functions


class _Lowering(cst.CSTTransformer):
    """Replaces classes by functions and their constructor calls by Estimators."""

    def __init__(self, program: Program, tree: Tree, classes: list[_Class]) -> None:
        super().__init__()
        self.program, self.tree = program, tree
        self.classes = {subclass.node: subclass for subclass in classes}
        self.by_name = {subclass.name: subclass for subclass in classes}
        self.methods: dict[cst.CSTNode, tuple[_Class, str]] = {
            method: (subclass, name) for subclass in classes for name, method in subclass.methods.items()
        }
        self.inside: list[_Class] = []
        self.bound = False

    def _functions(self, node: cst.BaseExpression) -> list[cst.CSTNode]:
        scope = self.tree.where.get(node) or self.tree.scope
        values = self.program.meaning(node, self.tree, scope)
        return [value.node for value in values if isinstance(value, FunctionOf)]

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        if node in self.classes:
            self.inside.append(self.classes[node])

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef):  # type: ignore[no-untyped-def]
        if original_node not in self.classes:
            return updated_node
        subclass = self.inside.pop()
        return cst.FlattenSentinel(_functions_of(subclass, updated_node))

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """Replace `self.method` in the class and `Class.method` everywhere."""
        base, name = original_node.value, original_node.attr.value
        if not isinstance(base, cst.Name):
            return updated_node
        subclass = self.by_name.get(base.value) if not self._is_hidden(base) else None
        if base.value == "self" and self.inside:
            subclass = self.inside[-1]
        if subclass is None or name not in subclass.methods:
            return updated_node
        call = self.tree.parents.get(original_node)
        called = isinstance(call, cst.Call) and call.func is original_node
        if base.value != "self" or name in subclass.network or _is_static(subclass.methods[name]):
            if base.value != "self" and not _is_static(subclass.methods[name]):
                raise NotConvertible(
                    "a method of a subclass of Estimator that is not called on an object", original_node
                )
            return cst.Name(subclass.function(name))
        if not called:
            raise NotConvertible("a method of an Estimator that is used without a call", original_node)
        return updated_node

    def _is_hidden(self, name: cst.Name) -> bool:
        bindings = self.program.bindings(name.value, self.tree.where.get(name) or self.tree.scope)
        return not any(binding.node in self.classes for binding in bindings)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        func = original_node.func
        if isinstance(func, cst.Name) and func.value in self.by_name and not self._is_hidden(func):
            return self._estimator_call(self.by_name[func.value], original_node, updated_node)
        if not isinstance(func, cst.Attribute):
            return updated_node
        if isinstance(func.value, cst.Name) and func.value.value == "self" and self.inside:
            name, subclass = func.attr.value, self.inside[-1]
            if name not in subclass.methods or name in subclass.network or _is_static(subclass.methods[name]):
                return updated_node
        else:
            known = [self.methods[function] for function in self._functions(func) if function in self.methods]
            if len(known) != 1 or isinstance(updated_node.func, cst.Name):
                return updated_node
            subclass, name = known[0]
            if _is_static(subclass.methods[name]) or name in subclass.network:
                raise NotConvertible(
                    "a method used by the model_fn that is also called on the Estimator", original_node
                )
        owner = cst.Arg(cst.ensure_type(updated_node.func, cst.Attribute).value)
        if updated_node.args:
            owner = owner.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        args = [owner, *updated_node.args]
        return updated_node.with_changes(func=cst.Name(subclass.function(name)), args=args)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        for chain in self.tree.chains:
            used = chain.value if isinstance(chain, cst.Name) else ""
            parent = self.tree.parents.get(chain)
            called = isinstance(parent, (cst.Call, cst.Attribute))
            if used in self.by_name and not called and not self._is_hidden(cst.ensure_type(chain, cst.Name)) and (
                self.by_name[used].node not in set(self.tree.above(chain))
            ):  # fmt: skip
                raise NotConvertible("a subclass of Estimator that is used in other ways than by calling it", chain)
        if not self.bound:
            return updated_node
        body = list(updated_node.body)
        first = next(
            (at for at, statement in enumerate(body) if not _is_doc(statement) and not _is_of_the_future(statement)), 0
        )
        line = cst.parse_statement("import functools")
        return updated_node.with_changes(body=[*body[:first], line, *body[first:]])

    def _estimator_call(self, subclass: _Class, original: cst.Call, call: cst.Call) -> cst.Call:
        """Return the Estimator call for a constructor call."""
        parameters = _parameters(subclass.init)
        names = tuple(param.name.value for param in parameters)
        args = arguments(call, names)
        values = {param.name.value: param.default for param in parameters if param.default is not None}
        values |= {name: arg.value for name, arg in args.items()}
        if any(arg.star for arg in call.args) or len(args) < len(call.args) or values.keys() != set(names):
            raise NotConvertible(f"arguments of {subclass.name} that are not known statically", original)
        needed = _needed_names(subclass)
        estimator_args = {name: arg.value for name, arg in subclass.estimator_args.items() if name != "model_fn"}
        asked = [name for node in estimator_args.values() for name in names_in(node)]
        for name in {*asked} - set(names):
            if any(name in _bound_names(statement) for statement in subclass.before):
                raise NotConvertible(f"{name}, which {subclass.name} computes for its base class", original)
        twice = [name for name, node in values.items()
                 if asked.count(name) + (name in needed) > 1 and matchers.findall(node, matchers.Call())]  # fmt: skip
        if twice:
            raise NotConvertible(f"{twice[0]}, which {subclass.name} uses in several places", original)
        model_fn: cst.BaseExpression = cst.Name(f"{subclass.stem}_model_fn")
        bound = [_keyword(name, args[name].value) for name in names if name in needed and name in args]
        if bound:
            self.bound = True
            model_fn = cst.Call(cst.parse_expression("functools.partial"), [cst.Arg(model_fn), *bound])
        new_args = [_keyword(name, _substitute(node, values)) for name, node in estimator_args.items()]
        plain = [arg for arg in new_args if not matchers.matches(arg.value, matchers.Name("None"))]
        return cst.Call(cst.parse_expression(subclass.base), [cst.Arg(model_fn), *plain])


def _is_of_the_future(node: cst.CSTNode) -> bool:
    return matchers.matches(node, matchers.SimpleStatementLine([matchers.ImportFrom(matchers.Name("__future__"))]))


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, keyword=cst.Name(name), equal=equal)


def _substitute(node: cst.BaseExpression, values: Mapping[str, cst.BaseExpression]) -> cst.BaseExpression:
    """Return an expression with parameters replaced by their values."""
    if isinstance(node, cst.Name) and node.value in values:
        return values[node.value]
    if matchers.findall(node, matchers.Lambda() | matchers.CompFor()):
        raise NotConvertible("an argument of the base class that is not known statically", node)

    class Change(cst.CSTTransformer):
        def visit_Attribute_attr(self, node: cst.Attribute) -> None:
            self.skipped = node.attr

        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
            attribute = original_node is getattr(self, "skipped", None)
            value = None if attribute else values.get(original_node.value)
            plain = (cst.Name, cst.Attribute, cst.BaseString, cst.BaseNumber, cst.Call, cst.Dict, cst.List, cst.Tuple)
            if value is None or isinstance(value, plain):
                return updated_node if value is None else value
            return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

        def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
            return updated_node.with_changes(keyword=original_node.keyword)

    substituted = node.visit(Change())
    assert isinstance(substituted, cst.BaseExpression)
    return substituted


def _needed_names(subclass: _Class) -> set[str]:
    """Return the names that the model_fn reads, directly or through statements of `__init__`."""
    waiting, names = set(names_in(subclass.model_fn.body)), set()
    while waiting:
        name = waiting.pop()
        names.add(name)
        for statement in subclass.before:
            if name in _bound_names(statement):
                inner = statement.body if isinstance(statement, cst.FunctionDef) else statement
                waiting |= set(names_in(inner)) - names
    parameters = {param.name.value for param in subclass.model_fn.params.params}
    return names - parameters


def _functions_of(subclass: _Class, updated: cst.ClassDef) -> list[cst.BaseStatement]:
    """Return the functions that replace a class, from its already converted body."""
    assert isinstance(updated.body, cst.IndentedBlock)
    methods = {
        statement.name.value: statement for statement in updated.body.body if isinstance(statement, cst.FunctionDef)
    }
    space = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
    nodes: list[cst.BaseStatement] = []
    for name in (name for name in subclass.methods if name in subclass.network):
        method = methods[name]
        params = [param for param in method.params.params if param.name.value != "self" or _is_static(method)]
        nodes.append(method.with_changes(
            name=cst.Name(subclass.function(name)), decorators=[], leading_lines=[*space, *_comments(method)],
            params=method.params.with_changes(params=params)))  # fmt: skip
    nodes.append(_model_fn(subclass, methods["__init__"], updated, space))
    for name in (name for name in subclass.methods if name not in subclass.network):
        method = methods[name]
        nodes.append(method.with_changes(
            name=cst.Name(subclass.function(name)), decorators=[],
            leading_lines=[*space, *_comments(method)]))  # fmt: skip
    nodes[0] = nodes[0].with_changes(leading_lines=[*updated.leading_lines, *_comments(nodes[0])])
    return nodes


def _comments(node: cst.CSTNode) -> list[cst.EmptyLine]:
    return [line for line in getattr(node, "leading_lines", ()) if line.comment is not None]


def _model_fn(
    subclass: _Class, init: cst.FunctionDef, updated: cst.ClassDef, space: list[cst.EmptyLine]
) -> cst.FunctionDef:
    """Return the model_fn with the statements and parameters of `__init__` that it needs."""
    needed = _needed_names(subclass)
    nested = {statement.name.value: statement for statement in init.body.body if isinstance(statement, cst.FunctionDef)}
    model_fn = nested[subclass.model_fn.name.value]
    kept: list[Any] = [statement for statement in init.body.body if statement is not model_fn and not _is_doc(statement)
            and _call_of_super(statement) is None and set(_bound_names(statement)) & needed]  # type: ignore[arg-type]  # fmt: skip
    own_params = list(model_fn.params.params)
    further = [param.with_changes(star="") for param in _parameters(init) if param.name.value in needed]
    without = [param for param in further if param.default is None]
    params = [*(param.with_changes(default=None, equal=cst.MaybeSentinel.DEFAULT) for param in own_params), *without,
              *(param for param in further if param.default is not None)]  # fmt: skip
    params = [param.with_changes(comma=cst.MaybeSentinel.DEFAULT) for param in params]
    doc: list[Any] = [
        statement for one_body in (updated.body, init.body) for statement in one_body.body if _is_doc(statement)
    ]
    body: list[Any] = [statement for at, statement in enumerate(model_fn.body.body) if at or not _is_doc(statement)]
    return model_fn.with_changes(
        name=cst.Name(f"{subclass.stem}_model_fn"), leading_lines=[*space, *_comments(model_fn)],
        params=cst.Parameters(params),
        body=cst.IndentedBlock([*doc[:1], *kept, *body]))  # fmt: skip

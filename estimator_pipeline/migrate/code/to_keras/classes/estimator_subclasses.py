"""Classes that come from `tf.estimator.Estimator`: read as the model_fn that they are made of, written as a model.

`lower` writes such a class as functions, and what makes it as an Estimator: a program of equal meaning, without the
class. Its conversion is that of any other; `raised` puts the functions back, as methods of the model.
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
# A method of one of these names would be called by the Estimator, or in place of its own.
_OWN = ("config", "eval_dir", "evaluate", "experimental_export_all_saved_models", "export_saved_model",
        "export_savedmodel", "get_variable_names", "get_variable_value", "latest_checkpoint", "model_dir", "model_fn",
        "params", "predict", "train", "compile", "fit", "call", "build", "compute_loss", "compute_metrics", "init",
        "predictions", "predict_step", "train_step", "test_step", "save", "summary", "head",
        "head_metrics")  # fmt: skip


@dataclass
class _Class:
    """A class of Estimators.

    Attributes:
        stem: what all names of its functions begin with.
        network: methods that its model_fn needs; all others are called of the Estimator.
    """

    node: cst.ClassDef
    name: str
    base: str
    stem: str
    init: cst.FunctionDef
    model_fn: cst.FunctionDef
    before: list[cst.SimpleStatementLine | cst.FunctionDef]
    told: dict[str, cst.Arg]
    methods: dict[str, cst.FunctionDef]
    network: set[str] = field(default_factory=set)

    def function(self, name: str) -> str:
        return f"{self.stem}__{name}"


@dataclass
class Lowered:
    """A file without its classes of Estimators.

    Attributes:
        text: of the file.
    """

    text: str
    before: str
    classes: list[_Class]

    @property
    def first(self) -> cst.CSTNode:
        """Where the first of the classes is."""
        return self.classes[0].node.name

    def line(self, number: int) -> int:
        """Return the line of the file as it was that a line of the text comes from; 0 where there is none like it."""
        wanted = self.text.splitlines()[number - 1].strip() if number else ""
        places = [at for at, line in enumerate(self.before.splitlines(), 1) if wanted and line.strip() == wanted]
        return min(places, key=lambda at: abs(at - number), default=0)

    def told(self, reason: str) -> str:
        """Return a sentence with the names that the program has."""
        for one in self.classes:
            reason = reason.replace(f"{one.stem}_model_fn", one.model_fn.name.value).replace(f"{one.stem}__", "")
        return reason

    def raised(self, text: str) -> str:
        """Return the converted text, its functions methods of the models."""
        for one in self.classes:
            life = [name for name, node in one.methods.items() if name not in one.network and not _is_static(node)]
            text = as_methods(text, stem=one.stem, name=one.name, network=one.network, life=life)
        return text


def lower(program: Program, tree: Tree) -> Lowered | None:
    """Write the classes of Estimators of a file as functions; None where it has none.

    Raises:
        NotConvertible: one is more than a model_fn, and functions that are called of it.
    """
    found: list[_Class] = []
    for node in tree.classes:
        bases = {catalogue.spell(base.dotted) for base in program.ancestors(ClassOf(node, tree))}
        if _ESTIMATOR in bases:
            found.append(_read(program, tree, node, f"ep_class_{len(found)}"))
    if not found:
        return None
    made = tree.module.visit(_Lowering(program, tree, found))
    assert isinstance(made, cst.Module)
    return Lowered(made.code, tree.source.text, found)


# What a class is


def _read(program: Program, tree: Tree, node: cst.ClassDef, stem: str) -> _Class:
    base = node.bases[0].value if len(node.bases) == 1 else None
    plain = not node.decorators and not node.keywords and tree.parents.get(node) is tree.module
    if base is None or not plain or not isinstance(node.body, cst.IndentedBlock):
        raise NotConvertible("a class of Estimators with further bases, or within another block", node.name)
    if not any(isinstance(one, Outside) for one in program.meaning(base, tree, tree.scope)):
        raise NotConvertible("a class that comes from another class of Estimators", node.name)
    methods: dict[str, cst.FunctionDef] = {}
    for one in node.body.body:
        if isinstance(one, cst.FunctionDef):
            methods[one.name.value] = one
        elif not _is_doc(one):
            raise NotConvertible("a class of Estimators with more than methods", one)
    init = methods.pop("__init__", None)
    if init is None:
        raise NotConvertible("a class of Estimators without a model_fn of its own", node.name)
    for name, method in methods.items():
        decorators = [cst.Module([]).code_for_node(one.decorator) for one in method.decorators]
        if name in _OWN or name.startswith("__") or decorators not in ([], ["staticmethod"]):
            raise NotConvertible(f"a method {name} of a class of Estimators", method.name)
    before, told, model_fn = _beginning(tree, node, init)
    made = _Class(node, node.name.value, tree.module.code_for_node(base), stem, init, model_fn, before, told, methods)
    waiting: list[cst.CSTNode] = [model_fn, *before]
    while waiting:
        for name in _of_self(made, waiting.pop()):
            if name not in made.network:
                made.network.add(name)
                waiting.append(methods[name])
    for part in (model_fn, *before, *(methods[name] for name in made.network)):
        _check_self(made, part)
    return made


def _beginning(
    tree: Tree, node: cst.ClassDef, init: cst.FunctionDef
) -> tuple[list[cst.SimpleStatementLine | cst.FunctionDef], dict[str, cst.Arg], cst.FunctionDef]:
    """Return (what `__init__` does before it calls that of the Estimator, what it hands it, the model_fn)."""
    params = init.params
    if not isinstance(params.star_arg, cst.MaybeSentinel) or params.star_kwarg or init.decorators:
        raise NotConvertible("a class of Estimators that takes any arguments", init.name)
    before: list[cst.SimpleStatementLine | cst.FunctionDef] = []
    told: dict[str, cst.Arg] | None = None
    for one in init.body.body:
        call = _call_of_super(one)
        if call is not None and told is None:
            if any(arg.star for arg in call.args):
                raise NotConvertible("a class of Estimators whose arguments cannot be told", call)
            told = arguments(call, _FIELDS)
            continue
        assign = one.body[0] if isinstance(one, cst.SimpleStatementLine) and len(one.body) == 1 else None
        plain = isinstance(assign, cst.Assign) and len(assign.targets) == 1 and (
            isinstance(assign.targets[0].target, cst.Name)
        )  # fmt: skip
        if told is None and isinstance(one, cst.FunctionDef) and not one.decorators:
            before.append(one)
            continue
        if told is None and isinstance(one, cst.SimpleStatementLine) and plain:
            before.append(one)
        elif not _is_doc(one):
            raise NotConvertible("a class of Estimators that does more than to hand its model_fn on", one)
    functions = {one.name.value: one for one in before if isinstance(one, cst.FunctionDef)}
    given = told["model_fn"].value if told and "model_fn" in told else None
    model_fn = functions.get(given.value) if isinstance(given, cst.Name) else None
    if told is None or model_fn is None or told.keys() - set(_FIELDS):
        raise NotConvertible("a class of Estimators whose model_fn is no function of its __init__", init.name)
    names = [name for one in before for name in _given(one)]
    if len(set(names)) < len(names) or set(names) & {one.name.value for one in _parameters(init)}:
        raise NotConvertible("a class of Estimators that gives a name several values", init.name)
    before.remove(model_fn)
    return before, told, model_fn


def _call_of_super(node: cst.CSTNode) -> cst.Call | None:
    """`super().__init__(...)` or `super(Name, self).__init__(...)`."""
    first = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    call = first.value if isinstance(first, cst.Expr) else None
    if isinstance(call, cst.Call) and matchers.matches(
        call.func, matchers.Attribute(matchers.Call(matchers.Name("super")), matchers.Name("__init__"))
    ):
        return call
    return None


def _given(node: cst.SimpleStatementLine | cst.FunctionDef) -> Iterator[str]:
    if isinstance(node, cst.FunctionDef):
        yield node.name.value
    else:
        yield from names_in(cst.ensure_type(node.body[0], cst.Assign).targets[0].target)


def _parameters(function: cst.FunctionDef) -> list[cst.Param]:
    """All but `self`."""
    found = [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]
    return [one for one in found if one.name.value != "self"]


def _is_static(method: cst.FunctionDef) -> bool:
    return bool(method.decorators)


def _of_self(one: _Class, node: cst.CSTNode) -> set[str]:
    """Return the methods of the class that a part of it names."""
    found = matchers.findall(node, matchers.Attribute(matchers.Name("self") | matchers.Name(one.name)))
    return {cst.ensure_type(each, cst.Attribute).attr.value for each in found} & one.methods.keys()


def _check_self(one: _Class, part: cst.CSTNode) -> None:
    """Whether a part of a model_fn asks its object for methods alone."""
    for chain in matchers.findall(part, matchers.Attribute(matchers.Name("self"))):
        if cst.ensure_type(chain, cst.Attribute).attr.value not in one.methods:
            raise NotConvertible("a model_fn that asks the Estimator that it belongs to for more than methods", chain)
    named = len(matchers.findall(part, matchers.Name("self")))
    own = isinstance(part, cst.FunctionDef) and any(each.name.value == "self" for each in part.params.params)
    if named != len(matchers.findall(part, matchers.Attribute(matchers.Name("self")))) + own:
        raise NotConvertible("a model_fn that hands on the Estimator that it belongs to", part)


def _is_doc(node: cst.CSTNode) -> bool:
    return matchers.matches(node, matchers.SimpleStatementLine([matchers.Expr(
        matchers.SimpleString() | matchers.ConcatenatedString())]))  # fmt: skip


# The functions


class _Lowering(cst.CSTTransformer):
    """Writes classes as functions, and what makes their objects as Estimators."""

    def __init__(self, program: Program, tree: Tree, classes: list[_Class]) -> None:
        super().__init__()
        self.program, self.tree = program, tree
        self.classes = {one.node: one for one in classes}
        self.by_name = {one.name: one for one in classes}
        self.methods: dict[cst.CSTNode, tuple[_Class, str]] = {
            method: (one, name) for one in classes for name, method in one.methods.items()
        }
        self.inside: list[_Class] = []
        self.bound = False

    def _functions(self, node: cst.BaseExpression) -> list[cst.CSTNode]:
        scope = self.tree.where.get(node) or self.tree.scope
        found = self.program.meaning(node, self.tree, scope)
        return [each.node for each in found if isinstance(each, FunctionOf)]

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        if node in self.classes:
            self.inside.append(self.classes[node])

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef):  # type: ignore[no-untyped-def]
        if original_node not in self.classes:
            return updated_node
        one = self.inside.pop()
        return cst.FlattenSentinel(_functions_of(one, updated_node))

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """`self.method` within the class, and `Class.method` everywhere."""
        base, name = original_node.value, original_node.attr.value
        if not isinstance(base, cst.Name):
            return updated_node
        one = self.by_name.get(base.value) if not self._is_hidden(base) else None
        if base.value == "self" and self.inside:
            one = self.inside[-1]
        if one is None or name not in one.methods:
            return updated_node
        call = self.tree.parents.get(original_node)
        called = isinstance(call, cst.Call) and call.func is original_node
        if base.value != "self" or name in one.network or _is_static(one.methods[name]):
            if base.value != "self" and not _is_static(one.methods[name]):
                raise NotConvertible("a method of a class of Estimators that is not called of an object", original_node)
            return cst.Name(one.function(name))
        if not called:
            raise NotConvertible("a method of an Estimator that is handed on", original_node)
        return updated_node

    def _is_hidden(self, name: cst.Name) -> bool:
        bindings = self.program.bindings(name.value, self.tree.where.get(name) or self.tree.scope)
        return not any(one.node in self.classes for one in bindings)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        func = original_node.func
        if isinstance(func, cst.Name) and func.value in self.by_name and not self._is_hidden(func):
            return self._made(self.by_name[func.value], original_node, updated_node)
        if not isinstance(func, cst.Attribute):
            return updated_node
        if isinstance(func.value, cst.Name) and func.value.value == "self" and self.inside:
            name, one = func.attr.value, self.inside[-1]
            if name not in one.methods or name in one.network or _is_static(one.methods[name]):
                return updated_node
        else:
            known = [self.methods[each] for each in self._functions(func) if each in self.methods]
            if len(known) != 1 or isinstance(updated_node.func, cst.Name):
                return updated_node
            one, name = known[0]
            if _is_static(one.methods[name]) or name in one.network:
                raise NotConvertible(
                    "a method of an Estimator's model_fn that is called of the Estimator", original_node
                )
        owner = cst.Arg(cst.ensure_type(updated_node.func, cst.Attribute).value)
        if updated_node.args:
            owner = owner.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        args = [owner, *updated_node.args]
        return updated_node.with_changes(func=cst.Name(one.function(name)), args=args)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        for chain in self.tree.chains:
            used = chain.value if isinstance(chain, cst.Name) else ""
            parent = self.tree.parents.get(chain)
            called = isinstance(parent, (cst.Call, cst.Attribute))
            if used in self.by_name and not called and not self._is_hidden(cst.ensure_type(chain, cst.Name)) and (
                self.by_name[used].node not in set(self.tree.above(chain))
            ):  # fmt: skip
                raise NotConvertible("a class of Estimators that is more than called", chain)
        if not self.bound:
            return updated_node
        body = list(updated_node.body)
        first = next((at for at, one in enumerate(body) if not _is_doc(one) and not _is_of_the_future(one)), 0)
        line = cst.parse_statement("import functools")
        return updated_node.with_changes(body=[*body[:first], line, *body[first:]])

    def _made(self, one: _Class, original: cst.Call, call: cst.Call) -> cst.Call:
        """Return what makes an object, as an Estimator."""
        parameters = _parameters(one.init)
        names = tuple(param.name.value for param in parameters)
        given = arguments(call, names)
        values = {param.name.value: param.default for param in parameters if param.default is not None}
        values |= {name: arg.value for name, arg in given.items()}
        if any(arg.star for arg in call.args) or len(given) < len(call.args) or values.keys() != set(names):
            raise NotConvertible(f"what {one.name} is made with cannot be told", original)
        needed = _needed(one)
        told = {name: arg.value for name, arg in one.told.items() if name != "model_fn"}
        asked = [name for node in told.values() for name in names_in(node)]
        for name in {*asked} - set(names):
            if any(name in _given(each) for each in one.before):
                raise NotConvertible(f"{name}, which {one.name} works out and hands its Estimator", original)
        twice = [name for name, node in values.items()
                 if asked.count(name) + (name in needed) > 1 and matchers.findall(node, matchers.Call())]  # fmt: skip
        if twice:
            raise NotConvertible(f"{twice[0]}, which {one.name} hands on in several places", original)
        model_fn: cst.BaseExpression = cst.Name(f"{one.stem}_model_fn")
        bound = [_keyword(name, given[name].value) for name in names if name in needed and name in given]
        if bound:
            self.bound = True
            model_fn = cst.Call(cst.parse_expression("functools.partial"), [cst.Arg(model_fn), *bound])
        args = [_keyword(name, _with(node, values)) for name, node in told.items()]
        plain = [arg for arg in args if not matchers.matches(arg.value, matchers.Name("None"))]
        return cst.Call(cst.parse_expression(one.base), [cst.Arg(model_fn), *plain])


def _is_of_the_future(node: cst.CSTNode) -> bool:
    return matchers.matches(node, matchers.SimpleStatementLine([matchers.ImportFrom(matchers.Name("__future__"))]))


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, keyword=cst.Name(name), equal=equal)


def _with(node: cst.BaseExpression, values: Mapping[str, cst.BaseExpression]) -> cst.BaseExpression:
    """Return an expression of the parameters, as one of what they are given."""
    if isinstance(node, cst.Name) and node.value in values:
        return values[node.value]
    if matchers.findall(node, matchers.Lambda() | matchers.CompFor()):
        raise NotConvertible("what a class of Estimators hands on cannot be told", node)

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

    made = node.visit(Change())
    assert isinstance(made, cst.BaseExpression)
    return made


def _needed(one: _Class) -> set[str]:
    """Names that the model_fn reads, with those that what it needs of `__init__` reads."""
    waiting, found = set(names_in(one.model_fn.body)), set()
    while waiting:
        name = waiting.pop()
        found.add(name)
        for each in one.before:
            if name in _given(each):
                inner = each.body if isinstance(each, cst.FunctionDef) else each
                waiting |= set(names_in(inner)) - found
    own = {param.name.value for param in one.model_fn.params.params}
    return found - own


def _functions_of(one: _Class, updated: cst.ClassDef) -> list[cst.BaseStatement]:
    """Return the functions that a class becomes, of its text with the names of today."""
    assert isinstance(updated.body, cst.IndentedBlock)
    methods = {each.name.value: each for each in updated.body.body if isinstance(each, cst.FunctionDef)}
    space = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
    found: list[cst.BaseStatement] = []
    for name in (name for name in one.methods if name in one.network):
        method = methods[name]
        params = [each for each in method.params.params if each.name.value != "self" or _is_static(method)]
        found.append(method.with_changes(
            name=cst.Name(one.function(name)), decorators=[], leading_lines=[*space, *_comments(method)],
            params=method.params.with_changes(params=params)))  # fmt: skip
    found.append(_model_fn(one, methods["__init__"], updated, space))
    for name in (name for name in one.methods if name not in one.network):
        method = methods[name]
        found.append(method.with_changes(
            name=cst.Name(one.function(name)), decorators=[], leading_lines=[*space, *_comments(method)]))  # fmt: skip
    found[0] = found[0].with_changes(leading_lines=[*updated.leading_lines, *_comments(found[0])])
    return found


def _comments(node: cst.CSTNode) -> list[cst.EmptyLine]:
    return [line for line in getattr(node, "leading_lines", ()) if line.comment is not None]


def _model_fn(one: _Class, init: cst.FunctionDef, updated: cst.ClassDef, space: list[cst.EmptyLine]) -> cst.FunctionDef:
    """Return the model_fn, with what `__init__` does for it, and with those of its parameters that it reads."""
    needed = _needed(one)
    nested = {each.name.value: each for each in init.body.body if isinstance(each, cst.FunctionDef)}
    model_fn = nested[one.model_fn.name.value]
    kept: list[Any] = [each for each in init.body.body if each is not model_fn and not _is_doc(each)
            and _call_of_super(each) is None and set(_given(each)) & needed]  # type: ignore[arg-type]  # fmt: skip
    own = list(model_fn.params.params)
    further = [each.with_changes(star="") for each in _parameters(init) if each.name.value in needed]
    without = [each for each in further if each.default is None]
    params = [*(each.with_changes(default=None, equal=cst.MaybeSentinel.DEFAULT) for each in own), *without,
              *(each for each in further if each.default is not None)]  # fmt: skip
    params = [each.with_changes(comma=cst.MaybeSentinel.DEFAULT) for each in params]
    doc: list[Any] = [each for one_body in (updated.body, init.body) for each in one_body.body if _is_doc(each)]
    body: list[Any] = [each for at, each in enumerate(model_fn.body.body) if at or not _is_doc(each)]
    return model_fn.with_changes(
        name=cst.Name(f"{one.stem}_model_fn"), leading_lines=[*space, *_comments(model_fn)],
        params=cst.Parameters(params),
        body=cst.IndentedBlock([*doc[:1], *kept, *body]))  # fmt: skip

"""Search for the constructs of a program: names, calls with their fields, classes, TF_CONFIG, imports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis import modes
from estimator_pipeline.migrate.code.analysis.name_resolution import ClassOf, FunctionOf, Member, Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Binding, Scope, Tree, root_of
from estimator_pipeline.migrate.code.catalogue import CatalogueMatch, Row

__all__ = ["BY_NAME", "BY_USE", "RESOLVED", "Construct", "find_constructs"]

RESOLVED, BY_USE, BY_NAME = "resolved", "by use", "by name"

_ESTIMATORS = ("estimator", "canned estimator")
# Methods that no other library has, so that they count on any object.
_OWN_METHODS = ("export_saved_model", "export_savedmodel", "experimental_export_all_saved_models")
_METHODS = (
    "train", "evaluate", "predict", "get_variable_names", "get_variable_value", "latest_checkpoint", "eval_dir",
    *_OWN_METHODS,
)  # fmt: skip
DATASET_METHODS = ("make_one_shot_iterator", "make_initializable_iterator")
DATASET_ATTRIBUTES = ("output_classes", "output_shapes", "output_types")
_SPEC_OF_HEAD = "tf.estimator.Head.create_estimator_spec"
_GRADIENTS = ("minimize", "apply_gradients", "compute_gradients")
# The kind or name of a base class -> the row of its subclasses.
_SUBCLASSES = {
    "tf.estimator.CheckpointSaverListener": "CheckpointSaverListener subclass",
    "estimator": "tf.estimator.Estimator subclass",
    "canned estimator": "tf.estimator.Estimator subclass",
    "exporter": "Exporter subclass",
    "head": "Head subclass",
    "hook": "SessionRunHook subclass",
    "optimizer": "Optimizer subclass",
}


@dataclass
class Construct:
    """A construct at its place in the program.

    Attributes:
        node: the node of the construct; for functions and classes their name.
        match: the row, and the spelling of the program.
        certainty: how the construct was recognized: `RESOLVED`, `BY_USE` or `BY_NAME`.
        details: properties of the construct, as JSON values.
        call: the call that has the construct as its callee or as an argument.
    """

    tree: Tree
    node: cst.CSTNode
    match: CatalogueMatch
    certainty: str = RESOLVED
    details: dict[str, Any] = field(default_factory=dict)
    call: cst.Call | None = None

    @property
    def row(self) -> Row:
        return self.match.row


def find_constructs(program: Program, tree: Tree) -> Iterator[Construct]:
    """Yield the constructs of a file, except functions, which depend on the whole program."""
    finder = _Finder(program, tree)
    yield from finder.names()
    yield from finder.calls()
    yield from finder.classes()
    yield from finder.strings()
    yield from finder.imports()


def catalogue_match(name: str) -> CatalogueMatch:
    """Return the match of a row by its canonical name, for constructs that are not names of TensorFlow."""
    return CatalogueMatch(catalogue.row(name), name, True)


class _Finder:
    def __init__(self, program: Program, tree: Tree) -> None:
        self.program = program
        self.tree = tree
        self.used = {root_of(chain).value for chain in tree.chains}

    # Names

    def names(self) -> Iterator[Construct]:
        for node in self.tree.chains:
            parent = self.tree.parents.get(node)
            if self._is_base(parent):
                continue  # the class is the construct
            scope = self.tree.where[node]
            if isinstance(node, cst.Name) and not self._names_an_import(node, parent, scope):
                continue
            match = self.match(node, scope)
            if match is None:
                yield from self._method_of_a_data_set(node, scope)
                continue
            if match.row.kind == "flags" and self._is_a_flag(node, scope):
                continue
            call = parent if isinstance(parent, cst.Call) and parent.func is node else None
            yield Construct(self.tree, node, match, call=call, details=self._details(match, call, scope))

    def match(self, node: cst.BaseExpression, scope: Scope) -> CatalogueMatch | None:
        """Return the row of an expression; if it has several meanings, the first that runs."""
        matches = [
            match
            for value in self.program.meaning(node, self.tree, scope)
            if isinstance(value, Outside) and (match := catalogue.find(value.dotted)) is not None
        ]
        return next((match for match in matches if match.exists and match.row.runs), matches[0] if matches else None)

    def _is_base(self, parent: cst.CSTNode | None) -> bool:
        return isinstance(parent, cst.Arg) and isinstance(self.tree.parents.get(parent), cst.ClassDef)

    def _names_an_import(self, node: cst.Name, parent: cst.CSTNode | None, scope: Scope) -> bool:
        """Return whether a bare name may be a construct: an imported name, or an alias that is called."""
        bindings = self.program.bindings(node.value, scope)
        if any(binding.kind == "from" for binding in bindings) or not bindings:
            return True
        return isinstance(parent, cst.Call) and parent.func is node and any(b.kind == "value" for b in bindings)

    def _details(self, match: CatalogueMatch, call: cst.Call | None, scope: Scope) -> dict[str, Any]:
        if call is None or match.row.name not in ("tf.estimator.EstimatorSpec",
                                                  "tf.compat.v1.estimator.tpu.TPUEstimatorSpec"):  # fmt: skip
            return {}
        return {"modes": modes.of_spec(self.program, self.tree, call, scope)}

    def _is_a_flag(self, node: cst.Attribute | cst.Name, scope: Scope) -> bool:
        """Return whether a node is the value of a flag, FLAGS.steps, which absl spells the same."""
        return any(".FLAGS." in name for name in value_names(self.program.meaning(node, self.tree, scope)))

    def _method_of_a_data_set(self, node: cst.Attribute | cst.Name, scope: Scope) -> Iterator[Construct]:
        """Yield a method that only V1 datasets have, such as those of `tf.compat.v1.data`."""
        if not isinstance(node, cst.Attribute) or node.attr.value not in (*DATASET_METHODS, *DATASET_ATTRIBUTES):
            return
        if any(isinstance(value, FunctionOf) for value in self.program.meaning(node, self.tree, scope)):
            return  # a method of the program's own class
        origin = self._origin(node.value, scope)
        if node.attr.value in DATASET_ATTRIBUTES:
            if origin.startswith("tf.data."):
                yield Construct(self.tree, node.attr, catalogue_match(node.attr.value), BY_USE)
            return
        if not origin and any(b.name.startswith("tensorflow.compat.v1") for _, b in self.tree.imports):
            origin = "tf.compat.v1."
        if origin.startswith("tf.compat.v1."):
            yield Construct(self.tree, node.attr, catalogue_match(f"tf.compat.v1.data.{node.attr.value}"), BY_USE)
        elif not origin.startswith("tf.") or origin.startswith(("tf.data.", "tf.contrib.data.")):
            yield Construct(self.tree, node.attr, catalogue_match(node.attr.value), BY_USE if origin else BY_NAME)

    def _origin(self, node: cst.CSTNode, scope: Scope) -> str:
        """Return the TensorFlow name at the start of `tf.data.Dataset.range(3).batch(2)`, following variables."""
        for part, where in self.program.chain(node, scope):
            names = value_names(self.program.meaning(part, self.tree, where)) if isinstance(part, cst.Attribute) else ()
            if names:
                return catalogue.spell(names[0])
        return ""

    # Calls

    def calls(self) -> Iterator[Construct]:
        for call in self.tree.calls:
            scope = self.tree.where[call]
            if isinstance(call.func, cst.Name) and call.func.value == "getattr":
                match = self.match(call, scope)
                if match is not None:
                    yield Construct(self.tree, call, match)
            match = self.match(call.func, scope)
            if match is not None and match.row.fields:
                yield from self.fields(call, match)
            if isinstance(call.func, cst.Attribute):
                yield from self.methods(call, call.func, scope)

    def fields(self, call: cst.Call, match: CatalogueMatch) -> Iterator[Construct]:
        """Yield each argument of a class whose parameters have their own rows."""
        for name, arg in _arguments(call, match.row.fields):
            try:
                row = catalogue.row(f"{match.row.name}.{name}")
            except KeyError:
                continue
            spelled = f"{match.spelled}.{name}"
            place = arg.keyword or arg.value
            yield Construct(self.tree, place, match._replace(row=row, spelled=spelled), call=call)

    def methods(self, call: cst.Call, func: cst.Attribute, scope: Scope) -> Iterator[Construct]:
        name = func.attr.value
        values = self.program.meaning(func, self.tree, scope)
        for value in values:
            if isinstance(value, Member):
                construct = self._member(value, call, func)
                if construct is not None:
                    yield construct
                    if construct.row.name == "tf.estimator.RunConfig.replace":
                        yield from self.fields(call, catalogue_match("tf.estimator.RunConfig"))
                    elif construct.row.fields:
                        yield from self.fields(call, construct.match)
                    return
        if values:
            return
        keywords = {arg.keyword.value for arg in call.args if arg.keyword}
        row, certainty = f"tf.estimator.Estimator.{name}", BY_USE
        if name in _OWN_METHODS:
            certainty = BY_NAME
        elif name == "create_estimator_spec":
            row, certainty = _SPEC_OF_HEAD, BY_NAME
        elif name == "minimize" and "global_step" in keywords:
            row = "minimize"
        elif name not in ("train", "evaluate", "predict") or "input_fn" not in keywords:
            return
        yield Construct(self.tree, func.attr, catalogue_match(row), certainty, call=call)

    def _member(self, value: Member, call: cst.Call, func: cst.Attribute) -> Construct | None:
        of = catalogue.find(value.of)
        if of is None:
            return None
        kind, name = of.row.kind, value.name
        if of.row.name == "tf.estimator.Estimator" and name == "__init__":
            return Construct(self.tree, func, of, call=call)
        if (kind in _ESTIMATORS or of.row.name.endswith(".TPUEstimator")) and name in _METHODS:
            row = f"tf.estimator.Estimator.{name}"
        elif kind == "head" and name == "create_estimator_spec":
            row = _SPEC_OF_HEAD
        elif kind == "run config" and name == "replace":
            row = "tf.estimator.RunConfig.replace"
        elif kind == "optimizer" and name in _GRADIENTS:
            row = "minimize"
        else:
            return None
        return Construct(self.tree, func.attr, catalogue_match(row), call=call)

    # Classes

    def classes(self) -> Iterator[Construct]:
        for node in self.tree.classes:
            for base in self.program.ancestors(ClassOf(node, self.tree)):
                match = catalogue.find(base.dotted)
                if match is None:
                    continue
                known = _SUBCLASSES.get(match.row.name) or _SUBCLASSES.get(match.row.kind)
                # Other base classes of TensorFlow, such as tf.layers.Layer, keep the row of the base.
                match_of_class = match if known is None else match._replace(row=catalogue.row(known))
                details = {"class": node.name.value, "base": catalogue.spell(base.dotted)}
                yield Construct(self.tree, node.name, match_of_class, details=details)
                break

    # TF_CONFIG

    def strings(self) -> Iterator[Construct]:
        for node in self.tree.strings:
            if "TF_CONFIG" not in node.value or node.evaluated_value != "TF_CONFIG":
                continue
            if not isinstance(self.tree.parents[node], cst.Expr):
                yield Construct(self.tree, node, catalogue_match("TF_CONFIG"))

    # Imports

    def imports(self) -> Iterator[Construct]:
        for node, binding in self.tree.imports:
            place = node.name if isinstance(node, cst.ImportAlias) else node
            if binding.level:
                continue
            dotted = binding.name if binding.kind == "import" else f"{binding.module}.{binding.name}"
            whole = dotted.removesuffix(".*")
            if catalogue.is_private(dotted) or catalogue.is_private(f"{binding.module}."):
                match = CatalogueMatch(catalogue.row("private import"), whole, catalogue.is_there(dotted))
                yield Construct(self.tree, place, match)
            elif dotted.startswith(("tensorflow.contrib", "tensorflow.examples")):
                row = catalogue.row("tf.contrib" if dotted.startswith("tensorflow.contrib") else "tf.examples")
                yield Construct(self.tree, place, CatalogueMatch(row, catalogue.spell(whole), False))
            elif self._is_unused(node, binding):
                public_match = catalogue.find(dotted)
                if public_match is not None:
                    yield Construct(self.tree, place, public_match)

    def _is_unused(self, node: cst.CSTNode, binding: Binding) -> bool:
        """Return whether the file imports a name without using it, for example to re-export it."""
        if binding.kind != "from" or not isinstance(node, cst.ImportAlias):
            return False
        return (node.evaluated_alias or node.evaluated_name) not in self.used


def arguments(call: cst.Call, fields: tuple[str, ...]) -> dict[str, cst.Arg]:
    """Return parameter -> argument of a call, for positional and keyword arguments."""
    return {name: arg for name, arg in _arguments(call, fields) if name}


def _arguments(call: cst.Call, fields: tuple[str, ...]) -> Iterator[tuple[str, cst.Arg]]:
    position = 0
    for arg in call.args:
        if arg.star:
            position += len(fields) if arg.star == "*" else 0
        elif arg.keyword is not None:
            yield arg.keyword.value, arg
        else:
            yield (fields[position] if position < len(fields) else ""), arg
            position += 1


def value_names(values: Iterable[object]) -> list[str]:
    """Return the full names among the meanings of an expression."""
    return [value.dotted for value in values if isinstance(value, Outside)]

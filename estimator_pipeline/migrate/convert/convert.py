"""Conversion of a file from Estimators to Keras: read, plan, apply, verify; or the line that no rule converts."""

from __future__ import annotations

import ast
import tokenize
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines, Step, damaging_rule, keep_comments
from estimator_pipeline.migrate.code.analysis.name_resolution import Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree, iter_nodes
from estimator_pipeline.migrate.code.renames import tensorflow_1
from estimator_pipeline.migrate.code.to_keras.unresolved_names import unknown_names
from estimator_pipeline.migrate.convert import helpers
from estimator_pipeline.migrate.convert.estimators import ESTIMATOR, EstimatorJob, read_estimators
from estimator_pipeline.migrate.convert.job import NewStatements, write_job
from estimator_pipeline.migrate.convert.model import Model, write_model
from estimator_pipeline.migrate.convert.names import FileNames, Refused
from estimator_pipeline.migrate.convert.rest import Rest, reached_nodes

__all__ = ["ConversionPlan", "check_models", "convert_file", "plan"]

_KERAS_2 = """\
# Keras 3 does not train under MultiWorkerMirroredStrategy: on TensorFlow 2.16 and later, tf.keras has to be tf_keras.
if tuple(map(int, importlib.metadata.version("tensorflow").split(".")[:2])) >= (2, 16):
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
"""
_EVALUATOR = """\
if json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("type") == "evaluator":
    raise SystemExit("the workers evaluate, with the validation_data of fit: start no evaluator")
"""


@dataclass(frozen=True)
class ConversionPlan:
    """The edits that convert a file.

    Attributes:
        text: the file before.
        edits: the edits, in no order.
    """

    text: str
    edits: tuple[Edit, ...]

    def apply(self) -> Step:
        """Return the converted text, as a step of edits."""
        return Step.of("keras", self.text, keep_comments(self.text, self.edits))


def convert_file(program: Program, tree: Tree) -> Step:
    """Return the step that converts a file to Keras.

    Raises:
        Refused: no rule converts one of its constructs.
    """
    step = plan(program, tree).apply()
    verify(tree, step)
    return step


def check_models(program: Program, tree: Tree) -> None:
    """Check that rules convert the model_fns of a file, whatever becomes of the rest.

    Raises:
        Refused: no rule converts a statement of a model_fn.
    """
    tf = tensorflow_1.root_of_tensorflow(program, tree)
    names = FileNames(program, tree, tf or "tf")
    for call in [call for call in tree.calls if names.name(call.func) == ESTIMATOR]:
        model_fn = arguments(call, ("model_fn",)).get("model_fn")
        function = names.function(model_fn.value) if model_fn is not None else None
        if function is None or function.tree is not tree or not isinstance(function.node, cst.FunctionDef):
            raise Refused("a model_fn that is not a function of the same file", call)
        write_model(names, function.node, prefix="", distributed=False)


def plan(program: Program, tree: Tree) -> ConversionPlan:
    """Return the edits that convert a file.

    Raises:
        Refused: no rule converts one of its constructs.
    """
    tf = tensorflow_1.root_of_tensorflow(program, tree)
    if tf is None:
        raise Refused("a file that imports TensorFlow otherwise than by `import tensorflow as tf`", tree.module)
    names = FileNames(program, tree, tf)
    estimators = read_estimators(names)
    if not estimators:
        raise Refused("no Estimator is made in this file", tree.module)
    if not tree.verbatim:
        raise Refused("a file that libcst does not reproduce", tree.module)
    return _Planner(names, estimators).plan()


@dataclass
class _Planner:
    names: FileNames
    estimators: Sequence[EstimatorJob]
    needs: set[str] = field(default_factory=set)

    def plan(self) -> ConversionPlan:
        names, tree = self.names, self.names.tree
        self.lines = Lines(tree.source.text)
        models = self.models()
        replaced: set[cst.CSTNode] = {node for model in models.values() for node in model.helpers} | set(models)
        reached = reached_nodes(names, replaced)
        parts = self.consumed()
        rest = Rest(names, lambda node: self.is_reached(node, reached))
        rest.read(replaced | parts)
        alone = len(self.estimators) == 1
        jobs = [write_job(names, rest, job, models[job.model_fn], alone=alone) for job in self.estimators]
        self.needs |= {need for model in models.values() for need in model.needs}
        self.needs |= {need for job in jobs for need in job.needs}
        self.check_names(models)
        edits = [*self.of_models(models), *self.of_jobs(jobs, rest), *self.of_imports()]
        newline = self.lines.newline(1)
        if newline != "\n":
            edits = [edit._replace(new=edit.new.replace("\r\n", "\n").replace("\n", newline)) for edit in edits]
        return ConversionPlan(tree.source.text, tuple(edits))

    def models(self) -> dict[cst.FunctionDef, Model]:
        several = len({estimator.model_fn for estimator in self.estimators}) > 1
        models: dict[cst.FunctionDef, Model] = {}
        for estimator in self.estimators:
            function = estimator.model_fn
            if function not in models:
                stem = function.name.value.removesuffix("_fn").removesuffix("_model")
                distributed = any(
                    other.config.strategy is not None for other in self.estimators if other.model_fn is function
                )
                prefix = f"{stem}_" if several else ""
                models[function] = write_model(self.names, function, prefix=prefix, distributed=distributed)
        return models

    def check_names(self, models: Mapping[cst.FunctionDef, Model]) -> None:
        """Check that the program has no other use of the names that the conversion defines."""
        tree = self.names.tree
        inside = {node for function in models for node in (function, *iter_nodes(function))}
        taken = {name: scope.node for node, scope in ((tree.module, tree.scope), *tree.scopes.items())
                 if node not in inside for name in scope.names}  # fmt: skip
        for name in (*self.needs, *(name for model in models.values() for name in (model.make, model.predictions))):
            if name in taken and name != "os":
                raise Refused(f"the name {name}, which the conversion defines", taken[name])

    def consumed(self) -> set[cst.CSTNode]:
        """Return the calls and statements of Estimators, which the job replaces: their arguments are read apart."""
        nodes: set[cst.CSTNode] = set()
        for estimator in self.estimators:
            nodes.add(estimator.call.func)
            nodes |= {use.call.func for use in estimator.uses} | {
                node for use in estimator.uses for node in use.statements
            }
            if estimator.config.statement is not None:
                nodes.add(estimator.config.statement)
            for use in estimator.uses:
                nodes |= {
                    call.func for call in _calls_in(use.call) if self.names.name(call.func).startswith("tf.estimator.")
                }
            nodes |= {call.func for call in _calls_in(estimator.call)
                      if self.names.name(call.func) == "tf.estimator.RunConfig"}  # fmt: skip
        return nodes

    def is_reached(self, node: cst.CSTNode, reached: set[cst.CSTNode]) -> bool:
        """Return whether a node runs: it is not in the body of a function that nothing reaches."""
        tree, below = self.names.tree, node
        bodies: list[cst.FunctionDef | cst.ClassDef] = []
        for above in tree.above(node):
            if isinstance(above, cst.FunctionDef) and above.body is below:
                bodies.append(above)
            elif isinstance(above, cst.ClassDef) and bodies:
                bodies.append(above)  # a method
            below = above
        return not bodies or bodies[-1] in reached or bodies[0] in reached

    # Edits

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        line, column, end_line, end_column = self.names.tree.position(node)
        return self.lines.offset(line, column), self.lines.offset(end_line, end_column)

    def of_models(self, models: Mapping[cst.FunctionDef, Model]) -> Iterator[Edit]:
        tree = self.names.tree
        for function, model in models.items():
            texts = [tree.module.code_for_node(part).strip("\n") for part in model.code]
            yield Edit(*self.span(function), "\n\n\n".join(texts))
            for node, new in model.helpers.items():
                if tree.parents.get(node) is not tree.module:
                    raise Refused("a function inside of another that a model_fn calls", node)
                leading = new.with_changes(leading_lines=[])
                yield Edit(*self.span(node), tree.module.code_for_node(leading).strip("\n"))

    def of_jobs(self, jobs: Sequence[NewStatements], rest: Rest) -> Iterator[Edit]:
        tree = self.names.tree
        gone = [node for job in jobs for node in job.removed] + rest.removed
        replaced = {node: lines for job in jobs for node, lines in job.replaced.items()}
        before: dict[cst.CSTNode, list[str]] = {}
        calls = dict(rest.new)
        for job in jobs:
            calls.update(job.calls)
            for node, lines in job.before.items():
                before.setdefault(node, []).extend(lines)
        for node in dict.fromkeys([*before, *replaced, *gone]):
            line, _, last, _ = tree.position(node)
            indent = self.lines.indent(line)
            start, end = self.lines.starts[line - 1], self.lines.end(last)
            written = "".join(f"{indent}{text}\n" for text in before.get(node, ()))
            if node in replaced:
                written += "".join(f"{indent}{text}\n" for text in replaced[node])
            elif node not in gone:
                yield Edit(start, start, written)
                continue
            yield Edit(start, end, written)
        removed = {*gone, *replaced}
        outermost = [node for node in calls if not any(above in calls for above in tree.above(node))]
        for node in outermost:
            if not any(above in removed for above in (node, *tree.above(node))):
                yield Edit(*self.span(node), calls[node])

    def of_imports(self) -> Iterator[Edit]:
        tree = self.names.tree
        multi_worker = any(estimator.config.is_multi_worker for estimator in self.estimators)
        wanted = {"os"} & self.needs | ({"importlib.metadata", "json", "os"} if multi_worker else set())
        missing = sorted(name for name in wanted if not self.is_imported(name))
        imports = [node for node in tree.module.body if _is_import(node)]
        first = next(node for node in imports if not _is_future(node))
        at = self.lines.starts[tree.position(first)[0] - 1]
        text = "".join(f"import {name}\n" for name in missing)
        if multi_worker:
            tensorflow = next(node for node in imports if "tensorflow" in self.names.text(node))
            before = self.lines.starts[tree.position(tensorflow)[0] - 1]
            earlier = "".join(f"import {name}\n" for name in sorted(wanted) if before < self.place_of(name))
            if before != at:
                yield Edit(at, at, text)
                text = ""
            yield Edit(before, before, f"{text}{earlier if text == '' else ''}\n{_KERAS_2}\n")
        elif text:
            yield Edit(at, at, text)
        last = tensorflow_1.last_import(tree) or imports[-1]
        end = self.lines.end(tree.position(last)[2])
        sources = helpers.sources(self.needs, self.names.tf)
        guard = f"\n{_EVALUATOR}" if multi_worker else ""
        if sources or guard:
            blank = tree.source.text[end:].split("\n", 3)[:3].count("") if sources else 2
            behind = "\n" * max(2 - blank, 0)
            yield Edit(end, end, guard + "".join(f"\n\n{source}" for source in sources) + behind)

    def place_of(self, name: str) -> int:
        for alias, binding in self.names.tree.imports:
            if binding.name == name and binding.scope is self.names.tree.scope:
                return self.span(alias)[0]
        return -1

    def is_imported(self, name: str) -> bool:
        return any(binding.kind == "import" and binding.name == name and binding.scope is self.names.tree.scope
                   for _, binding in self.names.tree.imports)  # fmt: skip


def verify(tree: Tree, step: Step) -> None:
    """Check the converted text, so that a defect of a rule cannot break a file.

    Raises:
        Refused: the text is not valid Python, has a name that is not defined, or differs outside of the edits.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(step.after)
        except SyntaxError as error:
            raise Refused(f"the converted text is not valid Python: {error}", tree.module) from error
    unknown = sorted(unknown_names(step.after) - unknown_names(step.before))
    if unknown:
        raise Refused(f"{unknown[0]}, which would be undefined after the conversion", tree.module)
    try:
        damaged = damaging_rule(step.before, step.after, [step])
    except tokenize.TokenError as error:
        raise Refused(f"the converted text cannot be read: {error}", tree.module) from error
    if damaged:
        raise Refused("a rule would change code that it does not convert", tree.module)


def _calls_in(node: cst.CSTNode) -> list[cst.Call]:
    calls: list[cst.Call] = []

    class Finder(cst.CSTVisitor):
        def visit_Call(self, node: cst.Call) -> None:
            calls.append(node)

    node.visit(Finder())
    return calls


def _is_import(node: cst.CSTNode) -> TypeGuard[cst.SimpleStatementLine]:
    return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], (cst.Import, cst.ImportFrom))


def _is_future(node: cst.SimpleStatementLine) -> bool:
    statement = node.body[0]
    return isinstance(statement, cst.ImportFrom) and isinstance(statement.module, cst.Name) and (
        statement.module.value == "__future__"
    )  # fmt: skip

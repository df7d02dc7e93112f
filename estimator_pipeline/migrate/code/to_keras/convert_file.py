"""Conversion of one file from Estimators to Keras, or the reason why it is not convertible."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
import sys
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import Construct, arguments, find_constructs
from estimator_pipeline.migrate.code.analysis.edits import Edit, Step, apply, keep_comments
from estimator_pipeline.migrate.code.analysis.name_resolution import Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree, dotted_of, parse
from estimator_pipeline.migrate.code.analysis.version_guards import is_guarded
from estimator_pipeline.migrate.code.renames import tensorflow_1
from estimator_pipeline.migrate.code.to_keras import contrib_layers
from estimator_pipeline.migrate.code.to_keras.helpers import HELPERS, PREDICTS, PREDICTS_SEPARATELY
from estimator_pipeline.migrate.code.to_keras.hooks import hooks
from estimator_pipeline.migrate.code.to_keras.imports_of_tensorflow import v1_import, without_a_name
from estimator_pipeline.migrate.code.to_keras.job import canned, datasets, flags, training
from estimator_pipeline.migrate.code.to_keras.job import exports as exporting
from estimator_pipeline.migrate.code.to_keras.job.estimators import ConvertedJob
from estimator_pipeline.migrate.code.to_keras.job.estimators import find_estimators as jobs_of
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.model import heads
from estimator_pipeline.migrate.code.to_keras.model import model_class as modelling
from estimator_pipeline.migrate.code.to_keras.model import warm_start as warm_starts
from estimator_pipeline.migrate.code.to_keras.model_fn import layers, variables
from estimator_pipeline.migrate.code.to_keras.model_fn import losses_and_optimizers as arithmetic
from estimator_pipeline.migrate.code.to_keras.model_fn import rnn_cells as recurrent
from estimator_pipeline.migrate.code.to_keras.program.other_files import check_users
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter
from estimator_pipeline.migrate.code.to_keras.unresolved_names import modules_by_other_names, unknown_names
from estimator_pipeline.migrate.code.to_keras.unused_names import remove_unused_names

__all__ = ["DEFECTS", "ConversionOutcome", "convert"]

_ESTIMATORS = ("estimator", "canned estimator", "model_fn", "keras estimator", "spec")
# Exceptions that a bug in a rule may raise. The file is then not converted, but the scan continues.
DEFECTS = (LookupError, AttributeError, TypeError, ValueError, SyntaxError, AssertionError, RecursionError,
            tokenize.TokenError)  # fmt: skip
_MODES = {"TRAIN": "'train'", "EVAL": "'eval'", "PREDICT": "'infer'"}
# Modules of this package that converted programs may import.
_RUNTIME = "estimator_pipeline.models.keras_runtime"
_MODULES = {
    "keras_averages": f"{_RUNTIME}.moving_averages",
    "keras_canned": f"{_RUNTIME}.canned",
    "keras_cells": f"{_RUNTIME}.rnn_cells",
    "keras_cluster": f"{_RUNTIME}.distribution",
    "keras_columns": f"{_RUNTIME}.feature_columns",
    "keras_evaluation": f"{_RUNTIME}.evaluation",
    "keras_heads": f"{_RUNTIME}.heads",
    "keras_optimizers": "estimator_pipeline.models.optimizers.keras2",
    "keras_variables": f"{_RUNTIME}.variables",
    "keras_weights": f"{_RUNTIME}.warm_start",
}
_LEVELS = ("DEBUG", "ERROR", "FATAL", "INFO", "WARN")
# Names of tf.compat.v1 that a converted file must not contain: they would still need an Estimator.
_LEFT = (
    r"train\.|layers|losses|metrics|summary|placeholder|Session|InteractiveSession|get_|\w*variables?|assign|"
    r"saved_model|estimator|nn\.rnn|nn\.dynamic|nn\.static|global_variables|Graph|disable_|tables_|add_to"
)
_GONE = re.compile(
    rf"\.estimator\b|\.feature_column\b|\.compat\.v1\.({_LEFT})|make_one_shot_iterator|make_initializable_iterator"
)


@dataclass
class ConversionOutcome:
    """The result of converting a file.

    Attributes:
        text: The Keras program; "" if the file remains an Estimator program.
        steps: The edits that it consists of.
        reason: Why the file is not convertible.
        line: Line of the construct that prevents the conversion.
        gone: Nodes of the constructs that the new text no longer contains.
        path: File of that construct, if it is a different file of the same program.
        cell: Number of the notebook cell, set when the outcome is reported in the user's numbering.
        source: Text of the line, set together with `cell`.
        parts: Names that a Keras 3 program takes from the module next to it.
    """

    text: str = ""
    steps: list[Step] = field(default_factory=list)
    reason: str = ""
    line: int = 0
    gone: set[cst.CSTNode] = field(default_factory=set)
    path: str = ""
    cell: int | None = None
    source: str | None = None
    parts: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return a sentence with the place and the reason."""
        line = f"line {self.line}" if self.cell is None else f"cell {self.cell}, line {self.line}"
        if not self.path:
            return f"{line}: {self.reason}"
        return f"in the same program as {self.path}, {line}: {self.reason}"


def convert(program: Program, tree: Tree, constructs: Sequence[Construct]) -> ConversionOutcome | None:
    """Convert a file; None if it does not use Estimators.

    Args:
        program: The program that the file belongs to.
        tree: The file.
        constructs: The constructs that the scan finds in the file.
    """
    of_estimators = [construct for construct in constructs if construct.row.kind in _ESTIMATORS]
    if not of_estimators:
        return None
    first = min(of_estimators, key=lambda construct: tree.position(construct.node))
    try:
        by_core = contrib_layers.lower(program, tree)
        if by_core is not None:
            check_contrib(by_core, first.node)
            if by_core.text != tree.source.text:
                return _convert_core(program, tree, by_core)
        step = _convert_text(program, tree, first.node, constructs)
        check_users(program, tree, step.after)
        return ConversionOutcome(step.after, [step])
    except NotConvertible as declined:
        line = declined.line or tree.position(first.node)[0]
        if not declined.line:
            with contextlib.suppress(KeyError):
                line = tree.position(declined.node)[0]
        return ConversionOutcome(reason=declined.reason, line=line)
    except DEFECTS as error:
        return ConversionOutcome(
            reason=f"the converter failed: {type(error).__name__}: {error}", line=tree.position(first.node)[0]
        )


def _convert_text(program: Program, tree: Tree, first: cst.CSTNode, constructs: Sequence[Construct]) -> Step:
    tf = tensorflow_1.root_of_tensorflow(program, tree)
    old = None if tf else v1_import(tree)
    if tree.tensorflow_1:
        for construct in constructs:
            if (
                construct.match.spelled.startswith("tf.")
                and not construct.match.exists
                and not is_guarded(tree, construct.node)
            ):
                raise NotConvertible(f"{construct.match.spelled}, which TensorFlow 2 does not have", construct.node)
    if tf is None and old is None:
        raise without_a_name(program, tree, first)
    if tree.tensorflow_1:
        raise NotConvertible("names that only TensorFlow 1 has, in another file of the same program", first)
    if tf is None:
        assert old is not None
        tf = old.evaluated_alias or "tf"
    reader = Rewriter(program, tree, tf, is_v1=old is not None)
    if old is not None:
        reader.replaced[old] = f"tensorflow as {tf}"
    _remove_behavior_switches(reader)
    reader.find_flags(tree.functions)
    for name, text in _MODES.items():
        reader.names[f"tf.estimator.ModeKeys.{name}"] = text
    for part in (layers, variables, recurrent, arithmetic, datasets, canned, heads, flags):
        part.install(reader)
    _install_logging(reader)
    jobs = jobs_of(reader, kinds=("estimator", "canned estimator", "keras estimator"))
    if not jobs:
        raise NotConvertible("no Estimator is created in this file", first)
    hooks.find(reader)
    written: dict[cst.FunctionDef, modelling.ConvertedModel] = {}
    for job in jobs:
        if reader.called(job.call) == canned.ESTIMATOR:
            job.written, job.make = _write_model(reader, job.call, job.settings.is_distributed, written)
        elif job.customs:
            for call in job.customs:
                _, make = _write_model(reader, call, False, written)
                reader.replaced[call] = partial(make, job.inputs)
        elif not job.late:
            canned.convert_job(reader, job)
    _remove_helpers(reader, written)
    for name, node in reader.fetched_tensors.items():
        raise NotConvertible(f"a hook that fetches the tensor {name}, which is not a tf.identity in a model_fn", node)
    warm_starts.install(reader, jobs)
    for job in jobs:
        training.install(reader, job)
    exporting.write_exports(reader)
    step = _write(reader, jobs)
    while remove_unused_names(reader, step.after):
        step = _write(reader, jobs)
    _check_result(reader, step.after, first)
    return step


def check_contrib(by_core: contrib_layers.CoreText | None, first: cst.CSTNode) -> None:
    """Reject a file that still uses a former tf.contrib name.

    Raises:
        NotConvertible: The file uses such a name.
    """
    if by_core is not None and by_core.left is not None:
        name, line = by_core.left
        raise NotConvertible(f"{name}, which Keras does not have", first, line)


def _convert_core(program: Program, tree: Tree, by_core: contrib_layers.CoreText) -> ConversionOutcome | None:
    """Convert a file by way of its core text, which has the same line numbers."""
    parsed = parse(tree.source.with_text(by_core.text))
    assert parsed is not None
    parsed.tensorflow_1, parsed.needs = tree.tensorflow_1, tree.needs
    others = {path: other for path, other in program.trees.items() if other is not tree}
    program = Program([*others.values(), parsed], program.modules)
    outcome = convert(program, parsed, list(find_constructs(program, parsed)))
    if outcome is not None and outcome.text:
        outcome.steps = [*by_core.steps, *outcome.steps]
    return outcome


def _remove_behavior_switches(reader: Rewriter) -> None:
    """Remove the calls that disable TensorFlow 2 behavior, which Keras needs."""
    for call in reader.tree.calls:
        if reader.called(call).rpartition(".")[2] not in ("disable_v2_behavior", "disable_eager_execution"):
            continue
        statement = reader.statement_of(call)
        if not isinstance(statement, cst.SimpleStatementLine):
            raise NotConvertible("a switch of TensorFlow behavior inside another statement", call)
        reader.replaced[statement] = REMOVED


def _write_model(
    reader: Rewriter, call: cst.Call, distributed: bool, written: dict[cst.FunctionDef, modelling.ConvertedModel]
) -> tuple[modelling.ConvertedModel, Callable[[str], str]]:
    """Convert an Estimator's model_fn; return the model and a function that writes its call."""
    args = arguments(call, ("model_fn", "model_dir", "config", "params", "warm_start_from"))
    model_fn, bound = _bound_arguments(reader, args.get("model_fn"))
    functions = reader.functions(model_fn) if model_fn is not None else []
    if model_fn is None or len(functions) != 1 or not isinstance(functions[0].node, cst.FunctionDef):
        raise NotConvertible("a model_fn that is not a function of this file", call)
    function = functions[0].node
    owner = _model_fn_owner(reader, function, model_fn)
    extra = _extra_parameters(function, bound)
    if function not in written:
        reader.find_flags(reader.tree.functions)
        written[function] = modelling.write(reader, function, distributed=distributed, extra=extra)
        _place_model(reader, function, written[function])
    model = written[function]
    params = args.get("params")
    if model.extra != extra:
        raise NotConvertible("a model_fn with different bound arguments elsewhere", call)

    def make(data: str) -> str:
        texts = [data]
        if model.takes_params:
            texts.append(reader.text(params.value) if params is not None else "{}")
        texts += [f"{name}={reader.whole(value)}" for name, value in bound.items()]
        return reader.call(f"{owner}{model.maker}", texts, call)

    return model, make


def _bound_arguments(reader: Rewriter, model_fn: cst.Arg | None) -> tuple[Any, dict[str, cst.BaseExpression]]:
    """Return the model_fn of an argument and the arguments that `functools.partial` binds."""
    node = reader.value(model_fn.value) if model_fn is not None else None
    if not isinstance(node, cst.Call) or not datasets.is_partial(reader, node):
        return model_fn.value if model_fn is not None else None, {}
    for arg in node.args[1:]:
        if arg.keyword is None or arg.star:
            raise NotConvertible("positional arguments bound to a model_fn", arg)
    return node.args[0].value, {arg.keyword.value: arg.value for arg in node.args[1:] if arg.keyword is not None}


def _extra_parameters(function: cst.FunctionDef, bound: dict[str, cst.BaseExpression]) -> tuple[str, ...]:
    """Return a model_fn's parameters beyond the Estimator's: bound ones and ones with a default."""
    known = ("features", "labels", "mode", "params", "config", "self")
    params = [param.name.value for param in function.params.params if param.name.value not in known
              and (param.default is not None or param.name.value in bound)]  # fmt: skip
    return (*params, *(name for name in bound if name not in params))


def _remove_helpers(reader: Rewriter, written: dict[cst.FunctionDef, modelling.ConvertedModel]) -> None:
    """Remove the helper functions whose EstimatorSpecs are now part of the models."""
    helpers = dict.fromkeys(helper for model in written.values() for helper in model.helpers)
    gone = {*written, *helpers}
    for helper in helpers:
        for chain in reader.tree.chains:
            if any(target.node is helper for target in reader.functions(chain)) and not gone & set(
                reader.tree.above(chain)
            ):
                raise NotConvertible("a function that builds an EstimatorSpec and is also used elsewhere", chain)
        reader.replaced[helper] = REMOVED


def _model_fn_owner(reader: Rewriter, function: cst.FunctionDef, model_fn: cst.BaseExpression) -> str:
    """Return the prefix of the call that builds the model: "object." for a method, else ""."""
    parent = reader.tree.parents.get(function)
    if parent is reader.tree.module:
        if not isinstance(model_fn, cst.Name):
            raise NotConvertible("a model_fn with arguments bound to it", model_fn)
        return ""
    around = reader.tree.parents.get(parent) if parent is not None else None
    at_the_top = isinstance(around, cst.ClassDef) and reader.tree.parents.get(around) is reader.tree.module
    names = [param.name.value for param in function.params.params]
    if not at_the_top or names[:1] != ["self"] or function.decorators:
        raise NotConvertible("a model_fn inside a function or a class", function.name)
    if not isinstance(model_fn, cst.Attribute) or not isinstance(model_fn.value, cst.Name):
        raise NotConvertible("a model_fn that is a method of an unnamed object", model_fn)
    if model_fn.value.value == "self":
        raise NotConvertible("a model_fn that is a method of the object that trains it", model_fn)
    for chain in reader.tree.chains:
        called = reader.tree.parents.get(reader.tree.parents.get(chain, chain))
        if isinstance(chain, cst.Attribute) and chain.attr.value == function.name.value and (
            reader.called(called) != "tf.estimator.Estimator"
        ):  # fmt: skip
            raise NotConvertible("a model_fn that is called outside of its Estimator", chain)
    return f"{reader.text(model_fn.value)}."


def _place_model(reader: Rewriter, function: cst.FunctionDef, model: modelling.ConvertedModel) -> None:
    """Put the model in place of the model_fn; for a method, its class goes before the enclosing class."""
    if not model.method:
        reader.replaced[function] = model.text
        return
    reader.replaced[function] = model.method
    around = next(above for above in reader.tree.above(function) if isinstance(above, cst.ClassDef))

    def write() -> str:
        del reader.replaced[around]
        try:
            return f"{model.text}\n\n\n{reader.text(around)}"
        finally:
            reader.replaced[around] = write

    reader.replaced[around] = write


def _install_logging(reader: Rewriter) -> None:
    """Let the rewriter convert `tf.compat.v1.logging` to TensorFlow's logger."""

    def level(call: cst.Call) -> str:
        name = reader.name(call.args[0].value).rpartition(".")[2] if len(call.args) == 1 else ""
        if name not in _LEVELS:
            raise NotConvertible("a logging level that is not known statically", call)
        return f"{reader.tf}.get_logger().setLevel('{name}')"

    reader.calls["tf.compat.v1.logging.set_verbosity"] = level
    for name in ("info", "warning", "warn", "error", "debug"):
        reader.names[f"tf.compat.v1.logging.{name}"] = (
            f"{reader.tf}.get_logger().{name.replace('warn', 'warning', 1) if name == 'warn' else name}"
        )
    reader.names["tf.distribute.experimental.MultiWorkerMirroredStrategy"] = (
        f"{reader.tf}.distribute.MultiWorkerMirroredStrategy"
    )


def _write(reader: Rewriter, jobs: list[ConvertedJob]) -> Step:
    """Return the edits of the program, with the imports and helper functions that it needs."""
    body = list(reader.tree.module.body)
    reader.edits(body)  # some rules replace nodes that come before theirs
    edits = {node: reader.edits([node]) for node in body}
    added = [*_imports(reader, body), *_helpers(reader, jobs, body, edits)]
    edits_of_text = keep_comments(reader.lines.text, [*itertools.chain(*edits.values()), *added])
    newline = reader.lines.newline(1)
    if newline != "\n":
        edits_of_text = [edit._replace(new=re.sub(r"\r?\n", newline, edit.new)) for edit in edits_of_text]
    return Step.of("keras", reader.lines.text, edits_of_text)


def _imports(reader: Rewriter, body: Sequence[cst.CSTNode]) -> list[Edit]:
    """Return the edits that add imports, each beside an import of its kind."""
    imports = [node for node in body if isinstance(node, cst.SimpleStatementLine)
               and isinstance(node.body[0], (cst.Import, cst.ImportFrom))
               and _module(node) != "__future__"]  # fmt: skip
    leading: Any = tensorflow_1.last_import(reader.tree)
    if leading in body:  # not the imports further down
        imports = [node for node in imports if body.index(node) <= body.index(leading)] or imports
    before: dict[cst.CSTNode, list[str]] = {}
    behind: dict[cst.CSTNode, list[str]] = {}
    for name in sorted({"os", "time", "tempfile"} & reader.needs):
        if name in reader.tree.scope.names:
            continue
        plain = [node for node in imports if _module(node) in sys.stdlib_module_names]
        smaller = [node for node in plain if _module(node) < name]
        if smaller:
            behind.setdefault(smaller[-1], []).append(f"import {name}")
        else:
            before.setdefault((plain or imports)[0], []).append(f"import {name}")
    if "absl" in reader.needs:
        others = [node for node in imports if _module(node) not in sys.stdlib_module_names]
        before.setdefault(others[0], []).append("from absl import app, flags")
    needed = sorted((*_MODULES[name].rpartition(".")[::2], name) for name in _MODULES.keys() & reader.needs)
    if needed:
        lines = ["", *(f"from {package} import {module} as {name}" for package, module, name in needed)]
        if "Optimizer" in reader.needs:
            lines.append("from estimator_pipeline.models.optimizers.spec import Optimizer")
        behind.setdefault(imports[-1], []).extend(lines)
    edits = []
    for node in before.keys() | behind.keys():
        newline = reader.lines.newline(reader.line(node))
        start, end = reader.lines.starts[reader.line(node) - 1], reader.lines.end(reader.tree.position(node)[2])
        edits.append(Edit(start, start, "".join(f"{line}{newline}" for line in before.get(node, ()))))
        edits.append(Edit(end, end, "".join(f"{line}{newline}" for line in behind.get(node, ()))))
    return edits


def _helpers(
    reader: Rewriter, jobs: list[ConvertedJob], body: Sequence[cst.CSTNode], edits: Mapping[Any, list[Edit]]
) -> list[Edit]:
    """Return the edit that adds the helper functions, before the first statement that needs them."""
    unit = reader.tree.module.default_indent
    chosen = [
        text.replace("tf.", f"{reader.tf}.").replace(f" {name}", f" {reader.helper_names[name]}", 1)
        for name, text in HELPERS.items()
        if name in reader.helper_names
    ]
    if reader.separate_predictions:
        chosen = [text.replace(PREDICTS, PREDICTS_SEPARATELY) for text in chosen]
    chosen = [text.replace("    ", unit) for text in (*chosen, *reader.helpers.values())]
    if not chosen:
        return []
    first = min(
        (_top_level_statement(reader, job, node) for job in jobs for node in _nodes(reader, job)), key=reader.line
    )
    called = {*reader.helper_names.values(), *reader.helpers}
    runs = [node for node in body if not isinstance(node, (cst.FunctionDef, cst.ClassDef))]
    first = min([first, *(node for node in runs if called & _names(reader, node, edits[node]))], key=reader.line)
    start, texts = reader.span(first)[0], "\n\n\n".join(chosen)
    return [Edit(start, start, f"{texts}\n\n\n")]


def _names(reader: Rewriter, node: cst.CSTNode, edits: Sequence[Edit]) -> set[str]:
    """Return the names in the new text of a top-level statement."""
    start, end = reader.span(node)
    if any(edit.start < start or edit.end > end for edit in edits):
        return set()  # it is removed
    moved = [Edit(edit.start - start, edit.end - start, edit.new) for edit in edits]
    with contextlib.suppress(SyntaxError):  # reported by the check of the whole text
        module = ast.parse(apply(reader.lines.text[start:end], moved))
        return {name.id for name in ast.walk(module) if isinstance(name, ast.Name)}
    return set()


def _module(node: cst.SimpleStatementLine) -> str:
    statement = node.body[0]
    if isinstance(statement, cst.ImportFrom):
        return (dotted_of(statement.module) or "").split(".")[0]
    assert isinstance(statement, cst.Import)
    return (dotted_of(statement.names[0].name) or "").split(".")[0]


def _nodes(reader: Rewriter, job: ConvertedJob) -> list[cst.CSTNode]:
    nodes: list[cst.CSTNode] = [job.call]
    args = arguments(job.call, ("model_fn",))
    if job.written is not None:
        nodes += [function.node for function in reader.functions(args["model_fn"].value)]
    return nodes


def _top_level_statement(reader: Rewriter, job: ConvertedJob, node: cst.CSTNode) -> cst.CSTNode:
    for above in (node, *reader.tree.above(node)):
        if reader.tree.parents.get(above) is reader.tree.module:
            return above
    return job.statement


def _check_result(reader: Rewriter, text: str, first: cst.CSTNode) -> None:
    """Check the converted text, so that a bug in a rule cannot break the user's file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise NotConvertible(f"the converted text is not valid Python: {error}", first) from error
    imported = {statement.split()[-1] for statement in reader.tree.needs}  # not needed by a text that becomes Keras
    unknown = sorted(unknown_names(text) - (unknown_names(reader.lines.text) - imported))
    if unknown:
        at = next((chain for chain in reader.tree.chains if dotted_of(chain) == unknown[0]), None)
        raise NotConvertible(f"{unknown[0]} would be undefined after the conversion", at or first)
    aliases = dict(modules_by_other_names(reader))
    for left in _chains(ast.parse(text), aliases):
        match = _GONE.search(left)
        if match is None:
            continue
        gone = match[0].lstrip(".")
        at = next((chain for chain in reader.tree.chains if reader.name(chain).startswith(f"tf.{gone}")), None)
        raise NotConvertible(f"{gone} would remain after the conversion", at or first)
    line = _changed_string(reader.lines.text, text)
    if line:
        raise NotConvertible("a string of several lines would get another indentation", first, line)


def _changed_string(before: str, after: str) -> int:
    """Return the line of a string of several lines whose indentation a rule changed, or 0; docstrings do not count."""
    new = [value for value, _ in _strings(after)]
    for value, line in _strings(before):
        if value in new:
            new.remove(value)
        elif any(value.split() == other.split() for other in new):
            return line
    return 0


def _strings(text: str) -> Iterator[tuple[str, int]]:
    """Yield the value and line of each string with a line break, except of statements that are only a string."""
    module = ast.parse(text)
    docs = {node.value for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value and node not in docs:
            yield node.value, node.lineno


def _chains(module: ast.Module, aliases: Mapping[str, str]) -> Iterator[str]:
    """Yield the dotted names of a module, with the modules of its aliases, in the order of the text."""
    for node in ast.walk(module):
        parts: list[str] = []
        below: ast.AST = node
        while isinstance(below, ast.Attribute):
            parts.insert(0, below.attr)
            below = below.value
        root = below.id if isinstance(below, ast.Name) else ""
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load):
            yield ".".join([aliases.get(root, root), *parts])

"""A whole file from Estimators to Keras, or the reason why it stays what it is."""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import tokenize
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import Construct, arguments, find_constructs
from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.analysis.name_resolution import Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree, dotted_of, parse
from estimator_pipeline.migrate.code.analysis.version_guards import is_guarded
from estimator_pipeline.migrate.code.renames import tensorflow_1
from estimator_pipeline.migrate.code.to_keras import contrib_layers
from estimator_pipeline.migrate.code.to_keras.classes import estimator_subclasses as subclasses  # fmt: skip
from estimator_pipeline.migrate.code.to_keras.helpers import HELPERS
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
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter
from estimator_pipeline.migrate.code.to_keras.unresolved_names import modules_by_other_names, unknown_names
from estimator_pipeline.migrate.code.to_keras.unused_names import without_unused_names

__all__ = ["DEFECTS", "ConversionOutcome", "convert"]

_ESTIMATORS = ("estimator", "canned estimator", "model_fn", "keras estimator", "spec")
# What a defect of a rule may raise. It costs the conversion of a file, and not the scan of a program.
DEFECTS = (LookupError, AttributeError, TypeError, ValueError, SyntaxError, AssertionError, RecursionError,
            tokenize.TokenError)  # fmt: skip
_MODES = {"TRAIN": "'train'", "EVAL": "'eval'", "PREDICT": "'infer'"}
# Of this package: what the new text may import.
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
# Of a construct of these no part may be left: it would be an Estimator's still.
_LEFT = (
    r"train\.|layers|losses|metrics|summary|placeholder|Session|InteractiveSession|get_|\w*variables?|assign|"
    r"saved_model|estimator|nn\.rnn|nn\.dynamic|nn\.static|global_variables|Graph|disable_|tables_|add_to"
)
_GONE = re.compile(
    rf"\.estimator\b|\.feature_column\b|\.compat\.v1\.({_LEFT})|make_one_shot_iterator|make_initializable_iterator"
)


@dataclass
class ConversionOutcome:
    """What became of a file.

    Attributes:
        text: the Keras program; "" where it stays an Estimator program.
        reason: why it stays.
        line: of the construct that it stays for.
        path: the file of that construct, where it is another one of the same program.
        together: the files that it is one program with, where `path` alone does not say it.
        cell, source: of a notebook's cell; the line's text. Both are known once it is told as the user has it.
        gone: the constructs that the text has no more, by their nodes.
        keeps_model_fn: whether its model_fn stays a function of TensorFlow 1, which a Keras model calls.
        parts: what it takes from the module beside it, as a program of Keras 3.
    """

    text: str = ""
    reason: str = ""
    line: int = 0
    gone: set[cst.CSTNode] = field(default_factory=set)
    keeps_model_fn: bool = False
    path: str = ""
    together: str = ""
    cell: int | None = None
    source: str | None = None
    parts: tuple[str, ...] = ()

    def told(self) -> str:
        """Where it stops, and why."""
        line = f"line {self.line}" if self.cell is None else f"cell {self.cell}, line {self.line}"
        if not self.path:
            return f"{line}: {self.reason}"
        together = f"{self.together}; " if self.together else ""
        return f"it is one program with {together}{self.path}, {line}: {self.reason}"


def convert(program: Program, tree: Tree, constructs: Sequence[Construct]) -> ConversionOutcome | None:
    """Convert a file; None where it has nothing to do with Estimators.

    Args:
        constructs: what the scan finds in it.
    """
    of_estimators = [one for one in constructs if one.row.kind in _ESTIMATORS]
    if not of_estimators:
        return None
    first = min(of_estimators, key=lambda one: tree.position(one.node))
    try:
        by_core = contrib_layers.lower(program, tree)
        if by_core is not None:
            check_contrib(by_core, first.node)
            if by_core.text != tree.source.text:
                return _of_core(program, tree, by_core)
        lowered = subclasses.lower(program, tree)
        if lowered is not None:
            return _of_classes(program, tree, lowered)
        return ConversionOutcome(_written(program, tree, first.node, constructs))
    except NotConvertible as declined:
        line = declined.line or tree.position(first.node)[0]
        if not declined.line:
            with contextlib.suppress(KeyError):
                line = tree.position(declined.node)[0]
        return ConversionOutcome(reason=declined.reason, line=line)
    except DEFECTS as error:
        return ConversionOutcome(
            reason=f"the converter fails at it: {type(error).__name__}: {error}", line=tree.position(first.node)[0]
        )


def _written(program: Program, tree: Tree, first: cst.CSTNode, constructs: Sequence[Construct]) -> str:
    tf = tensorflow_1.root_of_tensorflow(program, tree)
    old = None if tf else v1_import(tree)
    if tree.tensorflow_1:
        for one in constructs:
            if one.match.spelled.startswith("tf.") and not one.match.exists and not is_guarded(tree, one.node):
                raise NotConvertible(f"{one.match.spelled}, which TensorFlow 2 has under no other name", one.node)
    if tf is None and old is None:
        raise without_a_name(program, tree, first)
    if tree.tensorflow_1:
        raise NotConvertible("names that TensorFlow 1 alone has, in a file that it is one program with", first)
    if tf is None:
        assert old is not None
        tf = old.evaluated_alias or "tf"
    reader = Rewriter(program, tree, tf, is_v1=old is not None)
    if old is not None:
        reader.replaced[old] = f"tensorflow as {tf}"
    _switches(reader)
    reader.find_flags(tree.functions)
    for name, text in _MODES.items():
        reader.names[f"tf.estimator.ModeKeys.{name}"] = text
    for part in (layers, variables, recurrent, arithmetic, datasets, canned, heads, flags):
        part.install(reader)
    _logging(reader)
    jobs = jobs_of(reader, kinds=("estimator", "canned estimator", "keras estimator"))
    if not jobs:
        raise NotConvertible("no Estimator is made in this file", first)
    hooks.find(reader)
    written: dict[cst.FunctionDef, modelling.ConvertedModel] = {}
    for job in jobs:
        if reader.called(job.call) == canned.ESTIMATOR:
            job.written, job.make = _model(reader, job.call, job.settings.is_distributed, written)
        elif job.customs:
            for call in job.customs:
                _, make = _model(reader, call, False, written)
                reader.replaced[call] = partial(make, job.inputs)
        elif not job.late:
            canned.convert_job(reader, job)
    _remove_helpers(reader, written)
    for name, node in reader.watched.items():
        raise NotConvertible(f"a hook that asks for a tensor {name}, which is no tf.identity of a model_fn", node)
    warm_starts.install(reader, jobs)
    for job in jobs:
        training.install(reader, job)
    exporting.write_exports(reader)
    text = _with_helpers(reader, jobs)
    text = re.sub(rf"(?m)^[^\n]*{REMOVED}[^\n]*\n", "", text)
    text = re.sub(r"\n{4,}", "\n\n\n", without_unused_names(reader, text))
    _check(reader, text, first)
    return text


def check_contrib(by_core: contrib_layers.CoreText | None, first: cst.CSTNode) -> None:
    """Declines a file with something that was tf.contrib's, and is another package's by now.

    Raises:
        NotConvertible: it has.
    """
    if by_core is not None and by_core.left is not None:
        name, line = by_core.left
        raise NotConvertible(f"{name}, which Keras does not have", first, line)


def _of_core(program: Program, tree: Tree, by_core: contrib_layers.CoreText) -> ConversionOutcome | None:
    """Return the conversion of a file by way of one that has V1's core in place of tf.contrib; lines are the same."""
    made = parse(tree.source.with_text(by_core.text))
    assert made is not None
    made.tensorflow_1, made.needs = tree.tensorflow_1, tree.needs
    others = {path: other for path, other in program.trees.items() if other is not tree}
    program = Program([*others.values(), made], program.modules)
    return convert(program, made, list(find_constructs(program, made)))


def _of_classes(program: Program, tree: Tree, lowered: subclasses.Lowered) -> ConversionOutcome:
    """Return the conversion of a file by way of one that has functions in place of its classes of Estimators."""
    made = parse(SourceFile(tree.source.path, lowered.text))
    assert made is not None
    made.tensorflow_1 = tree.tensorflow_1
    others = {path: other for path, other in program.trees.items() if other is not tree}
    program = Program([*others.values(), made], program.modules)
    found = convert(program, made, list(find_constructs(program, made)))
    if found is None or not found.text:
        reason = lowered.told(found.reason) if found else "no Estimator is made in this file"
        return ConversionOutcome(
            reason=reason, line=lowered.line(found.line if found else 0) or tree.position(lowered.first)[0]
        )
    return ConversionOutcome(lowered.raised(found.text))


def _switches(reader: Rewriter) -> None:
    """Keras trains with the behaviour of TensorFlow 2."""
    for call in reader.tree.calls:
        if reader.called(call).rpartition(".")[2] not in ("disable_v2_behavior", "disable_eager_execution"):
            continue
        statement = reader.statement_of(call)
        if not isinstance(statement, cst.SimpleStatementLine):
            raise NotConvertible("a switch of behaviour within another statement", call)
        reader.replaced[statement] = REMOVED


def _model(
    reader: Rewriter, call: cst.Call, distributed: bool, written: dict[cst.FunctionDef, modelling.ConvertedModel]
) -> tuple[modelling.ConvertedModel, Callable[[str], str]]:
    """Return the model of an Estimator with a model_fn of this file, and what writes the call that makes it."""
    given = arguments(call, ("model_fn", "model_dir", "config", "params", "warm_start_from"))
    told, bound = _bound(reader, given.get("model_fn"))
    functions = reader.functions(told) if told is not None else []
    if told is None or len(functions) != 1 or not isinstance(functions[0].node, cst.FunctionDef):
        raise NotConvertible("a model_fn that is not a function of this file", call)
    function = functions[0].node
    owner = _owner(reader, function, told)
    extra = _further(function, bound)
    if function not in written:
        reader.find_flags(reader.tree.functions)
        written[function] = modelling.write(reader, function, distributed=distributed, extra=extra)
        _place(reader, function, written[function])
    made = written[function]
    params = given.get("params")
    if made.extra != extra:
        raise NotConvertible("a model_fn that other arguments are bound to elsewhere", call)

    def make(data: str) -> str:
        told = [data]
        if made.takes_params:
            told.append(reader.text(params.value) if params is not None else "{}")
        told += [f"{name}={reader.whole(value)}" for name, value in bound.items()]
        return reader.call(f"{owner}{made.maker}", told, call)

    return made, make


def _bound(reader: Rewriter, given: cst.Arg | None) -> tuple[Any, dict[str, cst.BaseExpression]]:
    """Return the model_fn of an argument, and what `functools.partial` binds to it."""
    node = reader.value(given.value) if given is not None else None
    if not isinstance(node, cst.Call) or not datasets.is_partial(reader, node):
        return given.value if given is not None else None, {}
    for arg in node.args[1:]:
        if arg.keyword is None or arg.star:
            raise NotConvertible("arguments that are bound to a model_fn without their names", arg)
    return node.args[0].value, {arg.keyword.value: arg.value for arg in node.args[1:] if arg.keyword is not None}


def _further(function: cst.FunctionDef, bound: dict[str, cst.BaseExpression]) -> tuple[str, ...]:
    """Return the parameters of a model_fn that are no Estimator's: those that are bound, and those with a default."""
    own = ("features", "labels", "mode", "params", "config", "self")
    params = [one.name.value for one in function.params.params
              if one.name.value not in own and (one.default is not None or one.name.value in bound)]  # fmt: skip
    return (*params, *(name for name in bound if name not in params))


def _remove_helpers(reader: Rewriter, written: dict[cst.FunctionDef, modelling.ConvertedModel]) -> None:
    """Take the functions away that gave specs to a model_fn: what they did is in the models."""
    helpers = dict.fromkeys(helper for made in written.values() for helper in made.helpers)
    gone = {*written, *helpers}
    for helper in helpers:
        for chain in reader.tree.chains:
            if any(one.node is helper for one in reader.functions(chain)) and not gone & set(reader.tree.above(chain)):
                raise NotConvertible("a function that makes an EstimatorSpec, used elsewhere too", chain)
        reader.replaced[helper] = REMOVED


def _owner(reader: Rewriter, function: cst.FunctionDef, given: cst.BaseExpression) -> str:
    """Return the text before the name of what makes the model: the object where the model_fn is a method; else ""."""
    parent = reader.tree.parents.get(function)
    if parent is reader.tree.module:
        if not isinstance(given, cst.Name):
            raise NotConvertible("a model_fn with arguments bound to it", given)
        return ""
    around = reader.tree.parents.get(parent) if parent is not None else None
    at_the_top = isinstance(around, cst.ClassDef) and reader.tree.parents.get(around) is reader.tree.module
    names = [one.name.value for one in function.params.params]
    if not at_the_top or names[:1] != ["self"] or function.decorators:
        raise NotConvertible("a model_fn within another function, or of a class", function.name)
    if not isinstance(given, cst.Attribute) or not isinstance(given.value, cst.Name):
        raise NotConvertible("a model_fn that is a method of an object without a name", given)
    if given.value.value == "self":
        raise NotConvertible("a model_fn that is a method of the object that trains it", given)
    for chain in reader.tree.chains:
        called = reader.tree.parents.get(reader.tree.parents.get(chain, chain))
        if isinstance(chain, cst.Attribute) and chain.attr.value == function.name.value and (
            reader.called(called) != "tf.estimator.Estimator"
        ):  # fmt: skip
            raise NotConvertible("a model_fn that is called otherwise than by its Estimator", chain)
    return f"{reader.text(given.value)}."


def _place(reader: Rewriter, function: cst.FunctionDef, made: modelling.ConvertedModel) -> None:
    """The model's class and what makes it go where the model_fn was; of a method the class goes before its own."""
    if not made.method:
        reader.replaced[function] = made.text
        return
    reader.replaced[function] = made.method
    around = next(one for one in reader.tree.above(function) if isinstance(one, cst.ClassDef))

    def write() -> str:
        del reader.replaced[around]
        try:
            return f"{made.text}\n\n\n{reader.text(around)}"
        finally:
            reader.replaced[around] = write

    reader.replaced[around] = write


def _logging(reader: Rewriter) -> None:
    """`tf.compat.v1.logging` is the logger of TensorFlow."""

    def level(call: cst.Call) -> str:
        name = reader.name(call.args[0].value).rpartition(".")[2] if len(call.args) == 1 else ""
        if name not in _LEVELS:
            raise NotConvertible("a level of logging that cannot be told", call)
        return f"{reader.tf}.get_logger().setLevel('{name}')"

    reader.calls["tf.compat.v1.logging.set_verbosity"] = level
    for name in ("info", "warning", "warn", "error", "debug"):
        reader.names[f"tf.compat.v1.logging.{name}"] = (
            f"{reader.tf}.get_logger().{name.replace('warn', 'warning', 1) if name == 'warn' else name}"
        )
    reader.names["tf.distribute.experimental.MultiWorkerMirroredStrategy"] = (
        f"{reader.tf}.distribute.MultiWorkerMirroredStrategy"
    )


def _with_helpers(reader: Rewriter, jobs: list[ConvertedJob]) -> str:
    """The text with the modules and functions that it needs: imports beside the others, functions before the model."""
    body = list(reader.tree.module.body)
    reader.spliced(0, len(reader.lines.text), body)  # what is needed is known when all is written
    imports = [node for node in body if isinstance(node, cst.SimpleStatementLine)
               and isinstance(node.body[0], (cst.Import, cst.ImportFrom))
               and "__future__" not in reader.source(node)]  # fmt: skip
    leading: Any = tensorflow_1.last_import(reader.tree)
    if leading in body:  # not what is imported further down
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
        own = ["", *(f"from {package} import {module} as {name}" for package, module, name in needed)]
        if "Optimizer" in reader.needs:
            own.append("from estimator_pipeline.models.optimizers.spec import Optimizer")
        behind.setdefault(imports[-1], []).extend(own)
    bound = {name for scope in (reader.tree.scope, *reader.tree.scopes.values()) for name in scope.names}
    for name in HELPERS.keys() & reader.needs & bound:
        raise NotConvertible(
            f"{name} is a name of the program's own, and of a function that would be written", jobs[0].call
        )
    unit = reader.tree.module.default_indent
    chosen = [HELPERS[name].replace("tf.", f"{reader.tf}.") for name in HELPERS if name in reader.needs]
    chosen = [one.replace("    ", unit) for one in (*chosen, *reader.helpers.values())]
    first = min((_top(reader, job, node) for job in jobs for node in _nodes(reader, job)), key=reader.line)
    called = re.compile(rf"\b({'|'.join([*(HELPERS.keys() & reader.needs), *reader.helpers]) or '-'})\(")
    runs = [node for node in body if not isinstance(node, (cst.FunctionDef, cst.ClassDef))]
    first = min([first, *(node for node in runs if called.search(reader.text(node)))], key=reader.line)
    texts = {node: reader.text(node) for node in {first, *before, *behind}}
    for node in before.keys() | behind.keys():
        reader.replaced[node] = "\n".join([*before.get(node, ()), texts[node], *behind.get(node, ())])
    if chosen:
        reader.replaced[first] = "\n\n\n".join([*chosen, texts[first]])
    return reader.spliced(0, len(reader.lines.text), body)


def _module(node: cst.SimpleStatementLine) -> str:
    one = node.body[0]
    if isinstance(one, cst.ImportFrom):
        return (dotted_of(one.module) or "").split(".")[0]
    assert isinstance(one, cst.Import)
    return (dotted_of(one.names[0].name) or "").split(".")[0]


def _nodes(reader: Rewriter, job: ConvertedJob) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = [job.call]
    given = arguments(job.call, ("model_fn",))
    if job.written is not None:
        found += [one.node for one in reader.functions(given["model_fn"].value)]
    return found


def _top(reader: Rewriter, job: ConvertedJob, node: cst.CSTNode) -> cst.CSTNode:
    for above in (node, *reader.tree.above(node)):
        if reader.tree.parents.get(above) is reader.tree.module:
            return above
    return job.statement


def _check(reader: Rewriter, text: str, first: cst.CSTNode) -> None:
    """A last look: a defect of a rule costs the conversion of a file, not the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise NotConvertible(f"what was written cannot be read: {error}", first) from error
    imported = {one.split()[-1] for one in reader.tree.needs}  # by nothing in a text that becomes Keras
    unknown = sorted(unknown_names(text) - (unknown_names(reader.lines.text) - imported))
    if unknown:
        line = _line_of(rf"\b{re.escape(unknown[0])}\b", reader.lines.text)
        raise NotConvertible(f"{unknown[0]} would have no value in it", first, line)
    bare = re.sub(r"#[^\n]*|\"\"\".*?\"\"\"", "", text, flags=re.DOTALL)
    for alias, module in modules_by_other_names(reader):
        bare = re.sub(rf"(?<![\w.]){alias}\.", f"{module}.", bare)
    found = _GONE.search(bare)
    if found:
        left = found[0].lstrip(".")
        at = next((one for one in reader.tree.chains if reader.name(one).startswith(f"tf.{left}")), None)
        line = 0 if at is not None else _line_of(re.escape(left.rpartition(".")[2]) + r"\b", reader.lines.text)
        raise NotConvertible(f"{left} would be left in it", at or first, line)
    line = reader.lost_comment(text)
    if line:
        raise NotConvertible("a comment within brackets has no place in what would be written", first, line)


def _line_of(pattern: str, text: str) -> int:
    """Return the line of the first match; 0 where there is none."""
    found = re.search(pattern, text)
    return text.count("\n", 0, found.start()) + 1 if found else 0

"""The Estimators of a file: what makes each, its configuration, where it is used."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.chains import root
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.job import canned
from estimator_pipeline.migrate.code.to_keras.job import run_config as configuration
from estimator_pipeline.migrate.code.to_keras.job.run_config import RunConfigSettings
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.model.model_class import ConvertedModel
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["ConvertedJob", "find"]

_KERAS_MODEL = ("keras_model", "keras_model_path", "custom_objects", "model_dir", "config", "checkpoint_format",
                "metric_names_map")  # fmt: skip


@dataclass
class ConvertedJob:
    """An Estimator, and what is done with it.

    Attributes:
        call: what makes it; `statement` with its name.
        made: the call that makes the Keras model, as a function of the inputs' text.
        folder: the text of model_dir; "" where it has none.
        model: the name of the Keras model.
        changed: whether its name is given to it once more, with further metrics.
        customs: Estimators with a model_fn that a function makes, which gets the model's inputs by the name `inputs`.
    """

    call: cst.Call
    statement: cst.SimpleStatementLine
    name: str
    settings: RunConfigSettings
    folder: str
    model: str = ""
    params: str = ""
    chains: dict[cst.Name, cst.CSTNode] = field(default_factory=dict)
    callbacks: str = ""
    written: ConvertedModel | None = None
    make: Callable[[str], str] | None = None
    needs_inputs: bool = True
    is_canned: bool = False
    late: bool = False
    changed: bool = False
    customs: list[cst.Call] = field(default_factory=list)
    inputs: str = "features"


def find(reader: Rewriter, *, kinds: tuple[str, ...]) -> list[ConvertedJob]:
    """Every Estimator of a file.

    Args:
        kinds: of catalogue rows whose calls are taken.

    Raises:
        NotConvertible: one is handed on, or not made by a statement.
    """
    found = []
    made = canned.factories(reader)
    within = {call for calls in made.values() for call in calls}
    for function, calls in made.items():
        found += _of_factory(reader, function, calls)
    for call in reader.tree.calls:
        if call in within:
            continue
        match = catalogue.find(reader.called(call).replace("tf.", "tensorflow.", 1))
        if match is None or match.row.kind not in kinds or match.row.name.endswith("ModeKeys"):
            continue
        if not isinstance(call, cst.Call) or match.spelled.count(".") < 2:
            continue
        assign, statement = _assignment(reader, call)
        target = assign.targets[0].target
        if len(assign.targets) > 1 or not isinstance(target, cst.Name):
            raise NotConvertible("an Estimator without a plain name", call)
        others = [one.node for one in reader.program.bindings(target.value, reader.scope(call)) if one.node is not call]
        in_turn = _are_in_turn(reader, target.value, [call, *others], kinds)
        if not in_turn and not all(canned.adds_metrics(reader, other, target.value) for other in others):
            raise NotConvertible(f"{target.value} is more than the Estimator", call)
        given = arguments(call, match.row.fields or _KERAS_MODEL)
        config = given.get("config")
        told = configuration.settings(reader, config.value if config else None)
        folder = reader.text(given["model_dir"].value) if "model_dir" in given else told.model_dir
        folder = "" if folder == "None" else folder
        found.append(ConvertedJob(call, statement, target.value, told, folder))
        found[-1].changed = bool(others) and not in_turn
    for job in found:
        home = reader.scope(job.call).around().node
        # One name for several, one behind the other, as the cells of a notebook have it.
        first, last = _lines(reader, job, [one for one in found if one.name == job.name])
        job.chains = {
            root(chain): chain
            for chain in reader.tree.chains
            if root(chain).value == job.name
            and reader.home(root(chain)) == (home, job.name)
            and first <= reader.line(chain) < last
        }
        taken = set(reader.scope(job.call).around().names) | set(reader.tree.scope.names)
        renamed = len(found) == 1 and "model" not in taken and not job.late and not job.changed
        job.model = "model" if renamed else job.name
        job.callbacks = "callbacks" if len(found) == 1 and "callbacks" not in taken else f"{job.name}_callbacks"
    return found


def _of_factory(reader: Rewriter, function: cst.FunctionDef, calls: list[cst.Call]) -> list[ConvertedJob]:
    """Return what is made by calls of a function that gives Estimators."""
    customs = [call for call in calls if reader.called(call) == canned.ESTIMATOR]
    folders: set[str] = set()
    for call in calls:
        given = arguments(call, catalogue.row(reader.called(call)).fields)
        told = configuration.settings(reader, given["config"].value if "config" in given else None)
        if told.statement is None and (told.seed or told.strategy):
            raise NotConvertible("a configuration within the call of an Estimator that a function returns", call)
        if told.statement is not None:
            lines = [f"# Was {one}" for one in told.dropped]
            lines += [f"{reader.tf}.keras.utils.set_random_seed({told.seed})"] if told.seed else []
            reader.replaced[told.statement] = f"\n{reader.indent(told.statement)}".join(lines) or REMOVED
        folders.add(reader.text(given["model_dir"].value) if "model_dir" in given else told.model_dir)
        if told.is_distributed:
            raise NotConvertible("a strategy for an Estimator that a function returns", call)
        if call not in customs:
            reader.replaced[call] = partial(canned.model, reader, call, told.model_dir)
    found = []
    for call in reader.tree.calls:
        if not any(one.node is function for one in reader.functions(call.func)):
            continue
        assign, statement = _assignment(reader, call)
        target = assign.targets[0].target
        if not isinstance(target, cst.Name) or len(reader.program.bindings(target.value, reader.scope(call))) != 1:
            raise NotConvertible("an Estimator without a plain name", call)
        settings = RunConfigSettings(save_steps=told.save_steps, summary_steps=told.summary_steps)
        job = ConvertedJob(call, statement, target.value, settings, f"{target.value}.model_dir")
        if customs:
            job.customs, job.folder = customs, _known_folder(reader, function, folders)
            job.inputs = _with_inputs(reader, function)
            job.make = partial(_with_data, reader, call)
        else:
            job.make = partial(_same, reader, call)
            job.needs_inputs, job.is_canned, job.late = False, True, True
        found.append(job)
    if len(found) != 1:
        raise NotConvertible("a function that makes Estimators, called in several places", function.name)
    return found


def _lines(reader: Rewriter, job: ConvertedJob, same: list[ConvertedJob]) -> tuple[float, float]:
    """From which line on, and before which one, a name is that of an Estimator."""
    at_the_top = [one for one in same if reader.tree.parents.get(one.statement) is reader.tree.module]
    if job not in at_the_top or len(at_the_top) == 1:
        return 0, math.inf
    first = reader.line(job.statement)
    return first, min((line for one in at_the_top if (line := reader.line(one.statement)) > first), default=math.inf)


def _are_in_turn(reader: Rewriter, name: str, values: list[cst.CSTNode | None], kinds: tuple[str, ...]) -> bool:
    """Whether a name at the top of a module is given Estimators alone, each by a statement, and read at the top."""
    module = reader.tree.module
    for value in values:
        match = catalogue.find(reader.called(value).replace("tf.", "tensorflow.", 1))
        statement = reader.statement_of(value) if value is not None else None
        if match is None or match.row.kind not in kinds or reader.tree.parents.get(statement or module) is not module:
            return False
    uses = [root(chain) for chain in reader.tree.chains if root(chain).value == name]
    return len(values) > 1 and all(reader.scope(use).around().node is module for use in uses)


def _known_folder(reader: Rewriter, function: cst.FunctionDef, folders: set[str]) -> str:
    """Return the folder of what a function makes, where it is known outside of it as well."""
    folder = folders.pop() if len(folders) == 1 else ""
    names = set(re.findall(r"(?<![.\w'\"])[A-Za-z_]\w*", folder))
    if not folder or not names <= {*reader.tree.scope.names, *dir(builtins)}:
        raise NotConvertible("an Estimator that a function makes in a folder of its own", function.name)
    return folder


def _with_inputs(reader: Rewriter, function: cst.FunctionDef) -> str:
    """Give a function one more parameter, the first one: the model's inputs; its name."""
    if function in (reader.tree.module,) or isinstance(reader.tree.parents.get(function), cst.ClassDef):
        raise NotConvertible("a method that makes Estimators", function.name)
    taken = {*reader.tree.scopes[function].names, *reader.tree.scope.names}
    name = next(one for one in ("features", "inputs", "model_features") if one not in taken)
    around = function.params
    own = "".join(f", {reader.source(one)}" for one in [around]) if reader.source(around).strip() else ""
    reader.replaced[around] = f"{name}{own}"
    return name


def _with_data(reader: Rewriter, call: cst.Call, data: str) -> str:
    """Return the call of a function that gives the model, with its inputs."""
    told = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else arg.star + reader.text(arg.value)
            for arg in call.args]  # fmt: skip
    return f"{reader.text(call.func)}({', '.join([data, *told])})"


def _assignment(reader: Rewriter, call: cst.BaseExpression) -> tuple[cst.Assign, cst.SimpleStatementLine]:
    """Return the statement that gives a name to what a call makes."""
    assign = reader.tree.parents.get(call)
    statement = reader.tree.parents.get(assign) if isinstance(assign, cst.Assign) else None
    if not isinstance(assign, cst.Assign) or not isinstance(statement, cst.SimpleStatementLine):
        raise NotConvertible("an Estimator that is handed on where it is made", call)
    return assign, statement


def _same(reader: Rewriter, call: cst.Call, data: str) -> str:
    """Return the call of a function that gives the model: it stays."""
    return reader.text(call)

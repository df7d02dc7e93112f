"""Estimators of a file: the call that creates each, its RunConfig and its uses."""

from __future__ import annotations

import ast
import builtins
import math
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

__all__ = ["ConvertedJob", "find_estimators"]

_KERAS_MODEL = ("keras_model", "keras_model_path", "custom_objects", "model_dir", "config", "checkpoint_format",
                "metric_names_map")  # fmt: skip


@dataclass
class ConvertedJob:
    """An Estimator and its conversion.

    Attributes:
        call: the call that creates the Estimator; `statement` assigns it to `name`.
        make: returns the text of the call that creates the Keras model, from the text of the inputs.
        folder: text of model_dir; "" if not set.
        model: name of the Keras model.
        changed: whether the name is reassigned with `add_metrics`.
        customs: calls of Estimator with a model_fn within the function that creates the Estimator; the function gets
            the model's inputs as its parameter `inputs`.
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


def find_estimators(reader: Rewriter, *, kinds: tuple[str, ...]) -> list[ConvertedJob]:
    """Return every Estimator of a file.

    Args:
        kinds: kinds of catalogue rows that count as Estimators.

    Raises:
        NotConvertible: an Estimator is passed on, or is not assigned to a name.
    """
    jobs = []
    factories = canned.find_factories(reader)
    within = {call for calls in factories.values() for call in calls}
    for function, calls in factories.items():
        jobs += _find_in_factory(reader, function, calls)
    for call in reader.tree.calls:
        if call in within:
            continue
        match = catalogue.find(reader.called(call).replace("tf.", "tensorflow.", 1))
        if match is None or match.row.kind not in kinds or match.row.name.endswith("ModeKeys"):
            continue
        if not isinstance(call, cst.Call) or match.spelled.count(".") < 2:
            continue
        assign, statement = _find_assignment(reader, call)
        target = assign.targets[0].target
        if len(assign.targets) > 1 or not isinstance(target, cst.Name):
            raise NotConvertible("an Estimator that is not assigned to a plain name", call)
        others = [
            binding.node
            for binding in reader.program.bindings(target.value, reader.scope(call))
            if binding.node is not call
        ]
        in_turn = _are_in_turn(reader, target.value, [call, *others], kinds)
        if not in_turn and not all(canned.is_add_metrics(reader, other, target.value) for other in others):
            raise NotConvertible(f"{target.value} is also used for something other than the Estimator", call)
        args = arguments(call, match.row.fields or _KERAS_MODEL)
        config = args.get("config")
        settings = configuration.read_settings(reader, config.value if config else None)
        folder = reader.text(args["model_dir"].value) if "model_dir" in args else settings.model_dir
        folder = "" if folder == "None" else folder
        jobs.append(ConvertedJob(call, statement, target.value, settings, folder))
        jobs[-1].changed = bool(others) and not in_turn
    for job in jobs:
        home = reader.scope(job.call).around().node
        # Cells of a notebook may assign several Estimators to the same name in turn.
        first, last = _name_range(reader, job, [other for other in jobs if other.name == job.name])
        job.chains = {
            root(chain): chain
            for chain in reader.tree.chains
            if root(chain).value == job.name
            and reader.home(root(chain)) == (home, job.name)
            and first <= reader.line(chain) < last
        }
        taken = set(reader.scope(job.call).around().names) | set(reader.tree.scope.names)
        renamed = len(jobs) == 1 and "model" not in taken and not job.late and not job.changed
        job.model = "model" if renamed else job.name
        job.callbacks = "callbacks" if len(jobs) == 1 and "callbacks" not in taken else f"{job.name}_callbacks"
    return jobs


def _find_in_factory(reader: Rewriter, function: cst.FunctionDef, calls: list[cst.Call]) -> list[ConvertedJob]:
    """Return the Estimator that a function of the file creates and returns."""
    customs = [call for call in calls if reader.called(call) == canned.ESTIMATOR]
    folders: set[str] = set()
    for call in calls:
        args = arguments(call, catalogue.row(reader.called(call)).fields)
        config_settings = configuration.read_settings(reader, args["config"].value if "config" in args else None)
        if config_settings.statement is None and (config_settings.seed or config_settings.strategy):
            raise NotConvertible("a RunConfig within the call of an Estimator that a function returns", call)
        if config_settings.statement is not None:
            lines = [f"# Was {setting}" for setting in config_settings.dropped]
            lines += (
                [f"{reader.tf}.keras.utils.set_random_seed({config_settings.seed})"] if config_settings.seed else []
            )
            reader.replaced[config_settings.statement] = (
                f"\n{reader.indent(config_settings.statement)}".join(lines) or REMOVED
            )
        folders.add(reader.text(args["model_dir"].value) if "model_dir" in args else config_settings.model_dir)
        if config_settings.is_distributed:
            raise NotConvertible("a strategy for an Estimator that a function returns", call)
        if call not in customs:
            reader.replaced[call] = partial(canned.convert_call, reader, call, config_settings.model_dir)
    jobs = []
    for call in reader.tree.calls:
        if not any(candidate.node is function for candidate in reader.functions(call.func)):
            continue
        assign, statement = _find_assignment(reader, call)
        target = assign.targets[0].target
        if not isinstance(target, cst.Name) or len(reader.program.bindings(target.value, reader.scope(call))) != 1:
            raise NotConvertible("an Estimator that is not assigned to a plain name", call)
        settings = RunConfigSettings(save_steps=config_settings.save_steps, summary_steps=config_settings.summary_steps)
        job = ConvertedJob(call, statement, target.value, settings, f"{target.value}.model_dir")
        if customs:
            job.customs, job.folder = customs, _resolve_folder(reader, function, folders)
            job.inputs = _add_inputs_parameter(reader, function)
            job.make = partial(_format_call_with_inputs, reader, call)
        else:
            job.make = partial(_format_same_call, reader, call)
            job.needs_inputs, job.is_canned, job.late = False, True, True
        jobs.append(job)
    if len(jobs) != 1:
        raise NotConvertible("a function that creates Estimators and is not called exactly once", function.name)
    return jobs


def _name_range(reader: Rewriter, job: ConvertedJob, same: list[ConvertedJob]) -> tuple[float, float]:
    """Return the lines [first, last) in which a name refers to this Estimator."""
    at_the_top = [other for other in same if reader.tree.parents.get(other.statement) is reader.tree.module]
    if job not in at_the_top or len(at_the_top) == 1:
        return 0, math.inf
    first = reader.line(job.statement)
    return first, min(
        (line for other in at_the_top if (line := reader.line(other.statement)) > first), default=math.inf
    )


def _are_in_turn(reader: Rewriter, name: str, values: list[cst.CSTNode | None], kinds: tuple[str, ...]) -> bool:
    """Return whether a module assigns several Estimators to a name, all at module level."""
    module = reader.tree.module
    for value in values:
        match = catalogue.find(reader.called(value).replace("tf.", "tensorflow.", 1))
        statement = reader.statement_of(value) if value is not None else None
        if match is None or match.row.kind not in kinds or reader.tree.parents.get(statement or module) is not module:
            return False
    uses = [root(chain) for chain in reader.tree.chains if root(chain).value == name]
    return len(values) > 1 and all(reader.scope(use).around().node is module for use in uses)


def _resolve_folder(reader: Rewriter, function: cst.FunctionDef, folders: set[str]) -> str:
    """Return the model_dir of a function's Estimator as text that is valid outside of it."""
    folder = folders.pop() if len(folders) == 1 else ""
    names = {node.id for node in ast.walk(ast.parse(folder)) if isinstance(node, ast.Name)} if folder else set()
    if not folder or not names <= {*reader.tree.scope.names, *dir(builtins)}:
        raise NotConvertible("an Estimator of a function whose model_dir is not known outside of it", function.name)
    return folder


def _add_inputs_parameter(reader: Rewriter, function: cst.FunctionDef) -> str:
    """Add a parameter for the model's inputs to a function, and return its name."""
    if function in (reader.tree.module,) or isinstance(reader.tree.parents.get(function), cst.ClassDef):
        raise NotConvertible("a method that creates Estimators", function.name)
    taken = {*reader.tree.scopes[function].names, *reader.tree.scope.names}
    name = next(candidate for candidate in ("features", "inputs", "model_features") if candidate not in taken)
    around = function.params
    rest = "".join(f", {reader.source(params)}" for params in [around]) if reader.source(around).strip() else ""
    reader.replaced[around] = f"{name}{rest}"
    return name


def _format_call_with_inputs(reader: Rewriter, call: cst.Call, data: str) -> str:
    """Return the call that creates the model, with the inputs as first argument."""
    texts = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else arg.star + reader.text(arg.value)
            for arg in call.args]  # fmt: skip
    return f"{reader.text(call.func)}({', '.join([data, *texts])})"


def _find_assignment(reader: Rewriter, call: cst.BaseExpression) -> tuple[cst.Assign, cst.SimpleStatementLine]:
    """Return the assignment of a call to a name, and its statement."""
    assign = reader.tree.parents.get(call)
    statement = reader.tree.parents.get(assign) if isinstance(assign, cst.Assign) else None
    if not isinstance(assign, cst.Assign) or not isinstance(statement, cst.SimpleStatementLine):
        raise NotConvertible("an Estimator that is passed on where it is created", call)
    return assign, statement


def _format_same_call(reader: Rewriter, call: cst.Call, data: str) -> str:
    """Return the call that creates the model, unchanged."""
    return reader.text(call)

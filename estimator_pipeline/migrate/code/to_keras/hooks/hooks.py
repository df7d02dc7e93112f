"""From a program's hooks to callbacks, and to what ends training."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.chains import root
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import children
from estimator_pipeline.migrate.code.to_keras.hooks import hook_classes
from estimator_pipeline.migrate.code.to_keras.hooks import watched_tensors as watching
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED, SILENT_HOOKS
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, names_in

__all__ = ["STOPS", "Found", "drop", "elements", "find", "of_spec", "read", "write_stop"]

_BEHIND = ("eval_dir", "min_steps", "run_every_secs", "run_every_steps")
STOPS = {
    "tf.estimator.experimental.stop_if_higher_hook": ("estimator", "metric_name", "threshold", *_BEHIND),
    "tf.estimator.experimental.stop_if_lower_hook": ("estimator", "metric_name", "threshold", *_BEHIND),
    "tf.estimator.experimental.stop_if_no_decrease_hook": (
        "estimator", "metric_name", "max_steps_without_decrease", *_BEHIND),
    "tf.estimator.experimental.stop_if_no_increase_hook": (
        "estimator", "metric_name", "max_steps_without_increase", *_BEHIND),
}  # fmt: skip
"""Hooks that stop by evaluations -> their parameters."""

_WITHOUT = "a hook without a callback that does the same; write one of tf.keras.callbacks.Callback"


@dataclass
class Found:
    """The hooks of a call or a specification.

    Attributes:
        callbacks: what writes each callback.
        stops: the expressions of hooks that stop by evaluations.
    """

    callbacks: list[Callable[[], str]] = field(default_factory=list)
    stops: list[cst.BaseExpression] = field(default_factory=list)


def find(reader: Rewriter) -> None:
    """Lets a reader write the classes of hooks and listeners of a file.

    Raises:
        NotConvertible: one does what a callback cannot.
    """
    classes = hook_classes.find(reader)
    for one in classes:
        hook_classes.write(reader, one)
        reader.hook_classes[one.node.name.value] = one
    watching.find(reader, classes)


def read(reader: Rewriter, job: Any, given: dict[str, cst.Arg]) -> Found:
    """Return the hooks and listeners of training.

    Args:
        given: the arguments of `train` or of a TrainSpec.

    Raises:
        NotConvertible: one that no callback is equal to.
    """
    found = Found()
    every = job.settings.save_steps or "1000"
    for one in elements(reader, given):
        hook = reader.value(one)
        name = reader.called(hook)
        if name in STOPS:
            found.stops.append(one)
        elif _class(reader, hook, listener=False):
            found.callbacks.append(partial(reader.text, one))
        elif name in SILENT_HOOKS and isinstance(hook, cst.Call):
            _listeners_of(reader, hook, found)
            drop(reader, one, hook)
        else:
            raise NotConvertible(_WITHOUT, one)
    for one in elements(reader, given, "saving_listeners"):
        if not _class(reader, reader.value(one), listener=True):
            raise NotConvertible("a listener that is not made in this file", one)
        reader.needs.add("AtCheckpoints")
        found.callbacks.append(partial(_at_checkpoints, reader, one, every))
    function = _model_fn(reader, job)
    for one in reader.spec_hooks.get(function, []) if function is not None else ():
        found.callbacks.append(partial(_of_model_fn, reader, job, one))
    return found


def _class(reader: Rewriter, node: cst.BaseExpression, *, listener: bool) -> bool:
    """Whether an expression makes a hook, or a listener, of a class of this file."""
    name = node.func.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) else ""
    return name in reader.hook_classes and reader.hook_classes[name].is_listener is listener


def _listeners_of(reader: Rewriter, hook: cst.Call, found: Found) -> None:
    """A CheckpointSaverHook of one's own may have listeners."""
    fields = ("checkpoint_dir", "save_secs", "save_steps", "saver", "checkpoint_basename", "scaffold", "listeners")
    given = arguments(hook, fields)
    if not reader.called(hook).endswith("CheckpointSaverHook") or "listeners" not in given:
        return
    for one in elements(reader, given, "listeners"):
        if not _class(reader, reader.value(one), listener=True):
            raise NotConvertible("a listener that is not made in this file", one)
        if "save_steps" not in given:
            raise NotConvertible("a listener that is told after so many seconds; callbacks count steps", hook)
        reader.needs.add("AtCheckpoints")
        found.callbacks.append(partial(_at_checkpoints, reader, one, reader.text(given["save_steps"].value)))


def _at_checkpoints(reader: Rewriter, listener: cst.BaseExpression, every: str) -> str:
    return f"AtCheckpoints({reader.text(listener)}, {every})"


def _model_fn(reader: Rewriter, job: Any) -> cst.CSTNode | None:
    given = arguments(job.call, ("model_fn",))
    functions = reader.functions(given["model_fn"].value) if job.written is not None else []
    return functions[0].node if functions else None


def of_spec(reader: Rewriter, function: cst.FunctionDef, node: cst.BaseExpression, *, alone: bool) -> None:
    """Note the hooks of a spec that do something.

    Args:
        alone: whether they are this process's, and not the chief's of several.

    Raises:
        NotConvertible: one that is not made in this file, or is not there always.
    """
    if reader.source(node) == "None":
        return
    found: list[cst.BaseExpression] = []
    whole = reader.value(node)
    if not isinstance(whole, (cst.List, cst.Tuple)):
        raise NotConvertible("hooks of an EstimatorSpec that are no list of literals", node)
    found += [one.value for one in whole.elements]
    for call in _calls(function):
        if not isinstance(call.func, cst.Attribute) or not isinstance(node, cst.Name):
            continue
        if isinstance(call.func.value, cst.Name) and call.func.value.value == node.value:
            if call.func.attr.value != "append" or len(call.args) != 1:
                raise NotConvertible(f"{call.func.attr.value} of hooks", call)
            made = reader.value(call.args[0].value)
            conditions = [one for one in reader.tree.above(call) if isinstance(one, (cst.If, cst.For, cst.While))]
            conditions = [one for one in conditions if function in set(reader.tree.above(one))]
            if conditions and reader.called(made) not in SILENT_HOOKS:
                raise NotConvertible("a hook that is there on a condition", call)
            found.append(call.args[0].value)
    for one in found:
        made = reader.value(one)
        if reader.called(made) in SILENT_HOOKS:
            if isinstance(made, cst.Call) and any(
                arg.keyword and arg.keyword.value == "listeners" for arg in made.args
            ):
                raise NotConvertible("listeners of a hook of an EstimatorSpec", made)
            continue
        if not _class(reader, made, listener=False):
            raise NotConvertible(_WITHOUT, one)
        if not alone:
            raise NotConvertible("a hook of the chief alone, of several workers", one)
        known = {*reader.tree.scope.names, *dir(builtins), "config", "params"}
        unknown = sorted(set(names_in(made)) - known)
        if unknown:
            raise NotConvertible(f"a hook that is handed {unknown[0]}, which the model_fn works out", one)
        reader.spec_hooks.setdefault(function, []).append(made)


def _of_model_fn(reader: Rewriter, job: Any, node: cst.BaseExpression) -> str:
    """Return what makes a hook of a model_fn, where the model is trained."""
    given = arguments(job.call, ("model_fn", "model_dir", "config", "params"))
    of_config: set[cst.CSTNode] = set()
    for one in _nodes(node):
        if isinstance(one, cst.Attribute) and reader.source(one) == "config.model_dir":
            if not job.folder:
                raise NotConvertible("a hook that asks for model_dir, of an Estimator without", one)
            reader.replaced[one] = job.folder
            of_config.add(one.value)
        elif isinstance(one, cst.Name) and one.value == "params" and "params" in given:
            reader.replaced[one] = partial(reader.text, given["params"].value)
        elif isinstance(one, cst.Name) and one.value == "config" and one not in of_config:
            raise NotConvertible("a hook that asks for more of its configuration than model_dir", one)
    return reader.text(node)


def _nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in children(node):
        yield from _nodes(child)


def _calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    return (one for one in _nodes(node) if isinstance(one, cst.Call))


def elements(reader: Rewriter, given: dict[str, cst.Arg], key: str = "hooks") -> list[cst.BaseExpression]:
    """Return the expressions of a list of hooks.

    Raises:
        NotConvertible: it is no list of literals.
    """
    if key not in given:
        return []
    node = reader.value(given[key].value)
    if isinstance(node, (cst.List, cst.Tuple)):
        return [one.value for one in node.elements]
    if reader.source(node) == "None":
        return []
    raise NotConvertible("hooks that are no list of literals", node)


def drop(reader: Rewriter, name: cst.BaseExpression, hook: cst.BaseExpression) -> None:
    """Take the statement away that gives a name to a hook that is no more.

    Raises:
        NotConvertible: the name is used elsewhere too.
    """
    if not isinstance(name, cst.Name):
        return
    used = [node for node in reader.tree.chains for first in [root(node)]
            if first.value == name.value and reader.home(first) == reader.home(name)]  # fmt: skip
    statement = reader.statement_of(hook)
    if len(used) > 1 or not isinstance(statement, cst.SimpleStatementLine):
        raise NotConvertible(f"{name.value} is a hook that is used elsewhere too", name)
    reader.replaced[statement] = REMOVED


def write_stop(reader: Rewriter, call: cst.Call) -> None:
    """Lets a reader write a hook that stops by evaluations, as what an evaluation asks."""
    name = reader.called(call)
    if any(arg.star for arg in call.args):
        raise NotConvertible("a hook that stops whose arguments cannot be told", call)
    given = arguments(call, STOPS[name])

    def write() -> str:
        kept = [(one, arg) for one, arg in given.items() if one not in ("estimator", "eval_dir", *_BEHIND[2:])]
        told = [f"{one}={reader.text(arg.value)}" for one, arg in kept]
        reader.needs.add("keras_evaluation")
        return reader.call(f"keras_evaluation.{name.rpartition('.')[2].removesuffix('_hook')}", told, call)

    reader.replaced[call] = write

"""Conversion of a program's hooks to Keras callbacks and early-stopping conditions."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.chains import root
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import iter_nodes
from estimator_pipeline.migrate.code.to_keras.hooks import hook_classes
from estimator_pipeline.migrate.code.to_keras.hooks import watched_tensors as watching
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED, SILENT_HOOKS
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import calls_in
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, names_in

__all__ = ["STOPS", "TrainingHooks", "drop", "elements", "find", "find_spec_hooks", "read", "write_stop"]

_BEHIND = ("eval_dir", "min_steps", "run_every_secs", "run_every_steps")
STOPS = {
    "tf.estimator.experimental.stop_if_higher_hook": ("estimator", "metric_name", "threshold", *_BEHIND),
    "tf.estimator.experimental.stop_if_lower_hook": ("estimator", "metric_name", "threshold", *_BEHIND),
    "tf.estimator.experimental.stop_if_no_decrease_hook": (
        "estimator", "metric_name", "max_steps_without_decrease", *_BEHIND),
    "tf.estimator.experimental.stop_if_no_increase_hook": (
        "estimator", "metric_name", "max_steps_without_increase", *_BEHIND),
}  # fmt: skip
"""Early-stopping hooks based on evaluations -> their parameters."""

_WITHOUT = "a hook without an equivalent callback; write a tf.keras.callbacks.Callback"


@dataclass
class TrainingHooks:
    """The hooks of a training call or a TrainSpec.

    Attributes:
        callbacks: Functions that return the text of each callback.
        stops: Expressions of the early-stopping hooks.
    """

    callbacks: list[Callable[[], str]] = field(default_factory=list)
    stops: list[cst.BaseExpression] = field(default_factory=list)


def find(reader: Rewriter) -> None:
    """Let a rewriter convert a file's hook and listener classes.

    Raises:
        NotConvertible: A class does what a callback cannot.
    """
    classes = hook_classes.find(reader)
    for hook_class in classes:
        hook_classes.write(reader, hook_class)
        reader.hook_classes[hook_class.node.name.value] = hook_class
    watching.find(reader, classes)


def read(reader: Rewriter, job: Any, args: dict[str, cst.Arg]) -> TrainingHooks:
    """Return the converted hooks and listeners of a training.

    Args:
        reader: The rewriter of the file.
        job: The Estimator.
        args: The arguments of `train` or of a TrainSpec.

    Raises:
        NotConvertible: A hook has no equivalent callback.
    """
    hooks = TrainingHooks()
    every = job.settings.save_steps or "1000"
    for node in elements(reader, args):
        hook = reader.value(node)
        name = reader.called(hook)
        if name in STOPS:
            hooks.stops.append(node)
        elif _class(reader, hook, listener=False):
            hooks.callbacks.append(partial(reader.text, node))
        elif name in SILENT_HOOKS and isinstance(hook, cst.Call):
            _listeners_of(reader, hook, hooks)
            drop(reader, node, hook)
        else:
            raise NotConvertible(_WITHOUT, node)
    for node in elements(reader, args, "saving_listeners"):
        if not _class(reader, reader.value(node), listener=True):
            raise NotConvertible("a listener that is not created in this file", node)
        hooks.callbacks.append(partial(_at_checkpoints, reader, node, every))
    function = _model_fn(reader, job)
    for node in reader.spec_hooks.get(function, []) if function is not None else ():
        hooks.callbacks.append(partial(_model_fn_hook, reader, job, node))
    return hooks


def _class(reader: Rewriter, node: cst.BaseExpression, *, listener: bool) -> bool:
    """Whether an expression creates a hook (or a listener) of a class in this file."""
    name = node.func.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) else ""
    return name in reader.hook_classes and reader.hook_classes[name].is_listener is listener


def _listeners_of(reader: Rewriter, hook: cst.Call, hooks: TrainingHooks) -> None:
    """Convert the listeners of a CheckpointSaverHook."""
    fields = ("checkpoint_dir", "save_secs", "save_steps", "saver", "checkpoint_basename", "scaffold", "listeners")
    args = arguments(hook, fields)
    if not reader.called(hook).endswith("CheckpointSaverHook") or "listeners" not in args:
        return
    for listener in elements(reader, args, "listeners"):
        if not _class(reader, reader.value(listener), listener=True):
            raise NotConvertible("a listener that is not created in this file", listener)
        if "save_steps" not in args:
            raise NotConvertible("a listener that runs every N seconds; callbacks count steps", hook)
        hooks.callbacks.append(partial(_at_checkpoints, reader, listener, reader.text(args["save_steps"].value)))


def _at_checkpoints(reader: Rewriter, listener: cst.BaseExpression, every: str) -> str:
    return f"{reader.helper('AtCheckpoints')}({reader.text(listener)}, {every})"


def _model_fn(reader: Rewriter, job: Any) -> cst.CSTNode | None:
    args = arguments(job.call, ("model_fn",))
    functions = reader.functions(args["model_fn"].value) if job.written is not None else []
    return functions[0].node if functions else None


def find_spec_hooks(
    reader: Rewriter, function: cst.FunctionDef, node: cst.BaseExpression, *, single_process: bool
) -> None:
    """Collect the hooks of an EstimatorSpec that have an effect.

    Args:
        reader: The rewriter of the file.
        function: The model_fn.
        node: The list of hooks.
        single_process: False if several workers train and only the chief runs the hooks.

    Raises:
        NotConvertible: A hook is not created in this file, or only conditionally.
    """
    if reader.source(node) == "None":
        return
    nodes: list[cst.BaseExpression] = []
    whole = reader.value(node)
    if not isinstance(whole, (cst.List, cst.Tuple)):
        raise NotConvertible("hooks of an EstimatorSpec that are not a list literal", node)
    nodes += [element.value for element in whole.elements]
    for call in calls_in(function):
        if not isinstance(call.func, cst.Attribute) or not isinstance(node, cst.Name):
            continue
        if isinstance(call.func.value, cst.Name) and call.func.value.value == node.value:
            if call.func.attr.value != "append" or len(call.args) != 1:
                raise NotConvertible(f"{call.func.attr.value} of hooks", call)
            hook = reader.value(call.args[0].value)
            conditions = [
                ancestor for ancestor in reader.tree.above(call) if isinstance(ancestor, (cst.If, cst.For, cst.While))
            ]
            conditions = [ancestor for ancestor in conditions if function in set(reader.tree.above(ancestor))]
            if conditions and reader.called(hook) not in SILENT_HOOKS:
                raise NotConvertible("a hook that is added conditionally", call)
            nodes.append(call.args[0].value)
    for item in nodes:
        hook = reader.value(item)
        if reader.called(hook) in SILENT_HOOKS:
            if isinstance(hook, cst.Call) and any(
                arg.keyword and arg.keyword.value == "listeners" for arg in hook.args
            ):
                raise NotConvertible("listeners of a hook of an EstimatorSpec", hook)
            continue
        if not _class(reader, hook, listener=False):
            raise NotConvertible(_WITHOUT, item)
        if not single_process:
            raise NotConvertible("a hook that runs only on the chief, with several workers", item)
        known = {*reader.tree.scope.names, *dir(builtins), "config", "params"}
        unknown = sorted(set(names_in(hook)) - known)
        if unknown:
            raise NotConvertible(f"a hook that takes {unknown[0]}, which the model_fn computes", item)
        reader.spec_hooks.setdefault(function, []).append(hook)


def _model_fn_hook(reader: Rewriter, job: Any, node: cst.BaseExpression) -> str:
    """Return the text that creates a model_fn's hook at the call of `fit`."""
    args = arguments(job.call, ("model_fn", "model_dir", "config", "params"))
    of_config: set[cst.CSTNode] = set()
    for part in iter_nodes(node):
        if isinstance(part, cst.Attribute) and reader.source(part) == "config.model_dir":
            if not job.folder:
                raise NotConvertible("a hook that uses model_dir, of an Estimator without one", part)
            reader.replaced[part] = job.folder
            of_config.add(part.value)
        elif isinstance(part, cst.Name) and part.value == "params" and "params" in args:
            reader.replaced[part] = partial(reader.text, args["params"].value)
        elif isinstance(part, cst.Name) and part.value == "config" and part not in of_config:
            raise NotConvertible("a hook that uses its configuration for more than model_dir", part)
    return reader.text(node)


def elements(reader: Rewriter, args: dict[str, cst.Arg], key: str = "hooks") -> list[cst.BaseExpression]:
    """Return the elements of a list of hooks.

    Raises:
        NotConvertible: The argument is not a list literal.
    """
    if key not in args:
        return []
    node = reader.value(args[key].value)
    if isinstance(node, (cst.List, cst.Tuple)):
        return [element.value for element in node.elements]
    if reader.source(node) == "None":
        return []
    raise NotConvertible("hooks that are not a list literal", node)


def drop(reader: Rewriter, name: cst.BaseExpression, hook: cst.BaseExpression) -> None:
    """Remove the statement that assigns a removed hook to a name.

    Raises:
        NotConvertible: The name is also used elsewhere.
    """
    if not isinstance(name, cst.Name):
        return
    used = [node for node in reader.tree.chains for first in [root(node)]
            if first.value == name.value and reader.home(first) == reader.home(name)]  # fmt: skip
    statement = reader.statement_of(hook)
    if len(used) > 1 or not isinstance(statement, cst.SimpleStatementLine):
        raise NotConvertible(f"{name.value} is a hook that is also used elsewhere", name)
    reader.replaced[statement] = REMOVED


def write_stop(reader: Rewriter, call: cst.Call) -> None:
    """Let a rewriter convert an early-stopping hook to a condition of the evaluation."""
    name = reader.called(call)
    if any(arg.star for arg in call.args):
        raise NotConvertible("an early-stopping hook whose arguments are not known statically", call)
    args = arguments(call, STOPS[name])

    def write() -> str:
        kept = [
            (field_name, arg)
            for field_name, arg in args.items()
            if field_name not in ("estimator", "eval_dir", *_BEHIND[2:])
        ]
        texts = [f"{field_name}={reader.text(arg.value)}" for field_name, arg in kept]
        reader.needs.add("keras_evaluation")
        return reader.call(f"keras_evaluation.{name.rpartition('.')[2].removesuffix('_hook')}", texts, call)

    reader.replaced[call] = write

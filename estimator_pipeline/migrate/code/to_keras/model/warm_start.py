"""Conversion of warm starts, variable values by name, and restored checkpoints."""

from __future__ import annotations

from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.model_fn import rnn_cells as recurrent
from estimator_pipeline.migrate.code.to_keras.model_fn.network import functions_of
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import ModelFn
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["format_named_values", "install", "read_scope", "write_restore", "write_warm_start"]

_SETTINGS = "tf.estimator.WarmStartSettings"
_FIELDS = ("ckpt_to_initialize_from", "vars_to_warm_start", "var_name_to_vocab_info", "var_name_to_prev_var_name")
_SCOPES = "tf.compat.v1.variable_scope"


def read_scope(reader: Rewriter, model_fn: ModelFn) -> str | None:
    """Return the variable scope of a model_fn: "" without a scope, None for several scopes."""
    functions = functions_of(reader, model_fn)
    calls = [call for call in reader.tree.calls if functions & set(reader.tree.above(call))]
    scopes = [call for call in calls if reader.called(call) == _SCOPES]
    creators = (*recurrent.CREATORS, "tf.compat.v1.get_variable", "tf.compat.v1.Variable", "tf.Variable")
    if reader.embeddings or any(reader.called(call) in creators for call in calls):
        return None  # variables outside of layers have different names
    if not scopes:
        return ""
    if len(scopes) > 1 or not isinstance(scopes[0].args[0].value, cst.SimpleString):
        return None
    makers = [
        step.node
        for step in model_fn.network
        if any(
            reader.called(call).startswith(("tf.keras.layers.", "tf.compat.v1.layers.")) or reader.functions(call.func)
            for call in _calls_in(reader, step.node)
        )
    ]
    around = [maker for maker in makers if scopes[0] in set(_calls_in(reader, maker)) and isinstance(maker, cst.With)]
    return str(scopes[0].args[0].value.evaluated_value) if makers == around else None


def _creates_layer(reader: Rewriter, call: cst.Call) -> bool:
    """Return whether a call may create a layer."""
    return reader.called(call).startswith(("tf.keras.layers.", "tf.compat.v1.layers.")) or bool(
        reader.functions(call.func)
    )


def _calls_in(reader: Rewriter, node: cst.CSTNode) -> list[cst.Call]:
    return [call for call in reader.tree.calls if node in set(reader.tree.above(call))]


def install(reader: Rewriter, jobs: list[Any]) -> None:
    """Register the conversion of WarmStartSettings.

    Raises:
        NotConvertible: an Estimator that a function creates has a warm start.
    """
    fields = catalogue.row("tf.estimator.Estimator").fields
    for call in (call for job in jobs for call in job.customs):
        if "warm_start_from" in arguments(call, fields):
            raise NotConvertible("a warm start of an Estimator that a function creates", call)

    def write(call: cst.Call) -> str:
        if any(arg.star for arg in call.args):
            raise NotConvertible("a warm start whose settings cannot be determined", call)
        args = arguments(call, _FIELDS)
        if "var_name_to_vocab_info" in args:
            raise NotConvertible("a warm start with var_name_to_vocab_info", args["var_name_to_vocab_info"])
        if "ckpt_to_initialize_from" not in args:
            raise NotConvertible("a warm start from a checkpoint that cannot be determined", call)
        texts = [f"{name}={reader.text(arg.value)}" for name, arg in args.items()]
        texts += _format_scope_of_source(reader, jobs, args["ckpt_to_initialize_from"].value)
        reader.needs.add("keras_weights")
        return reader.call("keras_weights.WarmStartSettings", texts, call)

    reader.calls[_SETTINGS] = write


def _format_scope_of_source(reader: Rewriter, jobs: list[Any], source: cst.BaseExpression) -> list[str]:
    """Return the argument `scope` for a checkpoint that a model of this file writes."""
    for job in jobs:
        args = arguments(job.call, ("model_fn", "model_dir"))
        folder = reader.source(args["model_dir"].value) if "model_dir" in args else job.settings.model_dir
        if job.written is not None and folder == reader.source(source):
            return format_scope(job, source)
    return []


def format_scope(job: Any, node: cst.CSTNode) -> list[str]:
    """Return the argument `scope` for a model.

    Raises:
        NotConvertible: the variables are in several scopes, so their names do not follow from the layers.
    """
    if job.written.scope is None:
        raise NotConvertible("variables by their names, of a model with several scopes or with RNN cells", node)
    return [f"scope={job.written.scope!r}"] if job.written.scope else []


def format_named_values(reader: Rewriter, job: Any, call: cst.Call) -> str:
    """Return the expression of a model's variable values by name."""
    reader.needs.add("keras_weights")
    return f"keras_weights.named_values({', '.join([job.model, *format_scope(job, call)])})"


def write_warm_start(reader: Rewriter, job: Any) -> list[str]:
    """Return the statements that warm-start a model after it is created."""
    fields = catalogue.row("tf.estimator.Estimator").fields
    args = arguments(job.call, fields)
    if job.written is None or job.customs or "warm_start_from" not in args:
        return []
    arg = args["warm_start_from"]
    if reader.source(arg.value) == "None":
        return []
    reader.needs.add("keras_weights")
    texts = [job.model, reader.text(arg.value), *format_scope(job, arg)]
    return [reader.call("keras_weights.warm_start", texts, job.call)]


def write_restore(reader: Rewriter, job: Any, block: cst.CSTNode, trains: list[cst.CSTNode]) -> list[str]:
    """Return the statements that restore a model that this run may not train.

    Args:
        block: block that creates the model.
        trains: statements that train the model.

    Raises:
        NotConvertible: the condition of the training cannot be determined.
    """
    branches = [_find_branch(reader, train, block) for train in trains]
    first = branches[0]
    if first is None or None in branches:
        return []
    condition, body = first
    uses = [use for use, chain in job.chains.items() if chain is not use]
    if all(body in reader.tree.above(job.chains[use]) for use in uses):
        return []
    node = condition.test
    if len(set(branches)) > 1 or body is not condition.body or not job.folder or job.written is None:
        raise NotConvertible("an Estimator that is used where it may not have been trained, from its checkpoint", node)
    reader.needs.add("keras_weights")
    # With several scopes, names are those of Keras: restore then only reads what this program saved.
    texts = [job.model, job.folder, *(format_scope(job, node) if job.written.scope else [])]
    calls = [call for call in reader.tree.calls if node in (call, *reader.tree.above(call))]
    if [reader.called(call) for call in calls] == ["tf.train.latest_checkpoint"]:
        return [f"keras_weights.restore({', '.join([*texts, 'required=False'])})"]
    if calls:
        raise NotConvertible("an Estimator that is used where it may not have been trained, from its checkpoint", node)
    unit, indent = reader.tree.module.default_indent, reader.indent(job.statement)
    return [f"if not ({reader.text(node)}):\n{indent}{unit}keras_weights.restore({', '.join(texts)})"]


def _find_branch(reader: Rewriter, node: cst.CSTNode, block: cst.CSTNode) -> tuple[cst.If, cst.CSTNode] | None:
    """Return (outermost `if` around a statement within a block, its branch), or None."""
    branch, below = None, node
    for above in reader.tree.above(node):
        if above is block:
            break
        if isinstance(above, cst.If):
            branch = (above, below)
        below = above
    return branch

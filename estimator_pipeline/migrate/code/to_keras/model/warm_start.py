"""Weights by the names that an Estimator gave them: warm starts, values, a model that is there already."""

from __future__ import annotations

from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.model_fn import rnn_cells as recurrent
from estimator_pipeline.migrate.code.to_keras.model_fn.network import functions_of
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import ModelFn
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["after", "install", "named", "restored", "scope_of"]

_SETTINGS = "tf.estimator.WarmStartSettings"
_FIELDS = ("ckpt_to_initialize_from", "vars_to_warm_start", "var_name_to_vocab_info", "var_name_to_prev_var_name")
_SCOPES = "tf.compat.v1.variable_scope"


def scope_of(reader: Rewriter, made: ModelFn) -> str | None:
    """The scope that all variables of a model_fn are made in, "" where there is none; None where there are several."""
    functions = functions_of(reader, made)
    calls = [call for call in reader.tree.calls if functions & set(reader.tree.above(call))]
    scopes = [call for call in calls if reader.called(call) == _SCOPES]
    own = (*recurrent.CREATORS, "tf.compat.v1.get_variable", "tf.compat.v1.Variable", "tf.Variable")
    if reader.embeddings or any(reader.called(call) in own for call in calls):
        return None  # their variables have other names
    if not scopes:
        return ""
    if len(scopes) > 1 or not isinstance(scopes[0].args[0].value, cst.SimpleString):
        return None
    makers = [
        step.node
        for step in made.network
        if any(
            reader.called(call).startswith(("tf.keras.layers.", "tf.compat.v1.layers.")) or reader.functions(call.func)
            for call in _calls(reader, step.node)
        )
    ]
    around = [one for one in makers if scopes[0] in set(_calls(reader, one)) and isinstance(one, cst.With)]
    return str(scopes[0].args[0].value.evaluated_value) if makers == around else None


def _makes(reader: Rewriter, call: cst.Call) -> bool:
    """Whether a call may make a layer."""
    return reader.called(call).startswith(("tf.keras.layers.", "tf.compat.v1.layers.")) or bool(
        reader.functions(call.func)
    )


def _calls(reader: Rewriter, node: cst.CSTNode) -> list[cst.Call]:
    return [call for call in reader.tree.calls if node in set(reader.tree.above(call))]


def install(reader: Rewriter, jobs: list[Any]) -> None:
    """Lets a reader write the settings of warm starts.

    Raises:
        NotConvertible: an Estimator that a function makes starts warm.
    """
    fields = catalogue.row("tf.estimator.Estimator").fields
    for call in (call for job in jobs for call in job.customs):
        if "warm_start_from" in arguments(call, fields):
            raise NotConvertible("a warm start of an Estimator that a function makes", call)

    def write(call: cst.Call) -> str:
        if any(arg.star for arg in call.args):
            raise NotConvertible("a warm start whose settings cannot be told", call)
        given = arguments(call, _FIELDS)
        if "var_name_to_vocab_info" in given:
            raise NotConvertible("a warm start of embeddings by their vocabularies", given["var_name_to_vocab_info"])
        if "ckpt_to_initialize_from" not in given:
            raise NotConvertible("a warm start from a checkpoint that cannot be told", call)
        told = [f"{name}={reader.text(arg.value)}" for name, arg in given.items()]
        told += _of_its_scope(reader, jobs, given["ckpt_to_initialize_from"].value)
        reader.needs.add("keras_weights")
        return reader.call("keras_weights.WarmStartSettings", told, call)

    reader.calls[_SETTINGS] = write


def _of_its_scope(reader: Rewriter, jobs: list[Any], source: cst.BaseExpression) -> list[str]:
    """Return the argument `scope` for a checkpoint that a model of this file writes."""
    for job in jobs:
        given = arguments(job.call, ("model_fn", "model_dir"))
        folder = reader.source(given["model_dir"].value) if "model_dir" in given else job.settings.model_dir
        if job.written is not None and folder == reader.source(source):
            return scope(job, source)
    return []


def scope(job: Any, node: cst.CSTNode) -> list[str]:
    """Return the argument `scope` for a model.

    Raises:
        NotConvertible: its variables are in several scopes, so that names of layers do not tell theirs.
    """
    if job.written.scope is None:
        raise NotConvertible("variables by their names, of a model with several scopes or cells", node)
    return [f"scope={job.written.scope!r}"] if job.written.scope else []


def named(reader: Rewriter, job: Any, call: cst.Call) -> str:
    """Return the expression of a model's values by their names."""
    reader.needs.add("keras_weights")
    return f"keras_weights.named_values({', '.join([job.model, *scope(job, call)])})"


def after(reader: Rewriter, job: Any) -> list[str]:
    """Return the statements behind the one that makes a model: what it begins with."""
    fields = catalogue.row("tf.estimator.Estimator").fields
    given = arguments(job.call, fields)
    if job.written is None or job.customs or "warm_start_from" not in given:
        return []
    arg = given["warm_start_from"]
    if reader.source(arg.value) == "None":
        return []
    reader.needs.add("keras_weights")
    told = [job.model, reader.text(arg.value), *scope(job, arg)]
    return [reader.call("keras_weights.warm_start", told, job.call)]


def restored(reader: Rewriter, job: Any, block: cst.CSTNode, trains: list[cst.CSTNode]) -> list[str]:
    """Return the statements behind the one that makes a model that is not trained always: it may have been before.

    Args:
        block: the one that makes it.
        trains: the statements that train it.

    Raises:
        NotConvertible: when it is trained cannot be told.
    """
    branches = [_branch(reader, one, block) for one in trains]
    first = branches[0]
    if first is None or None in branches:
        return []
    condition, body = first
    uses = [use for use, chain in job.chains.items() if chain is not use]
    if all(body in reader.tree.above(job.chains[use]) for use in uses):
        return []
    node = condition.test
    if len(set(branches)) > 1 or body is not condition.body or not job.folder or job.written is None:
        raise NotConvertible("an Estimator that is used where it may not have been trained: it has a checkpoint", node)
    reader.needs.add("keras_weights")
    # With several scopes names are those of Keras: of what this program saved, not of what an Estimator did.
    told = [job.model, job.folder, *(scope(job, node) if job.written.scope else [])]
    calls = [call for call in reader.tree.calls if node in (call, *reader.tree.above(call))]
    if [reader.called(call) for call in calls] == ["tf.train.latest_checkpoint"]:
        return [f"keras_weights.restore({', '.join([*told, 'required=False'])})"]
    if calls:
        raise NotConvertible("an Estimator that is used where it may not have been trained: it has a checkpoint", node)
    unit, indent = reader.tree.module.default_indent, reader.indent(job.statement)
    return [f"if not ({reader.text(node)}):\n{indent}{unit}keras_weights.restore({', '.join(told)})"]


def _branch(reader: Rewriter, node: cst.CSTNode, block: cst.CSTNode) -> tuple[cst.If, cst.CSTNode] | None:
    """The outermost condition within a block that a statement is run on, and its branch; None where it always is."""
    found, below = None, node
    for above in reader.tree.above(node):
        if above is block:
            break
        if isinstance(above, cst.If):
            found = (above, below)
        below = above
    return found

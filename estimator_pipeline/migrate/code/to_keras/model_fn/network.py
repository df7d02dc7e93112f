"""The network of a model_fn: the statements that create layers and variables, and the statements that these need."""

from __future__ import annotations

import re

import libcst as cst
from libcst import matchers

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.name_resolution import ClassOf, FunctionOf, Outside
from estimator_pipeline.migrate.code.analysis.syntax import dotted_of
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.model_fn import rnn_cells, separate_predictions
from estimator_pipeline.migrate.code.to_keras.model_fn.layers import CREATORS
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import (
    FlowStep,
    ModelFn,
    assigns,
    calls_in,
    first_of,
    needed,
)
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, names_in

__all__ = ["find", "functions_of", "remove_mode_parameters"]

_VARIABLES = (
    "tf.Variable", "tf.compat.v1.Variable", "tf.compat.v1.nn.dynamic_rnn",
    "tf.compat.v1.nn.static_rnn", "tf.compat.v1.nn.bidirectional_dynamic_rnn",
)  # fmt: skip
GET_VARIABLE = "tf.compat.v1.get_variable"
# Names that create layers or variables, in any file.
_OF_LAYERS = re.compile(
    r"(tensorflow\.(compat\.v1\.|python\.)?(keras\.)?layers\.|tensorflow\.(compat\.v1\.)?(get_variable|Variable|nn\.rnn_cell\.)|"
    r"tf_slim\.)"
)
_COLUMNS = ("tf.compat.v1.feature_column.input_layer", "tf.compat.v1.feature_column.linear_model")


def find(reader: Rewriter, model_fn: ModelFn) -> None:
    """Set `model_fn.network` to the statements that build the network.

    Raises:
        NotConvertible: The network differs between modes, or uses something that Keras models do not have.
    """
    flow = model_fn.flows["train"]
    layer_steps: list[FlowStep] = []
    for step in flow:
        if _creates_layers(reader, step.node, set()) or any(
            isinstance(call.func, cst.Name) and call.func.value in model_fn.models for call in calls_in(step.node)
        ):
            layer_steps.append(step)
            if assigns(step.node) and _is_model(reader, cst.ensure_type(first_of(step.node), cst.Assign).value):
                model_fn.models |= step.sets
    if not layer_steps:
        raise NotConvertible("cannot find a layer of its network", model_fn.node.name)
    variable_names = {
        name
        for layer_step in layer_steps
        if _calls_get_variable(reader, layer_step.node, set())
        for name in layer_step.sets
    }
    model_fn.variable_names = variable_names
    layer_steps += _steps_of_variables(model_fn, layer_steps, variable_names)
    layer_steps.sort(key=flow.index)
    needed_steps = list(layer_steps)
    for layer_step in layer_steps:
        needed_steps += needed(flow[: flow.index(layer_step)], layer_step.reads - model_fn.steps)
    chosen = [step for step in flow if step in needed_steps]
    model_fn.has_separate_predictions = _has_separate_predictions(reader, model_fn, layer_steps)
    flows = [
        flow for mode, flow in model_fn.flows.items() if mode != "predict" or not model_fn.has_separate_predictions
    ]
    chosen = _with_rebound_outputs(model_fn, chosen, flows)
    for step in chosen:
        if step in model_fn.partial:
            raise NotConvertible("a branch on the mode that does not return, in the network", step.node)
        if any(step not in flow for flow in flows):
            raise NotConvertible("a mode whose network differs from the one built for TRAIN", step.node)
        if "labels" in step.reads and "labels" in model_fn.parameters:
            raise NotConvertible("a network that takes the labels as input", step.node)
    for other in model_fn.flows.values():
        for place, step in enumerate(other):
            later = {name for after in other[place:] if after in chosen for name in after.reads}
            if step in model_fn.partial and step.sets & later:
                raise NotConvertible("a branch on the mode that does not return, in the network", step.node)
    model_fn.network = chosen


def _with_rebound_outputs(model_fn: ModelFn, chosen: list[FlowStep], flows: list[list[FlowStep]]) -> list[FlowStep]:
    """Return the network with statements like `logits = tf.squeeze(logits)` after the last layer."""
    flow, extended = model_fn.flows["train"], list(chosen)
    for place, step in enumerate(flow):
        names = {name for other in extended for name in other.sets}
        before = [other for other in flow[:place] if other not in extended]
        if (
            step not in extended
            and assigns(step.node)
            and step.sets
            and step.sets <= names & step.reads
            and "labels" not in step.reads
            and all(step in other for other in flows)
            and not any(step.sets & other.reads for other in before)
            and all(other in extended for other in needed(flow[:place], step.reads - model_fn.steps))
        ):
            extended.append(step)
    return [step for step in flow if step in extended]


def _has_separate_predictions(reader: Rewriter, model_fn: ModelFn, layer_steps: list[FlowStep]) -> bool:
    """Return whether PREDICT builds a different network than TRAIN."""
    predictions = model_fn.field("predict", "predictions")
    if predictions is None or any(step in layer_steps for step in model_fn.flows["predict"]):
        return False
    nodes = [predictions, *(step.node for step in needed(model_fn.flows["predict"], set(names_in(predictions))))]
    if not any(_creates_layers(reader, node, set()) for node in nodes):
        return False
    separate_predictions.check(reader, model_fn, predictions, nodes)
    reader.reuses_variables = True
    reader.separate_predictions.append(predictions)
    return True


def _steps_of_variables(model_fn: ModelFn, layer_steps: list[FlowStep], variable_names: set[str]) -> list[FlowStep]:
    """Return the statements that use variables directly in all modes. The model outputs their results."""
    steps: list[FlowStep] = []
    names = set(variable_names)
    for step in model_fn.flows["train"]:
        if step in layer_steps or not step.reads & names or any(step not in flow for flow in model_fn.flows.values()):
            continue
        if "labels" in step.reads or isinstance(step.node, cst.Return):
            continue
        steps.append(step)
        if _calls_any(step, variable_names):  # the output of an object that has the variables
            names |= step.sets
    return steps


def _calls_any(step: FlowStep, names: set[str]) -> bool:
    return any(isinstance(call.func, cst.Name) and call.func.value in names for call in calls_in(step.node))


def _calls_get_variable(reader: Rewriter, node: cst.CSTNode, seen: set[cst.CSTNode]) -> bool:
    """Return whether a statement calls get_variable, also in functions and classes that it calls."""
    for call in calls_in(node):
        if reader.called(call) == GET_VARIABLE and call not in reader.embeddings:
            return True
        inner: list[cst.CSTNode] = [function.node for function in reader.functions(call.func)]
        for value in reader.program.meaning(call.func, reader.tree, reader.scope(call.func)):
            if isinstance(value, ClassOf) and value.tree is reader.tree and (init := _init_method(value)) is not None:
                inner.append(init)
        for definition in inner:
            if definition not in seen:
                seen.add(definition)
                if _calls_get_variable(reader, definition, seen):
                    return True
    return False


def functions_of(reader: Rewriter, model_fn: ModelFn) -> set[cst.CSTNode]:
    """Return the model_fn and the functions of this file that build its network."""
    functions: set[cst.CSTNode] = {model_fn.node}
    waiting: list[cst.CSTNode] = [step.node for step in model_fn.network]
    while waiting:
        for call in calls_in(waiting.pop()):
            for function in reader.functions(call.func):
                if function.node not in functions:
                    functions.add(function.node)
                    waiting.append(function.node)
    return functions


def remove_mode_parameters(reader: Rewriter, model_fn: ModelFn) -> None:
    """Remove the mode from the functions of a network, because Keras passes `training` to layers."""
    callees = [
        function
        for function in functions_of(reader, model_fn)
        if function is not model_fn.node and isinstance(function, cst.FunctionDef)
    ]
    flags = {(model_fn.node, "mode")}
    for _ in callees:  # a function may pass the mode to the next
        for function in callees:
            calls = [call for call in reader.tree.calls if any(f.node is function for f in reader.functions(call.func))]
            for position, param in enumerate(function.params.params):
                values = [reader.argument(call, position, param.name.value) for call in calls]
                if values and all(isinstance(value, cst.Name) and reader.home(value) in flags for value in values):
                    flags.add((function, param.name.value))
    reader.flags |= flags - {(model_fn.node, "mode")}
    for function in callees:
        for assign in matchers.findall(function, matchers.Assign(targets=[matchers.AssignTarget(matchers.Name())])):
            name = cst.ensure_type(cst.ensure_type(assign, cst.Assign).targets[0].target, cst.Name)
            value = cst.ensure_type(assign, cst.Assign).value
            bindings = reader.program.bindings(name.value, reader.tree.scopes[function])
            statement = reader.statement_of(value)
            if len(bindings) == 1 and bindings[0].node is value and reader.is_flag(value) and statement is not None:
                reader.flags.add((function, name.value))
                reader.replaced[statement] = REMOVED


def _is_model(reader: Rewriter, value: cst.BaseExpression) -> bool:
    if not isinstance(value, cst.Call):
        return False
    if reader.called(value) in ("tf.keras.Sequential", "tf.keras.Model", "tf.keras.models.Sequential",
                                "tf.keras.models.Model") or _is_of_a_class(reader, value):  # fmt: skip
        return True
    for function in reader.functions(value.func):
        inner = reader.tree.scopes[function.node]
        return any(_is_model(reader, reader.value(result)) for result in inner.returns)
    return False


def _is_of_a_class(reader: Rewriter, call: cst.Call) -> bool:
    """Return whether a call creates a Keras model or layer of a class of the file."""
    for value in reader.program.meaning(call.func, reader.tree, reader.scope(call.func)):
        if isinstance(value, ClassOf) and value.tree is reader.tree:
            names = {catalogue.spell(base.dotted) for base in reader.program.ancestors(value)}
            return bool(names & {"tf.keras.Model", "tf.keras.models.Model", "tf.keras.layers.Layer"})
    return False


def _creates_layers_elsewhere(reader: Rewriter, value: ClassOf | FunctionOf) -> bool:
    """Return whether a function or class of another file creates layers or variables."""
    waiting, seen = [value], {value.node}
    while waiting:
        current = waiting.pop()
        for call in calls_in(current.node):
            scope = current.tree.where.get(call.func, current.tree.scope)
            if (dotted_of(call.func) or "").split(".")[0] in {need.split()[-1] for need in current.tree.needs}:
                return True
            for inner in reader.program.meaning(call.func, current.tree, scope):
                if isinstance(inner, Outside) and _OF_LAYERS.match(inner.dotted):
                    return True
                if isinstance(inner, (ClassOf, FunctionOf)) and inner.node not in seen:
                    seen.add(inner.node)
                    waiting.append(inner)
    return False


def _init_method(class_: ClassOf) -> cst.CSTNode | None:
    body = class_.node.body.body if isinstance(class_.node.body, cst.IndentedBlock) else ()
    return next(
        (
            statement
            for statement in body
            if isinstance(statement, cst.FunctionDef) and statement.name.value == "__init__"
        ),
        None,
    )


def _creates_layers(reader: Rewriter, node: cst.CSTNode, seen: set[cst.CSTNode]) -> bool:
    for call in calls_in(node):
        name = reader.called(call)
        if name in CREATORS or name.startswith("tf.keras.layers.") or name in ("tf.keras.Sequential", "tf.keras.Model"):
            return True
        if name in _COLUMNS or name == GET_VARIABLE:
            return True
        for value in reader.program.meaning(call.func, reader.tree, reader.scope(call.func)):
            if (
                isinstance(value, (ClassOf, FunctionOf))
                and value.tree is not reader.tree
                and _creates_layers_elsewhere(reader, value)
            ):
                raise NotConvertible(f"{reader.source(call.func)}, whose layers are in another file", call)
            init = _init_method(value) if isinstance(value, ClassOf) and value.tree is reader.tree else None
            if init is not None and init not in seen:
                seen.add(init)
                if _creates_layers(reader, init, seen):
                    return True
        if call in reader.embeddings or name in rnn_cells.CREATORS or _is_of_a_class(reader, call):
            return True
        if name.startswith("tf.compat.v1.keras.layers.") and name not in reader.calls:
            raise NotConvertible(f"{reader.source(call.func)} of TensorFlow 1's Keras, whose defaults differ", call)
        if name in _VARIABLES or name.startswith("tf.compat.v1.nn.rnn_cell."):
            raise NotConvertible(f"{name} creates a variable outside of a layer", call)
        for function in reader.functions(call.func):
            if function.node not in seen:
                seen.add(function.node)
                if _creates_layers(reader, function.node, seen):
                    return True
    return False

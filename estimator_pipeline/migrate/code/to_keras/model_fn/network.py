"""The network of a model_fn: what makes layers and variables, and what that needs."""

from __future__ import annotations

import re

import libcst as cst
from libcst import matchers

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.name_resolution import ClassOf, FunctionOf, Outside
from estimator_pipeline.migrate.code.analysis.syntax import dotted_of
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.model_fn import rnn_cells as recurrent
from estimator_pipeline.migrate.code.to_keras.model_fn import separate_predictions as apart
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

__all__ = ["find", "functions_of", "tell_no_mode"]

_VARIABLES = (
    "tf.Variable", "tf.compat.v1.Variable", "tf.compat.v1.nn.dynamic_rnn",
    "tf.compat.v1.nn.static_rnn", "tf.compat.v1.nn.bidirectional_dynamic_rnn",
)  # fmt: skip
OWN = "tf.compat.v1.get_variable"
# What makes layers or variables, in any file.
_OF_LAYERS = re.compile(
    r"(tensorflow\.(compat\.v1\.|python\.)?(keras\.)?layers\.|tensorflow\.(compat\.v1\.)?(get_variable|Variable|nn\.rnn_cell\.)|"
    r"tf_slim\.)"
)
_COLUMNS = ("tf.compat.v1.feature_column.input_layer", "tf.compat.v1.feature_column.linear_model")


def find(reader: Rewriter, made: ModelFn) -> None:
    """Find what of a model_fn is its network.

    Raises:
        NotConvertible: it is another one in some mode, or has what Keras models have not.
    """
    flow = made.flows["train"]
    makers: list[FlowStep] = []
    for step in flow:
        if _makes(reader, step.node, set()) or any(
            isinstance(call.func, cst.Name) and call.func.value in made.models for call in calls_in(step.node)
        ):
            makers.append(step)
            if assigns(step.node) and _is_model(reader, cst.ensure_type(first_of(step.node), cst.Assign).value):
                made.models |= step.sets
    if not makers:
        raise NotConvertible("no layer of its network can be told", made.node.name)
    own = {name for maker in makers if _has_own(reader, maker.node, set()) for name in maker.sets}
    made.own = own
    makers += _of_variables(made, makers, own)
    makers.sort(key=flow.index)
    found = list(makers)
    for maker in makers:
        found += needed(flow[: flow.index(maker)], maker.reads - made.steps)
    chosen = [step for step in flow if step in found]
    made.apart = _is_apart(reader, made, makers)
    modes_of = [one for mode, one in made.flows.items() if mode != "predict" or not made.apart]
    chosen = _with_what_binds_anew(made, chosen, modes_of)
    for step in chosen:
        if step in made.partial:
            raise NotConvertible("a branch by the mode that goes on behind it", step.node)
        if any(step not in one for one in modes_of):
            raise NotConvertible("a mode whose network is another one than that which is trained", step.node)
        if "labels" in step.reads and "labels" in made.parameters:
            raise NotConvertible("a network that is fed with the labels", step.node)
    for one in made.flows.values():
        for place, step in enumerate(one):
            later = {name for after in one[place:] if after in chosen for name in after.reads}
            if step in made.partial and step.sets & later:
                raise NotConvertible("a branch by the mode that goes on behind it", step.node)
    made.network = chosen


def _with_what_binds_anew(made: ModelFn, chosen: list[FlowStep], modes_of: list[list[FlowStep]]) -> list[FlowStep]:
    """With `logits = tf.squeeze(logits)` behind the last layer: loss, metrics and predictions need not do it each."""
    flow, found = made.flows["train"], list(chosen)
    for place, step in enumerate(flow):
        names = {name for one in found for name in one.sets}
        before = [one for one in flow[:place] if one not in found]
        if (
            step not in found
            and assigns(step.node)
            and step.sets
            and step.sets <= names & step.reads
            and "labels" not in step.reads
            and all(step in one for one in modes_of)
            and not any(step.sets & one.reads for one in before)
            and all(one in found for one in needed(flow[:place], step.reads - made.steps))
        ):
            found.append(step)
    return [step for step in flow if step in found]


def _is_apart(reader: Rewriter, made: ModelFn, makers: list[FlowStep]) -> bool:
    """Whether predictions are those of another network than that which is trained."""
    predictions = made.field("predict", "predictions")
    if predictions is None or any(step in makers for step in made.flows["predict"]):
        return False
    nodes = [predictions, *(step.node for step in needed(made.flows["predict"], set(names_in(predictions))))]
    if not any(_makes(reader, node, set()) for node in nodes):
        return False
    apart.check(reader, made, predictions, nodes)
    reader.again = True
    reader.apart.append(predictions)
    return True


def _of_variables(made: ModelFn, makers: list[FlowStep], own: set[str]) -> list[FlowStep]:
    """Return what is done with variables themselves, in all modes: a model gives what comes of them."""
    found: list[FlowStep] = []
    names = set(own)
    for step in made.flows["train"]:
        if step in makers or not step.reads & names or any(step not in flow for flow in made.flows.values()):
            continue
        if "labels" in step.reads or isinstance(step.node, cst.Return):
            continue
        found.append(step)
        if _calls_one(step, own):  # what an object gives, that has the variables
            names |= step.sets
    return found


def _calls_one(step: FlowStep, names: set[str]) -> bool:
    return any(isinstance(call.func, cst.Name) and call.func.value in names for call in calls_in(step.node))


def _has_own(reader: Rewriter, node: cst.CSTNode, seen: set[cst.CSTNode]) -> bool:
    """Whether a statement makes variables of its own: itself, or in what it calls."""
    for call in calls_in(node):
        if reader.called(call) == OWN and call not in reader.embeddings:
            return True
        inner: list[cst.CSTNode] = [one.node for one in reader.functions(call.func)]
        for one in reader.program.meaning(call.func, reader.tree, reader.scope(call.func)):
            if isinstance(one, ClassOf) and one.tree is reader.tree and (init := _init_of(one)) is not None:
                inner.append(init)
        for each in inner:
            if each not in seen:
                seen.add(each)
                if _has_own(reader, each, seen):
                    return True
    return False


def functions_of(reader: Rewriter, made: ModelFn) -> set[cst.CSTNode]:
    """Return the model_fn, and the functions of this file that its network is made by."""
    found: set[cst.CSTNode] = {made.node}
    waiting: list[cst.CSTNode] = [step.node for step in made.network]
    while waiting:
        for call in calls_in(waiting.pop()):
            for function in reader.functions(call.func):
                if function.node not in found:
                    found.add(function.node)
                    waiting.append(function.node)
    return found


def tell_no_mode(reader: Rewriter, made: ModelFn) -> None:
    """Take the mode away from the functions of a network: layers know by themselves whether they train."""
    functions = [one for one in functions_of(reader, made) if one is not made.node and isinstance(one, cst.FunctionDef)]
    told = {(made.node, "mode")}
    for _ in functions:  # one may hand it on to the next
        for function in functions:
            calls = [call for call in reader.tree.calls if any(f.node is function for f in reader.functions(call.func))]
            for position, param in enumerate(function.params.params):
                given = [reader.given(call, position, param.name.value) for call in calls]
                if given and all(isinstance(one, cst.Name) and reader.home(one) in told for one in given):
                    told.add((function, param.name.value))
    reader.flags |= told - {(made.node, "mode")}
    for function in functions:
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
        return any(_is_model(reader, reader.value(one)) for one in inner.returns)
    return False


def _is_of_a_class(reader: Rewriter, call: cst.Call) -> bool:
    """Whether a call makes an object of a class of the file that is a Keras model or layer."""
    for one in reader.program.meaning(call.func, reader.tree, reader.scope(call.func)):
        if isinstance(one, ClassOf) and one.tree is reader.tree:
            names = {catalogue.spell(base.dotted) for base in reader.program.ancestors(one)}
            return bool(names & {"tf.keras.Model", "tf.keras.models.Model", "tf.keras.layers.Layer"})
    return False


def _makes_elsewhere(reader: Rewriter, one: ClassOf | FunctionOf) -> bool:
    """Whether a function or class of another file makes layers or variables."""
    waiting, seen = [one], {one.node}
    while waiting:
        at = waiting.pop()
        for call in calls_in(at.node):
            scope = at.tree.where.get(call.func, at.tree.scope)
            if (dotted_of(call.func) or "").split(".")[0] in {need.split()[-1] for need in at.tree.needs}:
                return True
            for value in reader.program.meaning(call.func, at.tree, scope):
                if isinstance(value, Outside) and _OF_LAYERS.match(value.dotted):
                    return True
                if isinstance(value, (ClassOf, FunctionOf)) and value.node not in seen:
                    seen.add(value.node)
                    waiting.append(value)
    return False


def _init_of(one: ClassOf) -> cst.CSTNode | None:
    body = one.node.body.body if isinstance(one.node.body, cst.IndentedBlock) else ()
    return next((each for each in body if isinstance(each, cst.FunctionDef) and each.name.value == "__init__"), None)


def _makes(reader: Rewriter, node: cst.CSTNode, seen: set[cst.CSTNode]) -> bool:
    for call in calls_in(node):
        name = reader.called(call)
        if name in CREATORS or name.startswith("tf.keras.layers.") or name in ("tf.keras.Sequential", "tf.keras.Model"):
            return True
        if name in _COLUMNS or name == OWN:
            return True
        for one in reader.program.meaning(call.func, reader.tree, reader.scope(call.func)):
            if isinstance(one, (ClassOf, FunctionOf)) and one.tree is not reader.tree and _makes_elsewhere(reader, one):
                raise NotConvertible(f"{reader.source(call.func)}, whose layers are in another file", call)
            init = _init_of(one) if isinstance(one, ClassOf) and one.tree is reader.tree else None
            if init is not None and init not in seen:
                seen.add(init)
                if _makes(reader, init, seen):
                    return True
        if call in reader.embeddings or name in recurrent.CREATORS or _is_of_a_class(reader, call):
            return True
        if name.startswith("tf.compat.v1.keras.layers.") and name not in reader.calls:
            raise NotConvertible(f"{reader.source(call.func)} of TensorFlow 1's Keras, which has other defaults", call)
        if name in _VARIABLES or name.startswith("tf.compat.v1.nn.rnn_cell."):
            raise NotConvertible(f"{name} makes a variable outside of a layer", call)
        for function in reader.functions(call.func):
            if function.node not in seen:
                seen.add(function.node)
                if _makes(reader, function.node, seen):
                    return True
    return False

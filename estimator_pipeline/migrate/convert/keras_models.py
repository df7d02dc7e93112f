"""The Keras model of `tf.keras.estimator.model_to_estimator(model)`: the user's own, which the user has compiled.

The Estimator trained a copy of the model, from its weights and at step 0. The program now trains the model itself, so
that nothing else may train it before or use it afterwards. Source: keras_lib.py of tensorflow_estimator.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.convert import allowed
from estimator_pipeline.migrate.convert.model import Model
from estimator_pipeline.migrate.convert.names import FileNames, Refused
from estimator_pipeline.migrate.convert.rest import Rest
from estimator_pipeline.migrate.convert.rule import SETUP, rule_of
from estimator_pipeline.migrate.convert.rules.optimizers import OPTIMIZERS, is_dense_alike

__all__ = ["MODEL_TO_ESTIMATOR", "WITHOUT_COUNTERPART", "check_model", "convert_names", "model_of"]

MODEL_TO_ESTIMATOR = "tf.keras.estimator.model_to_estimator"
WITHOUT_COUNTERPART = ("custom_objects", "checkpoint_format", "use_v2_estimator")
"""Arguments that a program does not need to train the model itself."""
_COMPILE = ("optimizer", "loss", "metrics", "loss_weights")
_TRAINS = ("fit", "fit_generator", "train_on_batch", "reset_states")
_READS = ("summary", "name", "inputs", "outputs", "input", "output", "input_names", "output_names", "input_shape",
          "output_shape", "count_params", "to_json", "get_config")  # fmt: skip
# Optimizers of Keras that compute the same in the legacy class that an Estimator takes; those that treat the gradients
# of embeddings as dense ones come first. RMSprop adds its epsilon to the mean of squares, its legacy class to the root.
_DENSE_ALIKE = ("SGD", "Adam", "Adagrad")
_OPTIMIZERS = (*_DENSE_ALIKE, "Adamax", "Adadelta", "Ftrl")
_OF_OPTIMIZERS = tuple(f"tf.{module}." for module in (
    "keras.optimizers", "optimizers", "keras.optimizers.legacy", "compat.v1.keras.optimizers"))  # fmt: skip
_OF_KERAS = ("tf.keras.", "tf.compat.v1.keras.")
_LAYERS = tuple(f"{prefix}layers." for prefix in _OF_KERAS)
# Names of Keras 2 and 3 beside those of `allowed.py`.
_SHARED = ("keras.applications.", "keras.callbacks.", "keras.datasets.", "keras.optimizers.schedules.",
           "keras.preprocessing.image.", "keras.preprocessing.sequence.", "keras.preprocessing.text.")  # fmt: skip
_ALSO = frozenset({"keras.models.load_model", "keras.models.clone_model", "keras.utils.to_categorical",
                   "keras.utils.set_random_seed", "keras.utils.get_file", "keras.utils.plot_model",
                   "keras.utils.normalize", "keras.utils.Sequence", "keras.utils.register_keras_serializable",
                   "keras.utils.get_custom_objects", "keras.backend.clear_session", "keras.backend.epsilon",
                   "keras.backend.floatx", "keras.models", "keras.datasets", "keras.utils", "keras.callbacks",
                   "keras.optimizers", "keras.applications", "keras.backend", "keras.preprocessing"})  # fmt: skip
_OF_V1 = ("LSTM", "GRU", "RNN")  # with other activations in TensorFlow 1


def check_model(names: FileNames, call: cst.Call, node: cst.BaseExpression) -> None:
    """Check that only the Estimator trains and uses the model of a call of `model_to_estimator`.

    Args:
        node: the model.

    Raises:
        Refused: something else trains or uses the model, or it is not compiled in a known way.
    """
    if isinstance(node, cst.Name):
        _check_uses(names, call, node)
    compiled = list(_compiled(names, node))
    if not compiled:
        raise Refused("a Keras model whose compile is not found", node)
    for where, compiling in compiled:
        _check_compile(where, compiling)


def _check_uses(names: FileNames, call: cst.Call, node: cst.Name) -> None:
    binding = names.binding(node)
    if binding is None or binding.kind != "value" or binding.scope.around() is not names.scope(node).around():
        raise Refused("a Keras model that is not made in the function of its Estimator", node)
    loops = [above for above in names.tree.above(call) if isinstance(above, (cst.For, cst.While))]
    if any(loop not in names.tree.above(binding.node) for loop in loops):
        raise Refused("a Keras model of several Estimators", node)
    place = names.tree.position(call)[:2]
    for root in names.places(node.value):
        above = names.tree.parents.get(root)
        is_it = binding in names.program.bindings(root.value, names.scope(root))
        if root is node or not is_it or isinstance(above, cst.AssignTarget):
            continue
        attribute = above.attr.value if isinstance(above, cst.Attribute) else ""
        earlier = names.tree.position(root)[:2] < place and names.scope(root).around() is binding.scope.around()
        callee = names.tree.parents.get(above) if isinstance(above, cst.Arg) else None
        passed = isinstance(callee, cst.Call) and names.function(callee.func) is not None
        if attribute in _TRAINS or passed or isinstance(above, cst.Assign) or not (earlier or attribute in _READS):
            raise Refused(f"{node.value}, which is trained or used beside its Estimator", root)


def _compiled(names: FileNames, node: cst.BaseExpression, depth: int = 3) -> Iterator[tuple[FileNames, cst.Call]]:
    """Yield the calls of `compile` for a model: on its name, or in the functions that make it."""
    value = node
    if isinstance(node, cst.Name):
        scope = names.scope(node).around()
        calls = [call for call in names.tree.calls if names.text(call.func) == f"{node.value}.compile"
                 and names.scope(call).around() is scope]  # fmt: skip
        yield from ((names, call) for call in calls)
        value = names.value(node)
        if calls:
            return
    function = names.function(value.func) if isinstance(value, cst.Call) else None
    if function is None or not depth or not isinstance(function.node, cst.FunctionDef):
        return
    for returned in function.tree.scopes[function.node].returns:
        yield from _compiled(names.of(function.tree), returned, depth - 1)


def _check_compile(names: FileNames, call: cst.Call) -> None:
    passed = arguments(call, ("optimizer", "loss", "metrics", "loss_weights"))
    other = next((name for name in passed if name not in _COMPILE), "")
    if other or len(passed) != len(call.args):
        raise Refused(f"{other or 'arguments'} of compile", call)
    if "optimizer" not in passed:
        raise Refused("a Keras model whose optimizer is not known", call)
    node = passed["optimizer"].value
    value = names.value(node)
    name = names.name(value.func) if isinstance(value, cst.Call) else ""
    short = name.rpartition(".")[2]
    if isinstance(value, cst.SimpleString):
        short = next((known for known in _OPTIMIZERS if known.lower() == str(value.evaluated_value).lower()), "")
    elif name.startswith(_OF_OPTIMIZERS):
        short = short if name.removesuffix(short) in _OF_OPTIMIZERS and short in _OPTIMIZERS else ""
    elif name not in OPTIMIZERS:
        short = ""
    if not short:
        raise Refused(f"the optimizer {names.text(node)} of a Keras model", node)
    momentum = isinstance(value, cst.Call) and "momentum" in arguments(value, ("", "momentum"))
    alike = is_dense_alike(name) if name in OPTIMIZERS else short in _DENSE_ALIKE and not momentum
    embeds = any(names.of(tree).name(other.func).endswith("keras.layers.Embedding")
                 for tree in names.program.trees.values() for other in tree.calls)  # fmt: skip
    if embeds and not alike:
        raise Refused(f"the optimizer {names.text(node)} of embeddings", node)


def model_of(names: FileNames, estimator: Any) -> Model:
    """Return the model of an `EstimatorJob`, without code."""
    if estimator.config.strategy is not None:
        raise Refused("a Keras model that is made outside of the strategy's scope", estimator.config.strategy)
    left_out = [value for name, value in estimator.args_made.items() if name in WITHOUT_COUNTERPART]
    optimizers = [(where, where.value(arguments(call, ("optimizer",))["optimizer"].value))
                  for where, call in _compiled(names, estimator.keras_model)]  # fmt: skip
    of_v1 = [isinstance(value, cst.Call) and where.name(value.func) in OPTIMIZERS for where, value in optimizers]
    consumed = frozenset([estimator.model_fn.func, *left_out])
    return Model((), "", "", False, {}, {}, consumed=consumed, restores_rates=not any(of_v1))


def convert_names(names: FileNames, rest: Rest, without: Collection[cst.CSTNode]) -> None:
    """Check the names of Keras that run with a program, and write those that Keras 3 spells otherwise.

    Args:
        without: definitions that the conversion replaces.

    Raises:
        Refused: Keras 2 and Keras 3 do not share one, or it is another layer in TensorFlow 1.
    """
    for node in names.tree.chains:
        full, parent = names.name(node), names.tree.parents.get(node)
        if not full.startswith("tf.") or full == MODEL_TO_ESTIMATOR or isinstance(parent, cst.ImportAlias):
            continue
        if not rest.is_reached(node) or any(above in without for above in names.tree.above(node)):
            continue
        called = parent if isinstance(parent, cst.Call) and parent.func is node else None
        if not full.startswith((*_OF_KERAS, "tf.optimizers.")):
            if called is not None and any(_is_symbolic(names, arg.value) for arg in called.args):
                raise Refused(f"{names.text(node)} of a tensor of Keras, which Keras 3 rejects", node)
            continue
        below = full.removeprefix("tf.compat.v1.").removeprefix("tf.")
        module, _, short = full.rpartition(".")
        if f"{module}." in _OF_OPTIMIZERS and called is not None:
            _optimizer(names, rest, called, short)
        elif _is_other_in_v1(names, full, below):
            raise Refused(f"tf.{below}, which is another layer in TensorFlow 1", node)
        elif not (below in _ALSO or below.startswith(_SHARED) or allowed.name(full, "", "tf") is not None):
            raise Refused(f"tf.{below}, which Keras 2 and Keras 3 do not share", node)
        elif full.startswith("tf.compat.v1.") and rule_of(full, SETUP) is None:
            rest.new[node] = f"{names.tf}.{below}"


def _is_symbolic(names: FileNames, node: cst.BaseExpression) -> bool:
    """Return whether an expression is the output of a layer, or an input."""
    value = names.value(node)
    if not isinstance(value, cst.Call):
        return False
    layer = names.name(value.func.func if isinstance(value.func, cst.Call) else value.func)
    return (
        layer.startswith(_LAYERS)
        if isinstance(value.func, cst.Call)
        else layer.endswith(("keras.Input", "layers.Input"))
    )


def _is_other_in_v1(names: FileNames, full: str, below: str) -> bool:
    """Return whether a layer computes otherwise in TensorFlow 1, where frozen ones are normalized by the batch."""
    if full.startswith("tf.compat.v1.") and any(part in below for part in _OF_V1):
        return True
    if not below.endswith(".BatchNormalization") and not below.startswith("keras.applications."):
        return False
    texts = [tree.source.text for tree in names.program.trees.values()]
    freezes = any(re.search(r"\btrainable\s*=", text) for text in texts)
    return freezes and any("tf.compat.v1." in text for text in texts)


def _optimizer(names: FileNames, rest: Rest, call: cst.Call, short: str) -> None:
    """Write an optimizer as Keras 3 has it: without `legacy` and `lr`."""
    if short not in _OPTIMIZERS:
        raise Refused(f"the optimizer {names.text(call.func)} of a Keras model", call)
    if names.name(call.func) != f"{_OF_OPTIMIZERS[0]}{short}":
        rest.new[call.func] = f"{names.tf}.keras.optimizers.{short}"
    for arg in call.args:
        if arg.star or (arg.keyword is not None and arg.keyword.value == "decay"):
            raise Refused(f"{names.text(arg)} of {names.text(call.func)}", arg)
        if arg.keyword is not None and arg.keyword.value == "lr":
            rest.new[arg.keyword] = "learning_rate"

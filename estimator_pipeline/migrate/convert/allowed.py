"""The names that converted code may keep: functions of TensorFlow without an effect, which Keras 2 and 3 both accept.

The list is of what is known to be safe. A name that is not on it is refused, so that an assignment, a collection or a
summary cannot pass as arithmetic.
"""

from __future__ import annotations

import builtins

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf, Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import iter_nodes
from estimator_pipeline.migrate.convert.names import FileNames

__all__ = ["BUILTINS", "LOGGING_HOOKS", "METHODS", "RANDOM", "has_tensorflow", "is_keras", "is_message", "name"]

BUILTINS = frozenset(dir(builtins)) - {"eval", "exec", "open", "input", "setattr", "delattr", "globals", "locals"}
METHODS = frozenset({
    "append", "copy", "count", "endswith", "extend", "format", "get", "index", "items", "join",
    "keys", "lower", "pop", "replace", "reshape", "split", "startswith", "strip", "update", "upper", "values",
    "astype",
})  # fmt: skip
"""Methods of strings, lists, dicts, arrays and shapes."""
RANDOM = ("tf.random.", "tf.compat.v1.random.", *(f"tf.compat.v1.{name}" for name in (
    "random_normal", "random_uniform", "truncated_normal", "random_shuffle", "multinomial", "random_gamma",
    "random_poisson", "random_crop")))  # fmt: skip
"""Functions that draw other numbers in each call."""
LOGGING_HOOKS = frozenset(f"tf.{module}.{name}" for module in ("estimator", "compat.v1.train") for name in (
    "LoggingTensorHook", "StepCounterHook", "SummarySaverHook", "ProfilerHook"))  # fmt: skip
"""Hooks that log or measure: they change nothing of the training."""

# Modules whose functions compute values from their arguments alone.
_MODULES = ("math", "nn", "linalg", "strings", "image", "signal", "bitwise", "dtypes", "sparse", "ragged", "random")
_FUNCTIONS = frozenset({
    "abs", "acos", "add", "add_n", "argmax", "argmin", "argsort", "as_dtype", "as_string", "asin", "atan",
    "atan2", "boolean_mask", "broadcast_to", "broadcast_static_shape", "case", "cast", "clip_by_norm",
    "clip_by_value", "complex", "concat", "cond", "constant", "convert_to_tensor", "cos", "cosh", "cumsum",
    "divide", "edit_distance", "einsum", "ensure_shape", "equal", "exp", "expand_dims", "eye", "fill", "floor",
    "foldl", "gather", "gather_nd", "greater", "greater_equal", "identity", "is_tensor", "less",
    "less_equal", "linspace", "logical_and", "logical_not", "logical_or", "map_fn", "matmul", "maximum",
    "meshgrid", "minimum", "multiply", "negative", "no_op", "norm", "not_equal", "one_hot", "ones", "ones_like",
    "pad", "pow", "range", "rank", "reduce_all", "reduce_any", "reduce_logsumexp", "reduce_max", "reduce_mean",
    "reduce_min", "reduce_prod", "reduce_sum", "repeat", "reshape", "reverse", "reverse_sequence", "roll",
    "round", "scalar_mul", "scan", "scatter_nd", "searchsorted", "sequence_mask", "shape", "shape_n", "sigmoid",
    "sign", "sin", "sinh", "size", "slice", "sort", "split", "sqrt", "square", "squeeze", "stack",
    "stop_gradient", "strided_slice", "subtract", "tan", "tanh", "tensor_scatter_nd_add", "tensordot", "tile",
    "timestamp", "transpose", "truediv", "truncatemod", "tuple", "unique", "unstack", "vectorized_map", "where",
    "while_loop", "zeros", "zeros_like",
})  # fmt: skip
_VALUES = frozenset({
    "bool", "int32", "int64", "float16", "float32", "float64", "uint8", "int8", "int16", "uint16", "string", "bfloat16",
    "newaxis", "Tensor", "TensorShape",
})  # fmt: skip
# Names with a state or of a version: not on the list even inside of those modules.
_NOT = frozenset({"nn.all_candidate_sampler", "nn.RNNCellDeviceWrapper", "random.set_seed", "random.Generator",
                  "random.create_rng_state", "nn.experimental.general_dropout"})  # fmt: skip
# Classes and functions of Keras that Keras 2 and Keras 3 share by name; the layers are those of layers.py and these.
_KERAS_MODULES = ("keras.layers", "keras.initializers", "keras.regularizers", "keras.constraints", "keras.losses",
                  "keras.metrics", "keras.activations", "keras.optimizers.schedules")  # fmt: skip
_KERAS = frozenset({"keras", "keras.layers", "keras.Sequential", "keras.Model", "keras.Input",
                    "keras.models.Sequential", "keras.models.Model"})  # fmt: skip
_ONLY_KERAS_2 = ("experimental", "Reduction", "legacy", "DenseFeatures", "SequenceFeatures", "CuDNN",
                 "LocallyConnected", "ThresholdedReLU", "RandomHeight", "RandomWidth")  # fmt: skip


def is_keras(full: str) -> bool:
    """Return whether a full name is of Keras: it accepts tensors of Keras as they are."""
    return full.startswith("tf.keras.")


def is_function(full: str) -> bool:
    """Return whether a full name is of a function of TensorFlow, which a saved Keras model does not find again."""
    below = full.removeprefix("tf.compat.v1.").removeprefix("tf.")
    return below not in _VALUES and not below.startswith(("keras.", "dtypes."))


def is_message(names: FileNames, call: cst.Call) -> bool:
    """Return whether a call prints or logs."""
    prints = isinstance(call.func, cst.Name) and call.func.value == "print"
    return prints or names.name(call.func).startswith(("tf.compat.v1.logging.", "logging.", "absl.logging."))


def name(full: str, place: str, tf: str) -> str | None:
    """Return the name to write for a full name of TensorFlow; "" to keep it, None to refuse it."""
    below = full.removeprefix("tf.compat.v1.").removeprefix("tf.")
    of_v1 = full.startswith("tf.compat.v1.")
    if of_v1:
        successor = catalogue.v1_names().get(below)
        if successor is None and below in catalogue.shared_names() and not below.startswith("keras."):
            return None  # another function than that of TensorFlow 2: only a rule can convert it
        if successor == "":
            return None
        below = successor or below
    new = f"{tf}.{below}" if of_v1 else ""
    if below.startswith("keras"):
        known = below in _KERAS or below.startswith(tuple(f"{module}." for module in _KERAS_MODULES)) or (
            below in _KERAS_MODULES
        )  # fmt: skip
        return new if known and not any(part in below for part in _ONLY_KERAS_2) else None
    if below in _NOT:
        return None
    if below in _FUNCTIONS | _VALUES or below.startswith(tuple(f"{module}." for module in _MODULES)):
        return new
    return None


def has_tensorflow(function: FunctionOf, program: Program) -> bool:
    """Return whether a function, or one that it calls, names TensorFlow."""
    waiting, seen = [function], {function}
    while waiting:
        function = waiting.pop()
        tree = function.tree
        for node in iter_nodes(function.node.body):
            if node not in tree.where or not isinstance(node, (cst.Name, cst.Attribute)):
                continue
            for value in program.meaning(node, tree, tree.where[node]):
                if isinstance(value, Outside) and catalogue.spell(value.dotted).startswith("tf"):
                    return True
                if isinstance(value, FunctionOf) and value not in seen:
                    seen.add(value)
                    waiting.append(value)
    return False

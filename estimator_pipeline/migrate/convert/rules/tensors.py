"""Functions of V1 that TensorFlow 2 has by another name or with other arguments: `tf.to_float(x)` -> `tf.cast(...)`."""

from __future__ import annotations

from estimator_pipeline.migrate.convert.names import Refused
from estimator_pipeline.migrate.convert.rule import SETUP, TENSORS, Call, rule

__all__ = ["cast", "clear_session", "cond", "function", "to_categorical"]

_CASTS = {"to_float": "float32", "to_double": "float64", "to_int32": "int32", "to_int64": "int64"}
_REDUCTION = ("input_tensor", "axis", "keepdims", "name", "reduction_indices", "keep_dims")
# Function -> its parameters in TensorFlow 1, the names that TensorFlow 2 has not included.
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("argmax", "argmin"), ("input", "axis", "name", "dimension", "output_type")),
    "expand_dims": ("input", "axis", "name", "dim"),
    "squeeze": ("input", "axis", "name", "squeeze_dims"),
    "nn.log_softmax": ("logits", "axis", "name", "dim"),
    **{f"reduce_{name}": _REDUCTION for name in ("mean", "sum", "max", "min", "prod", "any", "all", "logsumexp")},
}
_SOFTMAX = "nn.softmax"  # in the network a layer
_RENAMED = {"dimension": "axis", "dim": "axis", "squeeze_dims": "axis", "reduction_indices": "axis",
            "keep_dims": "keepdims"}  # fmt: skip


@rule(*(f"tf.compat.v1.{name}" for name in _CASTS))
def cast(call: Call) -> str:
    value = next(iter(call.args("x", "name").values()))
    return f"{call.tf}.cast({call.text(value)}, {call.tf}.{_CASTS[call.name.rpartition('.')[2]]})"


@rule(*(f"tf.compat.v1.{name}" for name in _FUNCTIONS))
@rule(f"tf.compat.v1.{_SOFTMAX}", at=(TENSORS, SETUP))
def function(call: Call) -> str:
    """`tf.reduce_sum(x, 1, keep_dims=True)` -> `tf.reduce_sum(x, axis=1, keepdims=True)`."""
    name = call.name.removeprefix("tf.compat.v1.")
    first, *parameters = _FUNCTIONS.get(name, _FUNCTIONS["nn.log_softmax"])
    args = call.args(first, *parameters, required=[first])
    options = {_RENAMED.get(parameter, parameter): value for parameter, value in args.items() if parameter != "name"}
    if name == "expand_dims" and "axis" not in options:
        raise Refused(f"the arguments of {call.name}", call.node)
    texts = [call.text(options.pop(first)), *([call.text(options.pop("axis"))] if name == "expand_dims" else [])]
    texts += [f"{option}={call.text(value)}" for option, value in options.items()]
    return f"{call.tf}.{name}({', '.join(texts)})"


@rule("tf.keras.utils.to_categorical", "tf.compat.v1.keras.utils.to_categorical")
def to_categorical(call: Call) -> str:
    """`to_categorical(y=labels)` -> `to_categorical(labels)`: Keras 3 has another name for it."""
    args = call.args("y", "num_classes", "dtype", required=["y"])
    options = [f"{name}={call.text(value)}" for name, value in args.items() if name != "y"]
    return f"{call.tf}.keras.utils.to_categorical({', '.join([call.text(args['y']), *options])})"


@rule("tf.compat.v1.cond", at=(TENSORS,))
def cond(call: Call) -> str:
    args = call.args("pred", "true_fn", "false_fn", "strict", "name", "fn1", "fn2")
    true, false = args.get("true_fn", args.get("fn1")), args.get("false_fn", args.get("fn2"))
    if "pred" not in args or true is None or false is None or "strict" in args:
        raise Refused(f"the arguments of {call.name}", call.node)
    return f"{call.tf}.cond({call.text(args['pred'])}, {call.text(true)}, {call.text(false)})"


@rule("tf.compat.v1.reset_default_graph", at=(SETUP,))
def clear_session(call: Call) -> str:
    """`tf.reset_default_graph()`: Keras clears its graph and the names of its layers."""
    call.args()
    return f"{call.tf}.keras.backend.clear_session()"

"""Functions of V1 that TensorFlow 2 has by another name or with other arguments: `tf.to_float(x)` -> `tf.cast(...)`."""

from __future__ import annotations

from estimator_pipeline.migrate.convert.names import Refused
from estimator_pipeline.migrate.convert.rule import SETUP, TENSORS, Call, rule

__all__ = ["argmax", "cast", "clear_session", "cond", "expand_dims"]

_CASTS = {"to_float": "float32", "to_double": "float64", "to_int32": "int32", "to_int64": "int64"}


@rule(*(f"tf.compat.v1.{name}" for name in _CASTS), at=(TENSORS, SETUP))
def cast(call: Call) -> str:
    value = next(iter(call.args("x", "name").values()))
    return f"{call.tf}.cast({call.text(value)}, {call.tf}.{_CASTS[call.name.rpartition('.')[2]]})"


@rule("tf.compat.v1.argmax", "tf.compat.v1.argmin", at=(TENSORS,))
def argmax(call: Call) -> str:
    args = call.args("input", "axis", "name", "dimension", "output_type")
    axis = args.get("axis", args.get("dimension"))
    if "input" not in args:
        raise Refused(f"the arguments of {call.name}", call.node)
    options = [call.text(args["input"])]
    options += [f"axis={call.text(axis)}"] if axis is not None else []
    options += [f"output_type={call.text(args['output_type'])}"] if "output_type" in args else []
    return f"{call.tf}.{call.name.rpartition('.')[2]}({', '.join(options)})"


@rule("tf.compat.v1.expand_dims", at=(TENSORS, SETUP))
def expand_dims(call: Call) -> str:
    args = call.args("input", "axis", "name", "dim")
    axis = args.get("axis", args.get("dim"))
    if "input" not in args or axis is None:
        raise Refused(f"the arguments of {call.name}", call.node)
    return f"{call.tf}.expand_dims({call.text(args['input'])}, {call.text(axis)})"


@rule(*(f"tf.compat.v1.nn.{name}" for name in ("softmax", "log_softmax")), at=(TENSORS,))
def softmax(call: Call) -> str:
    args = call.args("logits", "axis", "name", "dim")
    axis = args.get("axis", args.get("dim"))
    options = [call.text(args["logits"])] + ([f"axis={call.text(axis)}"] if axis is not None else [])
    return f"{call.tf}.nn.{call.name.rpartition('.')[2]}({', '.join(options)})"


@rule(*(f"tf.compat.v1.reduce_{name}" for name in ("mean", "sum", "max", "min", "prod", "any", "all")), at=(TENSORS,))
def reduction(call: Call) -> str:
    args = call.args("input_tensor", "axis", "keepdims", "name", "reduction_indices", "keep_dims")
    axis, keep = args.get("axis", args.get("reduction_indices")), args.get("keepdims", args.get("keep_dims"))
    options = [call.text(args["input_tensor"])]
    options += [f"axis={call.text(axis)}"] if axis is not None else []
    options += [f"keepdims={call.text(keep)}"] if keep is not None else []
    return f"{call.tf}.{call.name.rpartition('.')[2]}({', '.join(options)})"


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

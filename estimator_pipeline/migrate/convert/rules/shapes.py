"""Changes of shape between layers, as layers: `tf.reshape(x, [-1, 28, 28, 1])` -> `Reshape((28, 28, 1))(x)`.

Only forms that keep the examples of a batch apart become layers; others stay functions of TensorFlow (`operation`).
"""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.convert.names import Refused
from estimator_pipeline.migrate.convert.rule import NETWORK, Call, rule

__all__ = ["concat", "reshape"]


@rule("tf.reshape", "tf.compat.v1.reshape", at=(NETWORK,))
def reshape(call: Call) -> str:
    """Reshape to `[-1, ...]`: Keras keeps the batch, and reports a shape that would mix examples."""
    args = call.args("tensor", "shape", "name")
    shape = args.get("shape")
    if "tensor" not in args or shape is None:
        raise Refused("tf.reshape without a shape", call.node)
    if not isinstance(shape, (cst.List, cst.Tuple)) or len(shape.elements) < 2:
        raise Refused("tf.reshape to a shape that is not [-1, ...]", call.node)
    first, *rest = [call.names.text(element.value) for element in shape.elements]
    if first != "-1" or "-1" in rest:
        raise Refused("tf.reshape to a shape that is not [-1, ...]", call.node)
    inner = f"({rest[0]},)" if len(rest) == 1 else f"({', '.join(rest)})"
    return f"{call.tf}.keras.layers.Reshape({inner})({call.text(args['tensor'])})"


@rule("tf.concat", "tf.compat.v1.concat", at=(NETWORK,))
def concat(call: Call) -> str:
    args = call.args("values", "axis", "name", required=["values", "axis"])
    return f"{call.tf}.keras.layers.Concatenate(axis={call.text(args['axis'])})({call.text(args['values'])})"

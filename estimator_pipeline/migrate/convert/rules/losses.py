"""Losses of V1 as functions of Keras: `tf.losses.mean_squared_error(y, p)` -> a mean of `mean_squared_error(y, p)`.

V1 divides the sum of losses by the number of weights that are not 0: without weights the mean, which is written; with
weights the sum of weighted losses by that number. Source: `losses_impl.compute_weighted_loss`.
"""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.convert.names import Refused
from estimator_pipeline.migrate.convert.rule import TENSORS, Call, rule

__all__ = ["STOCK", "loss"]

# Function of tf.compat.v1.losses -> (parameters, Keras function, its options, Keras class).
STOCK: dict[str, tuple[tuple[str, ...], str, str, str]] = {
    "sparse_softmax_cross_entropy": (
        ("labels", "logits", "weights", "scope"), "sparse_categorical_crossentropy", "from_logits=True",
        "SparseCategoricalCrossentropy"),
    "softmax_cross_entropy": (
        ("onehot_labels", "logits", "weights", "label_smoothing", "scope"), "categorical_crossentropy",
        "from_logits=True", "CategoricalCrossentropy"),
    "sigmoid_cross_entropy": (
        ("multi_class_labels", "logits", "weights", "label_smoothing", "scope"), "binary_crossentropy",
        "from_logits=True", "BinaryCrossentropy"),
    "mean_squared_error": (
        ("labels", "predictions", "weights", "scope"), "mean_squared_error", "", "MeanSquaredError"),
    "absolute_difference": (
        ("labels", "predictions", "weights", "scope"), "mean_absolute_error", "", "MeanAbsoluteError"),
    "huber_loss": (("labels", "predictions", "weights", "delta", "scope"), "huber", "", "Huber"),
}  # fmt: skip
_FUNCTIONS = {f"tf.compat.v1.losses.{name}": name for name in STOCK}


def parts(call: Call) -> tuple[tuple[cst.BaseExpression, cst.BaseExpression], str, str]:
    """Return (labels and predictions, options of the Keras loss, its class).

    Raises:
        Refused: the call has weights or another reduction.
    """
    parameters, _, options, keras = STOCK[_FUNCTIONS[call.name]]
    args = call.args(*parameters, "loss_collection", "reduction")
    first, second = parameters[:2]
    for parameter in ("weights", "loss_collection", "reduction"):
        if parameter in args and not call.is_constant(args[parameter], "1.0", "1"):
            raise call.refuse(parameter, args[parameter])
    if first not in args or second not in args:
        raise Refused(f"the arguments of {call.name}", call.node)
    more = [f"{name}={call.text(args[name])}" for name in ("label_smoothing", "delta") if name in args]
    return (args[first], args[second]), ", ".join([*([options] if options else []), *more]), keras


@rule(*_FUNCTIONS, at=(TENSORS,))
def loss(call: Call) -> str:
    (labels, predictions), options, keras = parts(call)
    return f"{call.tf}.keras.losses.{keras}({options})({call.text(labels)}, {call.text(predictions)})"


@rule("tf.compat.v1.losses.get_regularization_loss", at=(TENSORS,))
def regularization(call: Call) -> str:
    """Write the losses of the layers' regularizers, which are those of the model."""
    call.args("scope", "name")
    return "sum(self.losses)"


_KERAS = ("SparseCategoricalCrossentropy", "CategoricalCrossentropy", "BinaryCrossentropy", "MeanSquaredError",
          "MeanAbsoluteError", "Huber", "MeanSquaredLogarithmicError", "KLDivergence", "Poisson", "Hinge")  # fmt: skip


@rule(*(f"tf.keras.losses.{name}" for name in _KERAS), at=(TENSORS,))
def keras_loss(call: Call) -> str:
    """Write a loss object of Keras, its reduction by a name that Keras 3 has, too."""
    written = []
    for arg in call.node.args:
        text = call.text(arg.value)
        if arg.keyword is not None and arg.keyword.value == "reduction":
            member = call.names.text(arg.value).rpartition(".")[2].strip("'\"").lower()
            if member not in ("none", "sum", "sum_over_batch_size"):
                raise Refused(f"reduction={call.names.text(arg.value)}", arg)
            text = repr(member)
        written.append(f"{arg.keyword.value}={text}" if arg.keyword else text)
    return f"{call.tf}.keras.losses.{call.name.rpartition('.')[2]}({', '.join(written)})"


@rule("tf.nn.sparse_softmax_cross_entropy_with_logits", "tf.nn.softmax_cross_entropy_with_logits",
      "tf.nn.sigmoid_cross_entropy_with_logits", *(f"tf.compat.v1.nn.{name}" for name in (
          "sparse_softmax_cross_entropy_with_logits", "softmax_cross_entropy_with_logits_v2",
          "sigmoid_cross_entropy_with_logits")), at=(TENSORS,))  # fmt: skip
def cross_entropy(call: Call) -> str:
    """Functions of tf.nn that TensorFlow 2 has, with their arguments by name."""
    args = call.args("_sentinel", "labels", "logits", "dim", "name")
    if args.keys() - {"labels", "logits", "name"} or not args.keys() >= {"labels", "logits"}:
        raise Refused(f"the arguments of {call.name}", call.node)
    name = call.name.rpartition(".")[2].removesuffix("_v2")
    return f"{call.tf}.nn.{name}(labels={call.text(args['labels'])}, logits={call.text(args['logits'])})"

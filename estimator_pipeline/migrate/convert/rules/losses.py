"""Losses of V1 as functions of Keras: `tf.losses.mean_squared_error(y, p)` -> a mean of `mean_squared_error(y, p)`.

V1 divides the sum of losses by the number of weights that are not 0: without weights the mean, which is written; with
weights the sum of weighted losses by that number. Source: `losses_impl.compute_weighted_loss`.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from estimator_pipeline.migrate.convert.names import FileNames, Refused
from estimator_pipeline.migrate.convert.rule import TENSORS, Call, rule

__all__ = ["MEANS", "STOCK", "is_regularization", "loss"]

_REGULARIZATION, _COLLECTION = "tf.compat.v1.losses.get_regularization_loss", "tf.compat.v1.get_collection"
_PAIR = ("labels", "predictions", "weights", "scope")
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
        _PAIR, "mean_squared_error", "", "MeanSquaredError"),
    "absolute_difference": (
        _PAIR, "mean_absolute_error", "", "MeanAbsoluteError"),
    "huber_loss": (("labels", "predictions", "weights", "delta", "scope"), "huber", "", "Huber"),
}  # fmt: skip
# Function of tf.compat.v1.losses -> (parameters, template of the loss of each example or element).
_EACH: dict[str, tuple[tuple[str, ...], str]] = {
    "sparse_softmax_cross_entropy": (
        STOCK["sparse_softmax_cross_entropy"][0],
        "tf.keras.losses.sparse_categorical_crossentropy({0}, {1}, from_logits=True)"),
    "softmax_cross_entropy": (
        STOCK["softmax_cross_entropy"][0],
        "tf.keras.losses.categorical_crossentropy({0}, {1}, from_logits=True{label_smoothing})"),
    "sigmoid_cross_entropy": (
        ("multi_class_labels", "logits", "weights", "scope"),
        "tf.nn.sigmoid_cross_entropy_with_logits(tf.cast({0}, tf.float32), {1})"),
    "mean_squared_error": (_PAIR, "tf.math.squared_difference(tf.cast({0}, tf.float32), {1})"),
    "absolute_difference": (_PAIR, "tf.abs(tf.cast({0}, tf.float32) - {1})"),
    "hinge_loss": (
        ("labels", "logits", "weights", "scope"), "tf.nn.relu(1.0 - (2.0 * tf.cast({0}, tf.float32) - 1.0) * ({1}))"),
    "log_loss": (("labels", "predictions", "weights", "epsilon", "scope"), "log_losses({0}, {1}{epsilon})"),
    "cosine_distance": (
        ("labels", "predictions", "axis", "weights", "scope"),
        "tf.subtract(1.0, tf.reduce_sum(({0}) * ({1}), keepdims=True{axis}))"),
}  # fmt: skip
_FUNCTIONS = {f"tf.compat.v1.losses.{name}": name for name in {**STOCK, **_EACH}}
MEANS = ("SUM_BY_NONZERO_WEIGHTS", "SUM_OVER_NONZERO_WEIGHTS", "SUM_OVER_BATCH_SIZE", "MEAN")
"""Reductions of V1 that are a mean where no weights are."""


def parts(call: Call) -> tuple[tuple[cst.BaseExpression, cst.BaseExpression], str, str]:
    """Return (labels and predictions, options of the Keras loss, its class).

    Raises:
        Refused: the call has weights or another reduction.
    """
    parameters, _, options, keras = STOCK[_FUNCTIONS[call.name]]
    args = call.args(*parameters, "loss_collection", "reduction")
    first, second = parameters[:2]
    for parameter in ("weights", "loss_collection"):
        if parameter in args and not call.is_constant(args[parameter], "1.0", "1"):
            raise call.refuse(parameter, args[parameter])
    if reduction(call, args) not in MEANS:
        raise call.refuse("reduction", args["reduction"])
    if first not in args or second not in args:
        raise Refused(f"the arguments of {call.name}", call.node)
    more = [f"{name}={call.text(args[name])}" for name in ("label_smoothing", "delta") if name in args]
    return (args[first], args[second]), ", ".join([*([options] if options else []), *more]), keras


def reduction(call: Call, args: Mapping[str, cst.BaseExpression]) -> str:
    """Return the name of a loss's reduction."""
    if "reduction" not in args:
        return MEANS[0]
    name = call.names.name(args["reduction"])
    if not name.startswith("tf.compat.v1.losses.Reduction."):
        raise call.refuse("reduction", args["reduction"])
    return name.rpartition(".")[2]


@rule(*_FUNCTIONS, at=(TENSORS,))
def loss(call: Call) -> str:
    name = _FUNCTIONS[call.name]
    weighted = any(arg.keyword is not None and arg.keyword.value in ("weights", "reduction") for arg in call.node.args)
    parameters = (STOCK[name] if name in STOCK else _EACH[name])[0]
    weighted = weighted or len([arg for arg in call.node.args if arg.keyword is None]) > parameters.index("weights")
    if name in STOCK and not weighted:
        (labels, predictions), options, keras = parts(call)
        return f"{call.tf}.keras.losses.{keras}({options})({call.text(labels)}, {call.text(predictions)})"
    return _reduced(call, name)


def _reduced(call: Call, name: str) -> str:
    """Write a loss of elements, its weights and its reduction. Source: `losses_impl.compute_weighted_loss`."""
    if name not in _EACH:
        raise Refused(f"weights or reduction of {call.name}", call.node)
    parameters, template = _EACH[name]
    args = call.args(*parameters, "loss_collection", "reduction")
    kind, weights = reduction(call, args), args.get("weights")
    first, second = (parameter for parameter in parameters[:2])
    if first not in args or second not in args or (name == "cosine_distance" and "axis" not in args):
        raise Refused(f"the arguments of {call.name}", call.node)
    if "loss_collection" in args and not call.is_constant(args["loss_collection"], "None"):
        raise call.refuse("loss_collection", args["loss_collection"])
    options = {parameter: f", {parameter}={call.text(args[parameter])}" if parameter in args else ""
               for parameter in ("label_smoothing", "epsilon", "axis")}  # fmt: skip
    call.needs.update({"log_losses"} if name == "log_loss" else ())
    each = template.replace("tf.", f"{call.tf}.").format(call.text(args[first]), call.text(args[second]), **options)
    if weights is not None and not call.is_constant(weights, "1.0", "1"):
        if kind not in MEANS[:2]:
            raise Refused(f"weights and reduction of {call.name}", weights)
        call.needs.add("weighted_mean")
        return f"weighted_mean({each}, {call.text(weights)})"
    if kind == "NONE":
        return each
    return f"{call.tf}.reduce_{'sum' if kind == 'SUM' else 'mean'}({each})"


def is_regularization(names: FileNames, node: cst.CSTNode) -> bool:
    """Return whether a node is a call that returns the losses of the layers' regularizers, or their sum."""
    full = names.name(node.func) if isinstance(node, cst.Call) else ""
    collection = node.args[0].value if isinstance(node, cst.Call) and node.args else None
    return full == _REGULARIZATION or (
        full == _COLLECTION and names.name(collection).endswith(".GraphKeys.REGULARIZATION_LOSSES")
    )


@rule(_REGULARIZATION, _COLLECTION, at=(TENSORS,))
def regularization(call: Call) -> str:
    """Write the losses of the layers' regularizers, which are those of the model."""
    args = call.args(*(("scope", "name") if call.name == _REGULARIZATION else ("key", "scope")))
    if "scope" in args or not is_regularization(call.names, call.node):
        raise call.refuse("the arguments", call.node)
    return "sum(self.losses)" if call.name == _REGULARIZATION else "self.losses"


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

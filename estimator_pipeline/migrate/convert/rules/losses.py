"""Losses of V1 as functions of Keras: `tf.losses.mean_squared_error(y, p)` -> a mean of `mean_squared_error(y, p)`.

V1 divides the sum of losses by the number of weights that are not 0: without weights the mean, which is written; with
weights the sum of weighted losses by that number. Source: `losses_impl.compute_weighted_loss`.
"""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.convert.names import FileNames, Refused
from estimator_pipeline.migrate.convert.rule import TENSORS, Call, rule

__all__ = ["LOSSES", "MEANS", "is_regularization", "loss", "stock"]

_REGULARIZATION, _COLLECTION = "tf.compat.v1.losses.get_regularization_loss", "tf.compat.v1.get_collection"
_CROSS = "tf.keras.losses.{}({{0}}, {{1}}, from_logits=True{})"
_PAIR, _OF_LOGITS = ("labels", "predictions", "weights", "scope"), ("labels", "logits", "weights", "scope")
_OPTIONS = ("label_smoothing", "delta", "epsilon", "axis")
# Function of tf.compat.v1.losses -> (parameters, class of Keras, its options, the loss of each example or element).
_LOSSES: dict[str, tuple[tuple[str, ...], str, str, str]] = {
    "sparse_softmax_cross_entropy": (
        _OF_LOGITS, "SparseCategoricalCrossentropy", "from_logits=True",
        _CROSS.format("sparse_categorical_crossentropy", "")),
    "softmax_cross_entropy": (
        ("onehot_labels", "logits", "weights", "label_smoothing", "scope"), "CategoricalCrossentropy",
        "from_logits=True", _CROSS.format("categorical_crossentropy", "{label_smoothing}")),
    "sigmoid_cross_entropy": (
        ("multi_class_labels", "logits", "weights", "label_smoothing", "scope"), "BinaryCrossentropy",
        "from_logits=True", "tf.nn.sigmoid_cross_entropy_with_logits(tf.cast({0}, tf.float32), {1})"),
    "mean_squared_error": (
        _PAIR, "MeanSquaredError", "", "tf.math.squared_difference(tf.cast({0}, tf.float32), {1})"),
    "absolute_difference": (_PAIR, "MeanAbsoluteError", "", "tf.abs(tf.subtract(tf.cast({0}, tf.float32), {1}))"),
    "huber_loss": (("labels", "predictions", "weights", "delta", "scope"), "Huber", "", ""),
    "hinge_loss": (_OF_LOGITS, "", "", "tf.nn.relu(1.0 - (2.0 * tf.cast({0}, tf.float32) - 1.0) * ({1}))"),
    "log_loss": (("labels", "predictions", "weights", "epsilon", "scope"), "", "", "log_losses({0}, {1}{epsilon})"),
    "cosine_distance": (
        ("labels", "predictions", "axis", "weights", "scope"), "", "",
        "tf.subtract(1.0, tf.reduce_sum(({0}) * ({1}), keepdims=True{axis}))"),
}  # fmt: skip
_V1 = "tf.compat.v1.losses."
LOSSES = frozenset(f"{_V1}{name}" for name in _LOSSES)
"""Losses of V1 with a rule."""
MEANS = ("SUM_BY_NONZERO_WEIGHTS", "SUM_OVER_NONZERO_WEIGHTS", "SUM_OVER_BATCH_SIZE", "MEAN")
"""Reductions of V1 that are a mean where no weights are."""


def _arguments(call: Call) -> tuple[dict[str, cst.BaseExpression], str]:
    """Return the arguments of a loss without those that are its defaults, and the name of its reduction."""
    parameters = _LOSSES[call.name.removeprefix(_V1)][0]
    required = [*parameters[:2], *(name for name in parameters if name == "axis")]
    args = call.args(*parameters, "loss_collection", "reduction", required=required)
    if "loss_collection" in args and not call.is_constant(args["loss_collection"], "None"):
        raise call.refuse("loss_collection", args["loss_collection"])
    if call.is_constant(args.get("weights"), "1.0", "1"):
        del args["weights"]
    reduction = call.names.name(args["reduction"]) if "reduction" in args else f"{_V1}Reduction.{MEANS[0]}"
    if not reduction.startswith(f"{_V1}Reduction."):
        raise call.refuse("reduction", args["reduction"])
    return args, reduction.rpartition(".")[2]


def stock(call: Call) -> tuple[cst.BaseExpression, cst.BaseExpression, str] | None:
    """Return labels, predictions and the loss object of Keras; None where Keras has none, or not with such weights."""
    (first, second, *_), keras, options, _ = _LOSSES[call.name.removeprefix(_V1)]
    args, reduction = _arguments(call)
    if not keras or "weights" in args or reduction not in MEANS:
        return None
    texts = [options] if options else []
    texts += [f"{name}={call.text(args[name])}" for name in _OPTIONS if name in args]
    return args[first], args[second], f"{call.tf}.keras.losses.{keras}({', '.join(texts)})"


@rule(*LOSSES, at=(TENSORS,))
def loss(call: Call) -> str:
    """Write an object of Keras, or the losses of elements, their weights and their reduction.

    Source: `losses_impl.compute_weighted_loss`.
    """
    if known := stock(call):
        return f"{known[2]}({call.text(known[0])}, {call.text(known[1])})"
    (first, second, *_), _, _, template = _LOSSES[call.name.removeprefix(_V1)]
    args, reduction = _arguments(call)
    options = {name: f", {name}={call.text(args[name])}" if name in args else "" for name in _OPTIONS}
    if not template or any(options[name] and f"{{{name}}}" not in template for name in _OPTIONS):
        raise Refused(f"weights or reduction of {call.name}", call.node)
    call.needs.update({"log_losses"} if "log_losses" in template else ())
    each = template.replace("tf.", f"{call.tf}.").format(call.text(args[first]), call.text(args[second]), **options)
    if "weights" in args:
        if reduction not in MEANS[:2]:
            raise Refused(f"weights and reduction of {call.name}", args["weights"])
        call.needs.add("weighted_mean")
        return f"weighted_mean({each}, {call.text(args['weights'])})"
    if reduction == "NONE":
        return each
    return f"{call.tf}.reduce_{'sum' if reduction == 'SUM' else 'mean'}({each})"


def is_regularization(names: FileNames, node: cst.CSTNode) -> bool:
    """Return whether a node is a call that returns the losses of the layers' regularizers, or their sum.

    Raises:
        Refused: it returns those of one scope.
    """
    full = names.name(node.func) if isinstance(node, cst.Call) else ""
    if not isinstance(node, cst.Call) or full not in (_REGULARIZATION, _COLLECTION):
        return False
    args = arguments(node, ("scope", "name") if full == _REGULARIZATION else ("key", "scope"))
    key = names.name(args["key"].value) if "key" in args else full
    is_it = key == _REGULARIZATION or key.endswith(".GraphKeys.REGULARIZATION_LOSSES")
    if is_it and "scope" in args:
        raise Refused(f"scope of {full}", node)
    return is_it


@rule(_REGULARIZATION, _COLLECTION, at=(TENSORS,))
def regularization(call: Call) -> str:
    """Write the losses of the layers' regularizers, which are those of the model."""
    if not is_regularization(call.names, call.node):
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
    args = call.args("_sentinel", "labels", "logits", "dim", "name", required=["labels", "logits"])
    if args.keys() - {"labels", "logits", "name"}:
        raise Refused(f"the arguments of {call.name}", call.node)
    name = call.name.rpartition(".")[2].removesuffix("_v2")
    return f"{call.tf}.nn.{name}(labels={call.text(args['labels'])}, logits={call.text(args['logits'])})"

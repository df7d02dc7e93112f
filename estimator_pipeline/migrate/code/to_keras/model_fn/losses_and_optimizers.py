"""V1's losses, metrics, schedules and optimizers in Keras, equal to V1's: docs/reference/migrate-equals.md."""

from __future__ import annotations

from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["SCHEDULES", "SILENT", "chosen", "install", "metric", "optimizer"]

# Loss of V1 -> (parameters, how the mean over the batch is written).
_LOSSES: dict[str, tuple[tuple[str, ...], str]] = {
    "sparse_softmax_cross_entropy": (
        ("labels", "logits", "weights", "scope", "loss_collection", "reduction"),
        "tf.keras.losses.sparse_categorical_crossentropy({0}, {1}, from_logits=True)"),
    "softmax_cross_entropy": (
        ("onehot_labels", "logits", "weights", "label_smoothing", "scope", "loss_collection", "reduction"),
        "tf.keras.losses.categorical_crossentropy({0}, {1}, from_logits=True{label_smoothing})"),
    "sigmoid_cross_entropy": (
        ("multi_class_labels", "logits", "weights", "label_smoothing", "scope", "loss_collection", "reduction"),
        "tf.nn.sigmoid_cross_entropy_with_logits(tf.cast({0}, tf.float32), {1})"),
    "mean_squared_error": (
        ("labels", "predictions", "weights", "scope", "loss_collection", "reduction"),
        "tf.keras.losses.mean_squared_error({0}, {1})"),
    "absolute_difference": (
        ("labels", "predictions", "weights", "scope", "loss_collection", "reduction"),
        "tf.keras.losses.mean_absolute_error({0}, {1})"),
    "huber_loss": (
        ("labels", "predictions", "weights", "delta", "scope", "loss_collection", "reduction"),
        "tf.keras.losses.huber({0}, {1}{delta})"),
}  # fmt: skip
_SAID = ("scope",)

# Metric of V1 -> (Keras class, parameters, what its state is updated with).
_METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "accuracy": ("Accuracy", ("labels", "predictions"), "{0}, {1}"),
    "mean": ("Mean", ("values",), "{0}"),
    "precision": ("Precision", ("labels", "predictions"), "tf.cast({0}, tf.bool), tf.cast({1}, tf.bool)"),
    "recall": ("Recall", ("labels", "predictions"), "tf.cast({0}, tf.bool), tf.cast({1}, tf.bool)"),
    "auc": ("AUC", ("labels", "predictions", "weights", "num_thresholds"), "{0}, {1}"),
    "root_mean_squared_error": ("RootMeanSquaredError", ("labels", "predictions"), "{0}, {1}"),
    "mean_squared_error": ("MeanSquaredError", ("labels", "predictions"), "{0}, {1}"),
    "mean_absolute_error": ("MeanAbsoluteError", ("labels", "predictions"), "{0}, {1}"),
}

# Functions of V1 that TensorFlow 2 has with the same arguments by these names.
_OF_LOGITS, _WITH_LABELS = ("logits", "axis", "name"), ("labels", "logits", "name")
_BY_NAMES = {
    "softmax": _OF_LOGITS, "log_softmax": _OF_LOGITS, "sigmoid_cross_entropy_with_logits": _WITH_LABELS,
    "sparse_softmax_cross_entropy_with_logits": _WITH_LABELS, "softmax_cross_entropy_with_logits": _WITH_LABELS,
    "softmax_cross_entropy_with_logits_v2": _WITH_LABELS,
}  # fmt: skip

_STEP = "global_step"
# Schedule of V1 -> (Keras class, its parameters there).
_SCHEDULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "exponential_decay": ("ExponentialDecay", ("learning_rate", _STEP, "decay_steps", "decay_rate", "staircase")),
    "inverse_time_decay": ("InverseTimeDecay", ("learning_rate", _STEP, "decay_steps", "decay_rate", "staircase")),
    "piecewise_constant": ("PiecewiseConstantDecay", (_STEP, "boundaries", "values")),
    "piecewise_constant_decay": ("PiecewiseConstantDecay", (_STEP, "boundaries", "values")),
    "polynomial_decay": (
        "PolynomialDecay", ("learning_rate", _STEP, "decay_steps", "end_learning_rate", "power", "cycle")),
    "cosine_decay": ("CosineDecay", ("learning_rate", _STEP, "decay_steps", "alpha")),
}  # fmt: skip
_RENAMED = {"learning_rate": "initial_learning_rate", "x": _STEP}
SCHEDULES = tuple(f"tf.compat.v1.train.{name}" for name in _SCHEDULES)

# Optimizer of V1 -> (Keras class, its parameters there, V1 name -> Keras name, what is said where nothing is).
_OPTIMIZERS: dict[str, tuple[str, tuple[str, ...], dict[str, str], dict[str, str]]] = {
    "GradientDescentOptimizer": ("SGD", ("learning_rate",), {}, {}),
    "AdamOptimizer": (
        "Adam", ("learning_rate", "beta1", "beta2", "epsilon"), {"beta1": "beta_1", "beta2": "beta_2"},
        {"epsilon": "1e-8"}),
    "MomentumOptimizer": (
        "SGD", ("learning_rate", "momentum", "use_locking", "name", "use_nesterov"), {"use_nesterov": "nesterov"}, {}),
    "FtrlOptimizer": (
        "Ftrl", ("learning_rate", "learning_rate_power", "initial_accumulator_value", "l1_regularization_strength",
                 "l2_regularization_strength"), {}, {}),
    "AdagradOptimizer": ("Adagrad", ("learning_rate", "initial_accumulator_value"), {}, {}),
    "RMSPropOptimizer": ("RMSprop", ("learning_rate", "decay", "momentum", "epsilon"), {}, {}),
}  # fmt: skip

# Of V1, with the same arguments: optimizer -> the function of keras_optimizers.
_OWN = {
    "ProximalAdagradOptimizer": ("proximal_adagrad", (
        "learning_rate", "initial_accumulator_value", "l1_regularization_strength", "l2_regularization_strength")),
}  # fmt: skip

SILENT = ("tf.compat.v1.summary.", "tf.summary.")
"""What is written for people alone: TensorBoard of Keras writes the loss, the metrics and each epoch's rate."""


def install(reader: Rewriter) -> None:
    """Lets a reader write losses and schedules."""
    for name in _LOSSES:
        reader.calls[f"tf.compat.v1.losses.{name}"] = partial(_loss, reader, name)
    for name in _SCHEDULES:
        reader.calls[f"tf.compat.v1.train.{name}"] = partial(_schedule, reader, name)
    for name in ("float", "double", "int32", "int64"):
        reader.calls[f"tf.compat.v1.to_{name}"] = partial(
            _cast, reader, {"float": "float32", "double": "float64"}.get(name, name)
        )
    for name in ("argmax", "argmin"):
        reader.calls[f"tf.compat.v1.{name}"] = partial(_largest, reader, name)
    for name, parameters in _BY_NAMES.items():
        reader.calls[f"tf.compat.v1.nn.{name}"] = partial(_by_names, reader, name.removesuffix("_v2"), parameters)
    reader.calls["tf.compat.v1.nn.in_top_k"] = partial(_in_top_k, reader)
    reader.calls["tf.compat.v1.losses.get_regularization_loss"] = lambda call: "sum(self.losses)"
    reader.calls["tf.compat.v1.get_collection"] = partial(_collection, reader)
    reader.calls["tf.compat.v1.losses.get_regularization_losses"] = lambda call: "self.losses"


def _loss(reader: Rewriter, name: str, call: cst.Call) -> str:
    parameters, form = _LOSSES[name]
    given = arguments(call, parameters)
    extra = {}
    for one, arg in list(given.items())[2:]:
        if one in _SAID:
            continue
        if one not in ("label_smoothing", "delta") or f"{{{one}}}" not in form:
            raise NotConvertible(f"{one} of {name}: its mean is another one than that of Keras", arg)
        extra[one] = f", {one}={reader.text(arg.value)}"
    first, second = parameters[:2]
    if first not in given or second not in given:
        raise NotConvertible(f"the arguments of {name} cannot be told", call)
    extra = {"label_smoothing": "", "delta": ""} | extra
    each = form.replace("tf.", f"{reader.tf}.").format(
        reader.text(given[first].value), reader.text(given[second].value), **extra
    )
    return f"{reader.tf}.reduce_mean({each})"


def _collection(reader: Rewriter, call: cst.Call) -> str:
    if len(call.args) == 1 and reader.name(call.args[0].value).rpartition(".")[2] == "REGULARIZATION_LOSSES":
        return "self.losses"
    raise NotConvertible("a collection that Keras has none of", call)


def _cast(reader: Rewriter, dtype: str, call: cst.Call) -> str:
    return f"{reader.tf}.cast({reader.text(call.args[0].value)}, {reader.tf}.{dtype})"


def _largest(reader: Rewriter, name: str, call: cst.Call) -> str:
    """`argmax`: of V1 the arguments may have names of their own, or another order."""
    if not any(arg.keyword and arg.keyword.value in ("input", "dimension") for arg in call.args) and len(call.args) < 4:
        rest = reader.spliced(reader.span(call.func)[1], reader.span(call)[1], call.args)
        return f"{reader.tf}.{name}{rest}"
    given = arguments(call, ("input", "axis", "name", "dimension", "output_type"))
    names = {"input": "", "axis": "axis=", "dimension": "axis=", "output_type": "output_type=", "name": "name="}
    told = [f"{said}{reader.text(given[one].value)}" for one, said in names.items() if one in given]
    return reader.call(f"{reader.tf}.{name}", told, call)


def _by_names(reader: Rewriter, name: str, parameters: tuple[str, ...], call: cst.Call) -> str:
    named = all(arg.keyword is not None and arg.keyword.value in parameters for arg in call.args)
    function = f"{reader.tf}.nn.{name}" if named else reader.text(call.func)
    return f"{function}{reader.spliced(reader.span(call.func)[1], reader.span(call)[1], call.args)}"


def _in_top_k(reader: Rewriter, call: cst.Call) -> str:
    """V1's order of arguments is another one."""
    given = arguments(call, ("predictions", "targets", "k", "name"))
    told = [f"{one}={reader.text(given[one].value)}" for one in ("targets", "predictions", "k", "name") if one in given]
    return reader.call(f"{reader.tf}.math.in_top_k", told, call)


def metric(reader: Rewriter, call: cst.Call, key: str) -> tuple[str, str, list[cst.BaseExpression]]:
    """Return (the Keras metric, what it is updated with, the expressions that this needs) of a metric of V1.

    Raises:
        NotConvertible: Keras has none that is equal.
    """
    name = reader.called(call).removeprefix("tf.compat.v1.metrics.")
    if name not in _METRICS:
        raise NotConvertible(f"the metric {reader.source(call.func)} has no equal in Keras", call)
    keras, parameters, form = _METRICS[name]
    given = {one: arg for one, arg in arguments(call, parameters).items() if one != "name"}
    options = ""
    for one, arg in given.items():
        if one == "num_thresholds":
            options = f"num_thresholds={reader.text(arg.value)}, "
        elif one not in parameters or one == "weights":
            raise NotConvertible(f"{one} of the metric {name}", arg)
    used = [given[one].value for one in parameters[:2] if one in given]
    if len(used) < form.count("{"):
        raise NotConvertible(f"the arguments of the metric {name} cannot be told", call)
    told = form.replace("tf.", f"{reader.tf}.").format(*(reader.text(one) for one in used))
    return f"{reader.tf}.keras.metrics.{keras}({options}name={key!r})", told, used


def _schedule(reader: Rewriter, name: str, call: cst.Call) -> str:
    keras, parameters = _SCHEDULES[name]
    given = {_RENAMED.get(one, one) if one == "x" else one: arg for one, arg in arguments(call, parameters).items()}
    kept: list[str] = []
    by_position = True
    for place, parameter in enumerate(one for one in parameters if one != _STEP):
        arg = given.pop(parameter, None)
        if arg is None:
            by_position = False
            continue
        text = reader.text(arg.value)
        by_position = by_position and place == len(kept) and (arg.keyword is None or place < 2)
        kept.append(text if by_position else f"{_RENAMED.get(parameter, parameter)}={text}")
    for one, arg in given.items():
        if one not in (_STEP, "name"):
            raise NotConvertible(f"{one} of {name} has no counterpart in Keras", arg)
    return reader.call(f"{reader.tf}.keras.optimizers.schedules.{keras}", kept, call)


def chosen(reader: Rewriter, call: cst.Call) -> cst.BaseExpression | None:
    """Of `getattr(tf.train, name + "Optimizer")(rate)` the name; None of other calls."""
    inner = call.func
    if not isinstance(inner, cst.Call) or not isinstance(inner.func, cst.Name) or inner.func.value != "getattr":
        return None
    if len(inner.args) != 2 or reader.name(inner.args[0].value) != "tf.compat.v1.train":
        return None
    full = inner.args[1].value
    if not isinstance(full, cst.BinaryOperation) or not isinstance(full.operator, cst.Add):
        return None
    if not isinstance(full.right, cst.SimpleString) or full.right.evaluated_value != "Optimizer":
        return None
    plain = len(call.args) == 1 and (not call.args[0].keyword or call.args[0].keyword.value == "learning_rate")
    return full.left if plain and not call.args[0].star else None


def _own(reader: Rewriter, call: cst.Call, function: str, parameters: tuple[str, ...]) -> str:
    """Return an optimizer of keras_optimizers that takes what V1's takes."""
    given = {one: arg for one, arg in arguments(call, parameters).items() if one not in ("use_locking", "name")}
    for one, arg in given.items():
        if one not in parameters or arg.star:
            raise NotConvertible(f"{one or 'an argument'} of {function} has no counterpart in Keras", arg)
    reader.needs.add("keras_optimizers")
    told = [reader.text(arg.value) if arg.keyword is None else f"{one}={reader.text(arg.value)}"
            for one, arg in given.items()]  # fmt: skip
    return reader.call(f"keras_optimizers.{function}", told, call)


def _limits(call: cst.Call, clipping: dict[str, str]) -> list[str]:
    """Return what `keras_optimizers.make` is told of clipping."""
    behind = {"global_clipnorm": "clip_norm", "clipvalue": "clip_value"}
    for one in clipping.keys() - behind.keys():
        raise NotConvertible(f"{one} of keras_optimizers.make", call)
    return [f"{behind[one]}={text}" for one, text in clipping.items()]


def optimizer(reader: Rewriter, call: cst.Call, *, scheduled: bool, clipping: dict[str, str]) -> str:
    """Return the Keras optimizer that does what one of V1 does, to the last bit but for rounding.

    Args:
        scheduled: whether its learning rate changes from step to step.
        clipping: argument of Keras's optimizer -> its text.

    Raises:
        NotConvertible: there is none.
    """
    full = reader.called(call)
    if full.startswith("tf.keras.optimizers."):
        if clipping:
            raise NotConvertible("an optimizer of Keras whose gradients are clipped outside of it", call)
        return reader.text(call)
    by_name = chosen(reader, call)
    if by_name is not None:
        reader.needs.add("keras_optimizers")
        told = [reader.text(by_name), reader.text(call.args[0].value), *_limits(call, clipping)]
        return reader.call("keras_optimizers.of_v1", told, call)
    name = full.removeprefix("tf.compat.v1.train.")
    if name in _OWN and not clipping:
        return _own(reader, call, *_OWN[name])
    if name not in _OPTIMIZERS:
        raise NotConvertible(f"the optimizer {reader.source(call.func)} has no equal in Keras", call)
    keras, parameters, renamed, defaults = _OPTIMIZERS[name]
    given = arguments(call, parameters)
    for one in ("use_locking", "name"):
        given.pop(one, None)
    for one, arg in given.items():
        if one not in parameters or arg.star:
            raise NotConvertible(f"{one or 'an argument'} of {name} has no counterpart in Keras", arg)
    texts = {one: reader.text(arg.value) for one, arg in given.items()}
    nesterov = texts.get("use_nesterov") == "True"
    if name == "RMSPropOptimizer" or (name == "MomentumOptimizer" and scheduled):
        # Keras keeps the velocity with the rate in it, and begins RMSprop at 0.
        rate = texts.pop("learning_rate", None)
        if rate is None or ("use_nesterov" in texts and not nesterov):
            raise NotConvertible(f"the arguments of {name} cannot be told", call)
        texts.pop("use_nesterov", None)
        reader.needs.add("Optimizer")
        kind = "rmsprop" if name == "RMSPropOptimizer" else "nesterov" if nesterov else "momentum"
        options = ", ".join(f"'{one}': {text}" for one, text in texts.items())
        reader.needs.add("keras_optimizers")
        said = f"name={kind!r}, learning_rate={rate}" + (f", options={{{options}}}" if options else "")
        return reader.call("keras_optimizers.make", [f"Optimizer({said})", *_limits(call, clipping)], call)
    kept, by_position = [], True
    for one, text in texts.items():
        by_position = by_position and one in ("learning_rate",)
        kept.append(text if by_position else f"{renamed.get(one, one)}={text}")
    kept += [f"{one}={text}" for one, text in defaults.items() if one not in texts]
    kept += [f"{one}={text}" for one, text in clipping.items()]
    return reader.call(f"{reader.tf}.keras.optimizers.{keras}", kept, call)

"""Keras counterparts that are equal to the losses, metrics, schedules and optimizers of V1.

`docs/reference/migrate-equals.md` lists them.
"""

from __future__ import annotations

from functools import partial

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["SCHEDULES", "SUMMARIES", "install", "metric", "optimizer", "optimizer_name_expression"]

# V1 loss -> (parameters, template of the loss of each example).
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
_IGNORED = ("scope",)

# V1 metric -> (Keras class, parameters, template of the arguments of `update_state`).
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

# V1 functions that TensorFlow 2 has too, with these parameters.
_LOGITS, _LABELS_AND_LOGITS = ("logits", "axis", "name"), ("labels", "logits", "name")
_IN_TENSORFLOW_2 = {
    "softmax": _LOGITS, "log_softmax": _LOGITS, "sigmoid_cross_entropy_with_logits": _LABELS_AND_LOGITS,
    "sparse_softmax_cross_entropy_with_logits": _LABELS_AND_LOGITS,
    "softmax_cross_entropy_with_logits": _LABELS_AND_LOGITS,
    "softmax_cross_entropy_with_logits_v2": _LABELS_AND_LOGITS,
}  # fmt: skip

_STEP = "global_step"
# V1 schedule -> (Keras class, parameters in V1).
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

# V1 optimizer -> (Keras class, parameters in V1, V1 name -> Keras name, V1 defaults that Keras does not share).
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

# V1 optimizer -> (function of keras_optimizers, parameters of both).
_KERAS_OPTIMIZERS = {
    "ProximalAdagradOptimizer": ("proximal_adagrad", (
        "learning_rate", "initial_accumulator_value", "l1_regularization_strength", "l2_regularization_strength")),
}  # fmt: skip

SUMMARIES = ("tf.compat.v1.summary.", "tf.summary.")
"""Logging-only functions. Keras's TensorBoard callback writes the loss, the metrics and each epoch's learning rate."""


def install(reader: Rewriter) -> None:
    """Register the rewrites of losses, schedules and functions."""
    for name in _LOSSES:
        reader.calls[f"tf.compat.v1.losses.{name}"] = partial(_rewrite_loss, reader, name)
    for name in _SCHEDULES:
        reader.calls[f"tf.compat.v1.train.{name}"] = partial(_rewrite_schedule, reader, name)
    for name in ("float", "double", "int32", "int64"):
        reader.calls[f"tf.compat.v1.to_{name}"] = partial(
            _rewrite_cast, reader, {"float": "float32", "double": "float64"}.get(name, name)
        )
    for name in ("argmax", "argmin"):
        reader.calls[f"tf.compat.v1.{name}"] = partial(_rewrite_argmax, reader, name)
    for name, parameters in _IN_TENSORFLOW_2.items():
        reader.calls[f"tf.compat.v1.nn.{name}"] = partial(
            _rewrite_function, reader, name.removesuffix("_v2"), parameters
        )
    reader.calls["tf.compat.v1.nn.in_top_k"] = partial(_rewrite_in_top_k, reader)
    reader.calls["tf.compat.v1.losses.get_regularization_loss"] = lambda call: "sum(self.losses)"
    reader.calls["tf.compat.v1.get_collection"] = partial(_rewrite_collection, reader)
    reader.calls["tf.compat.v1.losses.get_regularization_losses"] = lambda call: "self.losses"


def _rewrite_loss(reader: Rewriter, name: str, call: cst.Call) -> str:
    parameters, form = _LOSSES[name]
    args = arguments(call, parameters)
    extra = {}
    for parameter, arg in list(args.items())[2:]:
        if parameter in _IGNORED:
            continue
        if parameter not in ("label_smoothing", "delta") or f"{{{parameter}}}" not in form:
            raise NotConvertible(f"{parameter} of {name}: its mean differs from that of Keras", arg)
        extra[parameter] = f", {parameter}={reader.text(arg.value)}"
    first, second = parameters[:2]
    if first not in args or second not in args:
        raise NotConvertible(f"cannot determine the arguments of {name}", call)
    extra = {"label_smoothing": "", "delta": ""} | extra
    each = form.replace("tf.", f"{reader.tf}.").format(
        reader.text(args[first].value), reader.text(args[second].value), **extra
    )
    return f"{reader.tf}.reduce_mean({each})"


def _rewrite_collection(reader: Rewriter, call: cst.Call) -> str:
    if len(call.args) == 1 and reader.name(call.args[0].value).rpartition(".")[2] == "REGULARIZATION_LOSSES":
        return "self.losses"
    raise NotConvertible("a collection that has no counterpart in Keras", call)


def _rewrite_cast(reader: Rewriter, dtype: str, call: cst.Call) -> str:
    return f"{reader.tf}.cast({reader.text(call.args[0].value)}, {reader.tf}.{dtype})"


def _rewrite_argmax(reader: Rewriter, name: str, call: cst.Call) -> str:
    """Rewrite `argmax` or `argmin`, whose arguments may have different names or a different order in V1."""
    if not any(arg.keyword and arg.keyword.value in ("input", "dimension") for arg in call.args) and len(call.args) < 4:
        rest = reader.spliced(reader.span(call.func)[1], reader.span(call)[1], call.args)
        return f"{reader.tf}.{name}{rest}"
    args = arguments(call, ("input", "axis", "name", "dimension", "output_type"))
    names = {"input": "", "axis": "axis=", "dimension": "axis=", "output_type": "output_type=", "name": "name="}
    new_args = [
        f"{prefix}{reader.text(args[parameter].value)}" for parameter, prefix in names.items() if parameter in args
    ]
    return reader.call(f"{reader.tf}.{name}", new_args, call)


def _rewrite_function(reader: Rewriter, name: str, parameters: tuple[str, ...], call: cst.Call) -> str:
    named = all(arg.keyword is not None and arg.keyword.value in parameters for arg in call.args)
    function = f"{reader.tf}.nn.{name}" if named else reader.text(call.func)
    return f"{function}{reader.spliced(reader.span(call.func)[1], reader.span(call)[1], call.args)}"


def _rewrite_in_top_k(reader: Rewriter, call: cst.Call) -> str:
    """Rewrite `in_top_k`, whose arguments have a different order in V1."""
    args = arguments(call, ("predictions", "targets", "k", "name"))
    new_args = [
        f"{parameter}={reader.text(args[parameter].value)}"
        for parameter in ("targets", "predictions", "k", "name")
        if parameter in args
    ]
    return reader.call(f"{reader.tf}.math.in_top_k", new_args, call)


def metric(reader: Rewriter, call: cst.Call, key: str) -> tuple[str, str, list[cst.BaseExpression]]:
    """Return the Keras counterpart of a V1 metric.

    Returns:
        The source of the Keras metric, the source of the arguments of `update_state`, the expressions in them.

    Raises:
        NotConvertible: Keras has no equal metric.
    """
    name = reader.called(call).removeprefix("tf.compat.v1.metrics.")
    if name not in _METRICS:
        raise NotConvertible(f"the metric {reader.source(call.func)} has no equal in Keras", call)
    keras, parameters, form = _METRICS[name]
    args = {parameter: arg for parameter, arg in arguments(call, parameters).items() if parameter != "name"}
    options = ""
    for parameter, arg in args.items():
        if parameter == "num_thresholds":
            options = f"num_thresholds={reader.text(arg.value)}, "
        elif parameter not in parameters or parameter == "weights":
            raise NotConvertible(f"{parameter} of the metric {name}", arg)
    values = [args[parameter].value for parameter in parameters[:2] if parameter in args]
    if len(values) < form.count("{"):
        raise NotConvertible(f"cannot determine the arguments of the metric {name}", call)
    update_args = form.replace("tf.", f"{reader.tf}.").format(*(reader.text(value) for value in values))
    return f"{reader.tf}.keras.metrics.{keras}({options}name={key!r})", update_args, values


def _rewrite_schedule(reader: Rewriter, name: str, call: cst.Call) -> str:
    keras, parameters = _SCHEDULES[name]
    args = {
        _RENAMED.get(parameter, parameter) if parameter == "x" else parameter: arg
        for parameter, arg in arguments(call, parameters).items()
    }
    schedule_args: list[str] = []
    by_position = True
    for place, keyword in enumerate(parameter for parameter in parameters if parameter != _STEP):
        arg = args.pop(keyword, None)
        if arg is None:
            by_position = False
            continue
        text = reader.text(arg.value)
        by_position = by_position and place == len(schedule_args) and (arg.keyword is None or place < 2)
        schedule_args.append(text if by_position else f"{_RENAMED.get(keyword, keyword)}={text}")
    for parameter, arg in args.items():
        if parameter not in (_STEP, "name"):
            raise NotConvertible(f"{parameter} of {name} has no counterpart in Keras", arg)
    return reader.call(f"{reader.tf}.keras.optimizers.schedules.{keras}", schedule_args, call)


def optimizer_name_expression(reader: Rewriter, call: cst.Call) -> cst.BaseExpression | None:
    """Return `name` of a call `getattr(tf.train, name + "Optimizer")(rate)`; None for other calls."""
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


def _rewrite_custom_optimizer(reader: Rewriter, call: cst.Call, function: str, parameters: tuple[str, ...]) -> str:
    """Return a call of the keras_optimizers function that has the V1 optimizer's parameters."""
    args = {
        parameter: arg
        for parameter, arg in arguments(call, parameters).items()
        if parameter not in ("use_locking", "name")
    }
    for parameter, arg in args.items():
        if parameter not in parameters or arg.star:
            raise NotConvertible(f"{parameter or 'an argument'} of {function} has no counterpart in Keras", arg)
    reader.needs.add("keras_optimizers")
    new_args = [
        reader.text(arg.value) if arg.keyword is None else f"{parameter}={reader.text(arg.value)}"
        for parameter, arg in args.items()
    ]
    return reader.call(f"keras_optimizers.{function}", new_args, call)


def _clipping_arguments(call: cst.Call, clipping: dict[str, str]) -> list[str]:
    """Return the clipping arguments of `keras_optimizers.make`."""
    keywords = {"global_clipnorm": "clip_norm", "clipvalue": "clip_value"}
    for keyword in clipping.keys() - keywords.keys():
        raise NotConvertible(f"{keyword} of keras_optimizers.make", call)
    return [f"{keywords[keyword]}={text}" for keyword, text in clipping.items()]


def optimizer(reader: Rewriter, call: cst.Call, *, scheduled: bool, clipping: dict[str, str]) -> str:
    """Return the Keras optimizer that is equal to a V1 optimizer, except for rounding.

    Args:
        scheduled: Whether its learning rate changes from step to step.
        clipping: Argument of the Keras optimizer -> its text.

    Raises:
        NotConvertible: Keras has no equal optimizer.
    """
    full = reader.called(call)
    if full.startswith("tf.keras.optimizers."):
        if clipping:
            raise NotConvertible("an optimizer of Keras whose gradients are clipped outside of it", call)
        return reader.text(call)
    by_name = optimizer_name_expression(reader, call)
    if by_name is not None:
        reader.needs.add("keras_optimizers")
        new_args = [reader.text(by_name), reader.text(call.args[0].value), *_clipping_arguments(call, clipping)]
        return reader.call("keras_optimizers.of_v1", new_args, call)
    name = full.removeprefix("tf.compat.v1.train.")
    if name in _KERAS_OPTIMIZERS and not clipping:
        return _rewrite_custom_optimizer(reader, call, *_KERAS_OPTIMIZERS[name])
    if name not in _OPTIMIZERS:
        raise NotConvertible(f"the optimizer {reader.source(call.func)} has no equal in Keras", call)
    keras, parameters, renamed, defaults = _OPTIMIZERS[name]
    args = arguments(call, parameters)
    for parameter in ("use_locking", "name"):
        args.pop(parameter, None)
    for parameter, arg in args.items():
        if parameter not in parameters or arg.star:
            raise NotConvertible(f"{parameter or 'an argument'} of {name} has no counterpart in Keras", arg)
    texts = {parameter: reader.text(arg.value) for parameter, arg in args.items()}
    nesterov = texts.get("use_nesterov") == "True"
    if name == "RMSPropOptimizer" or (name == "MomentumOptimizer" and scheduled):
        # Keras includes the learning rate in the velocity, and starts the mean square of RMSprop at 0.
        rate = texts.pop("learning_rate", None)
        if rate is None or ("use_nesterov" in texts and not nesterov):
            raise NotConvertible(f"cannot determine the arguments of {name}", call)
        texts.pop("use_nesterov", None)
        reader.needs.add("Optimizer")
        kind = "rmsprop" if name == "RMSPropOptimizer" else "nesterov" if nesterov else "momentum"
        options = ", ".join(f"'{parameter}': {text}" for parameter, text in texts.items())
        reader.needs.add("keras_optimizers")
        spec = f"name={kind!r}, learning_rate={rate}" + (f", options={{{options}}}" if options else "")
        return reader.call("keras_optimizers.make", [f"Optimizer({spec})", *_clipping_arguments(call, clipping)], call)
    new_args, by_position = [], True
    for parameter, text in texts.items():
        by_position = by_position and parameter in ("learning_rate",)
        new_args.append(text if by_position else f"{renamed.get(parameter, parameter)}={text}")
    new_args += [f"{parameter}={text}" for parameter, text in defaults.items() if parameter not in texts]
    new_args += [f"{keyword}={text}" for keyword, text in clipping.items()]
    return reader.call(f"{reader.tf}.keras.optimizers.{keras}", new_args, call)

"""Optimizers and schedules: `tf.train.AdamOptimizer(r)` -> `tf.keras.optimizers.Adam(r, epsilon=1e-8)`.

Equal for the same gradients up to rounding; docs/reference/migrate-equals.md names the case that compares each. Where
Keras computes otherwise, the program gets an optimizer of `training_helpers.py`: RMSPropOptimizer, whose mean square
starts at 1, and momentum with a schedule, whose velocity excludes the rate.
"""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.convert.names import Refused
from estimator_pipeline.migrate.convert.rule import SETUP, TENSORS, Call, rule

__all__ = ["GLOBAL_STEPS", "OPTIMIZERS", "SCHEDULES", "is_dense_alike", "optimizer", "schedule", "write"]

# V1 class -> (Keras class, parameters, V1 name -> Keras name, V1 defaults that Keras does not share).
_V1: dict[str, tuple[str, tuple[str, ...], dict[str, str], dict[str, str]]] = {
    "GradientDescentOptimizer": ("SGD", ("learning_rate", "use_locking", "name"), {}, {}),
    "MomentumOptimizer": (
        "SGD", ("learning_rate", "momentum", "use_locking", "name", "use_nesterov"), {"use_nesterov": "nesterov"}, {}),
    "AdamOptimizer": (
        "Adam", ("learning_rate", "beta1", "beta2", "epsilon", "use_locking", "name"),
        {"beta1": "beta_1", "beta2": "beta_2"}, {"learning_rate": "0.001", "epsilon": "1e-8"}),
    "AdagradOptimizer": ("Adagrad", ("learning_rate", "initial_accumulator_value", "use_locking", "name"), {}, {}),
    "AdadeltaOptimizer": (
        "Adadelta", ("learning_rate", "rho", "epsilon", "use_locking", "name"), {},
        {"learning_rate": "0.001", "epsilon": "1e-8"}),
    "RMSPropOptimizer": (
        "RMSprop", ("learning_rate", "decay", "momentum", "epsilon", "use_locking", "centered", "name"),
        {"decay": "rho"}, {"epsilon": "1e-10"}),
    "FtrlOptimizer": (
        "Ftrl", ("learning_rate", "learning_rate_power", "initial_accumulator_value", "l1_regularization_strength",
                 "l2_regularization_strength", "use_locking", "name"), {}, {}),
}  # fmt: skip
OPTIMIZERS = frozenset(f"tf.compat.v1.train.{name}" for name in _V1)
"""Optimizers of V1 with a rule."""


_OWN = {"RMSprop": "TensorFlow1RMSprop", "SGD": "TensorFlow1Momentum"}  # Keras class -> that of training_helpers.py
# Optimizers whose sparse gradients, those of embeddings, change the same values as dense ones.
_DENSE_ALIKE = ("GradientDescentOptimizer", "AdamOptimizer", "AdagradOptimizer")


@rule(*OPTIMIZERS, at=(SETUP,))
def optimizer(call: Call) -> str:
    return write(call, scheduled=None)


def write(call: Call, *, scheduled: bool | None) -> str:
    """Return the Keras optimizer.

    Args:
        scheduled: whether its learning rate changes from step to step; None to find out by the call.
    """
    keras, parameters, renamed, defaults = _V1[call.name.rpartition(".")[2]]
    args = call.args(*parameters)
    if "use_locking" in args and not call.is_constant(args["use_locking"], "False"):
        raise call.refuse("use_locking", args["use_locking"])
    texts = {name: call.text(value) for name, value in args.items() if name not in ("use_locking", "name")}
    written = {**{name: value for name, value in defaults.items() if name not in texts}, **texts}
    if keras == "Adagrad" and "initial_accumulator_value" in texts:
        written["epsilon"] = "0.0"  # Keras adds 1e-7 to the accumulator, whose initial value may be as small
    options = [written.pop("learning_rate")] if "learning_rate" in written else []
    options += [f"{renamed.get(name, name)}={value}" for name, value in written.items()]
    changes = is_scheduled(call, args.get("learning_rate")) if scheduled is None else scheduled
    if keras == "RMSprop" or (keras == "SGD" and "momentum" in args and changes):
        call.needs.add(_OWN[keras])
        return f"{_OWN[keras]}({', '.join(options)})"
    return f"{call.tf}.keras.optimizers.{keras}({', '.join(options)})"


def is_dense_alike(name: str) -> bool:
    """Return whether an optimizer of V1 treats the gradients of embeddings as dense ones."""
    return name.rpartition(".")[2] in _DENSE_ALIKE


def is_scheduled(call: Call, rate: cst.BaseExpression | None) -> bool:
    """Return whether a learning rate is computed by TensorFlow, so that it may change from step to step."""
    if rate is None:
        return False
    value = call.names.value(rate)
    return call.names.name(value.func if isinstance(value, cst.Call) else value).startswith("tf.")


_STEP = "global_step"
# V1 schedule -> (Keras class, parameters).
_SCHEDULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "exponential_decay": ("ExponentialDecay", ("learning_rate", _STEP, "decay_steps", "decay_rate", "staircase")),
    "inverse_time_decay": ("InverseTimeDecay", ("learning_rate", _STEP, "decay_steps", "decay_rate", "staircase")),
    "piecewise_constant": ("PiecewiseConstantDecay", (_STEP, "boundaries", "values")),
    "piecewise_constant_decay": ("PiecewiseConstantDecay", (_STEP, "boundaries", "values")),
    "polynomial_decay": (
        "PolynomialDecay", ("learning_rate", _STEP, "decay_steps", "end_learning_rate", "power", "cycle")),
    "cosine_decay": ("CosineDecay", ("learning_rate", _STEP, "decay_steps", "alpha")),
    "cosine_decay_restarts": (
        "CosineDecayRestarts", ("learning_rate", _STEP, "first_decay_steps", "t_mul", "m_mul", "alpha")),
}  # fmt: skip
SCHEDULES = frozenset(f"tf.compat.v1.train.{name}" for name in _SCHEDULES)
"""Schedules of V1 with a rule."""


@rule(*SCHEDULES, at=(SETUP,))
def schedule(call: Call) -> str:
    """`tf.train.exponential_decay(r, step, 100, 0.9)`: Keras counts the optimizer's steps, which start at 0, too."""
    text, step = _schedule(call)
    value = call.names.value(step) if step is not None else None
    if not isinstance(value, cst.Call) or call.names.name(value.func) not in GLOBAL_STEPS:
        raise Refused(f"{call.name} of something else than the global step", call.node)
    return text


@rule(*SCHEDULES, at=(TENSORS,))
def scheduled_value(call: Call) -> str:
    """Write the value of a schedule at a step: `ExponentialDecay(...)(step)`."""
    text, step = _schedule(call)
    if step is None:
        raise Refused(f"the arguments of {call.name}", call.node)
    return f"{text}({call.text(step)})"


def _schedule(call: Call) -> tuple[str, cst.BaseExpression | None]:
    """Return the schedule of Keras, and the step of the call."""
    keras, parameters = _SCHEDULES[call.name.rpartition(".")[2]]
    if parameters[0] == _STEP and any(arg.keyword is not None and arg.keyword.value == "x" for arg in call.node.args):
        parameters = ("x", *parameters[1:])
    args = call.args(*parameters, "name")
    step = args.pop(_STEP, args.pop("x", None))
    args.pop("name", None)
    names = {"learning_rate": "initial_learning_rate"}
    options = [f"{names.get(name, name)}={call.text(texts)}" for name, texts in args.items()]
    return f"{call.tf}.keras.optimizers.schedules.{keras}({', '.join(options)})", step


GLOBAL_STEPS = tuple(
    f"tf.compat.v1.train.{name}" for name in ("get_global_step", "get_or_create_global_step", "create_global_step")
)


@rule(*GLOBAL_STEPS, at=(SETUP,))
def global_step(call: Call) -> str:
    """Write nothing for the global step: its taker leaves it out, and `train_op.py` refuses any other use."""
    return "None"

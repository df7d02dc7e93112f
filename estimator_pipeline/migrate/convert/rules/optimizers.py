"""Optimizers and schedules: `tf.train.AdamOptimizer(r)` -> `tf.keras.optimizers.Adam(r, epsilon=1e-8)`.

Equal for the same gradients up to rounding; docs/reference/migrate-equals.md names the case that compares each. Not
here: RMSPropOptimizer, whose accumulator starts at 1, and momentum with a schedule, whose velocity excludes the rate.
"""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.convert.names import Refused
from estimator_pipeline.migrate.convert.rule import SETUP, Call, rule

__all__ = ["OPTIMIZERS", "optimizer", "schedule"]

# V1 class -> (Keras class, parameters, V1 name -> Keras name, V1 defaults that Keras does not share).
_V1: dict[str, tuple[str, tuple[str, ...], dict[str, str], dict[str, str]]] = {
    "GradientDescentOptimizer": ("SGD", ("learning_rate", "use_locking", "name"), {}, {}),
    "MomentumOptimizer": (
        "SGD", ("learning_rate", "momentum", "use_locking", "name", "use_nesterov"), {"use_nesterov": "nesterov"}, {}),
    "AdamOptimizer": (
        "Adam", ("learning_rate", "beta1", "beta2", "epsilon", "use_locking", "name"),
        {"beta1": "beta_1", "beta2": "beta_2"}, {"learning_rate": "0.001", "epsilon": "1e-8"}),
    "AdagradOptimizer": ("Adagrad", ("learning_rate", "initial_accumulator_value", "use_locking", "name"), {}, {}),
    "FtrlOptimizer": (
        "Ftrl", ("learning_rate", "learning_rate_power", "initial_accumulator_value", "l1_regularization_strength",
                 "l2_regularization_strength", "use_locking", "name"), {}, {}),
}  # fmt: skip
_KERAS = ("Adam", "SGD", "Adagrad", "Ftrl", "RMSprop", "Adadelta", "Adamax", "Nadam")
OPTIMIZERS = frozenset(f"tf.compat.v1.train.{name}" for name in _V1)
"""Optimizers of V1 with a rule."""


@rule(*OPTIMIZERS, at=(SETUP,))
def optimizer(call: Call) -> str:
    keras, parameters, renamed, defaults = _V1[call.name.rpartition(".")[2]]
    args = call.args(*parameters)
    if "use_locking" in args and not call.is_constant(args["use_locking"], "False"):
        raise call.refuse("use_locking", args["use_locking"])
    if keras == "SGD" and "momentum" in args and is_scheduled(call, args.get("learning_rate")):
        raise Refused(
            "MomentumOptimizer with a learning rate that changes: Keras's velocity includes the rate", call.node
        )
    texts = {name: call.text(value) for name, value in args.items() if name not in ("use_locking", "name")}
    written = {**{name: value for name, value in defaults.items() if name not in texts}, **texts}
    options = [written.pop("learning_rate")] if "learning_rate" in written else []
    options += [f"{renamed.get(name, name)}={value}" for name, value in written.items()]
    return f"{call.tf}.keras.optimizers.{keras}({', '.join(options)})"


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
}  # fmt: skip


@rule(*(f"tf.compat.v1.train.{name}" for name in _SCHEDULES), at=(SETUP,))
def schedule(call: Call) -> str:
    """`tf.train.exponential_decay(r, step, 100, 0.9)`: Keras counts the optimizer's steps, which start at 0, too."""
    keras, parameters = _SCHEDULES[call.name.rpartition(".")[2]]
    if parameters[0] == _STEP and any(arg.keyword is not None and arg.keyword.value == "x" for arg in call.node.args):
        parameters = ("x", *parameters[1:])
    args = call.args(*parameters, "name")
    step = args.pop(_STEP, args.pop("x", None))
    value = call.names.value(step) if step is not None else None
    if not isinstance(value, cst.Call) or call.names.name(value.func) not in GLOBAL_STEPS:
        raise Refused(f"{call.name} of something else than the global step", call.node)
    args.pop("name", None)
    names = {"learning_rate": "initial_learning_rate"}
    options = [f"{names.get(name, name)}={call.text(texts)}" for name, texts in args.items()]
    return f"{call.tf}.keras.optimizers.schedules.{keras}({', '.join(options)})"


GLOBAL_STEPS = tuple(
    f"tf.compat.v1.train.{name}" for name in ("get_global_step", "get_or_create_global_step", "create_global_step")
)


@rule(*GLOBAL_STEPS, at=(SETUP,))
def global_step(call: Call) -> str:
    """Write nothing for the global step: its taker leaves it out, and `train_op.py` refuses any other use."""
    return "None"

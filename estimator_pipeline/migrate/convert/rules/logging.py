"""`tf.logging.info(...)` -> `tf.get_logger().info(...)`, the same logger by its name in TensorFlow 2."""

from __future__ import annotations

from estimator_pipeline.migrate.convert.names import Refused
from estimator_pipeline.migrate.convert.rule import Call, rule

__all__ = ["log", "verbosity"]

_LEVELS = ("DEBUG", "ERROR", "FATAL", "INFO", "WARN")
_V1 = "tf.compat.v1.logging."


@rule(*(f"{_V1}{name}" for name in ("debug", "info", "warning", "warn", "error")))
def log(call: Call) -> str:
    name = call.name.rpartition(".")[2]
    args = ", ".join(call.text(arg.value) for arg in call.node.args)
    return f"{call.tf}.get_logger().{'warning' if name == 'warn' else name}({args})"


@rule(f"{_V1}set_verbosity")
def verbosity(call: Call) -> str:
    level = call.names.name(call.args("v")["v"]).rpartition(".")[2]
    if level not in _LEVELS:
        raise Refused("a logging level that is not one of tf.logging's", call.node)
    return f"{call.tf}.get_logger().setLevel({level!r})"

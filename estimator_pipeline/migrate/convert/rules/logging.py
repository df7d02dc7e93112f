"""`tf.logging.info(...)` -> `tf.get_logger().info(...)`, the same logger by its name in TensorFlow 2."""

from __future__ import annotations

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
    value = call.args("v")["v"]
    level = call.names.name(value).rpartition(".")[2]
    return f"{call.tf}.get_logger().setLevel({repr(level) if level in _LEVELS else call.text(value)})"

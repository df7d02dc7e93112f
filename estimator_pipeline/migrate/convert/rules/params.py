"""Hyperparameters as attributes: `tf.contrib.training.HParams(n=8)` -> `Hyperparameters(n=8)` of program_helpers.py."""

from __future__ import annotations

from estimator_pipeline.migrate.convert.names import Refused
from estimator_pipeline.migrate.convert.rule import SETUP, Call, rule

__all__ = ["hparams"]


@rule("tf.contrib.training.HParams", at=(SETUP,))
def hparams(call: Call) -> str:
    if any(arg.star == "*" or (arg.keyword is None and not arg.star) for arg in call.node.args):
        raise Refused("HParams with arguments without a name", call.node)
    call.needs.add("Hyperparameters")
    texts = [f"**{call.text(arg.value)}" if arg.star else f"{arg.keyword.value}={call.text(arg.value)}"  # type: ignore[union-attr]
             for arg in call.node.args]  # fmt: skip
    return f"Hyperparameters({', '.join(texts)})"

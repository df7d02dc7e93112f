"""How a model_fn trains: the optimizer behind its train_op, and what runs with it."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.convert.model_fn import ModelFnSource, Statement
from estimator_pipeline.migrate.convert.names import TRAIN, FileNames, Refused
from estimator_pipeline.migrate.convert.rules.optimizers import GLOBAL_STEPS, OPTIMIZERS

__all__ = ["TrainOp", "read_train_op"]

_MINIMIZE = ("loss", "global_step", "var_list", "gate_gradients", "aggregation_method", "colocate_gradients_with_ops",
             "name", "grad_loss")  # fmt: skip


@dataclass(frozen=True)
class TrainOp:
    """The training of a model_fn.

    Attributes:
        optimizer: the call that makes the optimizer.
        loss: the loss that it minimizes.
        steps: the statements of the model_fn that it consists of.
        moves_statistics: whether the operations of UPDATE_OPS run with each step.
    """

    optimizer: cst.Call
    loss: cst.BaseExpression
    steps: frozenset[Statement]
    moves_statistics: bool


def read_train_op(names: FileNames, model_fn: ModelFnSource) -> TrainOp:
    """Return how a model_fn trains.

    Raises:
        Refused: its train_op does something else than one optimizer's `minimize` of the loss for all variables.
    """
    train_op = model_fn.specs[TRAIN].get("train_op")
    if train_op is None:
        raise Refused("a model_fn without a train_op", model_fn.function)
    return _Reader(names, model_fn).read(train_op)


class _Reader:
    def __init__(self, names: FileNames, model_fn: ModelFnSource) -> None:
        self.names, self.model_fn = names, model_fn
        self.steps: set[Statement] = set()
        self.moves_statistics = False

    def read(self, train_op: cst.BaseExpression) -> TrainOp:
        call = self.follow(train_op)
        if isinstance(call, cst.Call) and self.names.name(call.func) in ("tf.group", "tf.compat.v1.group"):
            minimizing = [arg.value for arg in call.args if not self.is_update_ops(arg.value)]
            elements = [element.value for value in minimizing if isinstance(value, (cst.List, cst.Tuple))
                        for element in value.elements]  # fmt: skip
            minimizing = [value for value in (elements or minimizing) if not self.is_update_ops(value)]
            if len(minimizing) != 1:
                raise Refused("a train_op that groups several operations", call)
            call = self.follow(minimizing[0])
        method = self.names.method(call.func) if isinstance(call, cst.Call) else ""
        if (
            not isinstance(call, cst.Call)
            or not method.endswith(".minimize")
            or not isinstance(call.func, cst.Attribute)
        ):
            raise Refused("a train_op that is not optimizer.minimize(loss, global_step)", call)
        if method.removesuffix(".minimize") not in OPTIMIZERS:
            raise Refused(f"{method.removesuffix('.minimize')}, which Keras has not or computes otherwise", call)
        args = arguments(call, _MINIMIZE)
        if args.keys() - {"loss", "global_step", "name"} or any(arg.star for arg in call.args):
            raise Refused(f"minimize with {', '.join(args.keys() - {'loss', 'global_step', 'name'})}", call)
        if "global_step" not in args or not self.is_global_step(args["global_step"].value):
            raise Refused("minimize without the global step: such a training never ends", call)
        optimizer = self.follow(call.func.value)
        if not isinstance(optimizer, cst.Call):
            raise Refused("an optimizer that is not made in the model_fn", call)
        return TrainOp(optimizer, args["loss"].value, frozenset(self.steps), self.moves_statistics)

    def follow(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return the expression behind a name; its statement belongs to the training."""
        for _ in range(8):
            if not isinstance(node, cst.Name):
                break
            step = self.model_fn.definition(node.value, TRAIN)
            if step is None or step.value is None:
                definitions = [step for step in self.model_fn.in_mode(TRAIN) if node.value in step.defines]
                none = [
                    step for step in definitions if step.value is not None and self.names.text(step.value) == "None"
                ]
                rest = [step for step in definitions if step not in none]
                if len(rest) != 1 or rest[0].target != node.value or rest[0].value is None:
                    break
                step = rest[0]
                self.steps.update(none)
            self.steps.add(step)
            for guard in step.guards:
                if not self.is_update_ops(guard):
                    raise Refused("tf.control_dependencies of something else than UPDATE_OPS", guard)
            assert step.value is not None
            node = step.value
        return node

    def is_update_ops(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is `tf.get_collection(tf.GraphKeys.UPDATE_OPS)`, of all layers."""
        value = self.names.value(node)
        if not isinstance(value, cst.Call) or self.names.name(value.func) != "tf.compat.v1.get_collection":
            return False
        if not value.args or self.names.name(value.args[0].value).rpartition(".")[2] != "UPDATE_OPS":
            return False
        if len(value.args) != 1:
            raise Refused("UPDATE_OPS of one scope: Keras moves the statistics of all layers", value)
        self.moves_statistics = True
        if isinstance(node, cst.Name):
            self.follow(node)
        return True

    def is_global_step(self, node: cst.BaseExpression) -> bool:
        value = self.follow(node)
        return isinstance(value, cst.Call) and self.names.name(value.func) in GLOBAL_STEPS

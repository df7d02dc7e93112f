"""How a model_fn trains: the optimizer behind its train_op, and what runs with it.

`optimizer.minimize(loss, step)`, `apply_gradients` of gradients that are clipped, or `tf.contrib.layers.optimize_loss`.
Gradients are followed from the call that computes them to the one that applies them. They have to be those of all
trainable variables, which Keras trains, and clipped in a way that an argument of the Keras optimizer describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.name_resolution import Instance, Outside
from estimator_pipeline.migrate.convert.gradients import WITHOUT_EFFECT, GradientsOfModelFn
from estimator_pipeline.migrate.convert.model_fn import ModelFnSource, Statement
from estimator_pipeline.migrate.convert.names import TRAIN, FileNames, Refused, calls_in
from estimator_pipeline.migrate.convert.rule import SETUP, Call
from estimator_pipeline.migrate.convert.rules.optimizers import GLOBAL_STEPS, OPTIMIZERS

__all__ = ["TrainOp", "read_train_op"]

_MINIMIZE = ("loss", "global_step", "var_list", "gate_gradients", "aggregation_method", "colocate_gradients_with_ops",
             "name", "grad_loss")  # fmt: skip
_GRADIENTS = frozenset({"minimize", "apply_gradients", "compute_gradients", "gradients"})
OPTIMIZE_LOSS = ("tf.contrib.layers.optimize_loss", "tf_slim.optimize_loss")
CREATE_TRAIN_OP = ("tf.contrib.training.create_train_op", "tf_slim.learning.create_train_op")
_OPTIMIZE_LOSS = (
    "loss", "global_step", "learning_rate", "optimizer", "gradient_noise_scale", "gradient_multipliers",
    "clip_gradients", "learning_rate_decay_fn", "update_ops", "variables", "name", "summaries",
    "colocate_gradients_with_ops", "increment_global_step")  # fmt: skip
# Source: OPTIMIZER_CLS_NAMES of tensorflow/contrib/layers/python/layers/optimizers.py.
_BY_NAME = {"Adagrad": "Adagrad", "Adam": "Adam", "Ftrl": "Ftrl", "Momentum": "Momentum", "RMSProp": "RMSProp",
            "SGD": "GradientDescent"}  # fmt: skip


@dataclass(frozen=True)
class TrainOp:
    """The training of a model_fn.

    Attributes:
        optimizer: the call that makes the optimizer; a name where a condition of the model_fn chooses one.
        name: the full name of the optimizer's class; "" for a name.
        loss: the loss that it minimizes.
        steps: the statements of the model_fn that it consists of.
        moves_statistics: whether the operations of UPDATE_OPS run with each step.
        clipping: argument of a Keras optimizer that clips -> the user's limit.
        decay: the function of the learning rate and the step that computes the rate; None without.
        per_replica: the node that makes gradients which a strategy treats otherwise than those of Keras; None without.
        unwritten: arguments that only log.
        collected: the call that reads UPDATE_OPS.
    """

    optimizer: cst.Call | cst.Name
    name: str
    loss: cst.BaseExpression
    steps: frozenset[Statement]
    moves_statistics: bool
    clipping: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    decay: cst.BaseExpression | None = None
    per_replica: cst.CSTNode | None = None
    unwritten: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    collected: cst.CSTNode | None = None

    @property
    def values(self) -> list[cst.BaseExpression]:
        """Return the expressions of the model_fn that make the optimizer."""
        return [self.optimizer, *self.clipping.values(), *([self.decay] if self.decay is not None else [])]


def read_train_op(names: FileNames, model_fn: ModelFnSource) -> TrainOp:
    """Return how a model_fn trains.

    Raises:
        Refused: its train_op does something else than one optimizer's step on the loss for all variables.
    """
    train_op = model_fn.argument(TRAIN, "train_op")
    if train_op is None:
        raise Refused("a model_fn without a train_op", model_fn.function)
    return _Reader(names, model_fn).read(train_op)


class _Reader:
    def __init__(self, names: FileNames, model_fn: ModelFnSource) -> None:
        self.names, self.model_fn = names, model_fn
        self.steps: set[Statement] = set()
        self.moves_statistics = False
        self.collected: cst.CSTNode | None = None
        self.gradients = GradientsOfModelFn(names).read(model_fn)

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
        if isinstance(call, cst.Call):
            if self.names.name(call.func) in OPTIMIZE_LOSS:
                return self.optimize_loss(call)
            if self.names.name(call.func) in CREATE_TRAIN_OP:
                return self.create_train_op(call)
            method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
            if method in ("minimize", "apply_gradients") and isinstance(call.func, cst.Attribute):
                return getattr(self, method)(call, call.func.value)
        raise Refused("a train_op that is not optimizer.minimize(loss, global_step)", call)

    # Kinds of train_ops

    def minimize(self, call: cst.Call, receiver: cst.BaseExpression) -> TrainOp:
        optimizer, name = self.optimizer(receiver, call)
        args = self.args(call, _MINIMIZE, ("loss",))
        variables = self.gradients.value(args["var_list"]) if "var_list" in args else None
        if variables is not None and variables.kind == "variables":
            self.steps |= variables.steps
            del args["var_list"]
        if unknown := sorted(args.keys() - {"loss", "global_step", *WITHOUT_EFFECT}):
            raise Refused(f"minimize with {', '.join(unknown)}", call)
        self.check_step(args, call)
        return self.train_op(optimizer, name, args["loss"])

    def apply_gradients(self, call: cst.Call, receiver: cst.BaseExpression) -> TrainOp:
        optimizer, name = self.optimizer(receiver, call)
        args = self.args(call, ("grads_and_vars", "global_step", "name"), ("grads_and_vars",))
        self.check_step(args, call)
        gradients = self.gradients.value(args["grads_and_vars"])
        if gradients is None or gradients.kind != "pairs" or gradients.loss is None:
            raise Refused("gradients that are not those of the loss for all variables, clipped or not", call)
        computed = gradients.optimizer
        if computed is not None and self.names.text(computed) != self.names.text(receiver):
            raise Refused("gradients that another optimizer computes", computed)
        if len(gradients.clipping) > 1:
            raise Refused("gradients that are clipped in several ways", call)
        self.steps |= gradients.steps
        for step in gradients.steps:
            self.check_guards(step)
        per_replica = gradients.source if gradients.clipping or computed is None else None
        return self.train_op(
            optimizer, name, gradients.loss, clipping=dict(gradients.clipping), per_replica=per_replica
        )

    def optimize_loss(self, call: cst.Call) -> TrainOp:
        """Read `tf.contrib.layers.optimize_loss`, which runs UPDATE_OPS and clips by the global norm."""
        args = self.args(call, _OPTIMIZE_LOSS, ("loss", "optimizer"))
        args = {name: value for name, value in args.items() if self.names.text(value) != "None"}
        for name, value in args.items():
            if name in ("gradient_noise_scale", "gradient_multipliers", "update_ops", "variables") or (
                name == "increment_global_step" and self.names.text(value) != "True"
            ):
                raise Refused(f"{name} of optimize_loss", value)
        if "global_step" in args:
            self.check_step(args, call)
        optimizer, name, by_rate = self.contrib_optimizer(args["optimizer"], args.get("learning_rate"))
        clip = args.get("clip_gradients")
        if clip is not None and (self.names.function(clip) or isinstance(self.model_fn.resolve(clip, TRAIN), cst.Call)):
            raise Refused("clip_gradients of optimize_loss, as a function", clip)
        self.moves_statistics = True
        return self.train_op(
            optimizer, name, args["loss"],
            clipping={"global_clipnorm": clip} if clip is not None else {},
            decay=args.get("learning_rate_decay_fn") if by_rate else None,
            per_replica=clip,
            unwritten={name: value for name, value in args.items() if name == "summaries"},
        )  # fmt: skip

    def create_train_op(self, call: cst.Call) -> TrainOp:
        """Read `tf.contrib.training.create_train_op(loss, optimizer)`, which runs UPDATE_OPS, too."""
        args = self.args(call, ("total_loss", "optimizer", "global_step"), ("total_loss", "optimizer"))
        if "global_step" in args:
            self.check_step(args, call)
        self.moves_statistics = True
        return self.train_op(*self.optimizer(args["optimizer"], call), args["total_loss"])

    def contrib_optimizer(
        self, node: cst.BaseExpression, rate: cst.BaseExpression | None
    ) -> tuple[cst.Call | cst.Name, str, bool]:
        """Return the optimizer of optimize_loss, its class, and whether it takes the learning rate of optimize_loss."""
        value = self.model_fn.resolve(node, TRAIN)
        if isinstance(value, cst.Call) and self.names.name(value.func) in OPTIMIZERS:
            return (*self.optimizer(node, node), False)
        if rate is None:
            raise Refused("optimize_loss without a learning rate", node)
        rest: list[cst.Arg] = []
        name = self.names.name(value)
        if isinstance(value, cst.SimpleString) and value.evaluated_value in _BY_NAME:
            name = f"tf.compat.v1.train.{_BY_NAME[str(value.evaluated_value)]}Optimizer"
            if value.evaluated_value == "Momentum":
                rest = [cst.Arg(cst.Float("0.9"), cst.Name("momentum"))]
        elif isinstance(value, cst.Lambda) and isinstance(value.body, cst.Call) and len(value.params.params) == 1:
            name = self.names.name(value.body.func)
            first, *rest = value.body.args or [cst.Arg(value)]
            if self.names.text(first.value) != value.params.params[0].name.value:
                name = ""
        if name not in OPTIMIZERS:
            raise Refused(f"the optimizer {self.names.text(node)} of optimize_loss", node)
        return cst.Call(cst.Name("optimizer"), [cst.Arg(rate), *rest]), name, True

    def train_op(self, optimizer: cst.Call | cst.Name, name: str, loss: cst.BaseExpression, **more: object) -> TrainOp:
        loss = self.reported(loss)
        return TrainOp(optimizer, name, loss, frozenset(self.steps), self.moves_statistics,
                       collected=self.collected, **more)  # type: ignore[arg-type]  # fmt: skip

    def reported(self, loss: cst.BaseExpression) -> cst.BaseExpression:
        """Return the name by which the EstimatorSpec has the loss, where the optimizer takes it by a different name."""
        spec, name, aliases = self.model_fn.argument(TRAIN, "loss"), loss, []
        while isinstance(spec, cst.Name) and isinstance(name, cst.Name) and name.value != spec.value:
            step = self.model_fn.definition(name.value, TRAIN)
            if step is None or step.value is None:
                return loss
            aliases.append(step)
            name = step.value
        if not isinstance(spec, cst.Name) or not isinstance(name, cst.Name):
            return loss
        self.steps.update(aliases)
        return name

    # Their parts

    def optimizer(self, node: cst.BaseExpression, call: cst.CSTNode) -> tuple[cst.Call | cst.Name, str]:
        """Return the call that makes an optimizer, and its class; the name of one that a condition chooses."""
        classes = {self.names._full(value.of.dotted) if isinstance(value, Instance) and isinstance(value.of, Outside)
                   else "" for value in self.names.meaning(node)} or {""}  # fmt: skip
        if isinstance(node, cst.Name) and classes <= OPTIMIZERS:
            chosen = [step for step in self.model_fn.in_mode(TRAIN) if node.value in step.defines]
            if len(chosen) == 1 and isinstance(chosen[0].node, cst.If):
                return node, ""
        unknown = sorted(classes - OPTIMIZERS)
        if unknown and unknown[0]:
            raise Refused(f"{unknown[0]}, which Keras has not or computes otherwise", call)
        value = self.follow(node)
        if unknown or not isinstance(value, cst.Call) or self.names.name(value.func) not in OPTIMIZERS:
            raise Refused("an optimizer that is not made in the model_fn", call)
        return value, self.names.name(value.func)

    def args(
        self, call: cst.Call, parameters: tuple[str, ...], required: tuple[str, ...]
    ) -> dict[str, cst.BaseExpression]:
        return Call(call, self.names.text(call.func), SETUP, self.names, {}).args(*parameters, required=required)

    def check_step(self, args: Mapping[str, cst.BaseExpression], call: cst.Call) -> None:
        step = self.follow(args["global_step"]) if "global_step" in args else None
        if not isinstance(step, cst.Call) or self.names.name(step.func) not in GLOBAL_STEPS:
            raise Refused("minimize without the global step: such a training never ends", call)

    def follow(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return the expression behind a name; its statement belongs to the training."""
        for _ in range(8):
            if not isinstance(node, cst.Name):
                break
            definitions = [step for step in self.model_fn.in_mode(TRAIN) if node.value in step.defines]
            none = [
                step for step in definitions[:-1] if step.value is not None and self.names.text(step.value) == "None"
            ]
            step = definitions[-1] if len(definitions) == len(none) + 1 else None
            if step is None or step.target != node.value:
                break
            self.steps.update(none)
            self.steps.add(step)
            self.check_guards(step)
            assert step.value is not None
            node = step.value
        return node

    def check_guards(self, step: Statement) -> None:
        moved, calls = self.moves_statistics, list(calls_in(step.node))
        for guard in step.guards:
            if not self.is_update_ops(guard):
                raise Refused("tf.control_dependencies of something else than UPDATE_OPS", guard)
        names = {call.func.attr.value for call in calls if isinstance(call.func, cst.Attribute)}
        self.moves_statistics = moved or (self.moves_statistics and bool(names & _GRADIENTS))

    def is_update_ops(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is `tf.get_collection(tf.GraphKeys.UPDATE_OPS)`, of all layers."""
        value = self.names.value(node)
        if not isinstance(value, cst.Call) or self.names.name(value.func) != "tf.compat.v1.get_collection":
            return False
        if not value.args or self.names.name(value.args[0].value).rpartition(".")[2] != "UPDATE_OPS":
            return False
        if len(value.args) != 1:
            raise Refused("UPDATE_OPS of one scope: Keras moves the statistics of all layers", value)
        self.moves_statistics, self.collected = True, value
        if isinstance(node, cst.Name):
            self.follow(node)
        return True

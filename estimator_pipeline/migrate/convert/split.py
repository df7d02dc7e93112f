"""The parts of a model_fn: its network, loss, metrics and predictions, each as the statements that compute it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import children, iter_nodes
from estimator_pipeline.migrate.convert import allowed
from estimator_pipeline.migrate.convert.allowed import LOGGING_HOOKS, is_message
from estimator_pipeline.migrate.convert.definitions import Definitions, reaching
from estimator_pipeline.migrate.convert.model_fn import (
    ModelFnSource,
    Statement,
    dict_items,
    is_string,
    needed,
    reached_calls,
)
from estimator_pipeline.migrate.convert.names import (
    ALL_MODES,
    EVAL,
    PREDICT,
    TRAIN,
    FileNames,
    Refused,
    calls_in,
    changed_by,
    names_bound,
    names_read,
)
from estimator_pipeline.migrate.convert.rewrite import CodeRewriter
from estimator_pipeline.migrate.convert.rule import TENSORS
from estimator_pipeline.migrate.convert.rules.columns import LAYERS
from estimator_pipeline.migrate.convert.rules.contrib import CONTRIB_LAYERS
from estimator_pipeline.migrate.convert.rules.embeddings import EMBEDDING_NAMES
from estimator_pipeline.migrate.convert.rules.losses import is_regularization
from estimator_pipeline.migrate.convert.rules.metrics import METRICS
from estimator_pipeline.migrate.convert.rules.normalization import BATCH_NORMALIZATION
from estimator_pipeline.migrate.convert.rules.optimizers import GLOBAL_STEPS
from estimator_pipeline.migrate.convert.train_op import TrainOp

__all__ = ["Parts", "is_global_step", "split"]

_MAKERS = ("tf.compat.v1.layers.", "tf.keras.layers.", "tf.keras.Sequential", "tf.keras.Model", "tf.keras.models.",
           "tf.compat.v1.keras.layers.", *LAYERS)  # fmt: skip
_LAYER_NAMES = CONTRIB_LAYERS | set(EMBEDDING_NAMES)
_SUMMARIES = ("tf.compat.v1.summary.", "tf.summary.")
_OUTPUTS = ("tf.estimator.export.", "tf.compat.v1.estimator.export.")
_WRITTEN = ("mode", "predictions", "loss", "train_op", "eval_metric_ops")


@dataclass(frozen=True)
class Parts:
    """A model_fn, taken apart.

    Attributes:
        network: the statements of the network, from the features to the outputs of its layers.
        calls: the calls of the network, also in the functions that it calls, with the names of their files.
        inline: layer calls inside of other statements -> the name of the output that they become.
        outputs: the names of the network's outputs that other parts use, in order.
        loss, metrics, predictions: the statements of each, without those of the network.
        metric_calls: key of eval_metric_ops -> the call of a metric.
        setup: the statements that compute what the optimizer takes, also those of the network without a layer.
        logged: statements that only write summaries or log.
        learning_phase: whether the model_fn sets the learning phase of Keras by the mode.
        unwritten: arguments of the EstimatorSpecs without a counterpart in a model: those that log, and export_outputs.
    """

    network: tuple[Statement, ...]
    calls: tuple[tuple[cst.Call, FileNames], ...]
    inline: Mapping[cst.CSTNode, str]
    outputs: tuple[str, ...]
    loss: tuple[Statement, ...]
    metrics: tuple[Statement, ...]
    predictions: tuple[Statement, ...]
    metric_calls: Mapping[str, cst.Call]
    setup: tuple[Statement, ...]
    logged: tuple[Statement, ...]
    unwritten: Mapping[str, cst.BaseExpression]
    learning_phase: bool


def split(names: FileNames, model_fn: ModelFnSource, train_op: TrainOp) -> Parts:
    """Take a model_fn apart.

    Raises:
        Refused: a statement belongs to no part, or the modes build different networks.
    """
    return _Splitter(names, model_fn, train_op).parts()


def is_global_step(names: FileNames, step: Statement) -> bool:
    """Return whether a statement only names the global step."""
    return isinstance(step.value, cst.Call) and names.name(step.value.func) in GLOBAL_STEPS


class _Splitter:
    def __init__(self, names: FileNames, model_fn: ModelFnSource, train_op: TrainOp) -> None:
        self.names, self.model_fn, self.train_op = names, model_fn, train_op
        self.layers_of: dict[cst.CSTNode, bool] = {}
        flags = [step for step in model_fn.steps if self.is_flag(step)]
        self.phase = [step for step in model_fn.steps if self.sets_phase(step)]
        self.steps = [step for step in model_fn.steps
                      if step not in train_op.steps and step not in flags and step not in self.phase]  # fmt: skip
        self.definitions = Definitions(names, model_fn, self.steps)
        self.labelled = self.dependent({model_fn.labels}, lambda step: False)

    def parts(self) -> Parts:
        metric_calls, train_op, argument = self.metric_calls(), self.train_op, self.model_fn.argument
        steps = [step for step in self.steps if not self.is_metric(step)]
        inline = self.inline_layers(steps)
        network = self.network(steps, inline)
        layered = self.dependent(set(), lambda step: step in network and self.has_layers(step.node))
        # What a network computes without a layer is computed again where another part needs it.
        rest = [step for step in steps if step not in network or not step.defines & layered]
        of_metrics = [arg.value for call in metric_calls.values() for arg in call.args]
        predictions = [value for value in (argument(PREDICT, "predictions"),) if value is not None]
        loss = self.slice(rest, TRAIN, [train_op.loss])
        metrics, predicted = self.slice(rest, EVAL, of_metrics), self.slice(rest, PREDICT, predictions)
        self.check_losses(rest, loss)
        used = {*loss, *metrics, *predicted}
        kept = {*rest, *(step for step in train_op.steps if is_global_step(self.names, step))}
        setup = self.slice([step for step in self.model_fn.steps if step in kept], TRAIN, train_op.values)
        unwritten = {**self.unwritten(), **train_op.unwritten}
        logged = self.logged([step for step in rest if step not in {*network, *used, *setup}], unwritten)
        nodes = (*(step.node for step in used), train_op.loss, *predictions, *of_metrics)
        of_train_op = {name for step in train_op.steps for name in step.defines}.difference(
            *(step.defines for step in self.steps)
        )
        for node in nodes:
            if training := names_read(node, inline) & of_train_op:
                raise Refused(f"{min(training)}, of the train_op, in the loss, metrics or predictions", node)
            for name in iter_nodes(node):
                if isinstance(name, cst.Name) and name.value in names_read(node, inline) & layered and (
                    self.names.kind(name).startswith(_MAKERS)
                ):  # fmt: skip
                    raise Refused(f"{name.value}, a layer or model, in the loss, metrics or predictions", node)
        reads = {name for node in nodes for name in names_read(node, inline)} & layered
        outputs = (*(name for step in network for name in sorted(step.defines & reads)), *inline.values())
        calls = tuple(reached_calls(self.names, [*(step.node for step in network), *inline]))
        parts = Parts(tuple(network), calls, inline, tuple(dict.fromkeys(outputs)), loss, metrics, predicted,
                      metric_calls, setup, logged, unwritten, bool(self.phase))  # fmt: skip
        if not outputs:
            raise Refused("a model_fn that calls no layer, itself or in its functions", self.model_fn.function)
        self.check_tensors(parts)
        self.check_order(parts, of_metrics, predictions)
        self.check_all_used(parts)
        self.check_guards([*network, *used])
        self.check_statistics(parts)
        return parts

    def check_all_used(self, parts: Parts) -> None:
        """Check that a loss of all variables has those of all layers, and of no later ones: a Keras model has.

        A model has no layer that leads to no output; without such a loss nothing trains that in V1, either.
        """
        loss = [*self.train_op.steps, *(step for step in self.steps if TRAIN in step.modes)]
        calls = [call for step in loss for call in calls_in(step.node) if is_regularization(self.names, call)
                 or self.names.name(call.func) == "tf.compat.v1.trainable_variables"]  # fmt: skip
        leads = needed(parts.network, {*parts.outputs, *(name for node in parts.inline for name in names_read(node))})
        for step in parts.network if calls else ():
            if self.has_layers(step.node) and step not in leads:
                raise Refused("a layer that leads to no output, beside a loss of all variables", step.node)
            if any(not self.definitions.before([step], call) for call in calls) and self.has_layers(step.node):
                raise Refused("a layer behind a loss of all variables", step.node)

    def check_tensors(self, parts: Parts) -> None:
        """Check that no output is a number, which a loop or condition sets beside its layers."""
        tensors, outputs = {self.model_fn.features}, {*parts.outputs}
        for step in parts.network:
            if isinstance(step.node, (cst.FunctionDef, cst.Import, cst.ImportFrom)) and step.defines & outputs:
                raise Refused(f"{min(step.defines & outputs)}, which the network shares with another part", step.node)
            for node in iter_nodes(step.node):
                if isinstance(node, (cst.Assign, cst.AugAssign, cst.AnnAssign)) and node.value is not None:
                    if self.has_layers(node.value) or names_read(node.value) & tensors:
                        tensors |= names_bound(node)
                    elif names_bound(node) & outputs and step.node is not node:
                        name = min(names_bound(node) & outputs)
                        raise Refused(f"{name}, which the network sets to something else than a tensor", node)
            tensors |= step.defines if self.has_layers(step.node) and not isinstance(step.node, cst.If) else set()

    # What a statement is

    def is_flag(self, step: Statement) -> bool:
        """Return whether a statement names a condition of the mode: `training = mode == TRAIN`."""
        return bool(step.target) and step.value is not None and (
            not isinstance(step.value, cst.Name) and self.names.modes_of(step.value) is not None
        )  # fmt: skip

    def sets_phase(self, step: Statement) -> bool:
        """Return whether a statement sets the learning phase of Keras, which `fit` does for each step.

        Raises:
            Refused: it sets it otherwise than by the mode.
        """
        call = step.value if isinstance(step.node, cst.Expr) else None
        if not isinstance(call, cst.Call) or not self.names.name(call.func).endswith(
            "keras.backend.set_learning_phase"
        ):
            return False
        value = call.args[0].value if len(call.args) == 1 else None
        text = self.names.text(value) if value is not None else ""
        by_mode = value is not None and self.names.modes_of(value) == {TRAIN} and step.modes == ALL_MODES
        if by_mode or (text in ("True", "1") and step.modes == {TRAIN}) or (
            text in ("False", "0") and TRAIN not in step.modes
        ):  # fmt: skip
            return True
        raise Refused("a learning phase that is not the mode", call)

    def is_metric(self, step: Statement) -> bool:
        """Return whether a statement makes a metric, or the dict of eval_metric_ops."""
        value = step.value
        if isinstance(value, cst.Call) and self.names.name(value.func) in METRICS:
            return True
        spec = self.model_fn.argument(EVAL, "eval_metric_ops")
        return isinstance(spec, cst.Name) and spec.value == step.target != "" and EVAL in step.modes

    def has_layers(self, node: cst.CSTNode) -> bool:
        """Return whether code makes or calls a layer, also in the functions that it calls."""
        if node not in self.layers_of:
            self.layers_of[node] = any(_is_layer(*call) for call in reached_calls(self.names, [node]))
        return self.layers_of[node]

    def dependent(self, names: set[str], starts: object) -> frozenset[str]:
        """Return the names that statements compute from `names`, or that a statement starts."""
        dependent = set(names)
        for _ in range(2):  # a loop may use what it defines further down
            for step in self.steps:
                if step.uses & dependent or starts(step):  # type: ignore[operator]
                    dependent |= step.defines
        return frozenset(dependent)

    # Parts

    def inline_layers(self, steps: Iterable[Statement]) -> dict[cst.CSTNode, str]:
        """Return the layer calls inside of statements with labels -> a name for each."""
        inline: dict[cst.CSTNode, str] = {}
        taken = {name for step in self.model_fn.steps for name in step.defines | step.uses}

        def find(node: cst.CSTNode) -> None:
            if isinstance(node, cst.Call) and self.has_layers(node) and not names_read(node) & self.labelled:
                number = len(inline) + 1
                name = next(name for name in ("outputs", *(f"outputs_{i}" for i in range(number, number + 99)))
                            if name not in taken and name not in inline.values())  # fmt: skip
                inline[node] = name
                return
            for child in children(node):
                find(child)

        for step in steps:
            if step.uses & self.labelled and self.has_layers(step.node):
                for call in calls_in(step.node):
                    function = self.names.function(call.func)
                    of = self.names.of(function.tree) if function is not None else self.names
                    inside = reached_calls(of, [function.node.body] if function is not None else [])
                    layers = any(_is_layer(*each) for each in ((call, self.names), *inside))
                    if layers and names_read(call) & self.labelled:
                        raise Refused("a network that takes the labels", call)
                find(step.node)
        return inline

    def network(self, steps: list[Statement], inline: Mapping[cst.CSTNode, str]) -> list[Statement]:
        """Return the statements that compute what a layer takes, and the layers."""
        chosen: set[Statement] = set()
        want = {name for node in inline for name in names_read(node)}
        behind: set[str] = set()  # what the layers behind a statement define
        for step in reversed(steps):
            takes_earlier = bool(step.uses & behind) and step.modes == ALL_MODES and not step.uses & self.labelled
            layers = (self.has_layers(step.node) and not step.uses & self.labelled) or takes_earlier
            behind |= step.defines if self.has_layers(step.node) else set()
            if layers or step.defines & want or self.is_message(step):
                if step.uses & self.labelled or self.model_fn.labels in step.defines:
                    raise Refused("a network that takes the labels", step.node)
                if step.replaces:
                    want -= step.defines
                chosen.add(step)
                want |= step.uses
        network = [step for step in steps if step in chosen]
        for step in network:
            if step.modes not in (ALL_MODES, frozenset({TRAIN})):
                missing = ", ".join(sorted(ALL_MODES - step.modes))
                raise Refused(f"a part of the network that is not in every mode (not in {missing})", step.node)
        return network

    def slice(self, rest: list[Statement], mode: str, values: list[cst.BaseExpression]) -> tuple[Statement, ...]:
        steps, chosen = [step for step in rest if mode in step.modes], set()
        for value in values:
            chosen |= {*needed(self.definitions.before(steps, value), names_read(value))}
        return tuple(step for step in rest if step in chosen)

    def check_order(
        self, parts: Parts, of_metrics: list[cst.BaseExpression], predictions: list[cst.BaseExpression]
    ) -> None:
        """Check that no part computes with a name that has another value where the part computes it."""

        def of_network(name: str) -> frozenset[Statement | None]:
            return reaching(parts.network, name) if name in parts.outputs else frozenset({None})

        check, inline = self.definitions.check, parts.inline
        trained, reported = self.model_fn.argument(TRAIN, "loss"), self.model_fn.argument(EVAL, "loss")
        check(parts.network, TRAIN, [], lambda name: frozenset({None}))
        check(parts.setup, TRAIN, self.train_op.values, of_network)
        check(parts.loss, TRAIN, [self.train_op.loss, *([trained] if trained is not None else [])], of_network, inline)
        check(parts.metrics, EVAL, of_metrics, of_network, inline)
        check(parts.predictions, PREDICT, predictions, of_network, inline)
        if reported is not None:
            steps = [step for step in self.steps if step in parts.loss or EVAL in step.modes]
            there = [step for step in self.slice(steps, EVAL, [reported])
                     if step not in parts.network or step in parts.loss]  # fmt: skip
            check(there, EVAL, [reported], of_network, inline)

    def metric_calls(self) -> dict[str, cst.Call]:
        """Return key -> call of each metric of eval_metric_ops."""
        value = self.model_fn.argument(EVAL, "eval_metric_ops")
        if value is None or self.names.text(value) == "None":
            return {}
        table = self.model_fn.resolve(value, EVAL)
        if not isinstance(table, cst.Dict) and not (isinstance(table, cst.Call) and (
                isinstance(table.func, cst.Name) and table.func.value == "dict")):  # fmt: skip
            raise Refused("eval_metric_ops that are not one dict", value)
        calls = {}
        for key, item in dict_items(table):
            call = self.model_fn.resolve(item, EVAL)
            if not key or not isinstance(call, cst.Call) or self.names.name(call.func) not in METRICS:
                raise Refused(f"the metric {self.names.text(item)}", item)
            calls[key] = call
        return calls

    def check_losses(self, rest: list[Statement], loss: tuple[Statement, ...]) -> None:
        """Check that the reported loss is the one that the optimizer minimizes, in training and evaluation."""
        trained = self.names.text(self.train_op.loss)
        for mode in (TRAIN, EVAL):
            reported = self.model_fn.argument(mode, "loss")
            if reported is None or self.names.text(reported) != trained:
                raise Refused(
                    f"a loss in mode {mode} that is not the minimized {trained}", reported or self.train_op.loss
                )
            there = self.slice(rest, mode, [reported])
            if [self.names.text(step.node) for step in there] != [self.names.text(step.node) for step in loss]:
                raise Refused(f"a loss that is computed otherwise in mode {mode}", reported)

    def unwritten(self) -> dict[str, cst.BaseExpression]:
        """Return the arguments of EstimatorSpecs that only log or describe an export.

        Raises:
            Refused: an argument does more.
        """
        unwritten: dict[str, cst.BaseExpression] = {}
        for mode, spec in self.model_fn.specs.items():
            for name, value in spec.items():
                if name in _WRITTEN or self.names.text(value) == "None":
                    continue
                if name not in ("export_outputs", "training_hooks", "evaluation_hooks"):
                    raise Refused(f"{name} of EstimatorSpec", value)
                if name != "export_outputs":
                    self.check_hooks(name, value, mode)
                unwritten[name] = value
        return unwritten

    def check_hooks(self, name: str, value: cst.BaseExpression, mode: str) -> None:
        hooks = self.model_fn.resolve(value, mode)
        for element in hooks.elements if isinstance(hooks, (cst.List, cst.Tuple)) else ():
            hook = self.model_fn.resolve(element.value, mode)
            if not isinstance(hook, cst.Call) or self.names.name(hook.func) not in LOGGING_HOOKS:
                raise Refused(f"{name}: {self.names.text(element.value)}", element.value)
        if not isinstance(hooks, (cst.List, cst.Tuple)):
            raise Refused(f"{name} that are not one list", value)

    def logged(self, left: list[Statement], unwritten: Mapping[str, cst.BaseExpression]) -> tuple[Statement, ...]:
        """Return the statements that only write summaries, and those that compute what they write.

        Raises:
            Refused: another statement is left over.
        """
        summaries = [step for step in left if self.only_reports(step)]
        reads = {name for step in summaries for name in step.uses}
        reads |= {name for value in unwritten.values() for name in names_read(value)}
        for step in reversed([step for step in left if step not in summaries]):
            value = step.value
            if not step.target or value is None:
                raise Refused(
                    "a statement that is neither of the network, loss, metrics, predictions nor train_op", step.node
                )
            full = self.names.name(value.func) if isinstance(value, cst.Call) else ""
            if full not in METRICS | LOGGING_HOOKS and not self.is_export_output(value):
                CodeRewriter(self.names, TENSORS).node(value)  # refuses what may have an effect
            # A tensor that nothing fetches has no effect; a function of the program may add one to a collection.
            changes = any(changed_by(call) for call in calls_in(value))
            if changes or (
                not step.defines & reads and any(self.names.function(call.func) for call in calls_in(value))
            ):
                raise Refused(f"{step.target}, which nothing uses", step.node)
            reads |= step.uses
        return tuple(left)

    def is_export_output(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is `PredictOutput(...)`, or a dict of such."""
        if isinstance(node, cst.Dict):
            return bool(node.elements) and all(
                isinstance(element.value, cst.Name) or self.is_export_output(element.value) for element in node.elements
            )
        return isinstance(node, cst.Call) and self.names.name(node.func).startswith(_OUTPUTS)

    def only_reports(self, step: Statement) -> bool:
        """Return whether a statement writes a summary, prints or logs, names a tensor for a hook, or ends a mode."""
        if isinstance(step.node, (cst.Import, cst.ImportFrom, cst.Raise)) or is_string(step.node):
            return True
        if isinstance(step.node, (cst.For, cst.If)):
            return self.only_writes_summaries(step.node)
        value = step.value
        if not isinstance(step.node, cst.Expr) or not isinstance(value, cst.Call):
            return False
        full = self.names.name(value.func)
        if full.startswith(_SUMMARIES):
            return True
        if full != "tf.identity" and not is_message(self.names, value):
            return False
        for call in calls_in(*(arg.value for arg in value.args)):
            CodeRewriter(self.names, TENSORS).node(call)  # refuses what may have an effect
        return not any(changed_by(call) or self.names.function(call.func) for call in calls_in(value))

    def only_writes_summaries(self, node: cst.CSTNode) -> bool:
        """Return whether a loop or condition, without functions of the program, has only summaries behind it."""
        if isinstance(node, (cst.For, cst.If)):
            calls = calls_in(node.iter if isinstance(node, cst.For) else node.test)
            plain = not any(changed_by(call) or self.names.function(call.func) for call in calls)
            return plain and node.orelse is None and all(map(self.only_writes_summaries, node.body.body))
        if isinstance(node, cst.SimpleStatementLine):
            return all(map(self.only_writes_summaries, node.body))
        call = node.value if isinstance(node, cst.Expr) else None
        return isinstance(call, cst.Call) and self.names.name(call.func).startswith(_SUMMARIES) and not any(
            changed_by(inner) or self.names.function(inner.func) for inner in calls_in(call))  # fmt: skip

    def is_message(self, step: Statement) -> bool:
        """Return whether a statement prints, logs or checks what is known when the network is built."""
        call = step.value if isinstance(step.node, cst.Expr) else None
        if step.modes != ALL_MODES or step.uses & self.labelled:
            return False
        if isinstance(step.node, (cst.Assert, cst.Import, cst.ImportFrom)) or is_string(step.node):
            return True
        if isinstance(step.node, cst.If):
            return _only_raises(step.node)
        return isinstance(call, cst.Call) and is_message(self.names, call)

    def check_guards(self, steps: Iterable[Statement]) -> None:
        for step in steps:
            if step.guards:
                raise Refused("tf.control_dependencies around a part of the network, loss or metrics", step.guards[0])

    def check_statistics(self, parts: Parts) -> None:
        """Check that the statistics of batch normalization move, as Keras moves them."""
        collected, calls = self.train_op.collected, parts.calls
        if self.train_op.moves_statistics:
            late = [step.node for step in parts.network
                    if collected is not None and not self.definitions.before([step], collected)]  # fmt: skip
            calls = tuple(reached_calls(self.names, late))
        for call, names in calls:
            full = names.name(call.func)
            if full == BATCH_NORMALIZATION or (full in CONTRIB_LAYERS and full.endswith(".batch_norm")):
                raise Refused(
                    "batch_normalization whose statistics never move: the train_op does not run UPDATE_OPS", call
                )


def _is_layer(call: cst.Call, names: FileNames) -> bool:
    full = names.name(call.func)
    return full in _LAYER_NAMES or full.startswith((*_MAKERS, *allowed.RANDOM)) or (
        names.kind(call.func).startswith(_MAKERS)
    )  # fmt: skip


def _only_raises(node: cst.If) -> bool:
    """Return whether a condition on Python values has only `raise` behind it."""
    lines = [line for line in node.body.body if not isinstance(line, cst.BaseSmallStatement)]
    raises = bool(lines) and all(isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.Raise)
                                 for line in lines)  # fmt: skip
    return raises and node.orelse is None

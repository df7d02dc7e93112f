"""Conversion of a model_fn to a class of Keras models and the function that creates one."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath

import libcst as cst

from estimator_pipeline.migrate.code.analysis.edits import PLACE
from estimator_pipeline.migrate.code.to_keras.hooks import hooks
from estimator_pipeline.migrate.code.to_keras.hooks import logging_only as silent
from estimator_pipeline.migrate.code.to_keras.hooks.watched_tensors import methods as watched_methods
from estimator_pipeline.migrate.code.to_keras.markers import SILENT_HOOKS
from estimator_pipeline.migrate.code.to_keras.model import heads, multiple_optimizers
from estimator_pipeline.migrate.code.to_keras.model import moving_averages as averages
from estimator_pipeline.migrate.code.to_keras.model import train_op as training_step
from estimator_pipeline.migrate.code.to_keras.model.metrics import metric_attribute, read_further_metrics, read_metrics
from estimator_pipeline.migrate.code.to_keras.model.signatures import read_signatures
from estimator_pipeline.migrate.code.to_keras.model.warm_start import read_scope
from estimator_pipeline.migrate.code.to_keras.model_fn import network, separate_predictions, variables
from estimator_pipeline.migrate.code.to_keras.model_fn.keras_layers import set_training_false
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import FlowStep, ModelFn, needed, read
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, indented, names_in

__all__ = ["ConvertedModel", "write"]

# Attributes of keras.Model.
_ATTRIBUTES = ("inputs", "input", "layers", "loss", "losses", "metrics", "name", "optimizer", "outputs", "output",
               "params", "variables", "weights")  # fmt: skip


@dataclass
class ConvertedModel:
    """The Keras model of a converted model_fn.

    Attributes:
        class_name: name of the model's class.
        maker: name of the function that creates the compiled model.
        takes_params: whether the maker has the parameter `params`.
        text: the class and the maker; only the class if the maker is a method.
        method: text of the maker if it is a method.
        helpers: functions that created the EstimatorSpecs.
        extra: names of further arguments of the maker.
        signatures: signature key -> expression of its outputs, in terms of `predictions`.
        scope: variable scope of all its variables; None if there are several.
        answers_alone: whether the predictions were a single tensor, which now has the key "output".
    """

    class_name: str
    maker: str
    takes_params: bool
    text: str
    signatures: dict[str, str] = field(default_factory=dict)
    method: str = ""
    helpers: list[cst.FunctionDef] = field(default_factory=list)
    extra: tuple[str, ...] = ()
    scope: str | None = ""
    answers_alone: bool = False


def write(
    reader: Rewriter, function: cst.FunctionDef, *, distributed: bool, extra: tuple[str, ...] = ()
) -> ConvertedModel:
    """Write the model's class and the function that creates the compiled model.

    Args:
        extra: names of arguments that are bound to the model_fn.
        distributed: whether training may run on several replicas.

    Raises:
        NotConvertible: a part of the model_fn cannot be converted.
    """
    writer = _Writer(reader, function, distributed, extra)
    model = writer.write()
    model.scope, model.answers_alone = read_scope(reader, writer.model_fn), writer.answers_alone
    return model


class _Writer:
    def __init__(self, reader: Rewriter, function: cst.FunctionDef, distributed: bool, extra: tuple[str, ...]) -> None:
        self.reader = reader
        self.answers_alone = False
        self.model_fn: ModelFn = read(reader, function, extra)
        network.find(reader, self.model_fn)
        network.remove_mode_parameters(reader, self.model_fn)
        set_training_false(reader, function, network.functions_of(reader, self.model_fn), self.model_fn.models)
        self.function = function
        self.distributed = distributed
        self.unit = reader.tree.module.default_indent
        stem = re.sub(r"_?model_?fn$", "", function.name.value.lstrip("_"), flags=re.IGNORECASE)
        taken = set(reader.tree.scope.names)
        path = PurePosixPath(reader.tree.source.path)
        folder = path.parent.name or reader.program.modules.package or "keras"
        of = stem or (folder if path.stem in ("model", "models", "__init__") else path.stem)
        words = "".join(part.capitalize() for part in re.split(r"\W+|_", of))
        # A notebook's name may start with a digit; the name of a model_fn or a file may end with "model".
        self.class_name = (words.lstrip("0123456789").removesuffix("Model") or "Trained") + "Model"
        self.maker = f"make_{stem.removesuffix('_model')}_model" if stem and stem != "model" else "make_model"
        while self.class_name in taken:
            self.class_name = f"Keras{self.class_name}"
        around = next((parent for parent in reader.tree.above(function) if isinstance(parent, cst.ClassDef)), None)
        self.owner = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", around.name.value.lstrip("_")).lower() if around else ""
        if around is not None:
            taken = set(reader.tree.scopes[around].names)
        if self.owner in _ATTRIBUTES:
            self.owner += "_of_model_fn"
        # Expression of the object that the model_fn is a method of: in the model's class, or in its original class.
        self.owner_text = f"self.{self.owner}"
        self._replace_self()
        while self.maker in taken:
            self.maker = f"make_keras_{self.maker.removeprefix('make_')}"
        variables.write_lookups(reader, network.functions_of(reader, self.model_fn))
        reader.replaced |= {node: partial(self._format_choice, node) for node in self.model_fn.choices}
        self.making = False
        reader.separator = "/" if training_step.selects_by_name(reader, self.model_fn) else "_"
        self.averages: averages.Averages | None = None
        self.multiple_optimizers: multiple_optimizers.MultipleOptimizers | None = None
        self.outputs: list[str] = []
        self.uses_params = False
        self.kept: set[str] = set()  # further parameters that the class needs
        for name in self.model_fn.models:
            self._replace_losses(name)
        reader.replaced |= {
            node: self._reject_step(node)
            for node in reader.tree.calls
            if reader.called(node).endswith(("get_global_step", "get_or_create_global_step"))
        }

    def _replace_self(self) -> None:
        """Replace `self` of a model_fn that is a method by an attribute of the model."""
        for chain in self.reader.tree.chains if self.owner else ():
            node: cst.BaseExpression = chain
            while isinstance(node, cst.Attribute):
                node = node.value
            if isinstance(node, cst.Name) and node.value == "self" and self.reader.home(node) == (
                self.function, "self",
            ):  # fmt: skip
                self.reader.replaced[node] = lambda: self.owner_text

    def _format_choice(self, node: cst.If) -> str:
        """Return `x = WhenTraining()([a, b])` for a branch on the mode in the network."""
        name, trained, otherwise = self.model_fn.choices[node]
        within = any(step.node is node for step in self.model_fn.network)
        if not within or not self.making:
            raise NotConvertible("a branch on the mode that is not part of the network", node.test)
        layer = self.reader.helper("WhenTraining")
        texts = [self.reader.text(branch) if branch is not None else name.value for branch in (trained, otherwise)]
        return self.reader.call(f"{layer}()", [f"[{', '.join(texts)}]"], node).join((f"{name.value} = ", ""))

    def _reject_step(self, node: cst.Call):
        def write() -> str:
            raise NotConvertible("a read of the global step; in Keras it is model.optimizer.iterations", node)

        return write

    def _replace_losses(self, name: str) -> None:
        """Replace `losses` of an inner model by those of the whole model, which are the same."""
        for chain in self.reader.tree.chains:
            if not isinstance(chain, cst.Attribute) or chain.attr.value != "losses":
                continue
            of_model = isinstance(chain.value, cst.Name) and chain.value.value == name
            if of_model and self.function in set(self.reader.tree.above(chain)):
                self.reader.replaced[chain] = "self.losses"

    def write(self) -> ConvertedModel:
        model_fn, reader = self.model_fn, self.reader
        methods, signatures = (
            heads.format_methods(self, read_further_metrics(reader, model_fn))
            if model_fn.head
            else self._format_methods()
        )
        text, self.owner_text, self.making = self._format_class(methods), "self", True
        maker = self._format_maker()
        params = "params" in model_fn.parameters
        if self.owner:
            method = indented(maker, reader.indent(self.function)).strip()
            return ConvertedModel(
                self.class_name, self.maker, params, text, signatures, method, model_fn.helpers, model_fn.extra
            )
        text = f"{text}\n\n\n{maker}"
        return ConvertedModel(
            self.class_name, self.maker, params, text, signatures, "", model_fn.helpers, model_fn.extra
        )

    def _format_methods(self) -> tuple[list[str], dict[str, str]]:
        """Return (methods of the model's class, its signatures)."""
        model_fn, reader = self.model_fn, self.reader
        loss = model_fn.field("train", "loss")
        if loss is None or model_fn.field("eval", "loss") is None:
            raise NotConvertible("an EstimatorSpec without a loss", model_fn.node.name)
        same = [needed(model_fn.flows[mode], set(names_in(loss))) for mode in ("train", "eval")]
        if reader.source(loss) != reader.source(model_fn.specs["eval"]["loss"]) or same[0] != same[1]:
            raise NotConvertible("training and evaluation have different losses", model_fn.specs["eval"]["loss"])
        self.averages = averages.find_averages(
            reader, self.function, model_fn.steps, model_fn.field("eval", "scaffold")
        )
        self.multiple_optimizers = multiple_optimizers.find_optimizers(reader, model_fn)
        if self.multiple_optimizers is not None and (self.distributed or self.averages is not None):
            raise NotConvertible("several optimizers on several replicas, or with averages of the weights", loss)
        for mode, spec in model_fn.specs.items():
            for name in spec.keys() - {"mode", "predictions", "loss", "train_op", "eval_metric_ops", "export_outputs"}:
                if mode == "train" and name in ("training_hooks", "training_chief_hooks"):
                    chief = self.distributed and name == "training_chief_hooks"
                    hooks.find_spec_hooks(reader, self.function, spec[name], single_process=not chief)
                elif reader.source(spec[name]) not in ("None", "[]", "()") and not self._only_logs(name, spec[name]):
                    raise NotConvertible(f"{name} of the EstimatorSpec for {mode}", spec[name])
        metrics = read_metrics(reader, model_fn)
        predictions = model_fn.field("predict", "predictions")
        names_by_mode = [("eval", {*names_in(loss)})]
        names_by_mode += [("eval", {*names_in(node)}) for _, _, used in metrics.values() for node in used]
        if predictions is not None and not model_fn.has_separate_predictions:
            names_by_mode.append(("predict", {*names_in(predictions)}))
        if self.multiple_optimizers is not None:
            names_by_mode.append(("train", {part.loss for part in self.multiple_optimizers.parts}))
        self.find_outputs(names_by_mode)
        methods = [self._format_loss(loss), self._format_metrics(metrics), *averages.format_methods(self)]
        watched = watched_methods(reader, self, model_fn, {"loss", *metrics}, distributed=self.distributed)
        if watched and self.averages is not None:
            raise NotConvertible(
                "a hook that reads a tensor, in a model with averages of the weights", model_fn.node.name
            )
        methods += watched
        if self.multiple_optimizers is not None:
            methods += multiple_optimizers.format_methods(self, self.multiple_optimizers, loss, alone=not watched)
        if predictions is not None and model_fn.has_separate_predictions:
            methods.append(separate_predictions.predict_method(self, predictions))
        if predictions is None or model_fn.has_separate_predictions:
            return [self.format_init(metrics), *methods], {}
        methods += [self._format_predictions(predictions), self.format_predict_step()]
        return [self.format_init(metrics), *methods], read_signatures(reader, model_fn, predictions)

    def _only_logs(self, name: str, node: cst.BaseExpression) -> bool:
        """Return whether hooks of an EstimatorSpec only log, or its scaffold can be dropped."""
        if name == "scaffold":
            used = self.averages is not None and self.averages.evaluated and node is self.model_fn.field("eval", name)
            return used or averages.keeps_its_saver(self.reader, node)
        node = self.reader.value(node)
        if not name.endswith("hooks") or not isinstance(node, (cst.List, cst.Tuple)):
            return False
        calls = [self.reader.value(element.value) for element in node.elements]
        return all(self.reader.called(call) in SILENT_HOOKS for call in calls)

    # The network and its outputs

    def find_outputs(self, names_by_mode: list[tuple[str, set[str]]]) -> None:
        """Set the outputs of the network: the tensors that methods read, by mode."""
        outputs: list[str] = []
        tensors = self._find_tensors()
        makers = [step for step in self.model_fn.network if variables.creates_variable(self.reader, step.node)]
        tracked = {name: step for step in makers for name in step.sets}
        for mode, names in names_by_mode:
            flow = self.model_fn.flows[mode]
            wanted = set(names)
            for step in needed(flow, names, self.model_fn.network):
                wanted |= step.reads
            if "features" in wanted and any("features" in step.sets for step in self.model_fn.network):
                raise NotConvertible(
                    "features that are changed in the network and read after it", self.model_fn.node.name
                )
            for name in wanted & tracked.keys():
                raise NotConvertible(f"the variable {name}, which is read outside of the network", tracked[name].node)
            self._check_order(flow, wanted & tensors)
            for step in self.model_fn.network:
                outputs += [name for name in sorted(step.sets & wanted & tensors) if name not in outputs]
        self.outputs = outputs
        if not outputs:
            raise NotConvertible("a network whose outputs cannot be determined", self.model_fn.node.name)

    def _check_order(self, flow: list[FlowStep], names: set[str]) -> None:
        """Check that the network does not reassign a name after its use outside of the network."""
        for place, step in enumerate(flow):
            if step in self.model_fn.network:
                continue
            later = {name for other in flow[place:] if other in self.model_fn.network for name in other.sets}
            if step.reads & names & later:
                raise NotConvertible("a name that is reassigned by the network after its use", step.node)

    def _find_tensors(self) -> set[str]:
        """Return the names of the network that depend on the features."""
        names = {"features"}
        for step in self.model_fn.network:
            if step.reads & names and not step.sets & self.model_fn.models:
                names |= step.sets
        return names - {"features"}

    def select_steps(self, mode: str, names: Iterable[str]) -> tuple[list[FlowStep], set[str]]:
        """Return (statements after the network that compute the names, names that these read)."""
        flow, wanted = self.model_fn.flows[mode], set(names)
        steps = needed(flow, wanted, self.model_fn.network)
        reads = wanted.union(*(step.reads for step in steps)) if steps else wanted
        settings = [step for step in self.model_fn.network if step.sets & reads and not step.sets & set(self.outputs)
                    and not step.sets & self.model_fn.models]  # fmt: skip
        if settings:
            names = {name for step in settings for name in step.sets}
            again = needed(self.model_fn.network, names)
            steps = [step for step in flow if step in again or step in steps]
            reads = wanted.union(*(step.reads for step in steps))
        return steps, reads

    def format_steps(self, steps: list[FlowStep], rename: str = "") -> list[str]:
        """Return the text of the statements, without indent."""
        return [
            f"{step.name} = {self.reader.text(step.node)}" if step.name
            else textwrap.dedent(self.reader.statement(step.node))
            for step in steps if self._is_kept(step)
        ]  # fmt: skip

    def places(self, mode: str, name: str) -> list[str]:
        """Return the places for comments of a field of an EstimatorSpec that is not that of training, too."""
        node, spec = self.model_fn.field(mode, name), self.model_fn.field("train", "loss")
        places = [self.reader.place(at) for at in (self.reader.value(node), node)] if node is not None else []
        return [place for place in places if spec is not None and place != self.reader.place(spec)]

    def _is_kept(self, step: FlowStep) -> bool:
        return not any((self.function, name) in self.reader.flags for name in step.sets)

    def bind_names(self, reads: set[str], features: str = "x", outputs: str = "y_pred", labels: str = "y") -> list[str]:
        """Return the statement that assigns a method's arguments to the names of the model_fn, if any."""
        pairs = []
        if "features" in reads:
            pairs.append(("features", features))
        if "labels" in reads and labels:
            pairs.append(("labels", labels))
        if "params" in reads:
            self.uses_params = True
            pairs.append(("params", "self.params"))
        pairs += [(name, f"self.{name}") for name in self.model_fn.extra if name in reads]
        self.kept |= reads & {*self.model_fn.extra}
        if "config" in reads or "mode" in reads - {"mode"}:
            raise NotConvertible("a model that depends on its RunConfig", self.function.name)
        if len(self.outputs) == 1:
            pairs += [(name, outputs) for name in self.outputs if name in reads]
        else:
            pairs += [(name, f"{outputs}[{name!r}]") for name in self.outputs if name in reads]
        pairs = [(name, value) for name, value in pairs if name != value]
        if not pairs:
            return []
        return [f"{', '.join(name for name, _ in pairs)} = {', '.join(value for _, value in pairs)}"]

    # Text

    def _format_class(self, methods: list[str]) -> str:
        doc = self.model_fn.doc or f'"""Network, loss, metrics and predictions of {self._function_name()}."""'
        body = "\n\n".join(indented(method, self.unit) for method in methods)
        return f"class {self.class_name}({self.reader.tf}.keras.Model):\n{self.unit}{doc}\n\n{body}"

    def _function_name(self) -> str:
        return self.function.name.value

    def format_method(self, head: str, lines: list[str]) -> str:
        return f"{head}\n" + "\n".join(indented(line, self.unit) for line in lines)

    def format_init(self, metrics, more: Iterable[str] = ()) -> str:
        tf = self.reader.tf
        lines = ["super().__init__(inputs, outputs)", f"self.mean_loss = {tf}.keras.metrics.Mean(name='loss')"]
        if "params" in self.model_fn.parameters:
            lines.insert(1, "self.params = params")
        lines += [f"self.{metric_attribute(key)} = {metric}" for key, (metric, _, _) in metrics.items()]
        lines += more
        if self.averages is not None:
            lines.append(f"self.averages = {self.averages.text}")
        parameters = "inputs, outputs, params" if "params" in self.model_fn.parameters else "inputs, outputs"
        for name in self._class_parameters():
            if name in _ATTRIBUTES:
                raise NotConvertible(
                    f"{name}, an argument bound to the model_fn that is also an attribute of Keras models",
                    self.function,
                )
            lines.insert(1, f"self.{name} = {name}")
            parameters += f", {name}"
        if self.owner:
            lines.insert(1, f"self.{self.owner} = {self.owner}")
            parameters += f", {self.owner}"
        return self.format_method(f"def __init__(self, {parameters}):", lines)

    def _format_loss(self, loss: cst.BaseExpression) -> str:
        if self.multiple_optimizers is not None and multiple_optimizers.is_of_losses(self.multiple_optimizers, loss):
            lines = [f"{multiple_optimizers.loss_names(self.multiple_optimizers)} = self.each_loss(x, y, y_pred)"]
        else:
            steps, reads = self.select_steps("train", names_in(loss))
            lines = [*self.bind_names(reads), *self.format_steps(steps)]
        text = self.reader.text(loss)
        if not isinstance(loss, cst.Name):
            lines.append(f"loss = {text}")
            text = "loss"
        lines.append(f"self.mean_loss.update_state({text})")
        if self.distributed:
            lines.append("# The gradients of the replicas are summed.")
            text += " / self.distribute_strategy.num_replicas_in_sync"
        lines.append(f"return {text}")
        head = "def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):"
        return self.format_method(head, lines)

    def _format_metrics(self, metrics) -> str:
        names = {name for _, _, used in metrics.values() for node in used for name in names_in(node)}
        lines = []
        if metrics:
            steps, reads = self.select_steps("eval", names)
            lines = [*self.bind_names(reads), *self.format_steps(steps)]
        lines += [*self.places("eval", "eval_metric_ops"), *self.format_updates(metrics)]
        lines.append("return self.get_metrics_result()")
        return self.format_method("def compute_metrics(self, x, y, y_pred, sample_weight):", lines)

    def format_updates(self, metrics) -> list[str]:
        """Return the statements that update the metrics with a batch."""
        return [f"self.{metric_attribute(key)}.update_state({values})" for key, (_, values, _) in metrics.items()]

    def _format_predictions(self, predictions: cst.BaseExpression) -> str:
        steps, reads = self.select_steps("predict", names_in(predictions))
        if "labels" in reads:
            raise NotConvertible("predictions that depend on the labels", predictions)
        lines = [*self.bind_names(reads, "features", "outputs", ""), *self.format_steps(steps)]
        lines += self.places("predict", "predictions")
        value = self.reader.value(predictions)
        if not isinstance(value, cst.Dict):
            self.answers_alone = True
            return self.format_method(
                "def predictions(self, features, outputs):",
                [*lines, f"return {{'output': {self.format_expression(predictions)}}}"],
            )
        return self.format_method(
            "def predictions(self, features, outputs):", [*lines, f"return {self.format_expression(predictions)}"]
        )

    def format_expression(self, node: cst.BaseExpression) -> str:
        """Return the text of an expression; continuation lines lose the indent of the statement."""
        first, *rest = self.reader.text(node).split("\n")
        if not rest:
            return first
        below = textwrap.dedent("\n".join(rest))
        if first[-1] in "([{" and rest[-1].strip()[0] not in ")]}":
            below = indented(below, self.unit)
        return f"{first}\n{below}"

    def format_predict_step(self) -> str:
        tf = self.reader.tf
        lines = [
            f"features, _, _ = {tf}.keras.utils.unpack_x_y_sample_weight(data)",
            "return self.predictions(features, self(features, training=False))",
        ]
        return self.format_method("def predict_step(self, data):", lines)

    def _format_network(self) -> list[str]:
        """Return the statements of the network, within `keras_variables.of` where it has variables."""
        lines = self.format_steps(self.model_fn.network)
        if not self.model_fn.variable_names and not self.reader.reuses_variables:
            return lines
        self.reader.needs.add("keras_variables")
        return ["with keras_variables.of(features):", *(indented(line, self.unit) for line in lines)]

    def _class_parameters(self) -> list[str]:
        """Return the further parameters of the class."""
        return [name for name in self.model_fn.extra if name in self.kept]

    def _maker_parameters(self) -> list[str]:
        """Return the further parameters of the maker, those with a default last."""
        defaults = {arg.name.value: arg.default for arg in self.function.params.params if arg.default is not None}
        required = [name for name in self.model_fn.extra if name not in defaults]
        return [
            *required,
            *(f"{name}={self.reader.whole(node)}" for name, node in defaults.items() if name in self.model_fn.extra),
        ]

    def _format_maker(self) -> str:
        model_fn, reader = self.model_fn, self.reader
        params = "params" in model_fn.parameters
        owner = ", self" if self.owner else ""
        lines = ['"""Return the compiled model for the inputs `features`, as returned by `model_inputs`."""']
        lines += self._format_network()
        outputs = self.outputs[0]
        if len(self.outputs) > 1:
            outputs = "{" + ", ".join(f"{name!r}: {name}" for name in self.outputs) + "}"
        lines += silent.comments(reader, model_fn)
        handed = "".join(f", {name}" for name in self._class_parameters()) + owner
        lines.append(f"model = {self.class_name}(features, {outputs}{', params' if params else ''}{handed})")
        if any("model" in step.sets for step in model_fn.network) or "model" in self.outputs:
            lines[-1] = lines[-1].replace("model = ", "compiled = ", 1)
        name = lines[-1].split(" = ")[0]
        known = self.averages.calls if self.averages is not None else ()
        if self.multiple_optimizers is not None:
            steps = needed(
                model_fn.flows["train"], multiple_optimizers.names_used(self.multiple_optimizers) - model_fn.steps
            )
            text = multiple_optimizers.format_optimizer(reader, self.multiple_optimizers, name)
        else:
            steps, text = training_step.convert(
                reader, model_fn, known, heads.resolve_optimizer(reader, model_fn) if model_fn.head else None
            )
        settings = [step for step in steps if step not in model_fn.network]
        training_step.convert_selection(reader, model_fn, settings, name)
        lines += self.format_steps(settings)
        train_op = model_fn.field("train", "train_op")
        if train_op is not None:
            lines += [reader.place(step.node) for step in needed(model_fn.flows["train"], {*names_in(train_op)})]
            lines.append(reader.place(train_op))
        lines.append(f"{name}.compile(optimizer={text})")
        lines += [PLACE.format(reader.span(function)[1]) for function in (self.function, *model_fn.helpers)]
        lines.append(f"return {name}")
        taken = [
            *(["self"] if self.owner else []),
            "features",
            *(["params"] if params else []),
            *self._maker_parameters(),
        ]
        return self.format_method(f"def {self.maker}({', '.join(taken)}):", lines)

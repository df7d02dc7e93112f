"""From a model_fn to a Keras model: its network as a functional model, its loss, metrics and predictions as methods."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.hooks import hooks
from estimator_pipeline.migrate.code.to_keras.hooks import logging_only as silent
from estimator_pipeline.migrate.code.to_keras.hooks.watched_tensors import methods as watched_methods
from estimator_pipeline.migrate.code.to_keras.markers import SILENT_HOOKS
from estimator_pipeline.migrate.code.to_keras.model import heads, multiple_optimizers
from estimator_pipeline.migrate.code.to_keras.model import moving_averages as averages
from estimator_pipeline.migrate.code.to_keras.model import train_op as training_step
from estimator_pipeline.migrate.code.to_keras.model.metrics import attribute_of, beside_the_head, of_evaluation
from estimator_pipeline.migrate.code.to_keras.model.signatures import signatures_of
from estimator_pipeline.migrate.code.to_keras.model.warm_start import scope_of
from estimator_pipeline.migrate.code.to_keras.model_fn import network, separate_predictions, variables
from estimator_pipeline.migrate.code.to_keras.model_fn.keras_layers import set_training_false
from estimator_pipeline.migrate.code.to_keras.model_fn.slicing import FlowStep, ModelFn, needed, read
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, indented, names_in

__all__ = ["ConvertedModel", "write"]

# Attributes that a Keras model has.
_ATTRIBUTES = ("inputs", "input", "layers", "loss", "losses", "metrics", "name", "optimizer", "outputs", "output",
               "params", "variables", "weights")  # fmt: skip


@dataclass
class ConvertedModel:
    """A model_fn that was converted.

    Attributes:
        class_name, maker: of what was written.
        takes_params: whether the maker takes `params`.
        text: the class and the function; where that is a method, the class alone.
        method: the text of the function that is a method.
        helpers: functions that made its specs.
        extra: further arguments of the maker.
        signatures: key of an export output -> how it is made of `found`, the predictions.
        scope: of all its variables; None where there are several.
        answers_alone: whether what it predicts was no dict, which is by the key "output" now.
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
    """Write the class and the function that makes the compiled model.

    Args:
        extra: names of arguments that are bound to it.
        distributed: whether it may train on several replicas.

    Raises:
        NotConvertible: something of it cannot be converted.
    """
    writer = _Writer(reader, function, distributed, extra)
    model = writer.write()
    model.scope, model.answers_alone = scope_of(reader, writer.made), writer.answers_alone
    return model


class _Writer:
    def __init__(self, reader: Rewriter, function: cst.FunctionDef, distributed: bool, extra: tuple[str, ...]) -> None:
        self.reader = reader
        self.answers_alone = False
        self.made: ModelFn = read(reader, function, extra)
        network.find(reader, self.made)
        network.remove_mode_parameters(reader, self.made)
        set_training_false(reader, function, network.functions_of(reader, self.made), self.made.models)
        self.function = function
        self.distributed = distributed
        self.unit = reader.tree.module.default_indent
        stem = re.sub(r"_?model_?fn$", "", function.name.value.lstrip("_"), flags=re.IGNORECASE)
        taken = set(reader.tree.scope.names)
        path = PurePosixPath(reader.tree.source.path)
        folder = path.parent.name or reader.program.modules.package or "keras"
        of = stem or (folder if path.stem in ("model", "models", "__init__") else path.stem)
        words = "".join(part.capitalize() for part in re.split(r"\W+|_", of))
        # A notebook's name may begin with a number, that of a model_fn or a file end with "model".
        self.class_name = (words.lstrip("0123456789").removesuffix("Model") or "Trained") + "Model"
        self.maker = f"make_{stem.removesuffix('_model')}_model" if stem and stem != "model" else "make_model"
        while self.class_name in taken:
            self.class_name = f"Keras{self.class_name}"
        around = next((one for one in reader.tree.above(function) if isinstance(one, cst.ClassDef)), None)
        self.owner = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", around.name.value.lstrip("_")).lower() if around else ""
        if around is not None:
            taken = set(reader.tree.scopes[around].names)
        if self.owner in _ATTRIBUTES:
            self.owner += "_of_model_fn"
        # How the object of a method is called where the text is written: in the model's class, or in its own.
        self.own = f"self.{self.owner}"
        self._name_the_owner()
        while self.maker in taken:
            self.maker = f"make_keras_{self.maker.removeprefix('make_')}"
        variables.write_lookups(reader, network.functions_of(reader, self.made))
        reader.replaced |= {node: partial(self._chosen, node) for node in self.made.choices}
        self.making = False
        reader.joint = "/" if training_step.chooses_by_name(reader, self.made) else "_"
        self.averages: averages.Averages | None = None
        self.multiple_optimizers: multiple_optimizers.MultipleOptimizers | None = None
        self.outputs: list[str] = []
        self.uses_params = False
        self.kept: set[str] = set()  # of the further parameters those that the class needs
        for name in self.made.models:
            self._losses_of(name)
        reader.replaced |= {
            node: self._no_step(node)
            for node in reader.tree.calls
            if reader.called(node).endswith(("get_global_step", "get_or_create_global_step"))
        }

    def _name_the_owner(self) -> None:
        """`self` of a model_fn that is a method is an attribute of the model."""
        for chain in self.reader.tree.chains if self.owner else ():
            node: cst.BaseExpression = chain
            while isinstance(node, cst.Attribute):
                node = node.value
            if isinstance(node, cst.Name) and node.value == "self" and self.reader.home(node) == (
                self.function, "self",
            ):  # fmt: skip
                self.reader.replaced[node] = lambda: self.own

    def _chosen(self, node: cst.If) -> str:
        """`x = WhenTraining()([a, b])` for a branch by the mode of the network."""
        name, trained, otherwise = self.made.choices[node]
        within = any(step.node is node for step in self.made.network)
        if not within or not self.making:
            raise NotConvertible("a branch by the mode that goes on behind it", node.test)
        self.reader.needs.add("WhenTraining")
        told = [self.reader.text(one) if one is not None else name.value for one in (trained, otherwise)]
        return self.reader.call("WhenTraining()", [f"[{', '.join(told)}]"], node).join((f"{name.value} = ", ""))

    def _no_step(self, node: cst.Call):
        def write() -> str:
            raise NotConvertible("the global step is read; Keras counts in model.optimizer.iterations", node)

        return write

    def _losses_of(self, name: str) -> None:
        """`tf.add_n(model.losses)`: those of the model around it are the same."""
        for chain in self.reader.tree.chains:
            if not isinstance(chain, cst.Attribute) or chain.attr.value != "losses":
                continue
            own = isinstance(chain.value, cst.Name) and chain.value.value == name
            if own and self.function in set(self.reader.tree.above(chain)):
                self.reader.replaced[chain] = "self.losses"

    def write(self) -> ConvertedModel:
        made, reader = self.made, self.reader
        methods, signatures = heads.methods(self, beside_the_head(reader, made)) if made.head else self._methods()
        text, self.own, self.making = self._class(methods), "self", True
        maker = self._make()
        params = "params" in made.parameters
        if self.owner:
            method = indented(maker, reader.indent(self.function)).strip()
            return ConvertedModel(
                self.class_name, self.maker, params, text, signatures, method, made.helpers, made.extra
            )
        text = f"{text}\n\n\n{maker}"
        return ConvertedModel(self.class_name, self.maker, params, text, signatures, "", made.helpers, made.extra)

    def _methods(self) -> tuple[list[str], dict[str, str]]:
        """Return the methods of the model's class, and its signatures."""
        made, reader = self.made, self.reader
        loss = made.field("train", "loss")
        if loss is None or made.field("eval", "loss") is None:
            raise NotConvertible("an EstimatorSpec without a loss", made.node.name)
        same = [needed(made.flows[mode], set(names_in(loss))) for mode in ("train", "eval")]
        if reader.source(loss) != reader.source(made.specs["eval"]["loss"]) or same[0] != same[1]:
            raise NotConvertible("training and evaluation have losses of their own", made.specs["eval"]["loss"])
        self.averages = averages.find(reader, self.function, made.steps, made.field("eval", "scaffold"))
        self.multiple_optimizers = multiple_optimizers.find(reader, made)
        if self.multiple_optimizers is not None and (self.distributed or self.averages is not None):
            raise NotConvertible("several optimizers on several replicas, or with averages of the weights", loss)
        for mode, spec in made.specs.items():
            for name in spec.keys() - {"mode", "predictions", "loss", "train_op", "eval_metric_ops", "export_outputs"}:
                if mode == "train" and name in ("training_hooks", "training_chief_hooks"):
                    chief = self.distributed and name == "training_chief_hooks"
                    hooks.of_spec(reader, self.function, spec[name], alone=not chief)
                elif reader.source(spec[name]) not in ("None", "[]", "()") and not self._only_tells(name, spec[name]):
                    raise NotConvertible(f"{name} of the EstimatorSpec for {mode}", spec[name])
        metrics = of_evaluation(reader, made)
        predictions = made.field("predict", "predictions")
        asked = [("eval", {*names_in(loss)})]
        asked += [("eval", {*names_in(one)}) for _, _, used in metrics.values() for one in used]
        if predictions is not None and not made.has_separate_predictions:
            asked.append(("predict", {*names_in(predictions)}))
        if self.multiple_optimizers is not None:
            asked.append(("train", {part.loss for part in self.multiple_optimizers.parts}))
        self.find_outputs(asked)
        methods = [self._loss(loss), self._compute_metrics(metrics), *averages.methods(self)]
        watched = watched_methods(reader, self, made, {"loss", *metrics}, distributed=self.distributed)
        if watched and self.averages is not None:
            raise NotConvertible(
                "a hook that asks for a tensor, where averages of the weights are kept", made.node.name
            )
        methods += watched
        if self.multiple_optimizers is not None:
            methods += multiple_optimizers.methods(self, self.multiple_optimizers, loss, alone=not watched)
        if predictions is not None and made.has_separate_predictions:
            methods.append(separate_predictions.predict_method(self, predictions))
        if predictions is None or made.has_separate_predictions:
            return [self.init(metrics), *methods], {}
        methods += [self._predictions(predictions), self.predict_step()]
        return [self.init(metrics), *methods], signatures_of(reader, made, predictions)

    def _only_tells(self, name: str, node: cst.BaseExpression) -> bool:
        """Whether hooks of a spec write to the log alone; of a scaffold, whether its saver is told all that is new."""
        if name == "scaffold":
            told = self.averages is not None and self.averages.evaluated and node is self.made.field("eval", name)
            return told or averages.keeps_its_saver(self.reader, node)
        node = self.reader.value(node)
        if not name.endswith("hooks") or not isinstance(node, (cst.List, cst.Tuple)):
            return False
        calls = [self.reader.value(element.value) for element in node.elements]
        return all(self.reader.called(call) in SILENT_HOOKS for call in calls)

    # The network and its outputs

    def find_outputs(self, asked: list[tuple[str, set[str]]]) -> None:
        """What the other parts take from the network, and do not work out again."""
        found: list[str] = []
        tensors = self._tensors()
        makers = [step for step in self.made.network if variables.creates_variable(self.reader, step.node)]
        own = {name: step for step in makers for name in step.sets}
        for mode, names in asked:
            flow = self.made.flows[mode]
            wanted = set(names)
            for step in needed(flow, names, self.made.network):
                wanted |= step.reads
            if "features" in wanted and any("features" in step.sets for step in self.made.network):
                raise NotConvertible("features that are changed, and read behind the network", self.made.node.name)
            for name in wanted & own.keys():
                raise NotConvertible(f"the variable {name}, which is read behind the network", own[name].node)
            self._check_order(flow, wanted & tensors)
            for step in self.made.network:
                found += [name for name in sorted(step.sets & wanted & tensors) if name not in found]
        self.outputs = found
        if not found:
            raise NotConvertible("what its network gives cannot be told", self.made.node.name)

    def _check_order(self, flow: list[FlowStep], names: set[str]) -> None:
        """A name that the network gives another value after it was read has two."""
        for place, step in enumerate(flow):
            if step in self.made.network:
                continue
            later = {name for one in flow[place:] if one in self.made.network for name in one.sets}
            if step.reads & names & later:
                raise NotConvertible("a name that has another value before and behind its use", step.node)

    def _tensors(self) -> set[str]:
        """Names of the network that depend on the features."""
        found = {"features"}
        for step in self.made.network:
            if step.reads & found and not step.sets & self.made.models:
                found |= step.sets
        return found - {"features"}

    def part(self, mode: str, names: Iterable[str]) -> tuple[list[FlowStep], set[str]]:
        """Return the statements behind the network that give the names, and the names that they take."""
        flow, wanted = self.made.flows[mode], set(names)
        steps = needed(flow, wanted, self.made.network)
        reads = wanted.union(*(step.reads for step in steps)) if steps else wanted
        settings = [step for step in self.made.network if step.sets & reads and not step.sets & set(self.outputs)
                    and not step.sets & self.made.models]  # fmt: skip
        if settings:
            names = {name for step in settings for name in step.sets}
            again = needed(self.made.network, names)
            steps = [step for step in flow if step in again or step in steps]
            reads = wanted.union(*(step.reads for step in steps))
        return steps, reads

    def body(self, steps: list[FlowStep], rename: str = "") -> list[str]:
        """Return the statements' text, without indent."""
        return [
            f"{step.name} = {self.reader.text(step.node)}" if step.name
            else textwrap.dedent(self.reader.statement(step.node))
            for step in steps if self._is_heard(step)
        ]  # fmt: skip

    def _is_heard(self, step: FlowStep) -> bool:
        return not any((self.function, name) in self.reader.flags for name in step.sets)

    def given(self, reads: set[str], features: str = "x", outputs: str = "y_pred", labels: str = "y") -> list[str]:
        """Return what a method's arguments are called in the model_fn."""
        pairs = []
        if "features" in reads:
            pairs.append(("features", features))
        if "labels" in reads and labels:
            pairs.append(("labels", labels))
        if "params" in reads:
            self.uses_params = True
            pairs.append(("params", "self.params"))
        pairs += [(name, f"self.{name}") for name in self.made.extra if name in reads]
        self.kept |= reads & {*self.made.extra}
        if "config" in reads or "mode" in reads - {"mode"}:
            raise NotConvertible("what the model does depends on its configuration", self.function.name)
        if len(self.outputs) == 1:
            pairs += [(name, outputs) for name in self.outputs if name in reads]
        else:
            pairs += [(name, f"{outputs}[{name!r}]") for name in self.outputs if name in reads]
        pairs = [(name, value) for name, value in pairs if name != value]
        if not pairs:
            return []
        return [f"{', '.join(name for name, _ in pairs)} = {', '.join(value for _, value in pairs)}"]

    # Text

    def _class(self, methods: list[str]) -> str:
        doc = self.made.doc or f'"""The network, and the loss, metrics and predictions of what was {self._name()}."""'
        body = "\n\n".join(indented(one, self.unit) for one in methods)
        return f"class {self.class_name}({self.reader.tf}.keras.Model):\n{self.unit}{doc}\n\n{body}"

    def _name(self) -> str:
        return self.function.name.value

    def method(self, head: str, lines: list[str]) -> str:
        return f"{head}\n" + "\n".join(indented(line, self.unit) for line in lines)

    def init(self, metrics, more: Iterable[str] = ()) -> str:
        tf = self.reader.tf
        lines = ["super().__init__(inputs, outputs)", f"self.mean_loss = {tf}.keras.metrics.Mean(name='loss')"]
        if "params" in self.made.parameters:
            lines.insert(1, "self.params = params")
        lines += [f"self.{attribute_of(key)} = {made}" for key, (made, _, _) in metrics.items()]
        lines += more
        if self.averages is not None:
            lines.append(f"self.averages = {self.averages.text}")
        given = "inputs, outputs, params" if "params" in self.made.parameters else "inputs, outputs"
        for name in self._handed():
            if name in _ATTRIBUTES:
                raise NotConvertible(
                    f"{name}, which is bound to a model_fn, is an attribute of Keras models", self.function
                )
            lines.insert(1, f"self.{name} = {name}")
            given += f", {name}"
        if self.owner:
            lines.insert(1, f"self.{self.owner} = {self.owner}")
            given += f", {self.owner}"
        return self.method(f"def __init__(self, {given}):", lines)

    def _loss(self, loss: cst.BaseExpression) -> str:
        if self.multiple_optimizers is not None and multiple_optimizers.are_in(self.multiple_optimizers, loss):
            lines = [f"{multiple_optimizers.told(self.multiple_optimizers)} = self.each_loss(x, y, y_pred)"]
        else:
            steps, reads = self.part("train", names_in(loss))
            lines = [*self.given(reads), *self.body(steps)]
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
        return self.method(head, lines)

    def _compute_metrics(self, metrics) -> str:
        names = {name for _, _, used in metrics.values() for one in used for name in names_in(one)}
        lines = []
        if metrics:
            steps, reads = self.part("eval", names)
            lines = [*self.given(reads), *self.body(steps)]
        lines += self.updates(metrics)
        lines.append("return self.get_metrics_result()")
        return self.method("def compute_metrics(self, x, y, y_pred, sample_weight):", lines)

    def updates(self, metrics) -> list[str]:
        """Return the statements that tell metrics of a batch."""
        return [f"self.{attribute_of(key)}.update_state({told})" for key, (_, told, _) in metrics.items()]

    def _predictions(self, predictions: cst.BaseExpression) -> str:
        steps, reads = self.part("predict", names_in(predictions))
        if "labels" in reads:
            raise NotConvertible("predictions that need the labels", predictions)
        lines = [*self.given(reads, "features", "outputs", ""), *self.body(steps)]
        given = self.reader.value(predictions)
        if not isinstance(given, cst.Dict):
            self.answers_alone = True
            return self.method(
                "def predictions(self, features, outputs):",
                [*lines, f"return {{'output': {self.expression(predictions)}}}"],
            )
        return self.method(
            "def predictions(self, features, outputs):", [*lines, f"return {self.expression(predictions)}"]
        )

    def expression(self, node: cst.BaseExpression) -> str:
        """Return an expression's text, its further lines without the indent of its statement."""
        first, *rest = self.reader.text(node).split("\n")
        if not rest:
            return first
        below = textwrap.dedent("\n".join(rest))
        if first[-1] in "([{" and rest[-1].strip()[0] not in ")]}":
            below = indented(below, self.unit)
        return f"{first}\n{below}"

    def predict_step(self) -> str:
        tf = self.reader.tf
        lines = [
            f"features, _, _ = {tf}.keras.utils.unpack_x_y_sample_weight(data)",
            "return self.predictions(features, self(features, training=False))",
        ]
        return self.method("def predict_step(self, data):", lines)

    def _network(self) -> list[str]:
        """Return the statements of the network; variables of its own need to know whose they are."""
        lines = self.body(self.made.network)
        if not self.made.variable_names and not self.reader.again:
            return lines
        self.reader.needs.add("keras_variables")
        return ["with keras_variables.of(features):", *(indented(one, self.unit) for one in lines)]

    def _handed(self) -> list[str]:
        """Return the further parameters that the class gets."""
        return [name for name in self.made.extra if name in self.kept]

    def _further(self) -> list[str]:
        """Return the further parameters of what makes the model, those with a default behind the others."""
        defaults = {one.name.value: one.default for one in self.function.params.params if one.default is not None}
        given = [name for name in self.made.extra if name not in defaults]
        return [
            *given,
            *(f"{one}={self.reader.whole(node)}" for one, node in defaults.items() if one in self.made.extra),
        ]

    def _make(self) -> str:
        made, reader = self.made, self.reader
        params = "params" in made.parameters
        own = ", self" if self.owner else ""
        lines = ['"""The compiled model; `features` are its inputs, as `model_inputs` gives them."""']
        lines += self._network()
        outputs = self.outputs[0]
        if len(self.outputs) > 1:
            outputs = "{" + ", ".join(f"{name!r}: {name}" for name in self.outputs) + "}"
        lines += silent.comments(reader, made)
        handed = "".join(f", {name}" for name in self._handed()) + own
        lines.append(f"model = {self.class_name}(features, {outputs}{', params' if params else ''}{handed})")
        if any("model" in step.sets for step in made.network) or "model" in self.outputs:
            lines[-1] = lines[-1].replace("model = ", "compiled = ", 1)
        name = lines[-1].split(" = ")[0]
        known = self.averages.calls if self.averages is not None else ()
        if self.multiple_optimizers is not None:
            steps = needed(made.flows["train"], multiple_optimizers.used(self.multiple_optimizers) - made.steps)
            text = multiple_optimizers.optimizer(reader, self.multiple_optimizers, name)
        else:
            steps, text = training_step.write(reader, made, known, heads.trains(reader, made) if made.head else None)
        settings = [one for one in steps if one not in made.network]
        training_step.choose(reader, made, settings, name)
        lines += self.body(settings)
        lines += [f"{name}.compile(optimizer={text})", f"return {name}"]
        taken = [*(["self"] if self.owner else []), "features", *(["params"] if params else []), *self._further()]
        return self.method(f"def {self.maker}({', '.join(taken)}):", lines)

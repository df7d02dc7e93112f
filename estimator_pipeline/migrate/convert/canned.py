"""The Keras model of a canned Estimator: `tf.estimator.DNNClassifier(...)` -> `make_model` and `make_predictions`.

Defaults, losses and optimizers are those of the Estimator: `tf.compat.v1.estimator` sums the losses of a batch, and
has other learning rates than `tf.estimator` of TensorFlow 2. Source: dnn.py, linear.py and dnn_linear_combined.py of
tensorflow_estimator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import iter_nodes
from estimator_pipeline.migrate.convert.model import Model
from estimator_pipeline.migrate.convert.model_fn import parameters
from estimator_pipeline.migrate.convert.names import FileNames, Refused, names_bound
from estimator_pipeline.migrate.convert.rewrite import CodeRewriter
from estimator_pipeline.migrate.convert.rule import SETUP
from estimator_pipeline.migrate.convert.rules import activations
from estimator_pipeline.migrate.convert.rules.optimizers import OPTIMIZERS

__all__ = ["CANNED", "parameters_of", "write_canned"]

_HEAD = {
    "Classifier": ("n_classes", "weight_column", "label_vocabulary"),
    "Regressor": ("label_dimension", "weight_column"),
}
_DNN = ("optimizer", "activation_fn", "dropout")
_END = ("config", "warm_start_from", "loss_reduction")
# Kind without its head -> (parameters before those of the head, behind them).
_KINDS = {
    "DNN": (("hidden_units", "feature_columns", "model_dir"), (*_DNN, "config", "warm_start_from", "loss_reduction",
                                                               "batch_norm")),
    "Linear": (("feature_columns", "model_dir"), ("optimizer", *_END, "sparse_combiner")),
    "DNNLinearCombined": (
        ("model_dir", "linear_feature_columns", "linear_optimizer", "dnn_feature_columns", "dnn_optimizer",
         "dnn_hidden_units", "dnn_activation_fn", "dnn_dropout"),
        (*_END, "batch_norm", "linear_sparse_combiner")),
}  # fmt: skip
CANNED = {
    f"{module}{kind}{head}": (kind, head)
    for module in ("tf.estimator.", "tf.compat.v1.estimator.") for kind in _KINDS for head in _HEAD
}  # fmt: skip
"""Full name of a canned Estimator -> its kind and head."""
_OF_JOB = ("model_dir", "config")  # what `estimators.py` and `job.py` convert
_ACCURACY_BASELINE, _MEANS = "accuracy_baseline", ("label/mean", "prediction/mean")
_PRECISION_RECALL = "auc_precision_recall"  # V1 interpolates linearly, Keras does not
# Name of an optimizer -> how Keras makes it with a rate, for V1.
_KERAS = ("tf.keras.optimizers", "tf.optimizers", "tf.keras.optimizers.legacy", "tf.compat.v1.keras.optimizers")
_ERRORS = {f"tf.compat.v1.metrics.{name}": name.title().replace("_", "") for name in (
    "root_mean_squared_error", "mean_squared_error", "mean_absolute_error")}  # fmt: skip
_NAMED = {"Adagrad": "Adagrad({})", "Adam": "Adam({}, epsilon=1e-8)", "Ftrl": "Ftrl({})", "SGD": "SGD({})"}


def parameters_of(name: str) -> tuple[str, ...]:
    """Return the parameters of a canned Estimator that have a position, then the others."""
    kind, head = CANNED[name]
    before, behind = _KINDS[kind]
    return (*before, *_HEAD[head], *behind)


def write_canned(names: FileNames, estimator: Any, *, prefix: str) -> Model:
    """Return the Keras model of a canned Estimator.

    Args:
        names: the meanings of the file's expressions.
        estimator: its `EstimatorJob`.
        prefix: the start of the new names.

    Raises:
        Refused: an argument has no replacement.
    """
    call = estimator.model_fn
    name = names.name(call.func)
    if estimator.config.strategy is not None:
        raise Refused("a canned Estimator under a strategy", estimator.config.strategy)
    return _Writer(names, call, estimator.args_made, *CANNED[name], _is_of_v1(names, name), prefix,
                   estimator.metric_fns).model()  # fmt: skip


def _is_of_v1(names: FileNames, name: str) -> bool:
    """Return whether a canned Estimator is that of TensorFlow 1, by its name or by a file that its file imports."""
    files = names.program.reached(names.tree, set(names.program.trees.values()))
    return name.startswith("tf.compat.v1.") or any(tree.tensorflow_1 for tree in files)


@dataclass
class _Writer:
    names: FileNames
    call: cst.Call
    args: Mapping[str, cst.BaseExpression]
    kind: str
    head: str
    of_v1: bool
    prefix: str
    metric_fns: Mapping[cst.BaseExpression, cst.FunctionDef]
    passed: dict[str, cst.BaseExpression] = field(default_factory=dict)
    needs: set[str] = field(default_factory=set)

    def model(self) -> Model:
        for parameter in ("weight_column", "label_vocabulary", "warm_start_from"):
            if parameter in self.args:
                raise Refused(f"{parameter} of {self.kind}{self.head}", self.args[parameter])
        if "label_dimension" in self.args and self.number("label_dimension", 1) != 1:
            raise Refused("label_dimension of a regressor", self.args["label_dimension"])
        self.check_metrics()
        lines = self.parts()
        optimizers, loss, metrics = self.optimizers(), self.loss(), self.metrics()
        self.passed = {name: value for name, value in self.args.items() if name in self.passed}  # in the user's order
        left_out = ", ".join(self.left_out())
        make, predictions = f"{self.prefix}make_model", f"{self.prefix}make_predictions"
        text = [
            f"def {make}({', '.join(['features', *self.passed])}):",
            '    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""',
            "    features = ReadFeatures(features)",
            *(f"    {line}" for line in lines),
            "    model.compile(",
            *(f"        {line}," for line in optimizers),
            f"        loss={loss},",
            f"        metrics=[{f'  # without {left_out}' if left_out else ''}",
            *(f"            {metric}," for metric in metrics),
            "        ],",
            "    )",
            "    return model",
        ]
        code = [cst.parse_statement("\n".join(text) + "\n"), self.predictions(predictions)]
        consumed = frozenset(value for name, value in self.args.items() if name not in (*_OF_JOB, *self.passed))
        needs, passed = {self.names.tree: self.needs}, tuple(self.passed.values())
        return Model(tuple(code), make, predictions, False, {}, needs, passed, consumed, self.of_examples,
                     restores_rates=not self.of_v1)  # fmt: skip

    # Arguments

    def number(self, parameter: str, default: int) -> int:
        """Return the integer of an argument."""
        value = self.names.value(self.args[parameter]) if parameter in self.args else cst.Integer(str(default))
        if not isinstance(value, cst.Integer):
            raise Refused(f"{parameter} that is not known before the program runs", self.args[parameter])
        return int(value.value)

    def written(self, parameter: str) -> str:
        """Return an argument for the body of `make_model`: itself if it has no variables, else a parameter."""
        node = self.args[parameter]
        if self.has_variables(node):
            self.passed[parameter] = node
            return parameter
        return CodeRewriter(self.names, SETUP, needs=self.needs).text(node)

    def has_variables(self, node: cst.CSTNode) -> bool:
        return any(inner in self.names.tree.where and self.names.is_variable(inner) for inner in iter_nodes(node))

    def only(self, parameter: str, *texts: str) -> bool:
        """Return whether an argument is passed; it has to be one of these texts."""
        if parameter in self.args and self.names.text(self.args[parameter]) not in texts:
            raise Refused(f"{parameter} of {self.kind}{self.head}", self.args[parameter])
        return parameter in self.args

    # Parts

    @property
    def units(self) -> str:
        """Return the number of logits."""
        two = self.head == "Regressor" or self.number("n_classes", 2) == 2
        return "1" if two else self.written("n_classes")

    def parts(self) -> list[str]:
        """Return the statements that make the model."""
        tf = self.names.tf
        self.needs.add("ReadFeatures")
        if self.kind != "DNNLinearCombined":
            lines = self.dnn("") if self.kind == "DNN" else self.linear("")
            return [*lines, f"model = {tf}.keras.Model(features.read, logits)"]
        self.needs.add("WideAndDeepModel")
        lines = [*self.dnn("dnn_"), *(line.replace("logits =", "linear =") for line in self.linear("linear_"))]
        return [*lines, f"model = WideAndDeepModel(features.read, {tf}.keras.layers.Add()([logits, linear]))"]

    def dnn(self, part: str) -> list[str]:
        layers = f"{self.names.tf}.keras.layers"
        self.needs.add("dense_columns")
        layer_sizes = self.names.value(self.args.get(f"{part}hidden_units", cst.List([])))
        numbers = isinstance(layer_sizes, (cst.List, cst.Tuple)) and all(
            isinstance(element.value, cst.Integer) for element in layer_sizes.elements
        )
        options = f"{'units' if numbers else 'int(units)'}, activation={self.activation(part)}"
        lines = [
            f"net = dense_columns(features, {self.columns(part)})",
            f"for units in {self.written(f'{part}hidden_units')}:",
            f"    net = {layers}.Dense({options})(net)",
        ]
        if f"{part}dropout" in self.args:
            lines.append(f"    net = {layers}.Dropout({self.written(f'{part}dropout')})(net)")
        if self.only("batch_norm", "True", "False") and self.names.text(self.args["batch_norm"]) == "True":
            lines.append(f"    net = {layers}.BatchNormalization(momentum=0.999)(net)")
        return [*lines, f"logits = {layers}.Dense({self.units})(net)"]

    def linear(self, part: str) -> list[str]:
        self.needs.add("linear_columns")
        parameter = f"{part}sparse_combiner"
        combiner = f", sparse_combiner={self.written(parameter)}" if parameter in self.args else ""
        return [f"logits = linear_columns(features, {self.columns(part)}, {self.units}{combiner})"]

    def columns(self, part: str) -> str:
        parameter = f"{part}feature_columns"
        if parameter not in self.args:
            raise Refused(f"a {self.kind}{self.head} without {parameter}", self.call)
        self.passed[parameter] = self.args[parameter]
        return parameter

    def activation(self, part: str) -> str:
        value = self.args.get(f"{part}activation_fn")
        if value is None:
            return "'relu'"
        if isinstance(value, cst.SimpleString):
            return self.names.text(value)
        known = activations.function(self.names.name(value), "tf")
        if not known:
            raise Refused(f"activation_fn={self.names.text(value)}", value)
        return repr(known.rpartition(".")[2])

    def optimizers(self) -> list[str]:
        """Return the arguments of `compile` for the optimizers."""
        if self.kind != "DNNLinearCombined":
            return [f"optimizer={self.optimizer('')}"]
        both = [self.args[name] for name in ("dnn_optimizer", "linear_optimizer") if name in self.args]
        if len({self.names.value(node) for node in both}) < len(both):
            raise Refused("one optimizer object for both parts", both[0])
        variables = f"{self.names.tf}.keras.Model(features.read, linear).trainable_variables"
        return [f"optimizer={self.optimizer('dnn_')}", f"linear_optimizer={self.optimizer('linear_')}",
                f"linear_variables={variables}"]  # fmt: skip

    def optimizer(self, part: str) -> str:
        parameter = f"{part}optimizer"
        tf, node = self.names.tf, self.args.get(parameter)
        if node is None:
            default = "Ftrl" if part == "linear_" or self.kind == "Linear" else "Adagrad"
            return f"{tf}.keras.optimizers.{self.named(default, part)}"
        value = self.names.value(node)
        if isinstance(value, cst.SimpleString):
            name = str(value.evaluated_value)
            if name not in _NAMED:
                raise Refused(f"the optimizer {name} of a {self.kind}{self.head}", node)
            return f"{tf}.keras.optimizers.{self.named(name, part)}"
        if isinstance(value, cst.Lambda) and not value.params.params:
            value = value.body
        module, _, name = (self.names.name(value.func) if isinstance(value, cst.Call) else "").rpartition(".")
        known = f"{module}.{name}" in OPTIMIZERS if self.of_v1 else module in _KERAS and name in _NAMED
        if not known or not isinstance(value, cst.Call):
            raise Refused(f"the optimizer {self.names.text(node)}", node)
        if self.has_variables(value):
            if node is not value or not (self.of_v1 or module == _KERAS[0]):
                raise Refused(f"the optimizer {self.names.text(node)}, which depends on variables", node)
            self.passed[parameter] = node
            return parameter
        rewriter = CodeRewriter(self.names, SETUP, needs=self.needs)
        if self.of_v1:
            return rewriter.text(value)
        for arg in value.args:
            if arg.star or (arg.keyword is not None and arg.keyword.value in ("decay", "lr")):
                raise Refused("an option of an optimizer that only Keras 2 has", arg)
        options = [(f"{arg.keyword.value}=" if arg.keyword else "") + rewriter.text(arg.value) for arg in value.args]
        return f"{tf}.keras.optimizers.{name}({', '.join(options)})"

    def named(self, name: str, part: str) -> str:
        """Return the optimizer of a name, with the rate that the Estimator has for it."""
        if part or self.kind == "Linear":
            linear = f"min({'0.005' if part else '0.2'}, len({part}feature_columns) ** -0.5)"
            rate = "0.001" if part == "dnn_" else linear
        elif not self.of_v1:
            return f"{name}()"  # with the rate of Keras
        else:
            rate = "0.05"
        return (_NAMED[name] if self.of_v1 else f"{name}({{}})").format(rate)

    def loss(self) -> str:
        reduction, value = "sum" if self.of_v1 else "", self.args.get("loss_reduction")
        if value is not None:
            text = str(value.evaluated_value) if isinstance(value, cst.SimpleString) else self.names.text(value)
            member = text.rpartition(".")[2].lower()
            means = ("sum_over_batch_size", "mean", "sum_by_nonzero_weights", "sum_over_nonzero_weights", "auto")
            if member not in ("sum", *means):
                raise Refused(f"loss_reduction={self.names.text(value)}", value)
            reduction = "sum" if member == "sum" else ""
        options = ["from_logits=True"] if self.head == "Classifier" else []
        options += [f"reduction={reduction!r}"] if reduction else []
        return f"{self.names.tf}.keras.losses.{self.loss_class}({', '.join(options)})"

    @property
    def loss_class(self) -> str:
        if self.head == "Regressor":
            return "MeanSquaredError"
        return "BinaryCrossentropy" if self.units == "1" else "SparseCategoricalCrossentropy"

    def left_out(self) -> list[str]:
        """Return the metrics of the Estimator that Keras does not have."""
        if self.head == "Classifier" and self.units != "1":
            return []
        names = [_ACCURACY_BASELINE] if self.head == "Classifier" else []
        names += [_PRECISION_RECALL] if self.head == "Classifier" and self.of_v1 else []
        return [*names, *_MEANS]

    def check_metrics(self) -> None:
        """Check that the program reads no metric that Keras does not have."""
        program, tree = self.names.program, self.names.tree
        for text in (text for used in program.trees.values() if used is tree or tree in program.imports(used)
                     for text in used.strings):  # fmt: skip
            if (key := str(text.evaluated_value)) in self.left_out():
                raise Refused(f"the metric {key}, which Keras does not have", text)

    def metrics(self) -> list[str]:
        tf = self.names.tf
        logits = ", from_logits=True" if self.head == "Classifier" else ""
        mean = f'{tf}.keras.metrics.{self.loss_class}(name="average_loss"{logits})'
        if self.head == "Regressor":
            return [mean, *(text for node in self.metric_fns.items() for text in self.added(*node))]
        if self.metric_fns:
            raise Refused("add_metrics, of a classifier", next(iter(self.metric_fns)))
        if self.units != "1":
            return [f'{tf}.keras.metrics.SparseCategoricalAccuracy(name="accuracy")', mean]
        self.needs |= {"LogitsAccuracy", "LogitsCrossentropy", "LogitsPrecision", "LogitsRecall"}
        metrics = [
            'LogitsAccuracy(name="accuracy")',
            'LogitsCrossentropy(name="average_loss", from_logits=True)',
            'LogitsPrecision(name="precision")',
            'LogitsRecall(name="recall")',
            f'{tf}.keras.metrics.AUC(name="auc", from_logits=True)',
        ]
        if not self.of_v1:
            metrics.append(f'{tf}.keras.metrics.AUC(name="{_PRECISION_RECALL}", curve="PR", from_logits=True)')
        return metrics

    def added(self, node: cst.BaseExpression, function: cst.FunctionDef) -> Iterator[str]:
        """Yield the metrics of a metric_fn: errors of the predictions, which Keras brings to the rank of the labels."""
        refusal, names = Refused("a metric_fn of more than errors of the predictions", node), self.names
        body = [small for line in function.body.body for small in getattr(line, "body", (line,))]
        (returned,) = names.tree.scopes[function].returns or (None,)
        table = names.value(returned) if returned is not None else None
        plain = all(isinstance(small, (cst.Assign, cst.Return)) or isinstance(getattr(small, "value", None),
                    cst.SimpleString) for small in body)  # fmt: skip
        takes = {"labels", "predictions"}
        if not plain or not isinstance(table, cst.Dict) or {*parameters(function)} - takes or (
            takes & names_bound(function.body)
        ):  # fmt: skip
            raise refusal
        for element in table.elements:
            call = names.value(element.value)
            keras = _ERRORS.get(names.name(call.func)) if isinstance(call, cst.Call) else None
            if keras is None or not isinstance(call, cst.Call) or not isinstance(element, cst.DictElement):
                raise refusal
            passed = {key: self.unwrapped(arg.value) for key, arg in arguments(call, ("labels", "predictions")).items()}
            if len(call.args) > 2 or passed != {"labels": "labels", "predictions": 'predictions["predictions"]'}:
                raise refusal
            yield f"{names.tf}.keras.metrics.{keras}(name={names.text(element.key)})"

    def unwrapped(self, node: cst.BaseExpression) -> str:
        """Return the text of a tensor without changes of its rank and of its type to a float."""
        value = self.names.value(node)
        if not isinstance(value, cst.Call) or not value.args:
            return self.names.text(value).replace("'", '"')
        name = self.names.name(value.func).rpartition(".")[2]
        rest = [self.names.text(arg.value) for arg in value.args[1:]]
        if (name == "squeeze" and rest in ([], ["-1"], ["1"])) or (
            name == "cast" and rest and rest[0].rpartition(".")[2] in ("float32", "float64")
        ):  # fmt: skip
            return self.unwrapped(value.args[0].value)
        return self.names.text(value)

    @property
    def of_examples(self) -> str:
        """Return the signatures that an export has for serialized examples. Source: head.py of tensorflow_estimator."""
        regression = '"regression": {"outputs": "%s"}'
        if self.head == "Regressor":
            return f"of_examples={{{regression % 'predictions'}}}"
        classes = '"classification": {"classes": "all_classes", "scores": "probabilities"}'
        return f"of_examples={{{', '.join([classes, *([regression % 'logistic'] if self.units == '1' else [])])}}}"

    def predictions(self, name: str) -> cst.BaseStatement:
        tf = self.names.tf
        lines = [f"def {name}(features, logits):", '    """Return the predictions for outputs of the model."""']
        if self.head == "Regressor":
            return cst.parse_statement("\n".join([*lines, '    return {"predictions": logits}']) + "\n")
        of_classes, logistic = "logits", ""
        if self.units == "1":
            of_classes, logistic = "of_classes", f'        "logistic": {tf}.sigmoid(logits),'
            lines.append(f"    of_classes = {tf}.concat([{tf}.zeros_like(logits), logits], axis=-1)")
        lines += [
            f"    class_ids = {tf}.argmax({of_classes}, axis=-1)[:, {tf}.newaxis]",
            f"    all_class_ids = {tf}.ones_like({of_classes}, {tf}.int32) * {tf}.range({tf}.shape({of_classes})[1])",
            "    return {",
            '        "logits": logits,',
            *([logistic] if logistic else []),
            f'        "probabilities": {tf}.nn.softmax({of_classes}),',
            '        "class_ids": class_ids,',
            f'        "classes": {tf}.strings.as_string(class_ids),',
            '        "all_class_ids": all_class_ids,',
            f'        "all_classes": {tf}.strings.as_string(all_class_ids),',
            "    }",
        ]
        return cst.parse_statement("\n".join(lines) + "\n")

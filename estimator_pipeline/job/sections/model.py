"""The section `model` of the job file: network, loss, optimizer, metrics and exports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from estimator_pipeline.job.base import FunctionRef, MetricName, Name, Problem, Section, piecewise_problems
from estimator_pipeline.job.sections.features import FeatureColumns
from estimator_pipeline.utils.text import nearest

__all__ = [
    "Constant",
    "Cosine",
    "Exponential",
    "ExportSection",
    "InverseTime",
    "OF_LAYERS",
    "ModelSection",
    "OptimizerSection",
    "Piecewise",
    "Polynomial",
    "Schedule",
]

_Positive = Annotated[float, Field(gt=0)]
_Steps = Annotated[int, Field(gt=0)]
_Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # of a class, a loss or the weight decay


class Constant(Section):
    """The same learning rate at every step."""

    kind: Literal["constant"]
    learning_rate: _Positive


class Exponential(Section):
    """`initial_learning_rate * decay_rate ** (step / decay_steps)`; whole powers only with `staircase`."""

    kind: Literal["exponential"]
    initial_learning_rate: _Positive
    decay_steps: _Steps
    decay_rate: _Positive
    staircase: bool = False


class InverseTime(Section):
    """`initial_learning_rate / (1 + decay_rate * step / decay_steps)`; whole steps only with `staircase`."""

    kind: Literal["inverse_time"]
    initial_learning_rate: _Positive
    decay_steps: _Steps
    decay_rate: _Positive
    staircase: bool = False


class Piecewise(Section):
    """`values[i]` up to and including step `boundaries[i]`, then the next value."""

    kind: Literal["piecewise"]
    boundaries: Annotated[list[_Steps], Field(min_length=1)]
    values: Annotated[list[float], Field(min_length=2)]

    def problems(self) -> Iterator[Problem]:
        return piecewise_problems(self.boundaries, self.values, "steps")


class Cosine(Section):
    """Half a cosine from `initial_learning_rate` to `alpha` times it, after an optional linear warm-up."""

    kind: Literal["cosine"]
    initial_learning_rate: Annotated[float, Field(ge=0)]
    decay_steps: _Steps
    alpha: Annotated[float, Field(ge=0)] = 0.0
    warmup_target: _Positive | None = None
    warmup_steps: Annotated[int, Field(ge=0)] = 0

    def problems(self) -> Iterator[Problem]:
        if self.warmup_steps and self.warmup_target is None:
            yield Problem(
                ("warmup_steps",),
                "a warm-up has no target.",
                f"warmup_steps {self.warmup_steps} without warmup_target",
                "set warmup_target, the learning rate at the end of the warm-up.",
            )


class Polynomial(Section):
    """A polynomial from `initial_learning_rate` to `end_learning_rate` in `decay_steps` steps."""

    kind: Literal["polynomial"]
    initial_learning_rate: _Positive
    decay_steps: _Steps
    end_learning_rate: Annotated[float, Field(ge=0)] = 0.0001
    power: _Positive = 1.0
    cycle: bool = False


_KINDS = ["constant", "exponential", "piecewise", "cosine", "polynomial", "inverse_time"]


def _rate_tag(value: Any) -> str | None:
    """Return a union tag; it starts with "~", which distinguishes it from field names in an error's location."""
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    if isinstance(value, dict) or kind is not None:
        return f"~{kind}" if kind in _KINDS else None
    return "~number"


Schedule = Constant | Exponential | InverseTime | Piecewise | Cosine | Polynomial
"""A learning rate that depends on the global step, with the parameters of tf.keras.optimizers.schedules."""

LearningRate = Annotated[
    Annotated[_Positive, Tag("~number")]
    | Annotated[Constant, Tag("~constant")]
    | Annotated[Exponential, Tag("~exponential")]
    | Annotated[Piecewise, Tag("~piecewise")]
    | Annotated[Cosine, Tag("~cosine")]
    | Annotated[Polynomial, Tag("~polynomial")]
    | Annotated[InverseTime, Tag("~inverse_time")],
    Discriminator(
        _rate_tag,
        custom_error_type="choose",
        custom_error_message="no such kind",
        custom_error_context={"key": "kind", "choices": ", ".join(_KINDS)},
    ),
]

# The options of tf.compat.v1.train.*Optimizer and of the Keras 2 optimizers that a model_fn can use, except the
# learning rate. They are listed because the names of the two APIs differ (beta1, beta_1).
_FTRL = (
    "learning_rate_power",
    "initial_accumulator_value",
    "l1_regularization_strength",
    "l2_regularization_strength",
    "l2_shrinkage_regularization_strength",
    "beta",
)
_ADAM = {"v1": ("beta1", "beta2", "epsilon"), "keras": ("beta_1", "beta_2", "epsilon", "amsgrad")}
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "v1": {
        "sgd": (),
        "momentum": ("momentum",),
        "nesterov": ("momentum",),
        "adam": _ADAM["v1"],
        "adamw": _ADAM["v1"],
        "adagrad": ("initial_accumulator_value",),
        "rmsprop": ("decay", "momentum", "epsilon", "centered"),
        "ftrl": _FTRL,
    },
    "keras": {
        "sgd": (),
        "momentum": ("momentum",),
        "nesterov": ("momentum",),
        "adam": _ADAM["keras"],
        "adamw": _ADAM["keras"],
        "adagrad": ("initial_accumulator_value", "epsilon"),
        "rmsprop": ("rho", "momentum", "epsilon", "centered"),
        "ftrl": _FTRL,
    },
}


class OptimizerSection(Section):
    """The optimizer and its learning rate.

    Fields:
        name: `momentum` is SGD with momentum (0.9 by default), `nesterov` with Nesterov momentum, `adamw` Adam with a
            default weight decay of 0.004.
        learning_rate (float > 0, or schedule): A number, or a schedule of the global step.
        api: `v1`: `tf.compat.v1.train` optimizers. `keras`: Keras optimizers.
        options: Further arguments of the optimizer class.
        warmup_steps: Steps of linear warm-up to the value of `learning_rate` at that step.
        warmup_from: Learning rate at step 0 of the warm-up.
        weight_decay: Decoupled weight decay: each step first multiplies a variable by 1 - `weight_decay` * learning
            rate. Not for ftrl.
        exclude_from_weight_decay: Names of weights within their layers that do not decay, such as `[bias, gamma,
            beta]`.
        gradient_accumulation_steps: Batches whose mean gradient makes one update. Each batch counts as a step. Not with
            parameter servers.
        ema_momentum: Evaluate and export exponential moving averages of the weights with this momentum, such as 0.999.
    """

    name: Literal["sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "rmsprop", "ftrl"] = "sgd"
    learning_rate: LearningRate = 0.01
    api: Literal["v1", "keras"] = "v1"
    options: dict[str, float | bool] = {}
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    warmup_from: Annotated[float, Field(ge=0)] = 0.0
    weight_decay: _Weight | None = None
    exclude_from_weight_decay: list[Annotated[str, Field(min_length=1)]] = []
    gradient_accumulation_steps: Annotated[int, Field(ge=1)] = 1
    ema_momentum: Annotated[float, Field(gt=0, lt=1)] | None = None

    def problems(self) -> Iterator[Problem]:
        if self.warmup_from and not self.warmup_steps:
            yield Problem(
                ("warmup_from",),
                "a warm-up has no length.",
                f"warmup_from {self.warmup_from:g} without warmup_steps",
                "set warmup_steps, the number of steps of the warm-up.",
            )
        if self.warmup_steps and isinstance(self.learning_rate, Cosine) and self.learning_rate.warmup_steps:
            yield Problem(
                ("warmup_steps",),
                "the learning rate is warmed up twice.",
                f"warmup_steps {self.warmup_steps}, and {self.learning_rate.warmup_steps} in the schedule",
                "keep one of them.",
            )
        if self.exclude_from_weight_decay and not self.weight_decay and self.name != "adamw":
            yield Problem(
                ("exclude_from_weight_decay",),
                "there is no weight decay.",
                f"{self.exclude_from_weight_decay} without weight_decay",
                "set weight_decay, or leave this field out.",
            )
        if self.weight_decay and self.name == "ftrl":
            yield Problem(
                ("weight_decay",),
                "ftrl recomputes each weight from its accumulators, which would undo the decay.",
                f"weight_decay {self.weight_decay:g} with ftrl",
                "set l2_regularization_strength in options, or use a different optimizer.",
            )
        allowed = OPTIONS[self.api][self.name]
        for key in self.options:
            if key not in allowed:
                close = nearest(key, allowed)
                yield Problem(
                    ("options", key),
                    f"the optimizer {self.name!r} ({self.api}) has no such option.",
                    f"{key!r}; allowed: {', '.join(allowed) or 'none'}",
                    f"did you mean {close!r}?" if close else "leave it out, or use a different optimizer.",
                    code="job/unknown-field",
                )


def _weights_tag(value: Any) -> str | None:
    kinds = {list: "~list", dict: "~mapping", type(None): "~none"}
    return "~balanced" if value == "balanced" else kinds.get(type(value))


_ClassWeights = Annotated[
    Annotated[None, Tag("~none")]
    | Annotated[list[_Weight], Tag("~list")]
    | Annotated[dict[str, _Weight], Tag("~mapping")]
    | Annotated[Literal["balanced"], Tag("~balanced")],
    Discriminator(
        _weights_tag,
        custom_error_type="class_weights",
        custom_error_message="a list of weights, a mapping from class numbers to weights, or balanced",
    ),
]


class ExportSection(Section):
    """What a SavedModel of the job can be asked for, besides `predict` under the default signature.

    Fields:
        signatures: Signatures of SavedModels; the default signature is `predict`.
    """

    signatures: Annotated[list[Literal["predict", "classify", "regress"]], Field(min_length=1)] = ["predict"]

    def problems(self) -> Iterator[Problem]:
        if len(set(self.signatures)) != len(self.signatures):
            yield Problem(
                ("signatures",),
                "a signature is named twice.",
                f"{self.signatures}",
                "name each once.",
                code="job/bad-value",
            )


_CANNED = "estimator_pipeline.models.canned:"
# The arguments of the canned Estimators that a job file sets in `params`. Others follow from the table and the sections
# of the job, or need a program.
_DNN = ("hidden_units", "optimizer", "dropout", "batch_norm", "embedding_dim")
_LINEAR = ("optimizer", "sparse_combiner")
_COMBINED = (
    *("linear_optimizer", "linear_sparse_combiner", "dnn_hidden_units", "dnn_optimizer", "dnn_dropout"),
    *("batch_norm", "embedding_dim"),
)
_CannedName = Literal[
    "LinearClassifier",
    "LinearRegressor",
    "DNNClassifier",
    "DNNRegressor",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedRegressor",
]
OF_LAYERS = (
    *("loss", "head", "optimizer", "metrics", "clip_norm", "clip_value", "label_smoothing", "class_weights"),
    *("outputs", "mixed_precision"),
)
"""Fields for layers. A model_fn defines these itself, and so does a canned Estimator."""
_HeadName = Literal["multi_class", "one_hot", "binary", "multi_label", "regression"]


def _by_number(weights: Any, names: Sequence[str]) -> list[float] | dict[int, float] | None:
    """Return class weights by class number; None if they are balanced."""
    if not isinstance(weights, dict):
        return None if weights == "balanced" else weights
    return {names.index(name) if name in names else int(name): weight for name, weight in weights.items()}


def _class_problems(weights: Any, names: Sequence[str]) -> Iterator[Problem]:
    for name in weights if isinstance(weights, dict) else ():
        if not name.isdecimal() and name not in names:
            yield Problem(
                ("class_weights", name),
                "this is not a class.",
                f"{name!r}; allowed: whole numbers from 0 on" + (f", {', '.join(names)}" if names else ""),
                "name classes by number (the first is 0), or as in label_vocabulary.",
                code="job/bad-value",
            )
    if len(set(names)) < len(names):
        yield Problem(
            ("label_vocabulary",), "a class is named twice.", f"{names}", "name each class once.", code="job/bad-value"
        )


def _metric_problems(metrics: Sequence[str]) -> Iterator[Problem]:
    names = [metric.rpartition(":")[2].rpartition(".")[2] if ":" in metric else metric for metric in metrics]
    for number, name in enumerate(names):
        first = names.index(name)
        if first < number and ":" in metrics[first] + metrics[number]:
            yield Problem(
                ("metrics", number),
                "two metrics have one name.",
                f"{metrics[first]!r} and {metrics[number]!r} are both reported as {name!r}",
                "leave one of them out, or rename the function.",
            )


class OutputSection(Section):
    """Loss, head and metrics of one of several outputs; its labels have the same name.

    Fields:
        loss: Name of a loss.
        head: Meaning of the logits, if the loss allows several. null: the loss's.
        metrics: As `model.metrics`, reported as NAME_metric.
        label_smoothing: Share of each label that is spread evenly over the classes.
        class_weights (list, mapping or balanced): Weight of each class in the loss and metrics of this output.
        label_vocabulary: Names of the classes, in order.
        loss_weight: Factor of the loss in the sum of all outputs.
    """

    loss: Annotated[str, Field(min_length=1)]
    head: _HeadName | None = None
    metrics: list[MetricName] = []
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    class_weights: _ClassWeights = None
    label_vocabulary: list[Annotated[str, Field(min_length=1)]] = []
    loss_weight: _Weight = 1.0

    @property
    def weights_of_classes(self) -> list[float] | dict[int, float] | None:
        """`class_weights`, with classes by number; None if they are balanced."""
        return _by_number(self.class_weights, self.label_vocabulary)

    def problems(self) -> Iterator[Problem]:
        yield from _class_problems(self.class_weights, self.label_vocabulary)
        yield from _metric_problems(self.metrics)


class ModelSection(Section):
    """The network (by name or as a user function), its loss, optimizer and metrics.

    Fields:
        name: A model of `model_fns/`: cnn, dnn, linear, resnet, wide_deep. Set either `name` or `function`.
        function: A function whose first parameter is `features` is a model_fn; any other builds layers and requires
            `loss`. The folder of a file is put first on the import path.
        estimator: A canned Estimator for a table with features, instead of `name`; its arguments are `params`.
        params: Keyword arguments of the model; see `DEFAULTS` in its file. `input_shape` and, for a TFDS ClassLabel,
            `classes` default to those of the data.
        loss: Name of a loss. null: the model's. See docs/guides/model_fn.md.
        head: Meaning of the logits, if the loss allows several: `multi_label` with `binary_crossentropy`. null: the
            loss's.
        optimizer: Optimizer and learning rate.
        metrics: Names of metrics, in addition to the loss and those of the model. With weights of records or classes,
            metrics are weighted; `unweighted_accuracy` is `accuracy` without weights. `my.py:f1` is a class of a Keras
            metric, or a function without arguments that returns one. See docs/guides/model_fn.md.
        clip_norm: Maximum global norm of the reduced gradients.
        clip_value: Maximum absolute value of the reduced gradients. Not with `clip_norm`.
        label_smoothing: Share of each label that is spread evenly over the classes, in training and evaluation.
        class_weights (list, mapping or balanced): Weight of each class in loss and metrics: a list, or a mapping such
            as `{"3": 5.0}` from numbers or names of classes; other classes have weight 1. `balanced`, for tables with
            features: the number of training records / (number of classes * records of the class). See
            docs/guides/model_fn.md.
        label_vocabulary: Names of the classes, in order. Labels may then be strings, and predictions contain class
            names.
        outputs: For a model that returns a dict of logits: settings of each output. They replace `loss`, `head`,
            `metrics`, `label_smoothing`, `class_weights` and `label_vocabulary`. See docs/guides/model_fn.md.
        features: For CSV and Parquet: the meaning of columns that differs from what is found in the training records.
            The model then has numbers and ids as inputs, and exports take the columns. See docs/guides/tables.md. null:
            `{}` if `input.columns` is null, otherwise the columns are inputs as they are.
        mixed_precision: Compute in bfloat16, keep variables in float32.
        export: Signatures of SavedModels.
    """

    name: Name | None = None
    function: FunctionRef | None = None
    estimator: _CannedName | None = None
    params: dict[str, Any] = {}
    loss: Annotated[str, Field(min_length=1)] | None = None
    head: _HeadName | None = None
    optimizer: OptimizerSection = OptimizerSection()
    metrics: list[MetricName] = []
    clip_norm: _Positive | None = None
    clip_value: _Positive | None = None
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    class_weights: _ClassWeights = None
    label_vocabulary: list[Annotated[str, Field(min_length=1)]] = []
    outputs: dict[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")], OutputSection] = {}
    features: FeatureColumns | None = None
    mixed_precision: bool = False
    export: ExportSection = ExportSection()

    @model_validator(mode="before")
    @classmethod
    def _function_of_estimator(cls, data: Any) -> Any:
        """Set the function of a canned Estimator, a model_fn of this package."""
        if isinstance(data, dict) and isinstance(data.get("estimator"), str) and not data.get("function"):
            return {**data, "function": _CANNED + data["estimator"]}
        return data

    @property
    def weights_of_classes(self) -> list[float] | dict[int, float] | None:
        """`class_weights`, with classes by number; None if they are balanced."""
        return _by_number(self.class_weights, self.label_vocabulary)

    @property
    def functions(self) -> list[tuple[str, str]]:
        """The user-defined functions, as (field, reference)."""
        metrics = [("model.metrics", self.metrics)]
        metrics += [(f"model.outputs.{name}.metrics", output.metrics) for name, output in self.outputs.items()]
        functions = [(field, metric) for field, names in metrics for metric in names if ":" in metric]
        return [*([] if self.function is None else [("model.function", self.function)]), *functions]

    def problems(self) -> Iterator[Problem]:
        yield from _class_problems(self.class_weights, self.label_vocabulary)
        yield from _metric_problems(self.metrics)
        if self.estimator is not None:
            yield from self._beside_estimator()
            return
        if self.outputs:
            yield from self._beside_outputs()
        if (self.name is None) == (self.function is None):
            both = self.name is not None
            yield Problem(
                ("function",) if both else (),
                "the model is set both by name and by function." if both else "the model is not set.",
                f"name {self.name!r} and function {self.function!r}" if both else "neither name nor function",
                "keep exactly one of them."
                if both
                else 'add name (a model of model_fns, such as cnn) or function ("module:function").',
            )
        if self.clip_norm is not None and self.clip_value is not None:
            yield Problem(
                ("clip_value",),
                "gradients are clipped twice.",
                f"clip_norm {self.clip_norm} and clip_value {self.clip_value}",
                "keep one of them.",
            )

    def _beside_estimator(self) -> Iterator[Problem]:
        others = {
            "name": self.name,
            "function": self.function if self.function != _CANNED + str(self.estimator) else None,
        }
        for field, value in others.items():
            if value is not None:
                yield Problem(
                    (field,),
                    f"the model is set both by {field} and by estimator.",
                    f"{field} {value!r} and estimator {self.estimator!r}",
                    "keep exactly one of them.",
                )
        canned = str(self.estimator)
        allowed = _COMBINED if "Combined" in canned else _DNN if canned.startswith("DNN") else _LINEAR
        for name in self.params:
            if name not in allowed:
                yield Problem(
                    ("params", name),
                    f"{canned} has no such parameter in a job file.",
                    f"{name!r}; allowed: {', '.join(allowed)}",
                    "correct it, or leave it out.",
                    code="argument/unknown-name",
                )
        for field in OF_LAYERS:
            if getattr(self, field) != type(self).model_fields[field].default:
                yield Problem(
                    (field,),
                    "this is fixed in a canned Estimator.",
                    f"{field} with estimator {self.estimator!r}",
                    "leave it out, set an argument of the class in params, such as dnn_optimizer, or use name.",
                )

    def _beside_outputs(self) -> Iterator[Problem]:
        names = ", ".join(self.outputs)
        for field in ("loss", "head", "metrics", "label_smoothing", "class_weights", "label_vocabulary"):
            if getattr(self, field):
                yield Problem(
                    (field,),
                    "the model has several outputs, and each needs a separate value.",
                    f"{field} beside outputs ({names})",
                    f"move it to an output: model.outputs.{next(iter(self.outputs))}.{field}.",
                )
        if self.name is not None:
            yield Problem(
                ("outputs",),
                "the models of model_fns have one output.",
                f"outputs ({names}) with name {self.name!r}",
                "use a custom model: set function.",
            )

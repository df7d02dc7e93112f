"""Outputs of a model: one, or several by name, each with its own labels, loss and metrics.

A model with several outputs returns a dictionary of logits. Its data have a dictionary of labels with the same names;
other labels are ignored.

* The loss is the sum of the outputs' losses, each multiplied by its `loss_weight`; so is `average_loss`.
* Metric names start with the output's name, as in Keras: `digit_accuracy`, `digit_average_loss`.
* Predictions, and the outputs of `serving_default` and `predict`, are named `digit/probabilities`. Each output has the
  signatures `digit/predict`, `digit/classification`, `digit/regression`, as in `tf.estimator.MultiHead`.
* Sample weights apply to every output, class weights only to their output.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models import label_checks
from estimator_pipeline.models.heads import Head, head_of
from estimator_pipeline.models.metrics import METRICS, is_known, names_of, of_rank
from estimator_pipeline.models.sample_weights import ClassWeights, Weighting, weighting_of
from estimator_pipeline.models.user_metrics import UserMetric

__all__ = ["UNWEIGHTED", "Output", "Outputs", "keras_batches", "outputs_of"]

# The name of the output of a single-output model: its labels and logits are tensors.
_SINGLE = ""
_DEFAULT = "serving_default"
UNWEIGHTED = "unweighted_"
"""Begins the name of a metric that ignores the weights."""


@dataclass(frozen=True)
class Output:
    """One of several outputs of a model.

    Attributes:
        loss: A name (see `estimator_pipeline.models.heads`), or `loss(labels, logits)` -> the loss of each example
            [B].
        head: The meaning of the logits, where the loss does not define it.
        metrics: Names, or any other value that `build_model_fn` or `build_keras_model` accepts. None: the head's
            first metric.
        label_smoothing: The share of each label that is spread evenly over the classes.
        class_weights: The weight of each class in this output's loss and metrics.
        label_vocabulary: The class names, in order.
        loss_weight: The factor of this loss in the total loss, 0 or more.
    """

    loss: str | Callable[[Any, Any], Any]
    head: str | None = None
    metrics: Sequence[Any] | Mapping[str, Any] | None = None
    label_smoothing: float = 0.0
    class_weights: ClassWeights | None = None
    label_vocabulary: Sequence[str] = ()
    loss_weight: float = 1.0


@dataclass(frozen=True)
class _Part:
    """An output with its fields resolved."""

    head: Head
    classes: Weighting | None
    metrics: Any
    loss_weight: float


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model. Labels, logits and weights are mappings from the output's name.

    Attributes:
        parts: The outputs by name; the output of a single-output model has the name "".
        records: The source of the sample weights; None: each example has weight 1.
    """

    parts: Mapping[str, _Part]
    records: Weighting | None

    @property
    def is_single(self) -> bool:
        """Whether the model has one output, and labels and logits are tensors."""
        return _SINGLE in self.parts

    @property
    def weighted(self) -> bool:
        """Whether examples have weights."""
        return self.records is not None or any(part.classes is not None for part in self.parts.values())

    def check_metrics(self) -> None:
        """Check that an Estimator supports the requested metrics.

        Raises:
            ConfigError: A metric is unknown.
        """
        for part in self.parts.values():
            wanted_metrics(part.head.kind, part.metrics)

    def metric_names(self, name: str, size: int | None) -> list[str]:
        """Return the names of the metrics that an output reports, without `average_loss`.

        Args:
            name: The output.
            size: The number of its classes; None: unknown.

        Raises:
            ConfigError: A metric is unknown, or requires the number of classes.
        """
        head, names = self.parts[name].head, []
        for metric, function in wanted_metrics(head.kind, self.parts[name].metrics).items():
            plain = metric.removeprefix(UNWEIGHTED)
            if function is None and head.kind is not None:
                reported = names_of(head.kind, plain, size=size, vocabulary=head.label_vocabulary)
                names += [metric.removesuffix(plain) + each for each in reported]
            else:
                names.append(metric)
        return names

    # -- inputs --------------------------------------------------------------------------------------------------------

    def features_without_weights(self, features: Any) -> Any:
        """Return the features without the sample weights."""
        return features if self.records is None else self.records.features_without_weights(features)

    def reader(self) -> Callable[[Any, Any], tuple[Any, dict[str, Any], dict[str, Any]]]:
        """Return a function from (features, labels) of a batch to (features, labels, weights).

        The returned labels are those of the outputs, with class numbers instead of names. Weights are float32 [B], or
        None where all examples have weight 1.

        Call this method in the graph that calls the function, or before the dataset's `map`: it may create lookup
        tables.

        Raises:
            ConfigError: Raised by the returned function: the data lack the labels or the weights.
        """
        numberings = {name: part.head.numbering() for name, part in self.parts.items()}

        def read(features: Any, labels: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
            sample_weights = None
            if self.records is not None:
                features, labels, sample_weights = self.records.split(features, labels)
            by_output = self._labels(labels)
            weights: dict[str, Any] = {}
            for name, part in self.parts.items():
                by_output[name] = numberings[name](by_output[name])
                of_class = None
                if part.classes is not None:
                    _, _, of_class = part.classes.split(None, by_output[name])
                both = [value for value in (sample_weights, of_class) if value is not None]
                weights[name] = both[0] * both[1] if len(both) == 2 else next(iter(both), None)
                if part.head.has_binary_labels:
                    by_output[name] = label_checks.zero_or_one(by_output[name], weights[name], output=name)
            return features, by_output, weights

        return read

    def _labels(self, labels: Any) -> dict[str, Any]:
        if self.is_single:
            if isinstance(labels, Mapping) and isinstance(self.parts[_SINGLE].head.loss, str):
                raise ConfigError(
                    "the data have several labels, and the model has one output",
                    code="model/labels-mismatch",
                    found=f"labels: {', '.join(map(str, labels))}",
                    hint="give the label as a tensor; or return a dictionary of logits from the model, and describe "
                    "each with outputs={name: …}",
                )
            return {_SINGLE: labels}
        if not isinstance(labels, Mapping) and len(self.parts) == 1:
            return dict.fromkeys(self.parts, labels)
        names = list(labels) if isinstance(labels, Mapping) else None
        missing = [name for name in self.parts if names is None or name not in names]
        if missing:
            raise ConfigError(
                f"the data have no labels for the output {missing[0]!r}",
                code="model/labels-mismatch",
                found="labels: one tensor" if names is None else f"labels: {', '.join(map(str, names))}",
                hint="give the labels as a dictionary with the names of the outputs: "
                f"{{{', '.join(f'{name!r}: …' for name in self.parts)}}}",
            )
        return {name: labels[name] for name in self.parts}

    # -- outputs -------------------------------------------------------------------------------------------------------

    def logits(self, values: Any) -> dict[str, Any]:
        """Return the logits of a batch by output, float32.

        Raises:
            ConfigError: The model's outputs do not match the names.
        """
        tf = compat.tensorflow()
        self.check_names(list(values) if isinstance(values, Mapping) else None, values)
        by_output = {_SINGLE: values} if self.is_single else values
        logits = {name: tf.cast(by_output[name], tf.float32) for name in self.parts}
        for name, value in logits.items():
            classes = self.parts[name].classes
            if classes is not None:
                classes.check_units(value.shape[-1] if value.shape.rank else None)
        return logits

    def check_names(self, names: Sequence[str] | None, values: Any) -> None:
        """Check the names of a model's outputs.

        Args:
            names: The names of the model's outputs; None: the outputs have no names.
            values: The outputs, for the error message.

        Raises:
            ConfigError: The names do not match.
        """
        if self.is_single:
            if names is not None or isinstance(values, list | tuple):
                raise ConfigError(
                    f"the model returns several values: {_format_outputs(names, values)}",
                    code="model/bad-function",
                    hint="describe each with outputs={name: …}; or return one tensor from the model",
                )
            return
        if names is None or set(names) != set(self.parts):
            raise ConfigError(
                f"the model returns {_format_outputs(names, values)}, and the outputs are {', '.join(self.parts)}",
                code="model/bad-function",
                hint="return a dictionary of logits with these names from the model: "
                f"{{{', '.join(f'{name!r}: …' for name in self.parts)}}}",
            )

    def answers(self, logits: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the predictions of each output."""
        return {name: part.head.predictions(logits[name]) for name, part in self.parts.items()}

    def predictions(self, answers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the predictions of all outputs in one flat dictionary."""
        if self.is_single:
            return dict(answers[_SINGLE])
        return {f"{name}/{key}": value for name, values in answers.items() for key, value in values.items()}

    def losses(self, labels: Mapping[str, Any], logits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the loss of each example for each output, float32 [B]."""
        return {name: part.head.per_example_loss(labels[name], logits[name]) for name, part in self.parts.items()}

    def loss(self, losses: Mapping[str, Any], weights: Mapping[str, Any]) -> Any:
        """Return the loss of a batch, a scalar, without losses that layers add."""
        tf = compat.tensorflow()
        means = []
        for name, part in self.parts.items():
            each, beside = losses[name], of_rank(weights[name], losses[name].shape.rank)
            mean = tf.reduce_mean(each if beside is None else each * beside)
            means.append(mean if part.loss_weight == 1.0 else mean * part.loss_weight)
        return means[0] if len(means) == 1 else tf.add_n(means)

    def metrics(
        self,
        losses: Mapping[str, Any],
        labels: Mapping[str, Any],
        answers: Mapping[str, Mapping[str, Any]],
        weights: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Build the streaming metrics of an Estimator's graph: (value, update) or a Keras metric, by name."""
        tf = compat.tensorflow()
        metrics: dict[str, Any] = {}
        for name, part in self.parts.items():
            prefix, weight_argument = f"{name}_" if name else "", {"weights": weights[name]}
            each = losses[name]
            metrics[f"{prefix}average_loss"] = tf.compat.v1.metrics.mean(each, of_rank(weights[name], each.shape.rank))
            for metric, make in wanted_metrics(part.head.kind, part.metrics).items():
                if make is None:
                    unweighted = UNWEIGHTED if metric.startswith(UNWEIGHTED) else ""
                    beside = None if unweighted else weights[name]
                    values = part.head.metrics(metric.removeprefix(UNWEIGHTED), labels[name], answers[name], beside)
                    metrics |= {f"{prefix}{unweighted}{reported}": value for reported, value in values.items()}
                elif isinstance(make, UserMetric):
                    beside = None if metric.startswith(UNWEIGHTED) else weights[name]
                    logits = answers[name]["predictions" if part.head.kind == "regression" else "logits"]
                    metrics[f"{prefix}{metric}"] = make.updated(part.head.kind, labels[name], logits, beside)
                else:
                    known = inspect.signature(make).parameters
                    value = make(labels[name], answers[name], **(weight_argument if "weights" in known else {}))
                    metrics[f"{prefix}{metric}"] = value
        if not self.is_single:
            means = [(part.loss_weight, metrics[f"{name}_average_loss"]) for name, part in self.parts.items()]
            update = tf.add_n([share * update_op for share, (_, update_op) in means])

            def total(strategy: Any, values: Sequence[Any]) -> Any:
                # The values are the same on all replicas, so their sum must be one tensor.
                return tf.add_n([share * value for (share, _), value in zip(means, values, strict=True)])

            replica = tf.distribute.get_replica_context()
            value = replica.merge_call(total, args=([mean for _, (mean, _) in means],))
            metrics = {"average_loss": (value, update), **metrics}
        return metrics

    def completed(self, results: Mapping[str, float]) -> dict[str, float]:
        """Rename the results of a Keras evaluation as in the Estimator engine, with a total `average_loss`."""
        if self.is_single:
            return dict(results)
        known = {name: value for name, value in results.items() if name not in {f"{part}_loss" for part in self.parts}}
        means = [part.loss_weight * known[f"{name}_average_loss"] for name, part in self.parts.items()
                 if f"{name}_average_loss" in known]  # fmt: skip
        return {**known, "average_loss": math.fsum(means)} if len(means) == len(self.parts) else known

    # -- exports -------------------------------------------------------------------------------------------------------

    def export_outputs(self, answers: Mapping[str, Mapping[str, Any]], signatures: Sequence[str]) -> dict[str, Any]:
        """Return the export output of an Estimator for each signature key."""
        if self.is_single:
            return self.parts[_SINGLE].head.export_outputs(answers[_SINGLE], signatures)
        predict = compat.tensorflow().estimator.export.PredictOutput
        export_outputs = {key: predict(self.predictions(answers)) for key in _of_all(signatures)}
        for name, part in self.parts.items():
            part_outputs = part.head.export_outputs(answers[name], signatures)
            export_outputs |= {f"{name}/{key}": value for key, value in part_outputs.items() if key != _DEFAULT}
        return export_outputs

    def signature_outputs(self, signatures: Sequence[str]) -> dict[str, Callable[[Any], dict[str, Any]]]:
        """Return, for each signature key, a function from the model's outputs to those of the signature.

        The keys and outputs are those of `export_outputs`.
        """
        if self.is_single:
            return self.parts[_SINGLE].head.signature_outputs(signatures)

        def everything(values: Any) -> dict[str, Any]:
            return self.predictions(self.answers(self.logits(values)))

        def of_one(name: str, function: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
            return lambda values: function(values[name])

        functions: dict[str, Callable[[Any], dict[str, Any]]] = dict.fromkeys(_of_all(signatures), everything)
        for name, part in self.parts.items():
            part_functions = part.head.signature_outputs(signatures)
            functions |= {
                f"{name}/{key}": of_one(name, value) for key, value in part_functions.items() if key != _DEFAULT
            }
        return functions


def _of_all(signatures: Sequence[str]) -> list[str]:
    return [_DEFAULT, *(["predict"] if "predict" in signatures else [])]


def outputs_of(
    outputs: Mapping[str, Output | Mapping[str, Any]] | None,
    *,
    loss: Any,
    head: str | None = None,
    metrics: Any = None,
    label_smoothing: float = 0.0,
    weight_column: str | None = None,
    class_weights: ClassWeights | None = None,
    label_vocabulary: Sequence[str] = (),
) -> Outputs:
    """Check and return the outputs of a model.

    Args:
        outputs: Name -> an `Output` or its fields; None: the model has one output, and the other arguments are its
            fields.
        weight_column: The name of the sample weights in the data, for all outputs.

    Raises:
        ConfigError: A name, a type or a combination of arguments is not supported.
    """
    values = {
        "loss": loss,
        "head": head,
        "metrics": metrics,
        "label_smoothing": label_smoothing,
        "class_weights": class_weights,
        "label_vocabulary": label_vocabulary,
    }
    records = weighting_of(None, weight_column=weight_column)
    if outputs is None:
        if loss is None:
            raise ConfigError(
                "the model has no loss", code="argument/missing", hint="give loss, or outputs={name: {'loss': …}, …}"
            )
        return Outputs({_SINGLE: _part(Output(**values))}, records)
    explicit = [name for name, value in values.items() if value is not None and value != 0.0 and value != ()]
    explicit = [name for name in explicit if name != "label_vocabulary" or label_vocabulary]
    if explicit:
        raise ConfigError(
            f"{explicit[0]} and outputs are both set",
            code="argument/conflict",
            hint=f"set it for each output: outputs={{name: {{{explicit[0]!r}: …}}}}",
        )
    if not isinstance(outputs, Mapping) or not outputs or not all(isinstance(n, str) and n for n in outputs):
        raise ConfigError(
            f"outputs is {outputs!r}",
            code="argument/bad-value",
            hint="give a mapping from the names of the outputs to their fields",
        )
    return Outputs({name: _named_part(name, value) for name, value in outputs.items()}, records)


def keras_batches(
    dataset: Any,
    *,
    loss: Any = None,
    outputs: Mapping[str, Output | Mapping[str, Any]] | None = None,
    head: str | None = None,
    label_vocabulary: Sequence[str] = (),
    weight_column: str | None = None,
    class_weights: ClassWeights | None = None,
) -> Any:
    """Convert a dataset of (features, labels) for `Model.fit` and `Model.evaluate`.

    Class names become numbers, and sample and class weights become the third element. Build the model by
    `build_keras_model` with the same arguments. A `model_fn` of `build_model_fn` needs no such dataset.

    Args:
        dataset: A `tf.data.Dataset` of batches (features, labels).
        loss: The model's loss, which defines, with `head`, how labels name classes.
        outputs: The outputs of a model with several; the labels with their names are used.
        head: The model's head, where the loss does not define it.
        label_vocabulary: The class names, in order, where labels are text.
        weight_column: The key of the weights in the dictionary of labels or, if not there, of features: numbers [B] or
            [B, 1]. The entry is removed; if only one label is left, it is returned as a tensor.
        class_weights: The weight of each class in order, or a mapping from class numbers or names to weights; the
            other classes have weight 1. Multiplied with the sample weights.

    Returns:
        The dataset, of (features, labels, weights) where there are weights. They are float32 [B], for several outputs
        a dictionary of such tensors.

    Raises:
        ConfigError: A weight is invalid, or the data have no weights.
    """
    output_spec = outputs_of(
        outputs,
        loss=loss,
        head=head,
        weight_column=weight_column,
        class_weights=class_weights,
        label_vocabulary=label_vocabulary,
    )
    if output_spec.is_single and not (
        output_spec.weighted or label_vocabulary or output_spec.parts[_SINGLE].head.has_binary_labels
    ):
        return dataset
    tf = compat.tensorflow()
    read = output_spec.reader()

    def batch(features: Any, labels: Any) -> tuple[Any, ...]:
        features, by_output, weights = read(features, labels)
        if output_spec.weighted:
            records = tf.shape(tf.nest.flatten(by_output)[0])[:1]
            weights = {name: tf.ones(records) if weight is None else weight for name, weight in weights.items()}
        if output_spec.is_single:
            by_output, weights = by_output[_SINGLE], weights[_SINGLE]
        return (features, by_output, weights) if output_spec.weighted else (features, by_output)

    return dataset.map(tf.autograph.experimental.do_not_convert(batch))


def _named_part(name: str, value: Any) -> _Part:
    if isinstance(value, Mapping):
        known = [field.name for field in fields(Output)]
        unknown = [key for key in value if key not in known]
        if unknown or "loss" not in value:
            raise ConfigError(
                f"the output {name!r} has no field {unknown[0]!r}" if unknown else f"the output {name!r} has no loss",
                code="argument/unknown-name",
                found=f"allowed: {', '.join(known)}",
                hint="use one of these" if unknown else "give its loss",
            )
        value = Output(**value)
    if not isinstance(value, Output):
        raise ConfigError(
            f"the output {name!r} is a {type(value).__name__}",
            code="argument/bad-value",
            hint="give its fields: {'loss': …, 'metrics': […]}",
        )
    weight = value.loss_weight
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise ConfigError(
            f"the output {name!r} has the loss_weight {weight!r}",
            code="argument/bad-value",
            hint="give a number of 0 or more",
        )
    try:
        return _part(value)
    except ConfigError as error:
        raise ConfigError(
            f"the output {name!r}: {error.message}", code="argument/bad-value", found=error.found, hint=error.hint
        ) from error


def _part(output: Output) -> _Part:
    kind = head_of(output.loss, output.head)
    classes = weighting_of(kind, class_weights=output.class_weights, label_vocabulary=output.label_vocabulary)
    head = Head(kind, output.loss, output.label_smoothing, output.label_vocabulary)
    return _Part(head, classes, output.metrics, float(output.loss_weight))


def wanted_metrics(kind: str | None, metrics: Any) -> dict[str, Any]:
    """Return an Estimator's metrics: name -> a custom function, a `UserMetric`, or None for a metric of the head.

    Raises:
        ConfigError: The head does not have a metric of this name.
    """
    known = METRICS.get(kind or "", ())
    key = "predictions" if kind == "regression" else "classes" if kind else "logits"
    if metrics is None:
        return dict.fromkeys(known[:1])
    if isinstance(metrics, Mapping):
        for name, metric in metrics.items():
            if hasattr(metric, "update_state"):
                metric_class = metric if isinstance(metric, type) else type(metric)
                raise ConfigError(
                    f"the metric {name!r} is the Keras metric {metric_class.__name__}, which belongs to one graph",
                    code="argument/bad-value",
                    hint=f"give a function that makes it: def {name}(labels, predictions): metric = "
                    f"tf.keras.metrics.{metric_class.__name__}(); metric.update_state(labels, predictions[{key!r}]); "
                    "return metric",
                )
        return dict(metrics)
    of_user = {metric.name: metric for metric in metrics if isinstance(metric, UserMetric)}
    names = [metric for metric in metrics if not isinstance(metric, UserMetric)]
    unknown = [name for name in names if not is_known(kind, str(name).removeprefix(UNWEIGHTED))]
    if unknown:
        raise ConfigError(
            f"the metrics {', '.join(map(str, unknown))} are not known for the head {kind!r}",
            code="argument/unknown-name",
            found=f"allowed: {', '.join(known) or 'none'}",
            hint=f"name some of these, as {UNWEIGHTED}NAME without weights, or give a mapping name -> metric(labels, "
            "predictions)",
        )
    return {**dict.fromkeys(names), **of_user}


def _format_outputs(names: Sequence[str] | None, values: Any) -> str:
    if names is not None:
        return f"{', '.join(map(str, names)) or 'nothing'}"
    return f"a {type(values).__name__} of {len(values)}" if isinstance(values, list | tuple) else "one tensor"

"""What the outputs of a model mean: of one, or of several by name, each with labels, a loss and metrics of its own.

A model of several outputs gives a dictionary of logits, and its data a dictionary of labels with the same names (and
perhaps others, which nobody looks at):

* The loss is the sum of the outputs' losses, each times its `loss_weight`; `average_loss` likewise.
* Metrics are named after their output, as Keras does it: `digit_accuracy`, `digit_average_loss`.
* Predictions, and the answers of `serving_default` and `predict`, are named `digit/probabilities`; an output's own
  signatures `digit/predict`, `digit/classification`, `digit/regression`: as those of `tf.estimator.MultiHead`.
* Weights of records count for every output, weights of classes for theirs.
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
from estimator_pipeline.models.heads import METRICS, Head, head_of, of_rank
from estimator_pipeline.models.sample_weights import ClassWeights, Weighting, weighting_of

__all__ = ["Output", "Outputs", "keras_batches", "outputs_of"]

# The name of the only output of a model that has one: its labels and logits are tensors.
_ALONE = ""
_DEFAULT = "serving_default"


@dataclass(frozen=True)
class Output:
    """One of several outputs of a model.

    Attributes:
        loss: a name (see `estimator_pipeline.models.heads`), or `loss(labels, logits)` -> the loss of each example
            [B].
        head: what the logits mean, where the loss does not say it.
        metrics: names, or what `build_model_fn` or
            `build_keras_model` takes besides. None: the head's first one.
        label_smoothing: the share of each label that is spread evenly over the classes.
        class_weights: what the records of each class count for in this output's loss and metrics.
        label_vocabulary: the names of the classes, in their order.
        loss_weight: what the loss is multiplied with before it is added to the others', 0 or more.
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
    """An output, with what its fields mean."""

    head: Head
    classes: Weighting | None
    metrics: Any
    loss_weight: float


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model. Labels, logits and weights of all of them are mappings here: from an output's name.

    Attributes:
        parts: by their names; the only one of a model without names has the name "".
        records: where the weights of records come from; None: each record counts for one.
    """

    parts: Mapping[str, _Part]
    records: Weighting | None

    @property
    def alone(self) -> bool:
        """Whether the model has one output, and labels and logits are tensors."""
        return _ALONE in self.parts

    @property
    def weighted(self) -> bool:
        """Whether records count for more or less than one."""
        return self.records is not None or any(part.classes is not None for part in self.parts.values())

    def check_metrics(self) -> None:
        """Whether an Estimator knows the metrics that are asked for.

        Raises:
            ConfigError: it does not.
        """
        for part in self.parts.values():
            wanted_metrics(part.head.kind, part.metrics)

    # -- what goes in --------------------------------------------------------------------------------------------------

    def features_alone(self, features: Any) -> Any:
        """Features without the records' weights, where these came with them."""
        return features if self.records is None else self.records.features_alone(features)

    def reader(self) -> Callable[[Any, Any], tuple[Any, dict[str, Any], dict[str, Any]]]:
        """Return a function from (features, labels) of a batch to (features, labels, weights).

        Labels have numbers in the place of classes' names, and are those of the outputs; weights are float32 [B], or
        None where all records count for one.

        Call it in the graph, or before the dataset's function, that calls what it gives: it may make tables.

        Raises:
            ConfigError: by the function: the data do not bring the labels, or the weights.
        """
        numberings = {name: part.head.numbering() for name, part in self.parts.items()}

        def read(features: Any, labels: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
            own = None
            if self.records is not None:
                features, labels, own = self.records.apart(features, labels)
            found = self._labels(labels)
            weights: dict[str, Any] = {}
            for name, part in self.parts.items():
                found[name] = numberings[name](found[name])
                of_class = None
                if part.classes is not None:
                    _, _, of_class = part.classes.apart(None, found[name])
                both = [one for one in (own, of_class) if one is not None]
                weights[name] = both[0] * both[1] if len(both) == 2 else next(iter(both), None)
                if part.head.asks_yes_or_no:
                    found[name] = label_checks.zero_or_one(found[name], weights[name], output=name)
            return features, found, weights

        return read

    def _labels(self, labels: Any) -> dict[str, Any]:
        if self.alone:
            if isinstance(labels, Mapping) and isinstance(self.parts[_ALONE].head.loss, str):
                raise ConfigError(
                    "the data bring several labels, and the model has one output",
                    code="model/labels-mismatch",
                    found=f"labels: {', '.join(map(str, labels))}",
                    hint="give the one label as a tensor; or have the model give a dictionary of logits, and say with "
                    "outputs={name: …} what each of them means",
                )
            return {_ALONE: labels}
        if not isinstance(labels, Mapping) and len(self.parts) == 1:
            return dict.fromkeys(self.parts, labels)
        given = list(labels) if isinstance(labels, Mapping) else None
        missing = [name for name in self.parts if given is None or name not in given]
        if missing:
            raise ConfigError(
                f"the data bring no labels for the output {missing[0]!r}",
                code="model/labels-mismatch",
                found="labels: one tensor" if given is None else f"labels: {', '.join(map(str, given))}",
                hint="give the labels as a dictionary with the names of the outputs: "
                f"{{{', '.join(f'{name!r}: …' for name in self.parts)}}}",
            )
        return {name: labels[name] for name in self.parts}

    # -- what comes out ------------------------------------------------------------------------------------------------

    def logits(self, values: Any) -> dict[str, Any]:
        """Return what a model gives for a batch, float32.

        Raises:
            ConfigError: it does not fit the names.
        """
        tf = compat.tensorflow()
        self.check_names(list(values) if isinstance(values, Mapping) else None, values)
        given = {_ALONE: values} if self.alone else values
        found = {name: tf.cast(given[name], tf.float32) for name in self.parts}
        for name, value in found.items():
            classes = self.parts[name].classes
            if classes is not None:
                classes.check_units(value.shape[-1] if value.shape.rank else None)
        return found

    def check_names(self, names: Sequence[str] | None, values: Any) -> None:
        """Hold a model's outputs against the names.

        Args:
            names: of the model's outputs; None: it has none.
            values: the outputs, for the error's text.

        Raises:
            ConfigError: they do not fit.
        """
        if self.alone:
            if names is not None or isinstance(values, list | tuple):
                raise ConfigError(
                    f"the model gives several values: {_told(names, values)}",
                    code="model/bad-function",
                    hint="say with outputs={name: …} what each of them means; or have the model give one tensor",
                )
            return
        if names is None or set(names) != set(self.parts):
            raise ConfigError(
                f"the model gives {_told(names, values)}, and the outputs are {', '.join(self.parts)}",
                code="model/bad-function",
                hint="have the model give a dictionary of logits with these names: "
                f"{{{', '.join(f'{name!r}: …' for name in self.parts)}}}",
            )

    def answers(self, logits: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the predictions of each output."""
        return {name: part.head.predictions(logits[name]) for name, part in self.parts.items()}

    def predictions(self, answers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the predictions of all outputs, by one name each."""
        if self.alone:
            return dict(answers[_ALONE])
        return {f"{name}/{key}": value for name, values in answers.items() for key, value in values.items()}

    def losses(self, labels: Mapping[str, Any], logits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the loss of each example by each output, float32 [B]."""
        return {name: part.head.per_example_loss(labels[name], logits[name]) for name, part in self.parts.items()}

    def loss(self, losses: Mapping[str, Any], weights: Mapping[str, Any]) -> Any:
        """Return the loss of a batch, a scalar: without what layers add."""
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
        """Streaming metrics in an Estimator's graph, by name: (value, update), or a Keras metric."""
        tf = compat.tensorflow()
        found: dict[str, Any] = {}
        for name, part in self.parts.items():
            prefix, given = f"{name}_" if name else "", {"weights": weights[name]}
            each = losses[name]
            found[f"{prefix}average_loss"] = tf.compat.v1.metrics.mean(each, of_rank(weights[name], each.shape.rank))
            for metric, make in wanted_metrics(part.head.kind, part.metrics).items():
                if make is None:
                    value = part.head.metric(metric, labels[name], answers[name], weights[name])
                else:
                    known = inspect.signature(make).parameters
                    value = make(labels[name], answers[name], **(given if "weights" in known else {}))
                found[f"{prefix}{metric}"] = value
        if not self.alone:
            means = [(part.loss_weight, found[f"{name}_average_loss"]) for name, part in self.parts.items()]
            update = tf.add_n([share * one for share, (_, one) in means])

            def total(strategy: Any, values: Sequence[Any]) -> Any:
                # Values are the same for all replicas, and so must be what is made of them: one tensor.
                return tf.add_n([share * value for (share, _), value in zip(means, values, strict=True)])

            replica = tf.distribute.get_replica_context()
            value = replica.merge_call(total, args=([one for _, (one, _) in means],))
            found = {"average_loss": (value, update), **found}
        return found

    def completed(self, found: Mapping[str, float]) -> dict[str, float]:
        """What Keras has evaluated, by the names of the Estimator engine: `average_loss` is that of all outputs."""
        if self.alone:
            return dict(found)
        known = {name: value for name, value in found.items() if name not in {f"{part}_loss" for part in self.parts}}
        means = [part.loss_weight * known[f"{name}_average_loss"] for name, part in self.parts.items()
                 if f"{name}_average_loss" in known]  # fmt: skip
        return {**known, "average_loss": math.fsum(means)} if len(means) == len(self.parts) else known

    # -- exports -------------------------------------------------------------------------------------------------------

    def export_outputs(self, answers: Mapping[str, Mapping[str, Any]], signatures: Sequence[str]) -> dict[str, Any]:
        """Signature key -> export output of an Estimator."""
        if self.alone:
            return self.parts[_ALONE].head.export_outputs(answers[_ALONE], signatures)
        predict = compat.tensorflow().estimator.export.PredictOutput
        found = {key: predict(self.predictions(answers)) for key in _of_all(signatures)}
        for name, part in self.parts.items():
            made = part.head.export_outputs(answers[name], signatures)
            found |= {f"{name}/{key}": value for key, value in made.items() if key != _DEFAULT}
        return found

    def signature_outputs(self, signatures: Sequence[str]) -> dict[str, Callable[[Any], dict[str, Any]]]:
        """Signature key -> function of what the model gives that makes its outputs by name; as `export_outputs`."""
        if self.alone:
            return self.parts[_ALONE].head.signature_outputs(signatures)

        def everything(values: Any) -> dict[str, Any]:
            return self.predictions(self.answers(self.logits(values)))

        def of_one(name: str, function: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
            return lambda values: function(values[name])

        found: dict[str, Callable[[Any], dict[str, Any]]] = dict.fromkeys(_of_all(signatures), everything)
        for name, part in self.parts.items():
            made = part.head.signature_outputs(signatures)
            found |= {f"{name}/{key}": of_one(name, value) for key, value in made.items() if key != _DEFAULT}
        return found


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
    """Return what was said of a model's outputs, checked.

    Args:
        outputs: name -> an `Output` or its fields; None: the model has one, and the other arguments are its
            fields.
        weight_column: the name under which the data bring the weights of records, for all outputs.

    Raises:
        ConfigError: a name, a type or a combination that cannot work.
    """
    one = {
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
        return Outputs({_ALONE: _part(Output(**one))}, records)
    given = [name for name, value in one.items() if value is not None and value != 0.0 and value != ()]
    given = [name for name in given if name != "label_vocabulary" or label_vocabulary]
    if given:
        raise ConfigError(
            f"{given[0]} was given beside outputs",
            code="argument/conflict",
            hint=f"give each output its own: outputs={{name: {{{given[0]!r}: …}}}}",
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
    """Batches of (features, labels) as `Model.fit` and `Model.evaluate` take them: labels in numbers, weights beside.

    The model is built by `build_keras_model` with the same arguments; a `model_fn` of
    `build_model_fn` does the same by itself.

    Args:
        dataset: a `tf.data.Dataset` of such batches.
        loss: of the model; it says, with `head`, how labels tell of classes.
        outputs: of a model with several; the labels are those that bear their names.
        head: of the model, where the loss does not say it.
        label_vocabulary: the names of the classes, in their order, where labels are text.
        weight_column: the name under which the labels' dictionary, or else the features', has the weights: numbers
            [B] or [B, 1]. It is taken out; a label that is left alone is its tensor.
        class_weights: the weight of each class in order, or a mapping from the numbers or names of some to theirs; the
            others weigh 1. Multiplied with the records' own.

    Returns:
        The dataset, of (features, labels, weights) where there are weights; they are float32 [B], for several outputs
        a dictionary of these.

    Raises:
        ConfigError: weights that are none, or that the data do not bring.
    """
    meant = outputs_of(
        outputs,
        loss=loss,
        head=head,
        weight_column=weight_column,
        class_weights=class_weights,
        label_vocabulary=label_vocabulary,
    )
    if meant.alone and not (meant.weighted or label_vocabulary or meant.parts[_ALONE].head.asks_yes_or_no):
        return dataset
    tf = compat.tensorflow()
    read = meant.reader()

    def batch(features: Any, labels: Any) -> tuple[Any, ...]:
        features, found, weights = read(features, labels)
        if meant.weighted:
            records = tf.shape(tf.nest.flatten(found)[0])[:1]
            weights = {name: tf.ones(records) if one is None else one for name, one in weights.items()}
        if meant.alone:
            found, weights = found[_ALONE], weights[_ALONE]
        return (features, found, weights) if meant.weighted else (features, found)

    return dataset.map(tf.autograph.experimental.do_not_convert(batch))


def _named_part(name: str, given: Any) -> _Part:
    if isinstance(given, Mapping):
        known = [field.name for field in fields(Output)]
        unknown = [key for key in given if key not in known]
        if unknown or "loss" not in given:
            raise ConfigError(
                f"the output {name!r} has no field {unknown[0]!r}" if unknown else f"the output {name!r} has no loss",
                code="argument/unknown-name",
                found=f"allowed: {', '.join(known)}",
                hint="take one of these" if unknown else "give its loss",
            )
        given = Output(**given)
    if not isinstance(given, Output):
        raise ConfigError(
            f"the output {name!r} is a {type(given).__name__}",
            code="argument/bad-value",
            hint="give its fields: {'loss': …, 'metrics': […]}",
        )
    weight = given.loss_weight
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise ConfigError(
            f"the output {name!r} has the loss_weight {weight!r}",
            code="argument/bad-value",
            hint="give a number of 0 or more",
        )
    try:
        return _part(given)
    except ConfigError as error:
        raise ConfigError(
            f"the output {name!r}: {error.message}", code="argument/bad-value", found=error.found, hint=error.hint
        ) from error


def _part(given: Output) -> _Part:
    kind = head_of(given.loss, given.head)
    classes = weighting_of(kind, class_weights=given.class_weights, label_vocabulary=given.label_vocabulary)
    head = Head(kind, given.loss, given.label_smoothing, given.label_vocabulary)
    return _Part(head, classes, given.metrics, float(given.loss_weight))


def wanted_metrics(kind: str | None, metrics: Any) -> dict[str, Any]:
    """Name -> an own function, or None for a metric of the head; for an Estimator.

    Raises:
        ConfigError: a name that the head does not know.
    """
    known = METRICS.get(kind or "", ())
    if metrics is None:
        return dict.fromkeys(known[:1])
    if isinstance(metrics, Mapping):
        return dict(metrics)
    unknown = [name for name in metrics if name not in known]
    if unknown:
        raise ConfigError(
            f"the metrics {', '.join(map(str, unknown))} are not known for the head {kind!r}",
            code="argument/unknown-name",
            found=f"allowed: {', '.join(known) or 'none'}",
            hint="name some of these, or give a mapping name -> metric(labels, predictions)",
        )
    return dict.fromkeys(metrics)


def _told(names: Sequence[str] | None, values: Any) -> str:
    if names is not None:
        return f"{', '.join(map(str, names)) or 'nothing'}"
    return f"a {type(values).__name__} of {len(values)}" if isinstance(values, list | tuple) else "one tensor"

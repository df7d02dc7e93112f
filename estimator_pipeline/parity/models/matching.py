"""Matching of the names of an Estimator and a Keras model, before training. No TensorFlow."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.tolerances import kind_of
from estimator_pipeline.utils.variable_names import GLOBAL_STEP, canonical

__all__ = [
    "UnmatchedVariables",
    "canonical_of",
    "check_metrics",
    "check_variables",
    "counterparts",
    "in_keras",
    "names_of",
    "outputs_asked",
    "renamed_as",
    "to_compare",
]  # fmt: skip

# A name, and the array's shape; None: not known before the graph runs.
Shapes = Mapping[str, tuple[int, ...] | None]
_SHOWN = 12
_LOSS = "loss"
# Both have it as `loss` already, weighted by records instead of batches.
_AVERAGE = "average_loss"
# Default names of layers and weights in tf-slim and tf.contrib -> those of Keras.
_LAYERS_OF_CONTRIB = {"fully_connected": "dense", "Conv": "conv2d", "BatchNorm": "batch_normalization"}
_WEIGHTS_OF_CONTRIB = {"weights": "kernel", "biases": "bias"}
_ONE_NAME = "give each layer and each tf.Variable a different name"


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnmatchedVariables:
    """Non-trainable variables of only one side: averages, counters, manual accumulators.

    Attributes:
        theirs: the Estimator's, by canonical names.
        ours: the Keras model's.
    """

    theirs: frozenset[str] = frozenset()
    ours: frozenset[str] = frozenset()

    def notes(self) -> list[str]:
        """Return notes on the variables."""
        sides = [f"{_listed(sorted(names))} (only {whose})" for names, whose in
                 ((self.theirs, "the Estimator"), (self.ours, "the Keras model")) if names]  # fmt: skip
        if not sides:
            return []
        return [
            f"non-trainable variables of only one side were not compared: {'; '.join(sides)}; "
            "match them with `mapping` (--mapping)"
        ]


def names_of(names: Any, argument: str, example: str) -> dict[str, str]:
    """Return a checked mapping of names to names.

    Args:
        names: the mapping; None: empty.
        argument: its argument name, for messages.
        example: an example, for messages.

    Raises:
        ConfigError: it is not a mapping of strings.
    """
    if names is None:
        return {}
    if not isinstance(names, Mapping) or not all(isinstance(name, str) for pair in names.items() for name in pair):
        raise ConfigError(
            f"{argument} is not a mapping of names to names",
            code="argument/bad-value",
            found=f"{names!r:.200}",
            hint=f"pass a dict of strings, such as {example}",
        )
    return dict(names)


def canonical_of(names: Iterable[str], whose: str, kept: Mapping[str, str | None] | None = None) -> Mapping[str, str]:
    """Return the canonical names of one side's variables, see `estimator_pipeline.utils.variable_names.canonical`.

    Args:
        names: names of the variables.
        whose: the side, for messages.
        kept: canonical names that are known already.

    Raises:
        ConfigError: two variables have the same name.
    """
    counts = collections.Counter(list(names))  # a mapping would be taken as counts
    try:
        canonical_names = canonical(counts, kept)
    except ValueError as error:
        raise ConfigError(
            f"variables of {whose} have the same name: {error}", code="parity/no-counterpart", hint=_ONE_NAME
        ) from error
    # With two optimizers both step counters have the same name.
    twice = [variable for name, variable in canonical_names.items() if counts[variable] > 1 and name != GLOBAL_STEP]
    if twice:
        raise ConfigError(
            f"{whose} has several variables of one name: {_listed(twice)}", code="parity/no-counterpart", hint=_ONE_NAME
        )
    return canonical_names


def renamed_as(name: str, renamed: Mapping[str, str]) -> str:
    """Return Keras's name for a canonical name of the Estimator, also of a slot.

    Args:
        name: the canonical name.
        renamed: the Estimator's variable -> Keras's weight.
    """
    weight, at, slot = name.partition(" @")
    return renamed.get(weight, weight) + at + slot


def in_keras(name: str) -> str:
    """Return Keras's name of a tf-slim variable: `fully_connected_1/weights` is `dense_1/kernel`."""
    layer, _, weight = name.rpartition("/")
    scope, _, layer_name = layer.rpartition("/")
    kind, number = re.fullmatch(r"(.*?)((?:_\d+)?)", layer_name).groups()  # type: ignore[union-attr]
    layer = "/".join(filter(None, [scope, _LAYERS_OF_CONTRIB.get(kind, kind) + number]))
    return f"{layer}/{_WEIGHTS_OF_CONTRIB.get(weight, weight)}".lstrip("/")


def counterparts(theirs: Shapes, ours: Shapes, mapping: Mapping[str, str]) -> dict[str, str]:
    """Return the mapping, extended by unambiguous pairs of tf-slim and Keras names.

    Args:
        theirs: the Estimator's variables, by canonical names.
        ours: the Keras model's.
        mapping: Keras weight -> the Estimator's variable.
    """
    known = {*mapping, *mapping.values()}
    left = [
        name for name in theirs if name not in ours and name not in known and kind_of(name) not in ("slots", "step")
    ]
    named = collections.Counter(in_keras(name) for name in left)
    pairs = {
        in_keras(name): name
        for name in left
        if named[in_keras(name)] == 1 and in_keras(name) not in {*theirs, *known} and in_keras(name) in ours
    }
    return {**pairs, **mapping}


def check_variables(
    theirs: Shapes, ours: Shapes, mapping: Mapping[str, str], *, untrained: Collection[str] = (),
    untrained_ours: Collection[str] = (),
) -> UnmatchedVariables:  # fmt: skip
    """Check that each weight of either side has a counterpart.

    Args:
        theirs: the Estimator's variables, by canonical names.
        ours: the Keras model's.
        mapping: Keras weight -> the Estimator's variable.
        untrained: the Estimator's non-trainable variables: they need no counterpart, except moving statistics.
        untrained_ours: the Keras model's.

    Returns:
        Variables without a counterpart, which need none.

    Raises:
        ConfigError: an unknown name, a duplicate name, a weight without a counterpart, a different shape.
    """
    weights = {name: shape for name, shape in theirs.items() if kind_of(name) not in ("slots", "step")}
    keras_weights = {name: shape for name, shape in ours.items() if kind_of(name) not in ("slots", "step")}
    unknown = [f"the Estimator has no variable {name}" for name in mapping.values() if name not in weights]
    unknown += [f"the Keras model has no weight {name}" for name in sorted(set(mapping) - set(keras_weights))]
    _check_names("variables", "variable", mapping, unknown, weights, keras_weights)
    renamed = {variable: name for name, variable in mapping.items()}
    have = {renamed_as(name, renamed): name for name in weights}
    alone = [name for name in keras_weights if name not in have]
    left = [name for name in weights if renamed_as(name, renamed) not in keras_weights]
    out = UnmatchedVariables(
        theirs=frozenset(name for name in left if name in untrained and kind_of(name) != "statistics"),
        ours=frozenset(name for name in alone if name in untrained_ours and kind_of(name) != "statistics"),
    )
    alone, left = [name for name in alone if name not in out.ours], [name for name in left if name not in out.theirs]
    if alone or left:
        raise ConfigError(
            "weights have no counterpart on the other side",
            code="parity/no-counterpart",
            found=f"only in Keras: {_with_shapes(alone, keras_weights)}; "
            f"only in the Estimator: {_with_shapes(left, weights)}",
            hint="pass a mapping of Keras's names to the Estimator's, such as {dense/kernel: fc1/weights}",
        )
    both = [name for name in keras_weights if name in have]
    unlike = [
        name
        for name in both
        if None not in (keras_weights[name], weights[have[name]]) and keras_weights[name] != weights[have[name]]
    ]
    if unlike:
        pairs = [
            f"{_with_shapes([name], keras_weights)} in Keras, {_with_shapes([have[name]], weights)} in the Estimator"
            for name in unlike
        ]
        raise ConfigError(
            f"matched weights have different shapes: {_listed(unlike)}",
            code="parity/no-counterpart",
            found="; ".join(pairs[:6]),
            hint="correct the mapping of variables" if mapping else "pass a mapping of the weights that match",
        )
    return out


def check_metrics(theirs: Collection[str], ours: Collection[str], renamed: Mapping[str, str]) -> None:
    """Check the names of metrics, and that at least one metric can be compared.

    Args:
        theirs: names of the Estimator's metrics.
        ours: names of the Keras model's metrics.
        renamed: Keras metric -> the Estimator's.

    Raises:
        ConfigError: an unknown name, or no metric can be compared.
    """
    unknown = [f"the Estimator has no metric {name}" for name in renamed.values() if name not in {*theirs, _LOSS}]
    unknown += [f"the Keras model has no metric {name}" for name in renamed if name not in {*ours, _LOSS}]
    # A metric that keeps its name takes that name as well.
    kept = {name: name for name in ours if name not in renamed and name in renamed.values()}
    _check_names("metrics", "metric", {**renamed, **kept}, unknown, theirs, ours)
    named = {renamed.get(name, name) for name in ours if name != _LOSS or name in renamed}
    some = [set(theirs) - {_LOSS, _AVERAGE}, set(ours) - {_LOSS}]
    if all(some) and not named & set(theirs):
        raise ConfigError(
            "no metric of the evaluation has a counterpart on the other side",
            code="parity/no-counterpart",
            found=f"the Estimator's: {_listed(sorted(theirs))}; Keras's: {_listed(sorted(some[1]))}",
            hint="match them with metric_names (--metric-names), Keras's to the Estimator's, such as {acc: accuracy}; "
            "compile the model without metrics to compare only the losses",
        )


def to_compare(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], renamed: Mapping[str, str], loss: Any = None,
    batches: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> tuple[dict[str, dict[str, Any]], list[str]]:  # fmt: skip
    """Return the metrics of both under the Estimator's names, and notes on those that are not compared.

    Args:
        theirs: the Estimator's metrics, its `loss` among them.
        ours: the Keras model's.
        renamed: Keras metric -> the Estimator's.
        loss: Keras's mean of batch means, to compare with the Estimator's `loss`; None: unknown.
        batches: number of records in each batch of each evaluation, if they may differ.

    Returns:
        Engine -> metric -> value, a number or a list of numbers: metrics of both sides are compared. And notes.
    """
    keras = {renamed.get(name, name): value for name, value in ours.items() if name != _LOSS or name in renamed}
    unlike = [name for name in theirs if name in keras and len({_shape(side[name]) for side in (theirs, keras)}) > 1]
    arrays = [
        f"{name} {_described(theirs[name])} in the Estimator, {_described(keras[name])} in Keras" for name in unlike
    ]
    none = sorted(name for side in (theirs, keras) for name, value in side.items() if _shape(value) is None)
    theirs, keras = (
        {name: _value(value) for name, value in side.items() if name not in (*unlike, *none)}
        for side in (theirs, keras)
    )
    # The same records in different batches have a different mean of batch means.
    is_other_split = batches[0] != batches[1] and sum(batches[0]) == sum(batches[1])
    if loss is not None and not is_other_split:
        keras.setdefault(_LOSS, loss)
    both = [name for name in theirs if name in keras]
    # The loss, if it is compared, covers the average_loss.
    of_loss = (_LOSS, _AVERAGE) if _LOSS in both else (_LOSS,)
    left = [name for name in theirs if name not in both and name not in of_loss]
    alone = sorted(set(keras) - set(both))
    notes = []
    if all(batches) and sum(batches[0]) != sum(batches[1]):
        sides = [f"{sum(sizes)} in {len(sizes)} batches in {side}" for sizes, side in
                 zip(batches, ("the Estimator", "Keras"), strict=True)]  # fmt: skip
        notes.append(f"the evaluations read different numbers of records: {', '.join(sides)}")
    if loss is not None and is_other_split and _LOSS not in both:
        notes.append(
            "the loss of the evaluation was not compared: it is a mean of batch means, and the two evaluate the same "
            "records in different batches"
        )
    if arrays:
        notes.append(f"metrics of different shapes are not compared: {'; '.join(arrays)}")
    if others := [name for name in dict.fromkeys(none) if name not in unlike]:
        notes.append(f"metrics that are not numeric are not compared: {_listed(others)}")
    if left or alone:
        sides = [f"{_listed(left)} (only the Estimator)"] if left else []
        sides += [f"{_listed(alone)} (only the Keras model)"] if alone else []
        subject = f"only {_listed(both)} was compared, and not " if both else "nothing was compared: "
        notes.append(
            f"of the evaluation {subject}{'; '.join(sides)}: match metrics with `metric_names` (--metric-names), "
            "Keras's to the Estimator's"
        )
    if _LOSS in theirs and _LOSS not in both:
        subject = "the Estimator's is a mean of batch means"
        counts = f"{len(batches[0])} in the Estimator, {len(batches[1])} in Keras"
        why = f", and the same records are read in different batches ({counts})"
        unknown = "which Keras does not report on several replicas, or from a test_step without a loss"
        why = why if is_other_split else f", {unknown}"
        hint = f"{_AVERAGE} was" if _AVERAGE in both else "add a metric of it to both"
        notes.append(f"the loss of the evaluation was not compared: {subject}{why}; {hint}")
    return {"estimator": theirs, "keras": keras}, notes


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a numeric value, () for one element; None: it is not numeric."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        return None
    return () if array.size == 1 else array.shape


def _value(value: Any) -> Any:
    """Return a number or a list, for JSON."""
    array = np.asarray(value)
    return float(array.item()) if array.size == 1 else array.astype(float).tolist()


def _described(value: Any) -> str:
    shape = _shape(value)
    return "not numeric" if shape is None else str(list(shape)) if shape else "one number"


def outputs_asked(asked: Any, outputs: Collection[str], keys: Collection[str] | None) -> dict[str, str]:
    """Return Keras output -> the Estimator's key, for the predictions to compare.

    Args:
        asked: a key; or a mapping of outputs to keys; or None.
        outputs: names of the Keras model's outputs.
        keys: keys of the Estimator's predictions; None: a single array without a name.

    Raises:
        ConfigError: an unknown output or key; a single key for several outputs.
    """
    if asked is None:
        return {}
    if isinstance(asked, str):
        if len(outputs) != 1:
            raise ConfigError(
                f"predictions={asked!r} is one key, and the Keras model has {len(outputs)} outputs",
                code="parity/no-counterpart",
                found=f"its outputs: {', '.join(outputs)}",
                hint="pass a mapping of outputs to keys (--predictions OUTPUT=KEY for each)",
            )
        asked = {next(iter(outputs)): asked}
    mapping = names_of(asked, "predictions", '{"logits": "scores"}, or a single key')
    unknown = [name for name in mapping if name not in outputs]
    if unknown:
        raise ConfigError(
            f"predictions names outputs that the Keras model does not have: {', '.join(unknown)}",
            code="parity/no-counterpart",
            found=f"its outputs: {', '.join(outputs)}",
            hint="map each of the model's outputs to the Estimator's key",
        )
    missing = [] if keys is None else [key for key in mapping.values() if key not in keys]
    if missing:
        raise ConfigError(
            f"the Estimator's predictions have no {', '.join(missing)}",
            code="parity/no-counterpart",
            found=f"they have: {', '.join(keys or ())}",
            hint="name one of these",
        )
    if keys is None and len(mapping) > 1:
        raise ConfigError(
            f"predictions names {len(mapping)} keys, and the Estimator predicts one array",
            code="parity/no-counterpart",
            hint="name one output, or return a dict of predictions from the model_fn",
        )
    return mapping


def _check_names(
    of: str, kind: str, mapping: Mapping[str, str], unknown: list[str], theirs: Collection[str], ours: Collection[str]
) -> None:
    """Raise for unknown names first, since a misspelt name often repeats the target of a correct name."""
    takers = collections.defaultdict(list)
    for name, name_of_estimator in mapping.items():
        takers[name_of_estimator].append(name)
    several = {name_of_estimator: names for name_of_estimator, names in takers.items() if len(names) > 1}
    twice = [
        f"the mapping of {of} maps several of Keras's to the Estimator's {name_of_estimator}"
        for name_of_estimator in several
    ]
    if unknown:
        raise ConfigError(
            "; ".join([f"the mapping of {of} has unknown names: {'; '.join(unknown[:6])}", *twice]),
            code="parity/no-counterpart",
            found=f"the Estimator's: {_listed(theirs)}; Keras's: {_listed(ours)}",
            hint=f"correct the names: the Keras model's {kind} comes first, the Estimator's second",
        )
    if twice:
        raise ConfigError(
            "; ".join(twice),
            code="parity/no-counterpart",
            found=", ".join(next(iter(several.values()))[:_SHOWN]),
            hint=f"map each to a different {kind}",
        )


def _with_shapes(names: Iterable[str], shapes: Shapes) -> str:
    return _listed([name if shapes[name] is None else f"{name} {list(shapes[name] or ())}" for name in names])


def _listed(names: Collection[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(list(names)[:_SHOWN]) + more if names else "none"

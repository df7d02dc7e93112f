"""Whether the names of an Estimator and a Keras model fit, before anything is trained. No TensorFlow."""

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
# Both have it as `loss` already, weighed by records instead of batches.
_AVERAGE = "average_loss"
# What tf-slim, and tf.contrib before it, call layers without a name and their weights -> what Keras does.
_LAYERS_OF_CONTRIB = {"fully_connected": "dense", "Conv": "conv2d", "BatchNorm": "batch_normalization"}
_WEIGHTS_OF_CONTRIB = {"weights": "kernel", "biases": "bias"}
_ONE_NAME = "give each layer a name of its own, and each tf.Variable"


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnmatchedVariables:
    """Variables that one side alone has, and does not train: averages, counters, accumulators made by hand.

    Attributes:
        theirs: the Estimator's, by canonical names.
        ours: the Keras model's.
    """

    theirs: frozenset[str] = frozenset()
    ours: frozenset[str] = frozenset()

    def notes(self) -> list[str]:
        """Return what is to be said of them."""
        sides = [f"{_listed(sorted(names))} ({whose} alone)" for names, whose in
                 ((self.theirs, "the Estimator"), (self.ours, "the Keras model")) if names]  # fmt: skip
        if not sides:
            return []
        return [
            f"variables that one side alone has, and that are not trained, were not compared: {'; '.join(sides)}; "
            "`mapping` (--mapping) matches those that belong together"
        ]


def names_of(given: Any, argument: str, example: str) -> dict[str, str]:
    """Return a mapping of names to names, as it was given.

    Args:
        given: it; None for none.
        argument: what it was given as.
        example: one of its pairs.

    Raises:
        ConfigError: it is something else.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(one, str) for pair in given.items() for one in pair):
        raise ConfigError(
            f"{argument} is no mapping of names to names",
            code="argument/bad-value",
            found=f"{given!r:.200}",
            hint=f"give a dict of texts, such as {example}",
        )
    return dict(given)


def canonical_of(names: Iterable[str], whose: str, kept: Mapping[str, str | None] | None = None) -> Mapping[str, str]:
    """Return the canonical names of one side's variables, see `estimator_pipeline.utils.variable_names.canonical`.

    Args:
        names: of the variables.
        whose: for messages.
        kept: what is known of some of them.

    Raises:
        ConfigError: two variables have one name.
    """
    counts = collections.Counter(list(names))  # of a mapping they would be its values
    try:
        found = canonical(counts, kept)
    except ValueError as error:
        raise ConfigError(
            f"variables of {whose} cannot be told apart: {error}", code="parity/no-counterpart", hint=_ONE_NAME
        ) from error
    # Of two optimizers each counts the steps, and both counts are called alike.
    twice = [given for name, given in found.items() if counts[given] > 1 and name != GLOBAL_STEP]
    if twice:
        raise ConfigError(
            f"{whose} has several variables of one name: {_listed(twice)}", code="parity/no-counterpart", hint=_ONE_NAME
        )
    return found


def renamed_as(name: str, renamed: Mapping[str, str]) -> str:
    """Return a canonical name of the Estimator's, a slot's too, as Keras calls it.

    Args:
        name: it.
        renamed: the Estimator's variable -> Keras's weight.
    """
    weight, at, slot = name.partition(" @")
    return renamed.get(weight, weight) + at + slot


def in_keras(name: str) -> str:
    """What Keras calls a variable that tf-slim or tf.contrib made: `fully_connected_1/weights` is `dense_1/kernel`."""
    layer, _, weight = name.rpartition("/")
    scope, _, own = layer.rpartition("/")
    kind, number = re.fullmatch(r"(.*?)((?:_\d+)?)", own).groups()  # type: ignore[union-attr]
    layer = "/".join(filter(None, [scope, _LAYERS_OF_CONTRIB.get(kind, kind) + number]))
    return f"{layer}/{_WEIGHTS_OF_CONTRIB.get(weight, weight)}".lstrip("/")


def counterparts(theirs: Shapes, ours: Shapes, mapping: Mapping[str, str]) -> dict[str, str]:
    """A mapping, and with it what tf-slim and tf.contrib call otherwise than Keras, where one variable alone can be it.

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
    found = {
        in_keras(name): name
        for name in left
        if named[in_keras(name)] == 1 and in_keras(name) not in {*theirs, *known} and in_keras(name) in ours
    }
    return {**found, **mapping}


def check_variables(
    theirs: Shapes, ours: Shapes, mapping: Mapping[str, str], *, untrained: Collection[str] = (),
    untrained_ours: Collection[str] = (),
) -> UnmatchedVariables:  # fmt: skip
    """Refuses a mapping that leaves a weight of either side without its counterpart.

    Args:
        theirs: the Estimator's variables, by canonical names.
        ours: the Keras model's.
        mapping: Keras weight -> the Estimator's variable.
        untrained: those of the Estimator that no gradient moves: they need no counterpart, moving statistics do.
        untrained_ours: the Keras model's.

    Returns:
        What has no counterpart, and needs none.

    Raises:
        ConfigError: a name that is not there, one that is given twice, a weight without a counterpart, another shape.
    """
    weights = {name: shape for name, shape in theirs.items() if kind_of(name) not in ("slots", "step")}
    own = {name: shape for name, shape in ours.items() if kind_of(name) not in ("slots", "step")}
    unknown = [f"the Estimator has no variable {name}" for name in mapping.values() if name not in weights]
    unknown += [f"the Keras model has no weight {name}" for name in sorted(set(mapping) - set(own))]
    _refuse_names("variables", "variable", mapping, unknown, weights, own)
    renamed = {given: name for name, given in mapping.items()}
    have = {renamed_as(name, renamed): name for name in weights}
    alone = [name for name in own if name not in have]
    left = [name for name in weights if renamed_as(name, renamed) not in own]
    out = UnmatchedVariables(
        theirs=frozenset(name for name in left if name in untrained and kind_of(name) != "statistics"),
        ours=frozenset(name for name in alone if name in untrained_ours and kind_of(name) != "statistics"),
    )
    alone, left = [name for name in alone if name not in out.ours], [name for name in left if name not in out.theirs]
    if alone or left:
        raise ConfigError(
            "weights have no counterpart on the other side",
            code="parity/no-counterpart",
            found=f"in Keras alone: {_told(alone, own)}; in the Estimator alone: {_told(left, weights)}",
            hint="give a mapping of Keras's names to the Estimator's, such as {dense/kernel: fc1/weights}",
        )
    both = [name for name in own if name in have]
    unlike = [
        name for name in both if None not in (own[name], weights[have[name]]) and own[name] != weights[have[name]]
    ]
    if unlike:
        pairs = [f"{_told([name], own)} in Keras, {_told([have[name]], weights)} in the Estimator" for name in unlike]
        raise ConfigError(
            f"weights that belong together have another shape: {_listed(unlike)}",
            code="parity/no-counterpart",
            found="; ".join(pairs[:6]),
            hint="correct the mapping of variables"
            if mapping
            else "give a mapping of the weights that belong together",
        )
    return out


def check_metrics(theirs: Collection[str], ours: Collection[str], renamed: Mapping[str, str]) -> None:
    """Refuses names of metrics that are not there, and an evaluation of which nothing could be compared.

    Args:
        theirs: names of the Estimator's metrics.
        ours: of the Keras model's.
        renamed: Keras metric -> the Estimator's.

    Raises:
        ConfigError: as said.
    """
    unknown = [f"the Estimator has no metric {name}" for name in renamed.values() if name not in {*theirs, _LOSS}]
    unknown += [f"the Keras model has no metric {name}" for name in renamed if name not in {*ours, _LOSS}]
    # One that keeps its name takes that name too.
    kept = {name: name for name in ours if name not in renamed and name in renamed.values()}
    _refuse_names("metrics", "metric", {**renamed, **kept}, unknown, theirs, ours)
    named = {renamed.get(name, name) for name in ours if name != _LOSS or name in renamed}
    some = [set(theirs) - {_LOSS, _AVERAGE}, set(ours) - {_LOSS}]
    if all(some) and not named & set(theirs):
        raise ConfigError(
            "of the evaluation's metrics none has a counterpart on the other side",
            code="parity/no-counterpart",
            found=f"the Estimator's: {_listed(sorted(theirs))}; Keras's: {_listed(sorted(some[1]))}",
            hint="match those that belong together by metric_names (--metric-names), Keras's to the Estimator's, such "
            "as {acc: accuracy}; compile the model without metrics to compare the losses alone",
        )


def to_compare(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], renamed: Mapping[str, str], loss: Any = None,
    batches: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> tuple[dict[str, dict[str, Any]], list[str]]:  # fmt: skip
    """Return the metrics of both under the Estimator's names, and what is to be said of those that are not compared.

    Args:
        theirs: the Estimator's metrics, its `loss` among them.
        ours: the Keras model's.
        renamed: Keras metric -> the Estimator's.
        loss: what the Estimator's `loss` is compared with, a mean of batch means; None: it is not known.
        batches: of each evaluation, how many records each batch had, where they may be others.

    Returns:
        Engine -> metric -> value, a number or a list of them: what both have is compared. And notes.
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
    # The same records in other batches have another mean of batch means.
    is_other_split = batches[0] != batches[1] and sum(batches[0]) == sum(batches[1])
    if loss is not None and not is_other_split:
        keras.setdefault(_LOSS, loss)
    both = [name for name in theirs if name in keras]
    # What the one says of the evaluation without a metric on the other side, its loss says.
    of_loss = (_LOSS, _AVERAGE) if _LOSS in both else (_LOSS,)
    left = [name for name in theirs if name not in both and name not in of_loss]
    alone = sorted(set(keras) - set(both))
    notes = []
    if all(batches) and sum(batches[0]) != sum(batches[1]):
        sides = [f"{sum(sizes)} in {len(sizes)} batches in {side}" for sizes, side in
                 zip(batches, ("the Estimator", "Keras"), strict=True)]  # fmt: skip
        notes.append(f"the evaluations read other numbers of records: {', '.join(sides)}")
    if loss is not None and is_other_split and _LOSS not in both:
        notes.append(
            "the loss of the evaluation was not compared: it is a mean of batch means, and the two evaluate the same "
            "records in other batches"
        )
    if arrays:
        notes.append(f"metrics of other shapes are not compared: {'; '.join(arrays)}")
    if others := [name for name in dict.fromkeys(none) if name not in unlike]:
        notes.append(f"metrics that are no numbers are not compared: {_listed(others)}")
    if left or alone:
        sides = [f"{_listed(left)} (the Estimator alone)"] if left else []
        sides += [f"{_listed(alone)} (the Keras model alone)"] if alone else []
        what = f"only {_listed(both)} was compared, and not " if both else "nothing was compared: "
        notes.append(
            f"of the evaluation {what}{'; '.join(sides)}: match metrics that belong together by `metric_names` "
            "(--metric-names), Keras's to the Estimator's"
        )
    if _LOSS in theirs and _LOSS not in both:
        what = "the Estimator's is a mean of batch means"
        counts = f"{len(batches[0])} in the Estimator, {len(batches[1])} in Keras"
        why = f", and the same records are read in other batches ({counts})"
        untold = "which Keras does not tell on several replicas, nor by a test_step without a loss"
        why = why if is_other_split else f", {untold}"
        hint = f"{_AVERAGE} was" if _AVERAGE in both else "give both a metric of it"
        notes.append(f"the loss of the evaluation was not compared: {what}{why}; {hint}")
    return {"estimator": theirs, "keras": keras}, notes


def _shape(value: Any) -> tuple[int, ...] | None:
    """Of what is a number or an array of numbers; one element is a number. None: it is something else."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        return None
    return () if array.size == 1 else array.shape


def _value(value: Any) -> Any:
    """Return a number or a list, which JSON can hold."""
    array = np.asarray(value)
    return float(array.item()) if array.size == 1 else array.astype(float).tolist()


def _described(value: Any) -> str:
    shape = _shape(value)
    return "no number" if shape is None else str(list(shape)) if shape else "one number"


def outputs_asked(asked: Any, outputs: Collection[str], keys: Collection[str] | None) -> dict[str, str]:
    """Keras output -> the Estimator's key, of the predictions that are compared.

    Args:
        asked: a key; or a mapping of outputs to keys; or None.
        outputs: names of the Keras model's.
        keys: of the Estimator's predictions; None: it predicts one array under no name.

    Raises:
        ConfigError: an output or a key that is not there; a key alone, where there are several outputs.
    """
    if asked is None:
        return {}
    if isinstance(asked, str):
        if len(outputs) != 1:
            raise ConfigError(
                f"predictions={asked!r} is one key, and the Keras model has {len(outputs)} outputs",
                code="parity/no-counterpart",
                found=f"its outputs: {', '.join(outputs)}",
                hint="give a mapping of outputs to keys (--predictions OUTPUT=KEY for each)",
            )
        asked = {next(iter(outputs)): asked}
    found = names_of(asked, "predictions", '{"logits": "scores"}, or a key alone')
    unknown = [name for name in found if name not in outputs]
    if unknown:
        raise ConfigError(
            f"predictions names outputs that the Keras model does not have: {', '.join(unknown)}",
            code="parity/no-counterpart",
            found=f"its outputs: {', '.join(outputs)}",
            hint="name the model's outputs, to each the Estimator's key",
        )
    missing = [] if keys is None else [key for key in found.values() if key not in keys]
    if missing:
        raise ConfigError(
            f"the Estimator's predictions have no {', '.join(missing)}",
            code="parity/no-counterpart",
            found=f"they have: {', '.join(keys or ())}",
            hint="name one of these",
        )
    if keys is None and len(found) > 1:
        raise ConfigError(
            f"predictions names {len(found)} keys, and the Estimator predicts one array",
            code="parity/no-counterpart",
            hint="name one output, or have the model_fn return a dict of predictions",
        )
    return found


def _refuse_names(
    of: str, one: str, mapping: Mapping[str, str], unknown: list[str], theirs: Collection[str], ours: Collection[str]
) -> None:
    """Names that are not there come first: one that is written wrongly often takes what another has."""
    takers = collections.defaultdict(list)
    for name, given in mapping.items():
        takers[given].append(name)
    several = {given: names for given, names in takers.items() if len(names) > 1}
    twice = [f"the mapping of {of} gives the Estimator's {given} to several of Keras's" for given in several]
    if unknown:
        raise ConfigError(
            "; ".join([f"the mapping of {of} names what is not there: {'; '.join(unknown[:6])}", *twice]),
            code="parity/no-counterpart",
            found=f"the Estimator's: {_listed(theirs)}; Keras's: {_listed(ours)}",
            hint=f"correct the names: the Keras model's {one} comes first, the Estimator's second",
        )
    if twice:
        raise ConfigError(
            "; ".join(twice),
            code="parity/no-counterpart",
            found=", ".join(next(iter(several.values()))[:_SHOWN]),
            hint=f"give each a {one} of its own",
        )


def _told(names: Iterable[str], shapes: Shapes) -> str:
    return _listed([name if shapes[name] is None else f"{name} {list(shapes[name] or ())}" for name in names])


def _listed(names: Collection[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(list(names)[:_SHOWN]) + more if names else "none"

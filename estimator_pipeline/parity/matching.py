"""Whether the names of an Estimator and a Keras model fit, before anything is trained. No TensorFlow."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.parity.names import GLOBAL_STEP, canonical
from estimator_pipeline.parity.tolerances import kind_of

__all__ = ["canonical_of", "check_variables", "check_metrics", "names_of", "outputs_asked", "renamed_as", "to_compare"]

# A name, and the array's shape; None: not known before the graph runs.
Shapes = Mapping[str, tuple[int, ...] | None]
_SHOWN = 12
_LOSS = "loss"
# Both have it as `loss` already, weighed by records instead of batches.
_AVERAGE = "average_loss"


def names_of(given: Any, argument: str, example: str) -> dict[str, str]:
    """A mapping of names to names, as it was given.

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
            found=f"{given!r:.200}",
            mend=f"give a dict of texts, such as {example}",
        )
    return dict(given)


def canonical_of(names: Iterable[str], whose: str) -> Mapping[str, str]:
    """The canonical names of one side's variables, see :func:`estimator_pipeline.parity.names.canonical`.

    Raises:
        ConfigError: two variables have one name.
    """
    counts = collections.Counter(list(names))  # of a mapping they would be its values
    try:
        found = canonical(counts)
    except ValueError as error:
        raise ConfigError(
            f"variables of {whose} cannot be told apart: {error}", mend="give each layer a name of its own"
        ) from error
    # Of two optimizers each counts the steps, and both counts are called alike.
    twice = [given for name, given in found.items() if counts[given] > 1 and name != GLOBAL_STEP]
    if twice:
        raise ConfigError(
            f"{whose} has several variables of one name: {_listed(twice)}", mend="give each layer a name of its own"
        )
    return found


def renamed_as(name: str, renamed: Mapping[str, str]) -> str:
    """A canonical name of the Estimator's, a slot's too, as Keras calls it.

    Args:
        name: it.
        renamed: the Estimator's variable -> Keras's weight.
    """
    weight, at, slot = name.partition(" @")
    return renamed.get(weight, weight) + at + slot


def check_variables(theirs: Shapes, ours: Shapes, mapping: Mapping[str, str]) -> None:
    """Refuses a mapping that leaves a weight of either side without its counterpart.

    Args:
        theirs: the Estimator's variables, by canonical names.
        ours: the Keras model's.
        mapping: Keras weight -> the Estimator's variable.

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
    if alone or left:
        raise ConfigError(
            "weights have no counterpart on the other side",
            found=f"in Keras alone: {_told(alone, own)}; in the Estimator alone: {_told(left, weights)}",
            mend="give a mapping of Keras's names to the Estimator's, such as {dense/kernel: fc1/weights}",
        )
    unlike = [name for name in own if None not in (own[name], weights[have[name]]) and own[name] != weights[have[name]]]
    if unlike:
        pairs = [f"{_told([name], own)} in Keras, {_told([have[name]], weights)} in the Estimator" for name in unlike]
        raise ConfigError(
            f"weights that belong together have another shape: {_listed(unlike)}",
            found="; ".join(pairs[:6]),
            mend="correct the mapping of variables"
            if mapping
            else "give a mapping of the weights that belong together",
        )


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
            found=f"the Estimator's: {_listed(sorted(theirs))}; Keras's: {_listed(sorted(some[1]))}",
            mend="match those that belong together by metric_names (--metric-names), Keras's to the Estimator's, such "
            "as {acc: accuracy}; compile the model without metrics to compare the losses alone",
        )


def to_compare(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], renamed: Mapping[str, str], loss: Any = None
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The metrics of both under the Estimator's names, and what is to be said of those that are not compared.

    Args:
        theirs: the Estimator's metrics, its `loss` among them.
        ours: the Keras model's.
        renamed: Keras metric -> the Estimator's.
        loss: what the Estimator's `loss` is compared with, a mean of batch means; None: it is not known.

    Returns:
        Engine -> metric -> value, those that are a number: what both have is compared. And notes.
    """
    keras = {renamed.get(name, name): value for name, value in ours.items() if name != _LOSS or name in renamed}
    arrays = sorted(name for name, value in {**keras, **theirs}.items() if not _is_number(value))
    theirs, keras = (
        {name: float(value) for name, value in side.items() if name not in arrays} for side in (theirs, keras)
    )
    if loss is not None:
        keras.setdefault(_LOSS, loss)
    both = [name for name in theirs if name in keras]
    # Each of the two losses says of the evaluation what the other one says.
    of_loss = (_LOSS, _AVERAGE) if {_LOSS, _AVERAGE} & set(both) else (_LOSS,)
    left = [name for name in theirs if name not in both and name not in of_loss]
    alone = sorted(set(keras) - set(both))
    notes = []
    if arrays:
        notes.append(f"metrics that are no single number are not compared: {_listed(arrays)}")
    if left or alone:
        sides = [f"{_listed(left)} (the Estimator alone)"] if left else []
        sides += [f"{_listed(alone)} (the Keras model alone)"] if alone else []
        what = f"only {_listed(both)} was" if both else "nothing was"
        notes.append(
            f"of the evaluation {what} compared, and not {'; '.join(sides)}: match metrics that belong together by "
            "`metric_names` (--metric-names), Keras's to the Estimator's"
        )
    if _LOSS in theirs and not {_LOSS, _AVERAGE} & set(both):
        notes.append(
            "the loss of the evaluation was not compared: the Estimator's is a mean of batch means, which Keras does "
            "not tell on several replicas; give both a metric of it"
        )
    return {"estimator": theirs, "keras": keras}, notes


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.ndim == 0 and array.dtype.kind in "fiub"


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
                found=f"its outputs: {', '.join(outputs)}",
                mend="give a mapping of outputs to keys (--predictions OUTPUT=KEY for each)",
            )
        asked = {next(iter(outputs)): asked}
    found = names_of(asked, "predictions", '{"logits": "scores"}, or a key alone')
    unknown = [name for name in found if name not in outputs]
    if unknown:
        raise ConfigError(
            f"predictions names outputs that the Keras model does not have: {', '.join(unknown)}",
            found=f"its outputs: {', '.join(outputs)}",
            mend="name the model's outputs, to each the Estimator's key",
        )
    missing = [] if keys is None else [key for key in found.values() if key not in keys]
    if missing:
        raise ConfigError(
            f"the Estimator's predictions have no {', '.join(missing)}",
            found=f"they have: {', '.join(keys or ())}",
            mend="name one of these",
        )
    if keys is None and len(found) > 1:
        raise ConfigError(
            f"predictions names {len(found)} keys, and the Estimator predicts one array",
            mend="name one output, or have the model_fn return a dict of predictions",
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
            found=f"the Estimator's: {_listed(theirs)}; Keras's: {_listed(ours)}",
            mend=f"correct the names: the Keras model's {one} comes first, the Estimator's second",
        )
    if twice:
        raise ConfigError(
            "; ".join(twice),
            found=", ".join(next(iter(several.values()))[:_SHOWN]),
            mend=f"give each a {one} of its own",
        )


def _told(names: Iterable[str], shapes: Shapes) -> str:
    return _listed([name if shapes[name] is None else f"{name} {list(shapes[name] or ())}" for name in names])


def _listed(names: Collection[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(list(names)[:_SHOWN]) + more if names else "none"

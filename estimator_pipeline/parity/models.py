"""An Estimator of any program against a Keras model that its people made for it, in one process.

    found = compare_models(estimator, model, input_fn=train_input_fn, steps=20,
                           mapping={"dense/kernel": "fc1/weights", "dense/bias": "fc1/biases"})

The Estimator is set to the values that the Keras model has, both train on the same records, and what each step did is
compared, see :mod:`estimator_pipeline.parity.result`. Neither is changed by it: the Estimator trains in a folder of
the comparison's own, the Keras model gets its values back.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline import compat, keras_optimizers, replica_means
from estimator_pipeline.engines import recording
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.parity import known
from estimator_pipeline.parity.answers import evaluated_losses, random_layers
from estimator_pipeline.parity.diagnosis import Facts
from estimator_pipeline.parity.names import GLOBAL_STEP, canonical
from estimator_pipeline.parity.records import BatchWriter, StepWriter, initial_of
from estimator_pipeline.parity.result import ENGINES, Parity, compare_records
from estimator_pipeline.parity.tolerances import Tolerances, kind_of

__all__ = ["compare_models"]


def compare_models(
    estimator: Any,
    model: Any,
    *,
    input_fn: Callable[..., Any],
    eval_input_fn: Callable[..., Any] | None = None,
    keras_input_fn: Callable[..., Any] | None = None,
    keras_eval_input_fn: Callable[..., Any] | None = None,
    steps: int = 20,
    mapping: Mapping[str, str] | None = None,
    metric_names: Mapping[str, str] | None = None,
    predictions: str | Mapping[str, str] | None = None,
    tolerances: Any = None,
    slots: bool | None = None,
    folder: Any = None,
) -> Parity:
    """Trains an Estimator and a Keras model from the same values on the same records, and compares each step.

    Args:
        estimator: a `tf.estimator.Estimator`, or a canned one. Its `model_fn`, `params` and `config` are used, strategy
            included; its `model_dir` is neither read nor written.
        model: a compiled `tf.keras.Model` of Keras 2, made in the scope of its strategy, if it has one.
        input_fn: gives the training data, a `tf.data.Dataset` of (features, labels), in the same order each time.
        eval_input_fn: gives the evaluation's data; None: nothing is evaluated.
        keras_input_fn: the same for the Keras model, where it takes its features in another form.
        keras_eval_input_fn: the same of `eval_input_fn`.
        steps: how many training steps.
        mapping: a Keras weight -> the Estimator's variable, both without ":0", of those whose names differ. A weight
            that it does not name has the same name in both.
        metric_names: a metric of the Keras model -> the Estimator's name for it, where they differ.
        predictions: an output of the Keras model -> the key of it in the Estimator's predictions; the key alone, where
            the model has one output. What both answer to the first batch of the evaluation (or of the training, where
            nothing is evaluated) is compared. None: it is not, and a note says so.
        tolerances: what may differ by how much, see :meth:`Tolerances.of`.
        slots: whether the optimizers' slots are compared; None: where both have the same ones under the same names.
        folder: where the runs and their records go; a new temporary one by default.

    Returns:
        The comparison. Where `equal` is False, `findings` says what it comes from.

    Raises:
        ConfigError: variables that have no counterpart, or one of another shape; a model that is not compiled;
            predictions that one of the two does not have.
    """
    base = Path(tempfile.mkdtemp(prefix="estimator-pipeline-parity-") if folder is None else folder)
    allowed = Tolerances.of(tolerances)
    if getattr(model, "optimizer", None) is None:
        raise ConfigError("the Keras model is not compiled", mend="model.compile(optimizer, loss, metrics)")
    _each_once("variables", "variable", mapping)
    _each_once("metrics", "metric", metric_names)
    evaluations = (eval_input_fn, keras_eval_input_fn or eval_input_fn)
    asked = _outputs(model, predictions)
    answers: list[dict[str, Any]] = [{}, {}]  # of the Estimator, of Keras
    metrics: dict[str, dict[str, Any]] = {}
    drawn = random_layers(model)
    metrics["keras"], losses = _by_keras(
        base, model, keras_input_fn or input_fn, evaluations[1], steps, asked, answers[1]
    )
    renamed = {given: name for name, given in (mapping or {}).items()}
    names: list[str] = []
    metrics["estimator"] = _by_estimator(
        base, estimator, input_fn, evaluations[0], steps, renamed, names, asked, answers[0]
    )
    # Estimator's `loss` is a mean of batch means, Keras's that of all records.
    metrics["keras"].pop("loss", None)
    if losses is not None:
        metrics["keras"]["loss"] = losses["loss"][0]
    compared, notes = _metrics(metrics, metric_names or {})
    pairs = {name: [float(compared[engine][name]) for engine in ENGINES] for name in compared["keras"]}
    notes += known.of_metrics(name for name, pair in pairs.items() if not math.isclose(*pair, rel_tol=1e-4))
    if slots is None:
        slots, told = _slots(base, names, model.optimizer)
        notes += told
    notes += known.of_optimizers(names, type(model.optimizer).__name__)
    notes += known.of_random_layers(drawn)
    if not asked:
        notes.append(
            "predictions were not compared: name the Estimator's key of each output in `predictions` (--predictions), "
            f"of {', '.join(model.output_names)}"
        )
    replicas = model.distribute_strategy.num_replicas_in_sync
    facts = Facts(
        replicas=replicas,
        batches_per_step=replicas,
        clip_norm=getattr(model.optimizer, "global_clipnorm", None),
        beta_1=float(model.optimizer.get_config().get("beta_1", 0.9)),
        losses=losses or {},
    )
    found = compare_records(
        base, metrics=compared, tolerances=allowed, facts=facts, notes=tuple(notes), slots=slots, steps=steps,
        answers=(answers[0], answers[1]) if asked else None,
    )  # fmt: skip
    if any(step.variables.differences for step in found.steps):
        told = known.of_session(estimator.config.session_config)
        found = dataclasses.replace(found, notes=(*found.notes, *told))
    return found


def _outputs(model: Any, predictions: str | Mapping[str, str] | None) -> dict[str, str]:
    """Keras output -> the Estimator's key."""
    names = list(model.output_names)
    if predictions is None:
        return {}
    if isinstance(predictions, str):
        if len(names) != 1:
            raise ConfigError(
                f"predictions={predictions!r} is one key, and the Keras model has {len(names)} outputs",
                found=f"its outputs: {', '.join(names)}",
                mend="give a mapping of outputs to keys",
            )
        return {names[0]: predictions}
    unknown = [name for name in predictions if name not in names]
    if unknown:
        raise ConfigError(
            f"predictions names outputs that the Keras model does not have: {', '.join(unknown)}",
            found=f"its outputs: {', '.join(names)}",
        )
    return dict(predictions)


def _by_keras(
    base: Path,
    model: Any,
    input_fn: Any,
    eval_input_fn: Any,
    steps: int,
    asked: Mapping[str, str],
    answers: dict[str, Any],
) -> tuple[dict[str, Any], Any]:
    """Trains and evaluates the Keras model, asks it, and gives it its values back."""
    strategy = model.distribute_strategy
    values = [variable.numpy() for variable in _everything(model)]
    writer = BatchWriter(base / "keras" / "record", "worker:0")
    told = recording.told_batches(input_fn, writer.batch)
    callback = recording.keras_callback(StepWriter(base / "keras" / "record"), canonical=canonical)
    try:
        model.fit(_given(told, strategy), steps_per_epoch=steps, epochs=1, callbacks=[callback], verbose=0)
        if asked:
            # Not by `predict`: under a strategy each replica would read moving statistics of its own.
            found = model(next(iter(_features(_dataset(eval_input_fn or input_fn)))), training=False)
            named = found if isinstance(found, Mapping) else dict(zip(model.output_names, _listed(found), strict=True))
            answers |= {f"predictions {output}": np.asarray(named[output]) for output in asked}
        if eval_input_fn is None:
            return {}, None
        with replica_means.alike(model):
            found = model.evaluate(_dataset(eval_input_fn), return_dict=True, verbose=0)
        # A replica's layers are not called by themselves.
        alone = strategy.num_replicas_in_sync == 1
        losses = evaluated_losses(model, _dataset(eval_input_fn)) if alone else None
        return {name: float(value) for name, value in found.items()}, losses
    finally:
        for variable, value in zip(_everything(model), values, strict=True):
            variable.assign(value)


def _everything(model: Any) -> list[Any]:
    keras_optimizers.create_slots(model)
    return [*model.variables, *keras_optimizers.variables_of(model.optimizer)]


def _by_estimator(
    base: Path,
    estimator: Any,
    input_fn: Any,
    eval_input_fn: Any,
    steps: int,
    renamed: Mapping[str, str],
    names: list[str],
    asked: Mapping[str, str],
    answers: dict[str, Any],
) -> dict[str, Any]:
    """Trains and evaluates a copy of the Estimator, from the values that Keras has recorded, and asks it."""
    tf = compat.install()
    model_dir = str(base / "estimator" / "model")
    own = estimator.model_fn

    def model_fn(features: Any, labels: Any, mode: Any, config: Any) -> Any:
        return own(features, labels, mode, config)

    copy = tf.estimator.Estimator(model_fn, model_dir, config=estimator.config.replace(model_dir=model_dir))
    start = {name: value for name, value in initial_of(base / "keras" / "record").items() if kind_of(name) != "slots"}
    start.pop(GLOBAL_STEP)

    def of_graph(found: Iterable[str]) -> Mapping[str, str]:
        given = list(found)
        names.extend(given)
        _check(given, start, renamed)
        known_as = canonical(given)
        return {_renamed(name, renamed): variable for name, variable in known_as.items()}

    record = base / "estimator" / "record"
    hook = recording.estimator_hook(StepWriter(record), canonical=of_graph, start=start)
    told = recording.told_batches(input_fn, BatchWriter(record, "worker:0").batch)
    try:
        copy.train(told, max_steps=steps, hooks=[hook])
    except ConfigError as error:
        if error.mend is not None:
            raise
        mend = "correct the mapping of variables" if renamed else "give a mapping of the weights that belong together"
        raise ConfigError(error.what, found=error.found, mend=mend) from error
    if asked:
        given = functools.partial(_dataset, eval_input_fn or input_fn)
        found = next(iter(copy.predict(lambda: _features(given()), yield_single_examples=False)))
        found = found if isinstance(found, Mapping) else dict.fromkeys(asked.values(), found)
        unknown = [key for key in asked.values() if key not in found]
        if unknown:
            raise ConfigError(
                f"the Estimator's predictions have no {', '.join(unknown)}", found=f"they have: {', '.join(found)}"
            )
        answers |= {f"predictions {output}": np.asarray(found[key]) for output, key in asked.items()}
    if eval_input_fn is None:
        return {}
    return {name: float(value) for name, value in copy.evaluate(eval_input_fn).items() if name != GLOBAL_STEP}


def _renamed(name: str, renamed: Mapping[str, str]) -> str:
    weight, at, slot = name.partition(" @")
    return renamed.get(weight, weight) + at + slot


def _check(given: list[str], start: Mapping[str, Any], renamed: Mapping[str, str]) -> None:
    """Refuses a mapping that leaves a weight of either side without its counterpart."""
    weights = [name for name in canonical(given) if kind_of(name) not in ("slots", "step")]
    unknown = [name for name in renamed if name not in weights]
    wanted = set(renamed.values()) - set(start)
    if unknown or wanted:
        told = [f"the Estimator has no variable {name}" for name in unknown]
        told += [f"the Keras model has no weight {name}" for name in sorted(wanted)]
        raise ConfigError(
            "the mapping of variables names what is not there: " + "; ".join(told[:6]),
            found=f"the Estimator's: {', '.join(weights[:12])}; Keras's: {', '.join(list(start)[:12])}",
        )
    have = {_renamed(name, renamed) for name in weights}
    alone = [name for name in start if name not in have]
    theirs = [name for name in weights if _renamed(name, renamed) not in start]
    if alone or theirs:
        raise ConfigError(
            "weights have no counterpart on the other side",
            found=f"in Keras alone: {_told(alone, start)}; in the Estimator alone: {', '.join(theirs[:12]) or 'none'}",
            mend="give a mapping of Keras's names to the Estimator's, such as {dense/kernel: fc1/weights}",
        )


def _each_once(of: str, one: str, mapping: Mapping[str, str] | None) -> None:
    """Refuses a mapping that gives one thing of the Estimator's to several of Keras's."""
    counts = collections.Counter((mapping or {}).values())
    for name, count in counts.items():
        if count > 1:
            takers = [given for given, taken in (mapping or {}).items() if taken == name]
            raise ConfigError(
                f"the mapping of {of} gives the Estimator's {name} to several of Keras's",
                found=", ".join(takers[:12]),
                mend=f"give each a {one} of its own",
            )


def _told(names: list[str], values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {list(values[name].shape)}" for name in names[:12]) or "none"


def _slots(base: Path, names: list[str], optimizer: Any) -> tuple[bool, list[str]]:
    """Whether both keep the same slots, under the same names and with the same meaning."""
    keras = initial_of(base / "keras" / "record")
    estimator = initial_of(base / "estimator" / "record")
    slots = [{name for name in side if kind_of(name) == "slots"} for side in (estimator, keras)]
    if slots[0] != slots[1]:
        return False, ["the optimizers' slots are not compared: the two do not keep the same ones"]
    if known.of_optimizers(names, type(optimizer).__name__) and type(optimizer).__name__ != "Adam":
        return False, ["the optimizers' slots are not compared: the two keep something else under the same names"]
    return True, []


def _metrics(metrics: Mapping[str, Mapping[str, Any]], renamed: Mapping[str, str]) -> Any:
    """The metrics that both have, by the Estimator's names."""
    keras = {renamed.get(name, name): value for name, value in metrics["keras"].items()}
    both = [name for name in metrics["estimator"] if name in keras]
    alone = sorted({*metrics["estimator"], *keras} - set(both))
    notes = [f"metrics of one side alone are not compared: {', '.join(alone)}"] if alone else []
    sides = {"estimator": metrics["estimator"], "keras": keras}
    return {engine: {name: sides[engine][name] for name in both} for engine in ENGINES}, notes


def _given(input_fn: Callable[..., Any], strategy: Any) -> Any:
    """What `fit` gets: the dataset, or one for each pipeline of a strategy."""
    if strategy.num_replicas_in_sync > 1:
        return strategy.distribute_datasets_from_function(functools.partial(_dataset, input_fn))
    return _dataset(input_fn)


def _features(dataset: Any) -> Any:
    """The features of the first batch."""
    first = dataset.take(1)
    pairs = isinstance(first.element_spec, tuple)
    return first.map(lambda features, *_: features) if pairs else first


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _dataset(input_fn: Callable[..., Any], context: Any = None) -> Any:
    return input_fn(input_context=context) if "input_context" in inspect.signature(input_fn).parameters else input_fn()

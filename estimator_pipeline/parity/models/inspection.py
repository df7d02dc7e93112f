"""What an Estimator and a Keras model consist of, looked at before either is trained.

An Estimator's variables, metrics and predictions are known once its graph is built, by the calls that build it for
training, evaluation and prediction, in its strategies. Each of these calls is ended before a session exists.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError, PipelineError
from estimator_pipeline.job.user_code import describe_error, place_in
from estimator_pipeline.models import keras_variable_names as keras_names
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.parity.graph_facts import kind_of_metric
from estimator_pipeline.parity.models.input_fns import ComparedInputFn, features_of
from estimator_pipeline.parity.models.matching import canonical_of
from estimator_pipeline.parity.optimizer_slots import OptimizerSlots, kept_by_keras, kept_in_graph

__all__ = ["EstimatorSummary", "KerasSummary", "copy_of", "keras_classes", "look_at_estimator", "look_at_keras"]

Shapes = Mapping[str, tuple[int, ...] | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatorSummary:
    """What an Estimator has.

    Attributes:
        variables: of its training, by canonical names, with their shapes.
        untrained: those of them that no gradient moves.
        metrics: names of its evaluation's metrics, without `loss`; none where nothing is evaluated.
        predictions: their keys; None: it predicts one array under no name, or was not asked.
        counts: of each metric, what it counts; see `estimator_pipeline.parity.graph_facts.kind_of_metric`.
    """

    variables: Shapes
    untrained: frozenset[str] = frozenset()
    metrics: tuple[str, ...] = ()
    predictions: tuple[str, ...] | None = None
    counts: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KerasSummary:
    """What a Keras model has.

    Attributes:
        variables: its weights and slots, by canonical names, with their shapes.
        untrained: those of them that no gradient moves; a weight that is frozen is none.
        metrics: names of its metrics, without `loss`; none where nothing is evaluated.
        outputs: names of its outputs.
    """

    variables: Shapes
    untrained: frozenset[str] = frozenset()
    metrics: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


class _Seen(Exception):
    """Ends a call of the Estimator whose graph is built."""


def copy_of(estimator: Any, model_dir: str, note: Callable[[str, Any], None] | None = None, **config: Any) -> Any:
    """Return an Estimator of the same model_fn, parameters and configuration in another folder.

    Args:
        estimator: any Estimator, a canned one too.
        model_dir: of the copy.
        note: called with the mode and the `EstimatorSpec` whenever the model_fn has been called.
        **config: fields of its `RunConfig` that are others.
    """
    tf = compat.tensorflow()
    own = estimator.model_fn

    def model_fn(features: Any, labels: Any, mode: Any, config: Any) -> Any:
        spec = own(features, labels, mode, config)
        if note is not None:
            note(mode, spec)
        return spec

    return tf.estimator.Estimator(model_fn, model_dir, config=estimator.config.replace(model_dir=model_dir, **config))


def look_at_estimator(
    estimator: Any, *, training: ComparedInputFn, evaluation: ComparedInputFn | None, asked: bool
) -> EstimatorSummary:
    """Return what an Estimator has; nothing is run, and nothing left on disk.

    Args:
        estimator: it.
        training: its training data.
        evaluation: those of the evaluation; None: nothing is evaluated.
        asked: whether predictions are.

    Raises:
        ConfigError: data that are none; variables that cannot be told apart; a model_fn that raises.
    """
    tf: Any = compat.tensorflow()
    shapes: dict[str, Any] = {}
    still: set[str] = set()
    kept: list[OptimizerSlots] = []
    specs: dict[str, Any] = {}
    counts: dict[str, Mapping[str, Any]] = {}
    kind_of = tf.autograph.experimental.do_not_convert(kind_of_metric)
    base: Any = tf.compat.v1.train.SessionRunHook

    class Looker(base):
        def begin(self) -> None:
            variables = tf.compat.v1.global_variables()
            shapes.update({variable.name: variable.shape for variable in variables})
            still.update(variable.name for variable in variables if not variable.trainable)
            kept.append(kept_in_graph(tf.compat.v1.get_default_graph()))
            raise _Seen

    def note(mode: str, spec: Any) -> None:
        # The tensors are of a graph that ends with the call: their names are kept alone.
        named = spec.predictions if isinstance(spec.predictions, Mapping) else None
        metrics = spec.eval_metric_ops or {}
        specs[mode] = (tuple(metrics), None if named is None else tuple(named))
        for name, one in metrics.items():
            counts[name] = kind_of(tf.compat.v1.get_default_graph(), one[0] if isinstance(one, tuple) else one)

    with (
        tempfile.TemporaryDirectory(prefix="estimator-pipeline-look-") as folder,
        _same_random_numbers(),
        keras_classes(),
    ):
        # No hooks of the Estimator's own that open files.
        silent = ("save_checkpoints_steps", "save_checkpoints_secs", "save_summary_steps", "log_step_count_steps")
        quiet = dict.fromkeys(silent)
        copy = copy_of(estimator, folder, note, **quiet)
        with _built("the Estimator's training cannot be built"):
            copy.train(training.for_estimator(), max_steps=1, hooks=[Looker()])
        variables = canonical_of(shapes, "the Estimator", kept[0].names)
        modes = tf.estimator.ModeKeys
        if evaluation is not None:
            with _built("the Estimator's evaluation cannot be built"):
                copy.evaluate(evaluation.for_estimator(), steps=1, hooks=[Looker()])
        if asked:
            given = (evaluation or training).for_estimator()
            with (
                _built("the Estimator's prediction cannot be built"),
                contextlib.closing(
                    copy.predict(lambda: features_of(given()), hooks=[Looker()], yield_single_examples=False)
                ) as answers,
            ):
                next(answers)
    return EstimatorSummary(
        variables={
            name: tuple(shapes[one].as_list()) if shapes[one].is_fully_defined() else None
            for name, one in variables.items()
        },
        untrained=frozenset(name for name, one in variables.items() if one in still),
        metrics=specs[modes.EVAL][0] if evaluation is not None else (),
        predictions=specs[modes.PREDICT][1] if asked else None,
        counts=counts,
    )


def look_at_keras(model: Any, *, training: ComparedInputFn, evaluation: ComparedInputFn | None) -> KerasSummary:
    """Return what a Keras model has; a model that is not built yet is, and no value of it is changed.

    Args:
        model: a compiled model.
        training: its training data.
        evaluation: those of the evaluation; None: nothing is evaluated.

    Raises:
        ConfigError: data that are none; variables that cannot be told apart.
    """
    tf: Any = compat.tensorflow()
    with _same_random_numbers():
        names = getattr(model, "output_names", None)
        features = training.first_features()
        if not model.built or not names:
            # What its layers are given, and so their shapes, the first batch tells; the optimizer needs them.
            with (
                _built(f"the Keras model cannot take the first batch of {training.title}"),
                model.distribute_strategy.scope(),
            ):
                found = model(features, training=False)
            names = getattr(model, "output_names", None) or _names_in(found)
        outputs = model.output if getattr(model, "outputs", None) else None
        if isinstance(outputs, Mapping):
            names = list(outputs)  # it answers by these, whatever its layers are called
        metrics: tuple[str, ...] = ()
        if evaluation is not None:
            evaluation.first_features()
            # Which metrics there are is known once a batch was evaluated: `compile` may have been given "accuracy".
            values = [(variable, tf.identity(variable)) for variable in keras_optimizers.weights_of(model)]
            with _built(f"the Keras model cannot evaluate the first batch of {evaluation.title}"):
                found = model.evaluate(evaluation.for_keras()().take(1), return_dict=True, verbose=0)
            for variable, value in values:
                variable.assign(value)
            model.reset_metrics()
            metrics = tuple(name for name in found if name != "loss")
    keras_optimizers.create_slots(model)
    named = keras_names.named(model)
    known_as = canonical_of((name for name, _ in named), "the Keras model", kept_by_keras(model).names)
    shapes = {name: tuple(one.shape.as_list()) for name, one in named}
    still = {name for name, one in named if not one.trainable}
    return KerasSummary(
        variables={name: shapes[one] for name, one in known_as.items()},
        untrained=frozenset(name for name, one in known_as.items() if one in still),
        metrics=metrics,
        outputs=tuple(names),
    )


@contextlib.contextmanager
def _built(what: str) -> Iterator[None]:
    """End at what has been seen; tells what a model_fn or a model raises."""
    try:
        yield
    except (_Seen, PipelineError) as error:
        if isinstance(error, PipelineError):
            raise
    except Exception as error:
        hint = "correct it there, or the data"
        raise ConfigError(
            f"{what}: {describe_error(error)}", code="model/bad-function", found=place_in(error), hint=hint
        ) from error


def _names_in(found: Any) -> list[str]:
    """Of a model that does not name its outputs: the keys, or the names that Keras would give them."""
    if isinstance(found, Mapping):
        return list(found)
    return [f"output_{number}" for number in range(1, 1 + (len(found) if isinstance(found, list | tuple) else 1))]


@contextlib.contextmanager
def keras_classes() -> Iterator[None]:
    """Lets Keras models that were made before the block be called after it.

    Whoever makes a layer in a graph, as a model_fn does, has Keras 2 change the bases of the layer's class, and each
    model that was made of such layers eagerly is "in an invalid state" then.
    """
    tf: Any = compat.tensorflow()
    bases: dict[type, tuple[type, ...]] = {}
    todo: list[Any] = [tf.keras.layers.Layer]
    while todo:
        kind = todo.pop()
        if kind not in bases:
            bases[kind] = kind.__bases__
            todo.extend(type.__subclasses__(kind))
    try:
        yield
    finally:
        for kind, before in bases.items():
            if kind.__bases__ != before:
                kind.__bases__ = before


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Yield what the program draws in the block, it draws again after it: a look shall not change what is trained."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])

"""Summaries of an Estimator and a Keras model, from before either is trained.

An Estimator's variables, metrics and predictions are known once its graph is built, by the calls that build it for
training, evaluation and prediction, in its strategies. Each of these calls stops before a session is created.
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
from estimator_pipeline.parity.models.input_fns import ComparedInputFn, features_of
from estimator_pipeline.parity.models.matching import canonical_of
from estimator_pipeline.parity.optimizer_slots import OptimizerSlots, kept_by_keras, kept_in_graph

__all__ = ["EstimatorSummary", "KerasSummary", "copy_of", "keras_classes", "look_at_estimator", "look_at_keras"]

Shapes = Mapping[str, tuple[int, ...] | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatorSummary:
    """Variables, metrics and predictions of an Estimator.

    Attributes:
        variables: canonical name -> shape of the training variables.
        untrained: non-trainable variables.
        metrics: names of the evaluation metrics, without `loss`; empty if nothing is evaluated.
        predictions: keys of the predictions; None: a single array without a name, or not requested.
        optimizers: default names of the `tf.compat.v1.train` optimizers that train it, such as "Adam".
    """

    variables: Shapes
    untrained: frozenset[str] = frozenset()
    metrics: tuple[str, ...] = ()
    predictions: tuple[str, ...] | None = None
    optimizers: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class KerasSummary:
    """Variables, metrics and outputs of a Keras model.

    Attributes:
        variables: canonical name -> shape of weights and slots.
        untrained: non-trainable variables; weights of frozen layers are not included.
        metrics: names of the metrics, without `loss`; empty if nothing is evaluated.
        outputs: names of the outputs.
    """

    variables: Shapes
    untrained: frozenset[str] = frozenset()
    metrics: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


class _Seen(Exception):
    """Stops a call of the Estimator once its graph is built."""


def copy_of(estimator: Any, model_dir: str, note: Callable[[str, Any], None] | None = None, **config: Any) -> Any:
    """Return an Estimator with the same model_fn, parameters and configuration in a different folder.

    Args:
        estimator: any Estimator, including canned ones.
        model_dir: model directory of the copy.
        note: called with the mode and the `EstimatorSpec` after each call of the model_fn.
        **config: fields of its `RunConfig` to replace.
    """
    tf = compat.tensorflow()
    original = estimator.model_fn

    def model_fn(features: Any, labels: Any, mode: Any, config: Any) -> Any:
        spec = original(features, labels, mode, config)
        if note is not None:
            note(mode, spec)
        return spec

    return tf.estimator.Estimator(model_fn, model_dir, config=estimator.config.replace(model_dir=model_dir, **config))


def look_at_estimator(
    estimator: Any, *, training: ComparedInputFn, evaluation: ComparedInputFn | None, asked: bool
) -> EstimatorSummary:
    """Return the summary of an Estimator; nothing is run, and nothing is left on disk.

    Args:
        estimator: the Estimator.
        training: its training data.
        evaluation: its evaluation data; None: nothing is evaluated.
        asked: whether predictions are requested.

    Raises:
        ConfigError: invalid data; variables with the same name; a model_fn that raises.
    """
    tf: Any = compat.tensorflow()
    shapes: dict[str, Any] = {}
    still: set[str] = set()
    kept: list[OptimizerSlots] = []
    specs: dict[str, Any] = {}
    base: Any = tf.compat.v1.train.SessionRunHook

    class Looker(base):
        def begin(self) -> None:
            variables = tf.compat.v1.global_variables()
            shapes.update({variable.name: variable.shape for variable in variables})
            still.update(variable.name for variable in variables if not variable.trainable)
            kept.append(kept_in_graph(tf.compat.v1.get_default_graph()))
            raise _Seen

    def note(mode: str, spec: Any) -> None:
        # Only names are kept: the tensors belong to a graph that ends with the call.
        named = spec.predictions if isinstance(spec.predictions, Mapping) else None
        specs[mode] = (tuple(spec.eval_metric_ops or ()), None if named is None else tuple(named))

    with (
        tempfile.TemporaryDirectory(prefix="estimator-pipeline-look-") as folder,
        _same_random_numbers(),
        keras_classes(),
    ):
        # Without the Estimator's hooks that open files.
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
            input_fn = (evaluation or training).for_estimator()
            with (
                _built("the Estimator's prediction cannot be built"),
                contextlib.closing(
                    copy.predict(lambda: features_of(input_fn()), hooks=[Looker()], yield_single_examples=False)
                ) as answers,
            ):
                next(answers)
    return EstimatorSummary(
        variables={
            name: tuple(shapes[variable].as_list()) if shapes[variable].is_fully_defined() else None
            for name, variable in variables.items()
        },
        untrained=frozenset(name for name, variable in variables.items() if variable in still),
        metrics=specs[modes.EVAL][0] if evaluation is not None else (),
        predictions=specs[modes.PREDICT][1] if asked else None,
        optimizers=kept[0].optimizers,
    )


def look_at_keras(model: Any, *, training: ComparedInputFn, evaluation: ComparedInputFn | None) -> KerasSummary:
    """Return the summary of a Keras model; build the model if needed, without changing values.

    Args:
        model: a compiled model.
        training: its training data.
        evaluation: its evaluation data; None: nothing is evaluated.

    Raises:
        ConfigError: invalid data; variables with the same name.
    """
    tf: Any = compat.tensorflow()
    with _same_random_numbers():
        names = getattr(model, "output_names", None)
        features = training.first_features()
        if not model.built or not names:
            # The first batch determines the shapes of the layers, which the optimizer needs.
            with (
                _built(f"the Keras model cannot take the first batch of {training.title}"),
                model.distribute_strategy.scope(),
            ):
                result = model(features, training=False)
            names = getattr(model, "output_names", None) or _names_in(result)
        outputs = model.output if getattr(model, "outputs", None) else None
        if isinstance(outputs, Mapping):
            names = list(outputs)  # these name its outputs, whatever the names of its layers
        metrics: tuple[str, ...] = ()
        if evaluation is not None:
            evaluation.first_features()
            # Metrics are known only after a batch was evaluated: `compile` accepts "accuracy".
            values = [(variable, tf.identity(variable)) for variable in keras_optimizers.weights_of(model)]
            with _built(f"the Keras model cannot evaluate the first batch of {evaluation.title}"):
                result = model.evaluate(evaluation.for_keras()().take(1), return_dict=True, verbose=0)
            for variable, value in values:
                variable.assign(value)
            model.reset_metrics()
            metrics = tuple(name for name in result if name != "loss")
    keras_optimizers.create_slots(model)
    named = keras_names.named(model)
    known_as = canonical_of((name for name, _ in named), "the Keras model", kept_by_keras(model).names)
    shapes = {name: tuple(variable.shape.as_list()) for name, variable in named}
    still = {name for name, variable in named if not variable.trainable}
    return KerasSummary(
        variables={name: shapes[variable] for name, variable in known_as.items()},
        untrained=frozenset(name for name, variable in known_as.items() if variable in still),
        metrics=metrics,
        outputs=tuple(names),
    )


@contextlib.contextmanager
def _built(message: str) -> Iterator[None]:
    """Stop at `_Seen`; report what a model_fn or a model raises."""
    try:
        yield
    except (_Seen, PipelineError) as error:
        if isinstance(error, PipelineError):
            raise
    except Exception as error:
        hint = "correct it there, or the data"
        raise ConfigError(
            f"{message}: {describe_error(error)}", code="model/bad-function", found=place_in(error), hint=hint
        ) from error


def _names_in(found: Any) -> list[str]:
    """Return the keys of unnamed outputs, or the names that Keras would use."""
    if isinstance(found, Mapping):
        return list(found)
    return [f"output_{number}" for number in range(1, 1 + (len(found) if isinstance(found, list | tuple) else 1))]


@contextlib.contextmanager
def keras_classes() -> Iterator[None]:
    """Keep Keras models from before the block callable after it.

    If a layer is created in a graph, as in a model_fn, Keras 2 changes the bases of the layer's class. Models that were
    built eagerly from such layers are "in an invalid state" then.
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
    """Restore the random state of Python and NumPy after the block, so that training is unaffected."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])

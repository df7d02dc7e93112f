"""Training of an Estimator, and of a Keras 3 model from its values, both recorded under the Estimator's names."""

from __future__ import annotations

import collections
import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.engines.recording import step_recorder as recording
from estimator_pipeline.engines.recording.environment import environment_of
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.tolerances import kind_of
from estimator_pipeline.parity import graph_facts
from estimator_pipeline.parity.models import inspection
from estimator_pipeline.parity.models.arguments import InputFns
from estimator_pipeline.parity.models.input_fns import features_of
from estimator_pipeline.parity.models.matching import in_keras
from estimator_pipeline.parity.optimizer_slots import kept_in_graph
from estimator_pipeline.parity.step_records import BatchWriter, StepWriter, initial_of
from estimator_pipeline.utils.variable_names import GLOBAL_STEP, canonical

__all__ = ["EstimatorRecord", "is_keras_3", "record_estimator", "record_layers"]


def is_keras_3(model: Any) -> bool:
    """Whether a model is one of Keras 3."""
    keras: Any = sys.modules.get("keras")
    return keras is not None and keras.__version__.startswith("3.") and isinstance(model, keras.Model)


@dataclasses.dataclass(frozen=True)
class EstimatorRecord:
    """The results of an Estimator, beside its record.

    Attributes:
        metrics: metrics of the evaluation, without the global step.
        answers: numeric predictions for the first batch.
        random: names of random operations that the loss depends on.
    """

    metrics: dict[str, Any]
    answers: dict[str, Any]
    random: list[str]


def record_estimator(estimator: Any, base: Path, data: InputFns, steps: int) -> EstimatorRecord:
    """Train a copy of an Estimator in `base/estimator/model`.

    Each step is written to `base/estimator/record`, without optimizer slots.

    Args:
        estimator: a `tf.estimator.Estimator`.
        base: the folder of the comparison.
        data: input functions of both.
        steps: number of training steps.
    """
    writer, read = StepWriter(base / "estimator" / "record"), graph_facts.GraphFacts()

    def of_graph(names: Iterable[str]) -> Mapping[str, str]:
        kept = kept_in_graph(compat.tensorflow().compat.v1.get_default_graph()).names
        return {
            name: canonical_name for name, canonical_name in canonical(names, kept).items() if kind_of(name) != "slots"
        }

    copy = inspection.copy_of(estimator, str(base / "estimator" / "model"))
    input_fn = recording.recorded_batches(data.training.for_estimator(), BatchWriter(writer.folder, "worker:0").batch)
    copy.train(input_fn, max_steps=steps, hooks=[recording.estimator_hook(writer, canonical=of_graph), read.hook()])
    metrics = {}
    asked = (data.evaluation or data.training).for_estimator()
    answers = _numbers(next(iter(copy.predict(lambda: features_of(asked()), yield_single_examples=False))))
    if data.evaluation is not None:
        metrics = copy.evaluate(data.evaluation.for_estimator(), steps=data.eval_steps)
    return EstimatorRecord(
        {name: value for name, value in metrics.items() if name != GLOBAL_STEP}, answers, read.random
    )  # fmt: skip


def record_layers(model: Any, base: Path, data: InputFns, steps: int, mapping: Mapping[str, str]) -> dict[str, Any]:
    """Train a model from the Estimator's values in `base/estimator/record`.

    The model is trained in place: its weights and its optimizer change. Each step is written to `base/keras/record`,
    without optimizer slots.

    Args:
        model: a compiled model of Keras 3.
        base: the folder of the comparison.
        data: input functions of both.
        steps: number of training steps.
        mapping: path of a weight -> the Estimator's variable, where names do not match.

    Returns:
        The numeric predictions for the first batch.

    Raises:
        ConfigError: the model has different variables than the Estimator.
    """
    tf: Any = compat.tensorflow()
    keras: Any = sys.modules["keras"]
    writer, start = StepWriter(base / "keras" / "record"), initial_of(base / "estimator" / "record")
    features = (data.keras_evaluation or data.keras_training).first_features()
    if not model.built:
        model.predict_on_batch(features)  # a model with feature columns creates its weights with the first batch
    variables = _matched(model, start, mapping)
    for name, variable in variables.items():
        variable.assign(start[name])

    def values() -> dict[str, Any]:
        arrays = {name: np.asarray(variable) for name, variable in variables.items()}
        return {**arrays, GLOBAL_STEP: np.asarray(int(model.optimizer.iterations), np.int64)}

    class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            writer.environment(environment_of(tf, strategy=tf.distribute.get_strategy()))
            writer.initial(values())

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.reset_metrics()  # so that the loss is that of a single step

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            arrays = values()
            writer.step(int(arrays[GLOBAL_STEP]), loss=float((logs or {})["loss"]), variables=arrays)

    input_fn = recording.recorded_batches(data.keras_training.for_keras(), BatchWriter(writer.folder, "worker:0").batch)
    model.fit(input_fn(), steps_per_epoch=steps, callbacks=[Recorder()], verbose=0)
    if not hasattr(model, "predictions"):
        return {}
    return _numbers(model.predictions(features, model.predict_on_batch(features)))


def _matched(model: Any, start: Mapping[str, Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    """Return the Estimator's variable -> the model's; TensorFlow 1 scopes are part of layer names.

    Raises:
        ConfigError: a variable of either has no counterpart.
    """
    wanted = {name: value for name, value in start.items() if name != GLOBAL_STEP and kind_of(name) != "slots"}
    by_name = {_plain(name): name for name in wanted}
    within = collections.Counter(_plain(name.partition("/")[2]) for name in wanted)  # the scope of all, as `dnn`
    by_name = {_plain(name.partition("/")[2]): name for name in wanted} | by_name
    by_name = {_plain(in_keras(name)): name for name in wanted} | by_name
    of_metrics = {id(weight) for metric in model.metrics for weight in metric.variables}
    weights = {weight.path: weight for weight in model.weights
               if id(weight) not in of_metrics and "seed_generator" not in weight.path}  # fmt: skip
    matches: dict[str, Any] = {}
    alone = []
    for path, variable in weights.items():
        inner = _plain(path.partition("/")[2])
        name = mapping.get(path) or by_name.get(_plain(path)) or (by_name.get(inner) if within[inner] < 2 else None)
        if name in wanted and name not in matches and wanted[name].shape == tuple(variable.shape):
            matches[name] = variable
        else:
            alone.append(f"{path} of the model")
    alone += [f"{name} of the Estimator" for name in wanted if name not in matches]
    if alone:
        raise ConfigError(
            "the Keras model has different variables than the Estimator",
            code="parity/no-counterpart",
            found=", ".join(alone[:12]),
            hint="name the Estimator's variable of each path in the proof's mapping(model)",
        )
    return matches


def _plain(name: str) -> str:
    """Return a name without the scopes of TensorFlow 1, and without the part of a variable that has one.

    The scope that canned networks have for their feature columns is removed as well.
    """
    name = name.replace("input_from_feature_columns/", "")
    layer, _, weight = re.sub(r"/part_\d+$", "", name).rpartition("/")
    return f"{layer.replace('/', '_')}/{weight}"


def _numbers(found: Any) -> dict[str, Any]:
    """Return the predictions that are numeric."""
    named = found if isinstance(found, Mapping) else {"": found}
    arrays = {f"predictions {name}".strip(): np.asarray(value) for name, value in named.items()}
    return {name: value for name, value in arrays.items() if value.dtype.kind in "fiub"}

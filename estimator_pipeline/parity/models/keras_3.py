"""A program's Estimator against its conversion to Keras 3, step by step, on TensorFlow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.eager_blocks import eagerly
from estimator_pipeline.engines.recording import step_recorder as recording
from estimator_pipeline.engines.recording.environment import environment_of
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.tolerances import Tolerances, kind_of
from estimator_pipeline.parity import folders, graph_facts, known_differences
from estimator_pipeline.parity.comparison import compare_records
from estimator_pipeline.parity.models import inspection
from estimator_pipeline.parity.models.arguments import InputFns
from estimator_pipeline.parity.models.input_fns import features_of
from estimator_pipeline.parity.optimizer_slots import kept_in_graph
from estimator_pipeline.parity.result import ENGINES, Parity
from estimator_pipeline.parity.step_records import BatchWriter, StepWriter, initial_of
from estimator_pipeline.utils.variable_names import GLOBAL_STEP, canonical

__all__ = ["compare_keras_3", "is_keras_3", "shapes_of_tensorflow_2"]


def is_keras_3(model: Any) -> bool:
    """Whether a model is one of Keras 3."""
    keras: Any = sys.modules.get("keras")
    return keras is not None and keras.__version__.startswith("3.") and isinstance(model, keras.Model)


@contextlib.contextmanager
def shapes_of_tensorflow_2(old: bool) -> Iterator[None]:
    """Gives Keras 3 the shapes and the equality of TensorFlow 2 while a program of TensorFlow 1 has its own.

    Args:
        old: whether those of TensorFlow 1 are there.
    """
    v1 = compat.tensorflow().compat.v1
    if not old:
        yield
        return
    v1.enable_v2_tensorshape()
    v1.enable_tensor_equality()
    try:
        yield
    finally:
        v1.disable_v2_tensorshape()
        v1.disable_tensor_equality()


@eagerly
def compare_keras_3(
    estimator: Any, model: Any, data: InputFns, allowed: Tolerances, steps: int, mapping: Mapping[str, str],
    folder: Any, *, old: bool = False,
) -> Parity:  # fmt: skip
    """Trains both from the Estimator's initial values on the same records, and compares loss and weights of each step.

    The model is trained where it stands: its weights and its optimizer are others afterwards. Optimizers' slots are
    not compared.

    Args:
        estimator: a `tf.estimator.Estimator`.
        model: a compiled `keras.Model` of Keras 3.
        data: of both.
        allowed: what may differ by how much.
        steps: how many training steps.
        mapping: path of a weight -> the Estimator's variable, where the names say it not.
        folder: where the runs and their records go; None: a new temporary one.
        old: whether shapes are those of TensorFlow 1.

    Raises:
        ConfigError: the model runs on another backend, or has other variables than the Estimator.
    """
    keras: Any = sys.modules["keras"]
    if keras.backend.backend() != "tensorflow":
        raise ConfigError(
            "the model runs on another backend than TensorFlow, and the Estimator on that",
            code="argument/not-applicable",
            found=f"KERAS_BACKEND is {keras.backend.backend()}",
            hint="set KERAS_BACKEND=tensorflow",
        )
    with folders.runs(folder, option="folder", engines=ENGINES) as base:
        read = graph_facts.GraphFacts()
        theirs, their_answers = _by_estimator(estimator, base, data, steps, read)
        with shapes_of_tensorflow_2(old):
            ours, our_answers = _by_keras(model, base, data, steps, mapping)
        both = [name for name in theirs if name in ours]
        asked = [name for name in their_answers if name in our_answers]
        for name in asked:  # keras.ops.argmax gives int32
            if their_answers[name].dtype.kind + our_answers[name].dtype.kind == "ii":
                our_answers[name] = our_answers[name].astype(their_answers[name].dtype)
        notes = ["the Keras 3 model began with the Estimator's values; optimizers' slots are not compared"]
        if "loss" in both:
            notes.append("the loss of the evaluation is the mean of its batches' for both")
        if left := sorted(theirs.keys() ^ ours.keys()):
            notes.append(f"metrics of one of the two alone are not compared: {', '.join(left)}")
        return compare_records(
            base, metrics={engine: {name: float(found[name]) for name in both}
                           for engine, found in zip(ENGINES, (theirs, ours), strict=True)},
            tolerances=allowed, by_nature=tuple(known_differences.of_random(ENGINES, (read.random, read.random))),
            steps=steps, about={"engines": list(ENGINES), "steps": steps}, notes=tuple(notes),
            answers=({name: their_answers[name] for name in asked}, {name: our_answers[name] for name in asked})
            if asked else None,
        )  # fmt: skip


def _by_estimator(
    estimator: Any, base: Path, data: InputFns, steps: int, read: graph_facts.GraphFacts
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the Estimator comes to: metrics, predictions; its steps are recorded."""
    writer = StepWriter(base / "estimator" / "record")

    def of_graph(found: Iterable[str]) -> Mapping[str, str]:
        kept = kept_in_graph(compat.tensorflow().compat.v1.get_default_graph()).names
        return {name: one for name, one in canonical(found, kept).items() if kind_of(name) != "slots"}

    copy = inspection.copy_of(estimator, str(base / "estimator" / "model"))
    told = recording.told_batches(data.training.for_estimator(), BatchWriter(writer.folder, "worker:0").batch)
    copy.train(told, max_steps=steps, hooks=[recording.estimator_hook(writer, canonical=of_graph), read.hook()])
    asked = (data.evaluation or data.training).for_estimator()
    found = next(iter(copy.predict(lambda: features_of(asked()), yield_single_examples=False)))
    metrics = {}
    if data.evaluation is not None:
        metrics = copy.evaluate(data.evaluation.for_estimator(), steps=data.eval_steps)
    return {name: value for name, value in metrics.items() if name != GLOBAL_STEP}, _numbers(found)


def _by_keras(
    model: Any, base: Path, data: InputFns, steps: int, mapping: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the model comes to: metrics, predictions; its steps are recorded under the Estimator's names."""
    keras: Any = sys.modules["keras"]
    writer, start = StepWriter(base / "keras" / "record"), initial_of(base / "estimator" / "record")
    variables = _matched(model, start, mapping)
    for name, variable in variables.items():
        variable.assign(start[name])

    def values() -> dict[str, Any]:
        found = {name: keras.ops.convert_to_numpy(variable) for name, variable in variables.items()}
        return {**found, GLOBAL_STEP: np.asarray(int(model.optimizer.iterations), np.int64)}

    class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            tf = compat.tensorflow()
            writer.environment(environment_of(tf, strategy=tf.distribute.get_strategy()))
            writer.initial(values())

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.reset_metrics()  # the loss is that of a step

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            found = values()
            writer.step(int(found[GLOBAL_STEP]), loss=float((logs or {})["loss"]), variables=found)

    told = recording.told_batches(data.keras_training.for_keras(), BatchWriter(writer.folder, "worker:0").batch)
    model.fit(told(), steps_per_epoch=steps, callbacks=[Recorder()], verbose=0)
    answers, metrics = {}, {}
    evaluation = data.keras_evaluation
    if hasattr(model, "predictions"):
        asking = keras.Model(model.input, model.predictions(model.input, model.output))
        answers = _numbers(asking.predict_on_batch((evaluation or data.keras_training).first_features()))
    if evaluation is not None:
        metrics = dict(model.evaluate(evaluation.for_keras()(), steps=data.eval_steps, return_dict=True, verbose=0))
        metrics["loss"] = _mean_of_batches(model, evaluation.for_keras()(), data.eval_steps)
    return metrics, answers


def _mean_of_batches(model: Any, batches: Any, steps: int | None) -> float:
    """The loss of an evaluation as an Estimator has it: Keras 3 gives a smaller last batch less weight."""
    losses = []
    for batch in batches.take(steps if steps is not None else -1):
        model.reset_metrics()
        losses.append(model.test_on_batch(*batch, return_dict=True)["loss"])
    return float(np.mean(losses))


def _matched(model: Any, start: Mapping[str, Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    """The Estimator's variable -> the model's; scopes of TensorFlow 1 are part of the names of layers.

    Raises:
        ConfigError: a variable of either has no counterpart.
    """
    wanted = {name: value for name, value in start.items() if name != GLOBAL_STEP}
    by_name = {_plain(name): name for name in wanted}
    weights = {one.path: one for one in model.weights if "seed_generator" not in one.path}
    found: dict[str, Any] = {}
    alone = []
    for path, variable in weights.items():
        name = mapping.get(path) or by_name.get(_plain(path)) or by_name.get(_plain(path.partition("/")[2]))
        if name in wanted and name not in found and wanted[name].shape == tuple(variable.shape):
            found[name] = variable
        else:
            alone.append(f"{path} of the model")
    alone += [f"{name} of the Estimator" for name in wanted if name not in found]
    if alone:
        raise ConfigError(
            "the Keras 3 model has other variables than the Estimator",
            code="parity/no-counterpart",
            found=", ".join(alone[:12]),
            hint="name the Estimator's variable of each path in the proof's mapping(model)",
        )
    return found


def _plain(name: str) -> str:
    layer, _, weight = name.rpartition("/")
    return f"{layer.replace('/', '_')}/{weight}"


def _numbers(found: Any) -> dict[str, Any]:
    """Predictions that are numbers."""
    named = found if isinstance(found, Mapping) else {"": found}
    arrays = {f"predictions {name}".strip(): np.asarray(value) for name, value in named.items()}
    return {name: value for name, value in arrays.items() if value.dtype.kind in "fiub"}

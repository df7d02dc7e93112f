"""Comparison of a program's Estimator with a Keras model that calls the same model_fn (`ModelFnModel`).

Both have the same variables, metrics and predictions under the same names, so no names are mapped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.eager_blocks import eagerly
from estimator_pipeline.engines.recording import step_recorder as recording
from estimator_pipeline.engines.recording.environment import environment_of
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.tolerances import Tolerances
from estimator_pipeline.parity import folders, graph_facts, known_differences
from estimator_pipeline.parity.comparison import compare_records
from estimator_pipeline.parity.models import inspection
from estimator_pipeline.parity.models.arguments import InputFns
from estimator_pipeline.parity.models.input_fns import features_of
from estimator_pipeline.parity.optimizer_slots import kept_in_graph
from estimator_pipeline.parity.result import ENGINES, Parity
from estimator_pipeline.parity.step_records import BatchWriter, StepWriter, initial_of
from estimator_pipeline.utils.variable_names import GLOBAL_STEP, canonical

__all__ = ["Recorded", "calls_model_fn", "compare_model_fn", "record_estimator", "record_model"]


def calls_model_fn(model: Any) -> bool:
    """Whether a Keras model calls a model_fn."""
    return hasattr(model, "call_model_fn")


@eagerly
def compare_model_fn(
    estimator: Any, model: Any, data: InputFns, allowed: Tolerances, steps: int, names: Sequence[Any], folder: Any
) -> Parity:  # fmt: skip
    """Train both from the Estimator's initial values on the same records, and compare each step.

    Neither is changed: both train in folders of the comparison.

    Args:
        estimator: a `tf.estimator.Estimator`.
        model: a `keras_model_fn.ModelFnModel`, or a model of a different function of that module.
        data: input functions of both.
        allowed: allowed differences.
        steps: number of training steps.
        names: mappings of names, which must be empty.
        folder: folder of the runs and their records; None: a new temporary one.

    Raises:
        ConfigError: `names` are not empty, or the variables differ.
    """
    if any(names):
        raise ConfigError(
            "names cannot be mapped: the Keras model calls a model_fn and has the Estimator's names",
            code="argument/not-applicable",
            hint="leave out mapping, metric_names and predictions",
        )
    with folders.runs(folder, option="folder", engines=ENGINES) as base:
        theirs = record_estimator(estimator, base, data, steps)
        ours = record_model(model, base, data, steps, theirs.names)
        return compare_records(
            base, metrics=dict(zip(ENGINES, (theirs.metrics, ours.metrics), strict=True)), tolerances=allowed,
            by_nature=tuple(known_differences.of_random(ENGINES, (theirs.random, theirs.random))), steps=steps,
            answers=(theirs.answers, ours.answers), about={"engines": list(ENGINES), "steps": steps},
            notes=("the Keras model calls the program's model_fn: its names are the Estimator's",),
        )  # fmt: skip


@dataclasses.dataclass
class Recorded:
    """The results of one side, beside its record.

    Attributes:
        metrics: metrics of the evaluation.
        answers: predictions for the first batch.
        names: canonical name -> name in checkpoints.
        random: names of random operations that the loss depends on.
    """

    metrics: dict[str, Any]
    answers: dict[str, Any]
    names: dict[str, str]
    random: list[str] = dataclasses.field(default_factory=list)


def record_estimator(
    estimator: Any, base: Path, data: InputFns, steps: int, *, predict: bool = True
) -> Recorded:  # fmt: skip
    """Train a copy of an Estimator in `base/estimator/model`; record each step in `base/estimator/record`."""
    writer, names, kept = StepWriter(base / "estimator" / "record"), dict[str, str](), dict[str, str]()
    read = graph_facts.GraphFacts()

    def of_graph(found: Iterable[str]) -> Mapping[str, str]:
        v1 = compat.tensorflow().compat.v1
        names.update(canonical(found, kept_in_graph(v1.get_default_graph()).names))
        kept.update((variable.name, _in_checkpoints(variable)) for variable in v1.global_variables())
        return names

    copy = inspection.copy_of(estimator, str(base / "estimator" / "model"))
    hook = recording.estimator_hook(writer, canonical=of_graph)
    input_fn = recording.recorded_batches(data.training.for_estimator(), BatchWriter(writer.folder, "worker:0").batch)
    copy.train(input_fn, max_steps=steps, hooks=[hook, read.hook()])
    answers, metrics = {}, {}
    if predict:
        asked = (data.evaluation or data.training).for_estimator()
        answers = _answers(next(iter(copy.predict(lambda: features_of(asked()), yield_single_examples=False))))
    if data.evaluation is not None:
        metrics = copy.evaluate(data.evaluation.for_estimator(), steps=data.eval_steps)
    return Recorded(
        _without_step(metrics),
        answers,
        {name: kept[name_in_graph] for name, name_in_graph in names.items()},
        read.random,
    )


def _in_checkpoints(variable: Any) -> str:
    """Return the name of a variable in a checkpoint, without the part of a partitioned variable."""
    part = variable._get_save_slice_info() if hasattr(variable, "_get_save_slice_info") else None
    return part.full_name if part is not None else variable.name.partition(":")[0]


@eagerly
def record_model(
    model: Any, base: Path, data: InputFns, steps: int, names: dict[str, str], *, predict: bool = True
) -> Recorded:  # fmt: skip
    """Train a copy of the model from the Estimator's values in `base/estimator/record`.

    The copy is in `base/keras/model`; each step is written to `base/keras/record`.

    Raises:
        ConfigError: the variables differ from those of `names`.
    """
    # Imported here, because the package loads TensorFlow; it is loaded already if there is a model.
    from estimator_pipeline.models.keras_runtime.model_fn.inputs import dataset

    writer, folder = StepWriter(base / "keras" / "record"), str(base / "keras" / "model")
    copy = type(model)(model.model_fn, model.config.replace(model_dir=folder), model.params, None)
    copy.checkpoints.part_of_scope, copy.batch_sizes = model.checkpoints.part_of_scope, model.batch_sizes
    training = data.keras_training.for_model_fn()
    read = dataset(recording.recorded_batches(training, BatchWriter(writer.folder, "worker:0").batch))
    copy.graph_of("train", read)
    variables = {copy.checkpoints.key(name): variable for name, variable in copy.checkpoints.variables.items()}
    trained = {name for name, variable in variables.items() if variable.trainable}
    # Variables without a canonical name (the powers of a decay) follow from the number of steps.
    alone = (set(names.values()) - variables.keys()) | (trained - set(names.values()))
    if alone:
        raise ConfigError(
            "the model_fn creates different variables for the Keras model and for the Estimator",
            code="parity/no-counterpart",
            found=f"only in one of the two: {', '.join(sorted(alone))}",
            hint="pass the same params to both in the proof",
        )
    start = initial_of(base / "estimator" / "record")
    for name, variable in names.items():
        variables[variable].assign(start[name])
    copy.fit(
        read,
        max_steps=steps,
        callbacks=[_recorder(writer, {variable: variables[names[variable]] for variable in names})],
    )
    answers, metrics = {}, {}
    if predict:
        asked = dataset((data.keras_evaluation or data.keras_training).for_model_fn(), "infer")
        answers = _answers(copy.predict_on_batch(next(iter(features_of(asked)))))
    if data.keras_evaluation is not None:
        evaluation = dataset(data.keras_evaluation.for_model_fn(), "eval")
        metrics = copy.evaluate(evaluation, return_dict=True, steps=data.eval_steps)
    return Recorded(_without_step(metrics), answers, names)


def _without_step(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if name != GLOBAL_STEP}


def _answers(found: Any) -> dict[str, Any]:
    """Return the predictions that are numeric; strings follow from one of them."""
    named = found if isinstance(found, Mapping) else {"": found}
    arrays = {f"predictions {name}".strip(): np.asarray(value) for name, value in named.items()}
    return {name: value for name, value in arrays.items() if value.dtype.kind in "fiub"}


def _recorder(writer: StepWriter, variables: Mapping[str, Any]) -> Any:
    tf: Any = compat.tensorflow()

    class Recorder(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            writer.environment(environment_of(tf, strategy=tf.distribute.get_strategy()))
            writer.initial(self._values())

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            values = self._values()
            writer.step(int(values[GLOBAL_STEP]), loss=float((logs or {})["loss"]), variables=values)

        def _values(self) -> dict[str, Any]:
            return {name: variable.numpy() for name, variable in variables.items()}

    return Recorder()

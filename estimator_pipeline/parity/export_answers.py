"""What both exported models answer to the same inputs, and what Keras's layers evaluate to: a process by itself.

    python -m estimator_pipeline.parity.export_answers FOLDER ENGINE,ENGINE JOB.yaml [KEY=VALUE ...]

FOLDER holds both runs; into it come `answers-ENGINE.npz` of each and `facts.json`. The SavedModels are
loaded by plain TensorFlow, as a server would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError, PipelineError
from estimator_pipeline.job import Job, load_job
from estimator_pipeline.job.user_code import describe_error
from estimator_pipeline.models.keras_runtime import moving_averages as keras_averages
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.parity.graph_facts import random_of_model
from estimator_pipeline.parity.step_records import write_arrays

__all__ = [
    "EXPORT", "ExportEvaluation", "evaluated_losses", "evaluation_of", "loss_of_batch_means", "predicted",
    "signature_answers",
]  # fmt: skip

# The folder below `export/` of both runs.
EXPORT = "parity"
RECORDS = 64


def signature_answers(
    export: str | os.PathLike[str], inputs: Mapping[str, Any], examples: Any = None
) -> dict[str, Any]:
    """Return the signatures of a SavedModel and what they answer.

    Args:
        export: the SavedModel's folder.
        inputs: feature name -> array [B, ...].
        examples: the same records as serialized `tf.Example`, bytes [B], for signatures that take these.

    Returns:
        "signature KEY, input NAME" -> its type, and "signature KEY, output NAME" -> the answer.
    """
    tf = compat.tensorflow()
    loaded = tf.saved_model.load(str(export))
    found: dict[str, Any] = {}
    for key, function in sorted(loaded.signatures.items()):
        _, wanted = function.structured_input_signature
        given = {}
        for name, spec in sorted(wanted.items()):
            found[f"signature {key}, input {name}"] = np.array(f"{spec.dtype.name} {spec.shape}")
            if spec.dtype == tf.string and name not in inputs and examples is not None:
                given[name] = tf.constant(examples)
            elif name in inputs:
                given[name] = tf.cast(inputs[name], spec.dtype) if spec.dtype != tf.string else inputs[name]
        if set(given) == set(wanted):
            answers = function(**given)
            for name, value in sorted(answers.items()):
                found[f"signature {key}, output {name}"] = value.numpy()
    return found


@dataclasses.dataclass(kw_only=True)
class ExportEvaluation:
    """What a dataset tells of a Keras model batch by batch, beside what the model's evaluation of all of it tells.

    Attributes:
        sizes: of each batch, how many records it has.
        each: what the model's own evaluation tells as the loss of each batch alone, on several replicas of a global
            batch; None: it is not known.
        losses: see `evaluated_losses`; None: they are not known.
        notes: of what is not known, why.
    """

    sizes: list[int] = dataclasses.field(default_factory=list)
    each: list[float] | None = dataclasses.field(default_factory=list)
    losses: Mapping[str, tuple[float, float]] | None = None
    notes: list[str] = dataclasses.field(default_factory=list)


def evaluation_of(model: Any, dataset: Iterable[Any]) -> ExportEvaluation:
    """Look at a model's evaluation batch by batch, in one reading of the data that keeps no batch.

    Args:
        model: a compiled Keras model; it has the same values afterwards, but for what a `test_step` of its own
            changes. On several replicas its layers are not called by themselves, and `losses` are not known.
        dataset: of the evaluation. What reading it raises is passed on; what the model raises is a note, for one with
            steps of its own need not be evaluated by its layers and their losses.
    """
    found = ExportEvaluation()
    layers = _LossesByLayers(model) if model.distribute_strategy.num_replicas_in_sync == 1 else None
    for batch in dataset:
        found.sizes.append(_size_of(batch))
        if found.each is not None:
            try:
                found.each.append(_loss_told(model, batch))
            except Exception as error:
                found.each = None
                found.notes.append(
                    f"what the Keras model evaluates each batch to is not known: {describe_error(error)}"
                )
        if layers is not None:
            try:
                with _evaluated_weights(model):
                    layers.add(batch)
            except Exception as error:
                layers = None
                found.notes.append(
                    "what the Keras model's layers and their losses come to is not known, and so whether it evaluates "
                    f"in training mode: {describe_error(error)}"
                )
    found.losses = None if layers is None else layers.found()
    return found


def _loss_told(model: Any, batch: Any) -> float:
    """The loss of a batch alone, as `evaluate` tells it: a step or an `evaluate` of its own may make another of it."""
    tf: Any = compat.tensorflow()
    return float(model.evaluate(tf.data.Dataset.from_tensors(batch), return_dict=True, verbose=0)["loss"])


def _size_of(batch: Any) -> int:
    """How many records a batch has; one whose parts have no dimension counts as one."""
    tf: Any = compat.tensorflow()
    shapes = (getattr(part, "shape", ()) for part in tf.nest.flatten(batch))
    return next((int(shape[0]) for shape in shapes if shape), 1)


def evaluated_losses(model: Any, dataset: Any, *, steps: int | None = None) -> dict[str, tuple[float, float]]:
    """Return what a dataset's losses are by the layers as they infer, and as they train.

    Args:
        model: a compiled Keras model; it has the same values afterwards.
        dataset: of batches, which is read once; no batch is kept.
        steps: how many of them; None: all.

    Returns:
        "average_loss": the mean over all records, by their weights, without the regularisers' losses; "loss": the mean
        over the batches' means, with them, as an Estimator's evaluation has it.
    """
    layers = _LossesByLayers(model)
    with _evaluated_weights(model):
        for batch in dataset if steps is None else dataset.take(steps):
            layers.add(batch)
    return layers.found()


@contextlib.contextmanager
def _evaluated_weights(model: Any) -> Iterator[None]:
    """In the block a model has the weights that it is evaluated with, such as averages."""
    with keras_averages.in_place(getattr(model, "averages", None)), moving_averages.averaged_weights(model):
        yield


class _LossesByLayers:
    """Of batches that are given one after the other, what `evaluated_losses` returns."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._sizes: list[int] = []
        # Of layers that infer, and of layers that train: of each batch its mean, what it counts for, its total loss.
        self._each: tuple[list[float], list[float]] = ([], [])
        self._counted: list[float] = []
        self._totals: tuple[list[float], list[float]] = ([], [])

    def add(self, batch: Any) -> None:
        """Evaluate a batch both ways; layers that train move statistics, which are moved back."""
        tf: Any = compat.tensorflow()
        features, labels, weights = tf.keras.utils.unpack_x_y_sample_weight(batch)
        # A model that works its loss out by itself may have no labels.
        size = int(tf.shape(tf.nest.flatten(features if labels is None else labels)[0])[0])
        inferred = self._losses(features, labels, weights, training=False)
        moved = [(variable, tf.identity(variable)) for variable in self._model.non_trainable_variables]
        trained = self._losses(features, labels, weights, training=True)
        for variable, value in moved:
            variable.assign(value)
        self._sizes.append(size)
        # Without weights a record counts for one; of several outputs each may weigh them differently.
        alike = weights is None or isinstance(weights, Mapping)
        self._counted.append(size if alike else float(tf.reduce_sum(weights)))
        for number, (each, total) in enumerate((inferred, trained)):
            self._each[number].append(each)
            self._totals[number].append(total)

    def _losses(self, features: Any, labels: Any, weights: Any, *, training: bool) -> tuple[float, float]:
        """Return a batch's loss without the regularisers' losses, and with them."""
        model = self._model
        outputs = model(features, training=training)
        if not model.loss:  # it works its loss out by itself, with what its layers add
            total = model.compute_loss(features, labels, outputs, weights)
            if total is None:
                raise ValueError("it is compiled without a loss, and its layers add none")
            return float(total) - float(sum(model.losses)), float(total)
        each = float(model.compiled_loss(labels, outputs, weights, regularization_losses=None))
        return each, each + float(sum(model.losses))

    def found(self) -> dict[str, tuple[float, float]]:
        if not self._sizes:
            return {"average_loss": (math.nan, math.nan), "loss": (math.nan, math.nan)}
        average, mean = (
            [float(np.dot(each, self._sizes) / sum(self._counted)) for each in self._each],
            [float(np.mean(totals)) for totals in self._totals],
        )
        return {"average_loss": (average[0], average[1]), "loss": (mean[0], mean[1])}


def loss_of_batch_means(loss: float | None, each: Sequence[float] | None, sizes: Sequence[int]) -> float | None:
    """The loss of a Keras model's evaluation as an Estimator has it, a mean of batch means; None: it is not known.

    What the model's own evaluation tells counts, whatever its layers and their losses come to.

    Args:
        loss: what it tells of all batches together; None: no loss.
        each: of each batch alone; None: it is not known.
        sizes: how many records each batch has.
    """
    if loss is None or not sizes:
        return None
    if each is None:
        # Of batches of one size both means are the same.
        return loss if len(set(sizes)) == 1 else None
    mean = float(np.mean(each))
    # Keras weighs batches by their records; of what layers add, without a compiled loss, it takes the plain mean.
    means = (float(np.dot(each, sizes) / sum(sizes)), mean)
    # One that tells something else of all batches, such as the loss of the last one, is compared by that.
    return mean if any(math.isclose(loss, one, rel_tol=1e-4, abs_tol=1e-7) for one in means) else loss


def predicted(found: Any, outputs: Sequence[str], asked: Sequence[str]) -> dict[str, np.ndarray]:
    """What a Keras model predicts, by the outputs that are asked for; a `predict_step` of its own may name them anew.

    Args:
        found: what its `predict_step` gives.
        outputs: names of the model's outputs.
        asked: those that count.

    Raises:
        ConfigError: one of them is not among what it gives.
    """
    parts = list(found) if isinstance(found, list | tuple) else [found]
    named = found if isinstance(found, Mapping) else dict(zip(outputs, parts, strict=False))
    missing = [output for output in asked if output not in named]
    if missing or (named is not found and len(parts) != len(outputs)):
        gives = ", ".join(named) if named is found else f"{len(parts)} arrays for {len(outputs)} outputs"
        raise ConfigError(
            f"the Keras model does not predict {', '.join(missing or asked)}",
            code="parity/no-counterpart",
            found=f"its predict_step gives {gives}",
            hint="name in predictions (--predictions) what its predict_step gives",
        )
    return {f"predictions {output}": np.asarray(named[output]) for output in asked}


def main(arguments: list[str]) -> int:
    """Write the answers and facts of a job's two runs."""
    folder, engines, path, *settings = arguments
    base = Path(folder)
    job = load_job(path, overrides=settings)
    facts: dict[str, Any] = {"losses": {}, "random": [], "notes": []}
    try:
        _facts_of(job, base, engines.split(","), facts)
    except PipelineError as error:
        facts["notes"].append(f"predictions were not compared: {error.message}")
    unfinished = base / "facts.unfinished"
    unfinished.write_text(json.dumps(facts), encoding="utf-8")
    os.replace(unfinished, base / "facts.json")
    return 0


def _facts_of(job: Job, base: Path, engines: Sequence[str], facts: dict[str, Any]) -> None:
    tf = compat.tensorflow()
    from estimator_pipeline.engines.jobs import common
    from estimator_pipeline.engines.jobs import keras as keras_job

    data = common.job_inputs(job)
    model = None
    if "keras" in engines:
        plan = keras_job.plan_of(job, data)
        model = plan.serving.model_of(tf.train.latest_checkpoint(str(base / "keras" / "model")))
        features, *_ = tf.keras.utils.unpack_x_y_sample_weight(next(iter(plan.weighted(data.eval_input_fn()))))
        # The layers of Keras 2 draw as the Estimator's do.
        facts["random"], notes = random_of_model(model, features, of_a_job="keras3" not in engines)
        facts["notes"] += notes
    if data.features_spec is None:
        facts["notes"].append(
            "predictions and signatures were not compared: what an own input function gives is not known"
        )
    else:
        inputs, examples = _inputs(job, data)
        for engine in engines:
            answers = signature_answers(_export_of(base / engine / "model"), inputs, examples)
            write_arrays(base / f"answers-{engine}.npz", answers)
    if model is not None:
        facts["losses"] = evaluated_losses(model, plan.weighted(data.eval_input_fn()), steps=job.eval.steps)


def _export_of(model_dir: Path) -> Path:
    return max((model_dir / "export" / EXPORT).iterdir(), key=lambda path: int(path.name))


def _inputs(job: Job, data: Any) -> tuple[dict[str, np.ndarray], Any]:
    """The evaluation's first records: as arrays, and as serialized examples where the job's exports take them."""
    from estimator_pipeline.engines.jobs.common import takes_examples

    features, _ = next(iter(data.eval_input_fn()))
    named = features if isinstance(features, Mapping) else {next(iter(data.features_spec)): features}
    arrays = {name: value.numpy()[:RECORDS] for name, value in named.items()}
    return arrays, _examples(arrays) if takes_examples(job) else None


def _examples(arrays: Mapping[str, np.ndarray]) -> list[bytes]:
    tf = compat.tensorflow()
    train = tf.train

    def feature(value: np.ndarray) -> Any:
        flat = np.ravel(value)
        if flat.dtype.kind in "OSU":
            return train.Feature(bytes_list=train.BytesList(value=[bytes(one) for one in flat]))
        if flat.dtype.kind in "iub":
            return train.Feature(int64_list=train.Int64List(value=[int(one) for one in flat]))
        return train.Feature(float_list=train.FloatList(value=[float(one) for one in flat]))

    records = len(next(iter(arrays.values())))
    return [
        train.Example(
            features=train.Features(feature={name: feature(values[i]) for name, values in arrays.items()})
        ).SerializeToString()
        for i in range(records)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

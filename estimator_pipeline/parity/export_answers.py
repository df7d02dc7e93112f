"""Outputs of both exported models for the same inputs, and losses by Keras's layers; runs as a separate process.

    python -m estimator_pipeline.parity.export_answers FOLDER ENGINE,ENGINE JOB.yaml

FOLDER holds both runs; `answers-ENGINE.npz` of each and `facts.json` are written there. Plain TensorFlow loads the
SavedModels, as a model server would.
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
from estimator_pipeline.engines.core.exporting import tensors_by_name
from estimator_pipeline.errors import ConfigError, PipelineError
from estimator_pipeline.job import Job, load_job
from estimator_pipeline.job.user_code import describe_error
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.parity.graph_facts import random_of_model
from estimator_pipeline.parity.step_records import write_arrays
from estimator_pipeline.utils import durable_files as durable

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
    """Return the signatures of a SavedModel and their outputs.

    Args:
        export: the SavedModel's folder.
        inputs: feature name -> array [B, ...].
        examples: the same records as serialized `tf.Example`, bytes [B], for signatures that take examples.

    Returns:
        "signature KEY, input NAME" -> its type, and "signature KEY, output NAME" -> the output.
    """
    tf = compat.tensorflow()
    loaded = tf.saved_model.load(str(export))
    signatures: dict[str, Any] = {}
    for key, function in sorted(loaded.signatures.items()):
        _, wanted = function.structured_input_signature
        arguments = {}
        for name, spec in sorted(wanted.items()):
            signatures[f"signature {key}, input {name}"] = np.array(f"{spec.dtype.name} {spec.shape}")
            if spec.dtype == tf.string and name not in inputs and examples is not None:
                arguments[name] = tf.constant(examples)
            elif name in inputs:
                arguments[name] = tf.cast(inputs[name], spec.dtype) if spec.dtype != tf.string else inputs[name]
        if set(arguments) == set(wanted):
            answers = function(**arguments)
            for name, value in sorted(answers.items()):
                signatures[f"signature {key}, output {name}"] = value.numpy()
    return signatures


@dataclasses.dataclass(kw_only=True)
class ExportEvaluation:
    """Losses of a Keras model on a dataset, batch by batch.

    Attributes:
        sizes: number of records in each batch.
        each: the loss that `model.evaluate` returns for each batch separately, on several replicas for a global batch;
            None: unknown.
        losses: see `evaluated_losses`; None: unknown.
        notes: reasons for unknown values.
    """

    sizes: list[int] = dataclasses.field(default_factory=list)
    each: list[float] | None = dataclasses.field(default_factory=list)
    losses: Mapping[str, tuple[float, float]] | None = None
    notes: list[str] = dataclasses.field(default_factory=list)


def evaluation_of(model: Any, dataset: Iterable[Any]) -> ExportEvaluation:
    """Evaluate a model batch by batch, in one pass over the data that keeps no batch.

    Args:
        model: a compiled Keras model; its values are restored, except what an overridden `test_step` changes. On
            several replicas its layers are not called separately, and `losses` is unknown.
        dataset: evaluation data. Errors from reading it are raised; errors from the model become notes, because a model
            with overridden steps need not be evaluated by its layers and their losses.
    """
    evaluation = ExportEvaluation()
    layers = _LossesByLayers(model) if model.distribute_strategy.num_replicas_in_sync == 1 else None
    for batch in dataset:
        evaluation.sizes.append(_size_of(batch))
        if evaluation.each is not None:
            try:
                evaluation.each.append(_batch_loss(model, batch))
            except Exception as error:
                evaluation.each = None
                evaluation.notes.append(f"the Keras model's loss of each batch is unknown: {describe_error(error)}")
        if layers is not None:
            try:
                with _evaluated_weights(model):
                    layers.add(batch)
            except Exception as error:
                layers = None
                evaluation.notes.append(
                    "the losses by the Keras model's layers are unknown, and so is whether it evaluates in training "
                    "mode: "
                    f"{describe_error(error)}"
                )
    evaluation.losses = None if layers is None else layers.result()
    return evaluation


def _batch_loss(model: Any, batch: Any) -> float:
    """Return the loss of a single batch from `evaluate`, which the model may override."""
    tf: Any = compat.tensorflow()
    return float(model.evaluate(tf.data.Dataset.from_tensors(batch), return_dict=True, verbose=0)["loss"])


def _size_of(batch: Any) -> int:
    """Return the number of records in a batch; a batch of scalars counts as one."""
    tf: Any = compat.tensorflow()
    shapes = (getattr(part, "shape", ()) for part in tf.nest.flatten(batch))
    return next((int(shape[0]) for shape in shapes if shape), 1)


def evaluated_losses(model: Any, dataset: Any, *, steps: int | None = None) -> dict[str, tuple[float, float]]:
    """Return the losses of a dataset with the layers in inference mode and in training mode.

    Args:
        model: a compiled Keras model; its values are restored.
        dataset: batches; read once, and no batch is kept.
        steps: number of batches; None: all.

    Returns:
        "average_loss": the mean over all records, by their weights, without the regularisers' losses; "loss": the mean
        over the batches' means, with them, as an Estimator's evaluation has it.
    """
    layers = _LossesByLayers(model)
    with _evaluated_weights(model):
        for batch in dataset if steps is None else dataset.take(steps):
            layers.add(batch)
    return layers.result()


@contextlib.contextmanager
def _evaluated_weights(model: Any) -> Iterator[None]:
    """Give a model its evaluation weights within the block, such as moving averages."""
    with moving_averages.averaged_weights(model):
        yield


class _LossesByLayers:
    """Accumulates what `evaluated_losses` returns, batch by batch."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._sizes: list[int] = []
        # In inference mode and in training mode: each batch's mean loss, its weight, and its total loss.
        self._each: tuple[list[float], list[float]] = ([], [])
        self._counted: list[float] = []
        self._totals: tuple[list[float], list[float]] = ([], [])

    def add(self, batch: Any) -> None:
        """Evaluate a batch in both modes; moving statistics that training mode changes are restored."""
        tf: Any = compat.tensorflow()
        features, labels, weights = tf.keras.utils.unpack_x_y_sample_weight(batch)
        # A model that computes its own loss may have no labels.
        size = int(tf.shape(tf.nest.flatten(features if labels is None else labels)[0])[0])
        inferred = self._losses(features, labels, weights, training=False)
        moved = [(variable, tf.identity(variable)) for variable in self._model.non_trainable_variables]
        trained = self._losses(features, labels, weights, training=True)
        for variable, value in moved:
            variable.assign(value)
        self._sizes.append(size)
        # Without weights each record counts as one; several outputs may each have different weights.
        alike = weights is None or isinstance(weights, Mapping)
        self._counted.append(size if alike else float(tf.reduce_sum(weights)))
        for number, (each, total) in enumerate((inferred, trained)):
            self._each[number].append(each)
            self._totals[number].append(total)

    def _losses(self, features: Any, labels: Any, weights: Any, *, training: bool) -> tuple[float, float]:
        """Return a batch's loss without the regularisers' losses, and with them."""
        model = self._model
        outputs = model(features, training=training)
        if not model.loss:  # it computes its own loss, including those of its layers
            total = model.compute_loss(features, labels, outputs, weights)
            if total is None:
                raise ValueError("it is compiled without a loss, and its layers add no loss")
            return float(total) - float(sum(model.losses)), float(total)
        each = float(model.compiled_loss(labels, outputs, weights, regularization_losses=None))
        return each, each + float(sum(model.losses))

    def result(self) -> dict[str, tuple[float, float]]:
        if not self._sizes:
            return {"average_loss": (math.nan, math.nan), "loss": (math.nan, math.nan)}
        average, mean = (
            [float(np.dot(each, self._sizes) / sum(self._counted)) for each in self._each],
            [float(np.mean(totals)) for totals in self._totals],
        )
        return {"average_loss": (average[0], average[1]), "loss": (mean[0], mean[1])}


def loss_of_batch_means(loss: float | None, each: Sequence[float] | None, sizes: Sequence[int]) -> float | None:
    """Return a Keras model's evaluation loss as an Estimator computes it, a mean of batch means; None: unknown.

    The result of `model.evaluate` counts, not the losses by its layers.

    Args:
        loss: the loss of all batches; None: no loss.
        each: the loss of each batch; None: unknown.
        sizes: number of records in each batch.
    """
    if loss is None or not sizes:
        return None
    if each is None:
        # With batches of equal size both means are the same.
        return loss if len(set(sizes)) == 1 else None
    mean = float(np.mean(each))
    # Keras weights batches by their records; without a compiled loss it takes the plain mean of the layers' losses.
    means = (float(np.dot(each, sizes) / sum(sizes)), mean)
    # A loss that is neither mean, such as that of the last batch, is compared as it is.
    return mean if any(math.isclose(loss, value, rel_tol=1e-4, abs_tol=1e-7) for value in means) else loss


def predicted(predictions: Any, outputs: Sequence[str], asked: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the requested outputs of a Keras model; an overridden `predict_step` may name them differently.

    Args:
        predictions: the result of its `predict_step`.
        outputs: names of the model's outputs.
        asked: the requested outputs.

    Raises:
        ConfigError: `predict_step` does not return a requested output.
    """
    parts = list(predictions) if isinstance(predictions, list | tuple) else [predictions]
    named = predictions if isinstance(predictions, Mapping) else dict(zip(outputs, parts, strict=False))
    missing = [output for output in asked if output not in named]
    if missing or (named is not predictions and len(parts) != len(outputs)):
        gives = ", ".join(named) if named is predictions else f"{len(parts)} arrays for {len(outputs)} outputs"
        raise ConfigError(
            f"the Keras model does not predict {', '.join(missing or asked)}",
            code="parity/no-counterpart",
            found=f"its predict_step returns {gives}",
            hint="name in predictions (--predictions) the outputs that its predict_step returns",
        )
    return {f"predictions {output}": np.asarray(named[output]) for output in asked}


def main(arguments: list[str]) -> int:
    """Write the answers and facts of a job's two runs."""
    folder, engines, path = arguments
    base = Path(folder)
    job = load_job(path)
    facts: dict[str, Any] = {"losses": {}, "random": [], "notes": []}
    try:
        _facts_of(job, base, engines.split(","), facts)
    except PipelineError as error:
        facts["notes"].append(f"predictions were not compared: {error.message}")
    durable.write(base / "facts.json", json.dumps(facts).encode(), to_disk=False)
    return 0


def _facts_of(job: Job, base: Path, engines: Sequence[str], facts: dict[str, Any]) -> None:
    tf = compat.tensorflow()
    from estimator_pipeline.engines.jobs import keras as keras_job
    from estimator_pipeline.engines.jobs.build import build
    from estimator_pipeline.engines.keras.backend import checkpoint_of
    from estimator_pipeline.engines.keras_common.evaluation import KerasEvaluation

    built = build(job)
    data = built.data
    model = None
    if "keras" in engines:
        plan = keras_job.plan_of(built)
        checkpoint = tf.train.latest_checkpoint(str(base / "keras" / "model"))
        model = KerasEvaluation(plan, checkpoint_of=checkpoint_of).model_of(checkpoint)
        features, *_ = tf.keras.utils.unpack_x_y_sample_weight(next(iter(plan.weighted(data.eval_input_fn()))))
        # The layers of Keras 2 draw the same random numbers as the Estimator's.
        facts["random"], notes = random_of_model(model, features, of_a_job="keras3" not in engines)
        facts["notes"] += notes
    if data.features_spec is None:
        facts["notes"].append(
            "predictions and signatures were not compared: the features of a custom input function are unknown"
        )
    else:
        inputs, examples = _inputs(data, takes_examples=built.takes_examples)
        for engine in engines:
            answers = signature_answers(_export_of(base / engine / "model"), inputs, examples)
            write_arrays(base / f"answers-{engine}.npz", answers)
    if model is not None:
        facts["losses"] = evaluated_losses(model, plan.weighted(data.eval_input_fn()), steps=job.eval.steps)


def _export_of(model_dir: Path) -> Path:
    return max((model_dir / "export" / EXPORT).iterdir(), key=lambda path: int(path.name))


def _inputs(data: Any, *, takes_examples: bool) -> tuple[dict[str, np.ndarray], Any]:
    """Return the first evaluation records as arrays, and as serialized examples if the exports take them."""
    names = {} if data.transform is None else data.transform.serving_names
    dataset = (data if not names else data.without_transform()).eval_input_fn()
    features, _ = next(iter(dataset.unbatch().batch(RECORDS)))
    features = {names.get(name, name): value for name, value in features.items()} if names else features
    named = features if isinstance(features, Mapping) else {next(iter(data.features_spec)): features}
    arrays = {name: value.numpy() for name, value in tensors_by_name(named).items()}
    return arrays, (data.eval_examples(RECORDS) or _examples(arrays)) if takes_examples else None


def _examples(arrays: Mapping[str, np.ndarray]) -> list[bytes]:
    train = compat.tensorflow().train
    records = []
    for number in range(len(next(iter(arrays.values())))):
        example = train.Example()
        for name, values in arrays.items():
            flat, feature = np.ravel(values[number]), example.features.feature[name]
            if flat.dtype.kind in "OSU":
                feature.bytes_list.value.extend(map(bytes, flat))
            elif flat.dtype.kind in "iub":
                feature.int64_list.value.extend(map(int, flat))
            else:
                feature.float_list.value.extend(map(float, flat))
        records.append(example.SerializeToString())
    return records


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What both exported models answer to the same inputs, and what Keras's layers evaluate to: a process by itself.

    python -m estimator_pipeline.parity.answers FOLDER ENGINE,ENGINE JOB.yaml [KEY=VALUE ...]

FOLDER holds both runs; into it come `answers-ENGINE.npz` of each and `facts.json`. The SavedModels are
loaded by plain TensorFlow, as a server would.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline import compat, keras_averages, moving_averages
from estimator_pipeline.errors import ConfigError, PipelineError
from estimator_pipeline.job import Job, load_job
from estimator_pipeline.parity.graph_facts import random_of_model
from estimator_pipeline.parity.records import write_arrays

__all__ = ["EXPORT", "batch_sizes", "evaluated_losses", "loss_of_batch_means", "predicted", "signature_answers"]

# The folder below `export/` of both runs.
EXPORT = "parity"
RECORDS = 64


def signature_answers(
    export: str | os.PathLike[str], inputs: Mapping[str, Any], examples: Any = None
) -> dict[str, Any]:
    """The signatures of a SavedModel and what they answer.

    Args:
        export: the SavedModel's folder.
        inputs: feature name -> array [B, ...].
        examples: the same records as serialized `tf.Example`, bytes [B], for signatures that take these.

    Returns:
        "signature KEY, input NAME" -> its type, and "signature KEY, output NAME" -> the answer.
    """
    tf = compat.install()
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


def evaluated_losses(model: Any, dataset: Any, *, steps: int | None = None) -> dict[str, tuple[float, float]]:
    """What a dataset's losses are by the layers as they infer, and as they train.

    The layers' moving statistics are moved by it: the model is for no other use afterwards.

    Returns:
        "average_loss": the mean over all records, by their weights, without the regularisers' losses; "loss": the mean
        over the batches' means, with them, as an Estimator's evaluation has it; "keras_loss": the mean of these, each
        counted as often as it has records, as Keras's evaluation has it.
    """
    batches = list(dataset if steps is None else dataset.take(steps))
    own = keras_averages.in_place(getattr(model, "averages", None))
    with own, moving_averages.averaged_weights(model):  # it is evaluated with them
        return _losses_of(model, batches)


def _losses_of(model: Any, batches: list[Any]) -> dict[str, tuple[float, float]]:
    tf = compat.install()
    found: dict[str, list[float]] = {"average_loss": [], "loss": [], "keras_loss": []}
    for training in (False, True):
        sizes, counted, each, totals = [], [], [], []
        for batch in batches:
            features, labels, weights = tf.keras.utils.unpack_x_y_sample_weight(batch)
            outputs = model(features, training=training)
            # A model that works its loss out by itself may have no labels.
            sizes.append(int(tf.shape(tf.nest.flatten(features if labels is None else labels)[0])[0]))
            # Without weights a record counts for one; of several outputs each may weigh them differently.
            alike = weights is None or isinstance(weights, Mapping)
            counted.append(sizes[-1] if alike else float(tf.reduce_sum(weights)))
            if not model.loss:  # it works its loss out by itself, with what its layers add
                totals.append(float(model.compute_loss(features, labels, outputs, weights)))
                each.append(totals[-1] - float(sum(model.losses)))
            else:
                each.append(float(model.compiled_loss(labels, outputs, weights, regularization_losses=None)))
                totals.append(each[-1] + float(sum(model.losses)))
        found["average_loss"].append(float(np.dot(each, sizes) / sum(counted)) if batches else math.nan)
        found["loss"].append(float(np.mean(totals)) if batches else math.nan)
        found["keras_loss"].append(float(np.dot(totals, sizes) / sum(sizes)) if batches else math.nan)
    return {name: (values[0], values[1]) for name, values in found.items()}


def loss_of_batch_means(
    told: float | None, losses: Mapping[str, tuple[float, float]] | None, batches: Sequence[int]
) -> float | None:
    """The loss of a Keras model's evaluation as an Estimator has it, a mean of batch means; None: it is not known.

    What a model tells by itself counts: where its evaluation comes to something else than its layers and their losses
    do, by as much does this.

    Args:
        told: what the model's evaluation tells.
        losses: see :func:`evaluated_losses`; None: the model is not evaluated by its layers and their losses.
        batches: how many records each batch has.
    """
    if told is None or losses is None:
        # Of batches of one size both means are the same.
        return told if len(set(batches)) == 1 else None
    mean, expected = losses["loss"][0], losses["keras_loss"][0]
    # Of what layers add, without a compiled loss, Keras takes the mean of batch means as well.
    known = (one for one in (expected, mean) if math.isclose(told, one, rel_tol=1e-4, abs_tol=1e-7))
    return mean if next(known, None) is not None else mean + told - expected


def batch_sizes(dataset: Any) -> list[int]:
    """How many records each of a dataset's batches has."""
    tf: Any = compat.install()
    flat = (tf.nest.flatten(batch) for batch in dataset)
    return [next((int(part.shape[0]) for part in parts if getattr(part, "shape", ())), 1) for parts in flat]


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
            found=f"its predict_step gives {gives}",
            mend="name in predictions (--predictions) what its predict_step gives",
        )
    return {f"predictions {output}": np.asarray(named[output]) for output in asked}


def main(arguments: list[str]) -> int:
    """Writes the answers and facts of a job's two runs."""
    folder, engines, path, *settings = arguments
    base = Path(folder)
    job = load_job(path, overrides=settings)
    facts: dict[str, Any] = {"losses": {}, "random": [], "notes": []}
    try:
        _facts_of(job, base, engines.split(","), facts)
    except PipelineError as error:
        facts["notes"].append(f"predictions were not compared: {error.what}")
    unfinished = base / "facts.unfinished"
    unfinished.write_text(json.dumps(facts), encoding="utf-8")
    os.replace(unfinished, base / "facts.json")
    return 0


def _facts_of(job: Job, base: Path, engines: Sequence[str], facts: dict[str, Any]) -> None:
    tf = compat.install()
    from estimator_pipeline.engines import job as jobs
    from estimator_pipeline.engines import keras_job

    data = jobs.job_inputs(job)
    model = None
    if "keras" in engines:
        plan = keras_job.plan_of(job, data)
        model = plan.serving.model_of(tf.train.latest_checkpoint(str(base / "keras" / "model")))
        features, *_ = tf.keras.utils.unpack_x_y_sample_weight(next(iter(plan.weighted(data.eval_input_fn()))))
        # The layers of Keras 2 draw as the Estimator's do.
        facts["random"] = random_of_model(model, features, of_a_job="keras3" not in engines)
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
    from estimator_pipeline.engines.job import takes_examples

    features, _ = next(iter(data.eval_input_fn()))
    named = features if isinstance(features, Mapping) else {next(iter(data.features_spec)): features}
    arrays = {name: value.numpy()[:RECORDS] for name, value in named.items()}
    return arrays, _examples(arrays) if takes_examples(job) else None


def _examples(arrays: Mapping[str, np.ndarray]) -> list[bytes]:
    tf = compat.install()
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

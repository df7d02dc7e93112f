"""Comparison of a program's Estimator with its conversion to Keras 3, step by step, on TensorFlow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.eager_blocks import eagerly
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.tolerances import Tolerances
from estimator_pipeline.parity import folders, known_differences
from estimator_pipeline.parity.comparison import compare_records
from estimator_pipeline.parity.models.arguments import InputFns
from estimator_pipeline.parity.models.layers import record_estimator, record_layers
from estimator_pipeline.parity.result import ENGINES, Parity

__all__ = ["compare_keras_3", "shapes_of_tensorflow_2"]


@contextlib.contextmanager
def shapes_of_tensorflow_2(old: bool) -> Iterator[None]:
    """Enable the shapes and equality of TensorFlow 2 within the block, which Keras 3 needs.

    Args:
        old: whether the program uses those of TensorFlow 1.
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
    """Train both from the Estimator's values on the same records; compare loss and weights of each step.

    The model is trained in place: its weights and its optimizer change. Optimizer slots are not compared.

    Args:
        estimator: a `tf.estimator.Estimator`.
        model: a compiled `keras.Model` of Keras 3.
        data: input functions of both.
        allowed: allowed differences.
        steps: number of training steps.
        mapping: path of a weight -> the Estimator's variable, where names do not match.
        folder: folder of the runs and their records; None: a new temporary one.
        old: whether shapes are those of TensorFlow 1.

    Raises:
        ConfigError: the model runs on a different backend, or has different variables than the Estimator.
    """
    keras: Any = sys.modules["keras"]
    if keras.backend.backend() != "tensorflow":
        raise ConfigError(
            "the model does not run on TensorFlow, as the Estimator does",
            code="argument/not-applicable",
            found=f"KERAS_BACKEND is {keras.backend.backend()}",
            hint="set KERAS_BACKEND=tensorflow",
        )
    with folders.runs(folder, option="folder", engines=ENGINES) as base:
        recorded = record_estimator(estimator, base, data, steps)
        theirs, their_answers = recorded.metrics, recorded.answers
        by_nature = known_differences.of_random(ENGINES, (recorded.random, recorded.random))
        with shapes_of_tensorflow_2(old):
            our_answers = record_layers(model, base, data, steps, mapping)
            evaluation = data.keras_evaluation
            ours = _evaluated(model, evaluation, data.eval_steps) if evaluation is not None else {}
        both = [name for name in theirs if name in ours]
        asked = [name for name in their_answers if name in our_answers]
        for name in asked:  # keras.ops.argmax gives int32
            if their_answers[name].dtype.kind + our_answers[name].dtype.kind == "ii":
                our_answers[name] = our_answers[name].astype(their_answers[name].dtype)
        notes = ["the Keras 3 model started from the Estimator's values; optimizer slots are not compared"]
        if "loss" in both:
            notes.append("the loss of the evaluation is the mean of the batch losses for both")
        if left := sorted(theirs.keys() ^ ours.keys()):
            notes.append(f"metrics of only one side are not compared: {', '.join(left)}")
        return compare_records(
            base, metrics={engine: {name: float(metrics[name]) for name in both}
                           for engine, metrics in zip(ENGINES, (theirs, ours), strict=True)},
            tolerances=allowed, by_nature=tuple(by_nature), steps=steps,
            about={"engines": list(ENGINES), "steps": steps}, notes=tuple(notes),
            answers=({name: their_answers[name] for name in asked}, {name: our_answers[name] for name in asked})
            if asked else None,
        )  # fmt: skip


def _evaluated(model: Any, evaluation: Any, steps: int | None) -> dict[str, Any]:
    """Return the metrics of the model."""
    metrics = dict(model.evaluate(evaluation.for_keras()(), steps=steps, return_dict=True, verbose=0))
    metrics["loss"] = _mean_of_batches(model, evaluation.for_keras()(), steps)
    return metrics


def _mean_of_batches(model: Any, batches: Any, steps: int | None) -> float:
    """Return the evaluation loss as an Estimator computes it: Keras 3 gives a smaller last batch less weight."""
    losses = []
    for batch in batches.take(steps if steps is not None else -1):
        model.reset_metrics()
        losses.append(model.test_on_batch(*batch, return_dict=True)["loss"])
    return float(np.mean(losses))

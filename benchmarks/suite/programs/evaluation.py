"""Evaluation cycle of each contender, from a checkpoint to its metrics, several times in one process.

A few steps of training write the checkpoint. Each cycle evaluates a copy with a different step, so that no contender
can skip it as already evaluated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.suite import work
from benchmarks.suite.programs import (
    estimator_engine,
    keras_engine,
    plain_data,
    plain_estimator,
    plain_keras,
    plain_layers,
)

STEPS = 4


def run(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seconds of each cycle, and the metrics, which are the same in each."""
    model = work.MODELS[spec["model"]]
    cycle = {
        "plain_estimator": _plain_estimator,
        "estimator": _estimator,
        "plain_keras": _plain_keras,
        "keras": _keras,
    }[spec["contender"]](spec, model)
    seconds: list[float] = []
    metrics: Mapping[str, Any] = {}
    for number in range(spec["evaluations"]):
        begun = time.monotonic()
        metrics = cycle(number)
        seconds.append(time.monotonic() - begun)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "metrics": {name: float(value) for name, value in metrics.items()}, "peak_mib": peak}


def _copies(checkpoint: str, count: int) -> list[str]:
    """Copy the checkpoint to later steps, as a training would write them, and return the paths."""
    import shutil

    base, _, step = checkpoint.rpartition("-")
    copies = []
    for number in range(count):
        copy = f"{base}-{int(step) + number + 1}"
        for path in Path(checkpoint).parent.glob(f"{Path(checkpoint).name}.*"):
            shutil.copy(path, f"{copy}{path.name[len(Path(checkpoint).name) :]}")
        copies.append(copy)
    return copies


def _plain_estimator(spec: Mapping[str, Any], model: work.BenchModel) -> Callable[[int], Mapping[str, Any]]:
    from estimator_pipeline import compat

    tf = compat.install("none")
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    estimator = plain_estimator.make_estimator(spec)
    estimator.train(plain_estimator.train_input_fn_of(spec, model), max_steps=STEPS)
    copies = _copies(estimator.latest_checkpoint(), spec["evaluations"])

    def input_fn() -> Any:
        return plain_data.dataset(spec["data"], model.data, work.BATCH, split="eval")

    return lambda number: estimator.evaluate(input_fn, checkpoint_path=copies[number])


def _estimator(spec: Mapping[str, Any], model: work.BenchModel) -> Callable[[int], Mapping[str, Any]]:
    import estimator_pipeline as ep

    tf = ep.compat.install()
    from estimator_pipeline.engines.core.evaluation import CheckpointEvaluator
    from estimator_pipeline.engines.estimator.evaluation import EstimatorEvaluation
    from estimator_pipeline.progress.progress_file import ProgressWriter

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    estimator = estimator_engine.make_estimator(spec, model)
    data = estimator_engine.inputs_of(spec, model, global_batch_size=work.BATCH, seed=1)
    estimator.train(data.train_input_fn, max_steps=STEPS)
    copies = _copies(estimator.latest_checkpoint(), spec["evaluations"])
    eval_spec, progress = tf.estimator.EvalSpec(data.eval_input_fn, steps=None), ProgressWriter(None)
    evaluator = CheckpointEvaluator(
        eval_spec,
        lambda: EstimatorEvaluation(estimator, eval_spec, progress=progress),
        checkpoint_steps=None,
        progress=progress,
    )
    return lambda number: evaluator.evaluate(copies[number], final=False).metrics


def _plain_keras(spec: Mapping[str, Any], model: work.BenchModel) -> Callable[[int], Mapping[str, Any]]:
    plain_layers.import_tensorflow()
    network = plain_keras.compile_model(spec["model"])
    data = plain_data.dataset(spec["data"], model.data, work.BATCH)
    network.fit(data, epochs=1, steps_per_epoch=STEPS, verbose=0)
    path = os.path.join(spec["model_dir"], f"weights-{STEPS}")
    network.save_weights(path)
    evaluated = plain_data.dataset(spec["data"], model.data, work.BATCH, split="eval")

    def cycle(number: int) -> Mapping[str, Any]:
        network.load_weights(path).expect_partial()
        metrics: Mapping[str, Any] = network.evaluate(evaluated, verbose=0, return_dict=True)
        return metrics

    return cycle


def _keras(spec: Mapping[str, Any], model: work.BenchModel) -> Callable[[int], Mapping[str, Any]]:
    from estimator_pipeline import compat
    from estimator_pipeline.engines.core.evaluation import CheckpointEvaluator
    from estimator_pipeline.engines.keras import backend as keras
    from estimator_pipeline.engines.keras_common import checkpoints as keras_checkpoints
    from estimator_pipeline.engines.keras_common.evaluation import KerasEvaluation
    from estimator_pipeline.engines.model_dir.layout import PREFIXES
    from estimator_pipeline.progress.progress_file import ProgressWriter

    tf = compat.install()
    plan = keras_engine.plan_of(keras_engine.build(spec, model))
    trained = plan.build_model()
    data = plan.train_input_fn()
    trained.fit(data, epochs=1, steps_per_epoch=STEPS, verbose=0)
    manager = tf.train.CheckpointManager(
        keras_checkpoints.of(trained),
        spec["model_dir"],
        max_to_keep=None,
        checkpoint_name=PREFIXES["keras"],
    )
    copies = _copies(manager.save(checkpoint_number=STEPS), spec["evaluations"])
    evaluator = CheckpointEvaluator(
        plan.eval_spec,
        lambda: KerasEvaluation(plan, checkpoint_of=keras.checkpoint_of),
        checkpoint_steps=plan.epoch_steps,
        progress=ProgressWriter(None),
    )
    return lambda number: evaluator.evaluate(copies[number], final=False).metrics

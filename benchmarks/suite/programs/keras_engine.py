"""Training with the Keras engine of this package, from a job as in a job file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.suite import work
from benchmarks.suite.clock import Clock


def job_of(spec: Mapping[str, Any], model: work.BenchModel, *, engine: str) -> dict[str, Any]:
    """Return the job as the plain values of a job file."""
    images = model.data == "images"
    together = spec["workers"] if spec["kind"] == "workers" else 1
    folder = Path(spec["data"])
    source = {
        "source": "tfrecord",
        "train": work.files_of(folder, model.data),
        "eval": work.files_of(folder, model.data, "eval"),
        "features": work.feature_fields(model.data),
        "global_batch_size": work.BATCH * together,
        "eval_batch_size": work.BATCH * together,
        "seed": 1,
    }
    run: dict[str, Any] = {
        "model_dir": spec["model_dir"],
        "engine": engine,
        "save_checkpoints_steps": spec["checkpoint_steps"],
    }
    if spec["kind"] == "workers":
        run["train_distribute"] = "multi_worker_mirrored"
    return {
        "model": {
            "name": model.name,
            "params": _plain(model.params),
            "optimizer": {"name": "sgd", "learning_rate": work.LEARNING_RATE},
            "metrics": ["accuracy"],
        },
        "input": {**source, **({"features_key": "image", "scale": 1 / 255} if images else {})},
        "train": {"max_steps": spec["steps"], "steps_per_execution": work.STEPS_PER_EXECUTION},
        "eval": {"steps": 1},
        "run": run,
    }


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in params.items()}


def build(spec: Mapping[str, Any], model: work.BenchModel) -> Any:
    """Return the built job."""
    from estimator_pipeline.engines.jobs.build import build as build_job
    from estimator_pipeline.job import make_job

    return build_job(make_job(job_of(spec, model, engine="keras")))


def plan_of(built: Any) -> Any:
    """Return the Keras engine's plan for this task, without summaries, since plain `fit` writes none."""
    from estimator_pipeline.cluster import from_environ
    from estimator_pipeline.engines.jobs import keras as keras_job

    keras_job.prepare_runtime(built.job)
    strategy, eval_strategy = keras_job.strategies_of(built.job, from_environ(os.environ))
    plan = keras_job.plan_of(built, strategy=strategy, eval_strategy=eval_strategy)
    return dataclasses.replace(plan, summary_steps=None)


def run(spec: Mapping[str, Any]) -> None:
    """Train; `measures.training` writes the spec."""
    from estimator_pipeline.cluster import from_environ
    from estimator_pipeline.engines.jobs.build import JobTask
    from estimator_pipeline.engines.keras import backend as keras

    model = work.MODELS[spec["model"]]
    clock = Clock(spec["out"], last=spec["steps"], warm=spec["warm"], facts={"batch": work.BATCH})
    built = build(spec, model)
    plan = plan_of(built)
    plan = dataclasses.replace(plan, callbacks=lambda: [clock.callback(steps_per_epoch=spec["checkpoint_steps"])])
    task = JobTask(tf_config=from_environ(os.environ), environ=os.environ)
    keras.train_and_evaluate(plan, tf_config=task.tf_config, options=built.options(task))

"""What a run of a job file is made of: for the run that goes on from its checkpoint, and for its other tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.engines.lifecycle.rendezvous import same_job
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity, code_of_reference, of_inputs
from estimator_pipeline.job import Job

__all__ = ["identity_of", "of_data", "of_job_file", "shared_by_tasks"]

# Of the input section: what becomes a feature, a label and a weight, and which numbers.
_CONTENT = ("features_key", "label_key", "weight_key", "scale", "features", "columns")
# Of the sections input and run: what decides which records a step reads, and what all tasks do together. Paths of data
# may differ by machine, and so may caches, threads and devices.
_INPUT = ("source", "name", "train_split", "global_batch_size", "seed", "shuffle", "shard_policy", "worker_seeds",
          "drop_remainder", "delimiter", "header", "compression", "params")  # fmt: skip
_RUN = ("engine", "seed", "train_distribute", "protocol")


def identity_of(job: Job, data: Any, tf_config: TFConfig, *, max_steps: int | None) -> Callable[[], RunIdentity]:
    """What a run of the job is made of, worked out when it is asked for: fingerprints look at all files.

    Args:
        job: the job.
        data: its data.
        tf_config: which task this is.
        max_steps: the global step at which training ends, if any.
    """

    return lambda: of_data(job, data, num_pipelines=tf_config.num_training_tasks, max_steps=max_steps)


def of_data(job: Job, data: Any, *, num_pipelines: int, max_steps: int | None) -> RunIdentity:
    """The same at once, for so many input pipelines."""
    seen = of_inputs(data.train_input_fn, seed=job.run.seed, num_pipelines=num_pipelines)
    fixed, told = _of_sections(job)
    return dataclasses.replace(
        seen, fixed={**seen.fixed, **fixed}, told=told, epochs=job.train.epochs, max_steps=max_steps
    )


def of_job_file(job: Job) -> RunIdentity:
    """What a run of the job is made of, as far as the job file tells it without a look at the data."""
    fixed, told = _of_sections(job)
    known: dict[str, Any] = {"seed": job.run.seed}
    if job.input.source != "function":
        known |= {
            "global_batch_size": job.input.global_batch_size,
            "input.seed": job.input.seed,
            "input.shuffle": job.input.shuffle,
        }
    return RunIdentity(fixed={**known, **fixed}, told=told, epochs=job.train.epochs, max_steps=job.train.max_steps)


def shared_by_tasks(job: Job, *, max_steps: int | None) -> dict[str, Any]:
    """What all tasks of the job must have in common, as far as the job file tells it without a look at the data.

    Args:
        job: the job.
        max_steps: the global step at which training ends, if any.
    """
    fixed, told = _of_sections(job)
    run = {f"run.{name}": getattr(job.run, name) for name in _RUN}
    unit, interval = job.run.checkpoint_interval
    for other in ("steps", "secs"):
        run[f"run.save_checkpoints_{other}"] = interval if other == unit else None
    run["run.communication"] = job.run.communication.model_dump()
    data = {f"input.{name}": value for name, value in job.input.model_dump(mode="json").items() if name in _INPUT}
    return same_job.facts(
        fixed,
        told,
        {f"train.{name}": value for name, value in job.train.model_dump(mode="json").items()},
        {"train.max_steps": max_steps, same_job.MODEL_DIR: job.run.model_dir},
        {**run, "run.ledger": bool(job.run.ledger)},
        {} if job.run.engine == "estimator" else {"keras": job.keras.model_dump(mode="json")},
        data,
        same_job.versions(),
    )


def _of_sections(job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the sections model and input say, see :class:`RunIdentity`: what is fixed, and what is told."""
    model = job.model.model_dump(mode="json", exclude={"export", "metrics"})
    told = {f"model.{name}": model.pop(name, None) for name in ("clip_norm", "clip_value")}
    optimizer = dict(model.pop("optimizer"))
    fixed = {f"model.{name}": value for name, value in model.items()}
    fixed["model.optimizer"] = f"{optimizer.pop('name')} ({optimizer.pop('api')})"
    # These come with variables of their own, which a checkpoint has or has not.
    fixed["model.optimizer keeps averages"] = optimizer["ema_momentum"] is not None
    fixed["model.optimizer adds gradients up"] = optimizer["gradient_accumulation_steps"] > 1
    data_of = job.input.model_dump(mode="json")
    # What a feature or a label is; which records there are, the fingerprint knows.
    if "columns" in data_of:
        # Their order is which column of the file has which name.
        data_of["columns"] = list(data_of["columns"].items())
    fixed |= {f"input.{name}": data_of[name] for name in _CONTENT if name in data_of}
    told |= {f"input.{name}": data_of[name] for name in ("function", "params") if name in data_of}
    if job.model.function is not None:
        told["the code of model.function"] = code_of_reference(job.model.function)
    told |= {f"model.optimizer.{name}": value for name, value in optimizer.items()}
    return fixed, told

"""The run identity of a job file: compared with the checkpoint's when a run resumes, and between its tasks."""

from __future__ import annotations

import dataclasses
from typing import Any

from estimator_pipeline.engines.core.rendezvous import same_job
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity, code_of_reference, of_inputs
from estimator_pipeline.job import Job

__all__ = ["of_data", "of_job_file", "shared_by_tasks"]

# Fields of the section input that define features, labels and weights, and their values.
_CONTENT = ("features_key", "label_key", "weight_key", "scale", "features", "columns", "encoding", "null_words",
            "eval_fraction", "size", "channels")  # fmt: skip
# Fields of the sections input and run that decide which records a step reads and what all tasks do together. Data
# paths, caches, threads and devices may differ by machine.
_INPUT = ("source", "name", "train_split", "global_batch_size", "seed", "shuffle", "shard_policy", "worker_seeds",
          "drop_remainder", "delimiter", "header", "compression", "encoding", "null_words", "eval_fraction",
          "params")  # fmt: skip
_FEATURES = "the features found in the training records"
_RUN = ("engine", "seed", "train_distribute", "protocol")


def of_data(
    job: Job, input_fn: Any, *, num_pipelines: int, max_steps: int | None, features: str | None = None
) -> RunIdentity:
    """Return the run identity with a training input function, for this number of input pipelines.

    `features` is the digest of the features of a table.
    """
    job_file, data = of_job_file(job), of_inputs(input_fn, seed=job.run.seed, num_pipelines=num_pipelines)
    fixed = {**job_file.fixed, **data.fixed, **({} if features is None else {_FEATURES: features})}
    resolved = {"name": job.name, **job.model_dump(mode="json", exclude_defaults=True)}
    return dataclasses.replace(
        job_file, fixed=fixed, open=data.open, files=data.files, max_steps=max_steps, job=resolved
    )


def of_job_file(job: Job) -> RunIdentity:
    """Return the part of the run identity that the job file defines, without reading the data."""
    fixed, described = _of_sections(job)
    known: dict[str, Any] = {"seed": job.run.seed}
    if job.input.source != "function":
        known |= {
            "global_batch_size": job.input.global_batch_size,
            "input.seed": job.input.seed,
            "input.shuffle": job.input.shuffle,
        }
    return RunIdentity(
        fixed={**known, **fixed}, described=described, epochs=job.train.epochs, max_steps=job.train.max_steps
    )


def shared_by_tasks(job: Job, *, max_steps: int | None, features: str | None = None) -> dict[str, Any]:
    """Return the settings that all tasks of the job must share, without reading the data.

    `features` is the digest of the features of a table.
    """
    fixed, described = _of_sections(job)
    run = {f"run.{name}": getattr(job.run, name) for name in _RUN}
    unit, interval = job.run.checkpoint_interval
    for other in ("steps", "secs"):
        run[f"run.save_checkpoints_{other}"] = interval if other == unit else None
    run["run.communication"] = job.run.communication.model_dump()
    if job.run.warm_start_from is not None:
        run["run.warm_start_from"] = job.run.warm_start_from.model_dump(exclude={"path"})
    data = {f"input.{name}": value for name, value in job.input.model_dump(mode="json").items() if name in _INPUT}
    return same_job.facts(
        fixed,
        described,
        {f"train.{name}": value for name, value in job.train.model_dump(mode="json").items()},
        {"train.max_steps": max_steps, same_job.MODEL_DIR: job.run.model_dir},
        {**run, "run.ledger": bool(job.run.ledger)},
        {} if job.run.engine == "estimator" else {"keras": job.keras.model_dump(mode="json")},
        data if features is None else {**data, _FEATURES: features},
        same_job.versions(),
    )


def _of_sections(job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `fixed` and `described` of `RunIdentity` from the sections model and input."""
    model = job.model.model_dump(mode="json", exclude={"export", "metrics", "estimator"})
    if model["features"] is None:
        del model["features"]
    described = {f"model.{name}": model.pop(name, None) for name in ("clip_norm", "clip_value")}
    optimizer = dict(model.pop("optimizer"))
    fixed = {f"model.{name}": value for name, value in model.items()}
    fixed["model.optimizer"] = f"{optimizer.pop('name')} ({optimizer.pop('api')})"
    # These have additional variables, which must match the checkpoint's.
    fixed["model.optimizer keeps averages"] = optimizer["ema_momentum"] is not None
    fixed["model.optimizer adds gradients up"] = optimizer["gradient_accumulation_steps"] > 1
    data_of = job.input.model_dump(mode="json")
    # Definitions of features and labels; the fingerprint covers the records.
    if data_of.get("columns") is not None:
        # The order assigns the names to the columns of the file.
        data_of["columns"] = list(data_of["columns"].items())
    fixed |= {f"input.{name}": data_of[name] for name in _CONTENT if name in data_of}
    described |= {f"input.{name}": data_of[name] for name in ("function", "params") if name in data_of}
    if job.model.function is not None and job.model.estimator is None:
        described["the code of model.function"] = code_of_reference(job.model.function)
    described |= {f"model.optimizer.{name}": value for name, value in optimizer.items()}
    return fixed, described

"""Model directories as a training leaves them, without TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from estimator_pipeline.engines.jobs.job_identity import of_data
from estimator_pipeline.engines.model_dir.run_identity import as_json
from estimator_pipeline.job import make_job

JOB = {
    "name": "digits",
    "model": {"name": "linear", "optimizer": {"name": "sgd", "learning_rate": 0.5}},
    "input": {"source": "function", "train": "data.py:train", "eval": "data.py:test", "global_batch_size": 8},
    "train": {"max_steps": 20},
}
EVALUATIONS = {10: {"loss": 0.5, "accuracy": 0.75}, 20: {"loss": 0.25, "accuracy": 0.875}}


def write_run(
    folder: Path,
    settings: Sequence[str] = (),
    *,
    evaluations: Mapping[int, Mapping[str, float]] = EVALUATIONS,
    losses: Mapping[int, float] | None = None,
    evaluated: str = "eval",
) -> Path:
    """Write a run of `JOB` with these settings: its identity, event files and checkpoints."""
    job = make_job({**JOB, "run": {"model_dir": str(folder)}}, overrides=settings)
    identity = of_data(job, lambda: None, num_pipelines=1, max_steps=20)
    package = folder / "estimator_pipeline"
    package.mkdir(parents=True)
    document = {"fixed": as_json(identity.fixed), "told": as_json(identity.described), "job": as_json(identity.job)}
    (package / "identity.json").write_text(json.dumps(document))
    (folder / "model.ckpt-20.index").touch()
    for step, metrics in evaluations.items():
        write_events(folder / evaluated, {step: metrics})
    write_events(folder, {step: {"loss": loss} for step, loss in (losses or {1: 2.0, 11: 1.0}).items()})
    return folder


def write_events(folder: Path, scalars: Mapping[int, Mapping[str, float]]) -> Path:
    """Append scalars by step to the event file of a folder."""
    folder.mkdir(exist_ok=True)
    path = folder / "events.out.tfevents.1700000000.host"
    with open(path, "ab") as file:
        for step, values in scalars.items():
            event = Event(step=step)
            for tag, value in values.items():
                event.summary.value.add(tag=tag, simple_value=value)
            RecordWriter(file).write(event.SerializeToString())
    return path

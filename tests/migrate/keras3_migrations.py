"""Migrations and trainings in a process with Keras 3; what to do comes as JSON, the last line is the answer.

[{"migrate": {...}}, {"train": [job, [setting, ...], folder of the record]}, {"save": path}, ...]
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import numpy as np

import estimator_pipeline as ep
from estimator_pipeline.job import load_job

tf = ep.compat.use_keras_3()


def migrate(asked: dict[str, Any]) -> Any:
    from estimator_pipeline.errors import PipelineError
    from estimator_pipeline.migrate import migrate_checkpoint

    try:
        return migrate_checkpoint(asked.pop("source"), **asked).to_dict()
    except PipelineError as error:
        return str(error)


def train(asked: list[Any]) -> Any:
    from estimator_pipeline.engines.jobs.run import run_job
    from estimator_pipeline.engines.recording.step_recorder import StepRecorder
    from estimator_pipeline.parity.step_records import BatchWriter, StepWriter
    from estimator_pipeline.utils.variable_names import canonical

    job, settings, folder = asked
    recording = StepRecorder(
        writer=functools.partial(StepWriter, folder),
        canonical=canonical,
        batches=lambda task: BatchWriter(folder, task).batch,
    )
    return run_job(load_job(job, overrides=settings), recording=recording, environ={}).to_dict()


OPTIMIZERS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.125),
    "amsgrad": lambda: tf.keras.optimizers.Adam(0.125, amsgrad=True),
    "sgd": lambda: tf.keras.optimizers.SGD(0.125, momentum=0.9),
    "rmsprop": lambda: tf.keras.optimizers.RMSprop(0.125, momentum=0.5, centered=True),
    "ftrl": lambda: tf.keras.optimizers.Ftrl(0.125),
}


def model(optimizer: str) -> Any:
    keras = tf.keras
    layers = [keras.layers.Dense(3, name="hidden"), keras.layers.BatchNormalization(name="norm"),
              keras.layers.Dropout(0.1)]  # fmt: skip
    made = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1, name="out")])
    # What is saved is the same, without a graph that is traced and compiled.
    made.compile(OPTIMIZERS[optimizer](), "mse", run_eagerly=True)
    return made


for _name in OPTIMIZERS:
    globals()[f"model_{_name}"] = functools.partial(model, _name)


def programs(folder: str, *names: str) -> Any:
    """A program's own model, trained and saved by Keras 3 alone, in each way that Keras has."""
    for name in names:
        made = model(name)
        made.fit(np.ones((8, 4), np.float32), np.ones((8, 1), np.float32), batch_size=4, verbose=0)
        tf.train.Checkpoint(model=made, optimizer=made.optimizer).write(f"{folder}/{name}")
        values = {variable.path: variable.numpy() for variable in (*made.variables, *made.optimizer.variables)}
        np.savez(f"{folder}/{name}.npz", **{path.replace("/", "|"): value for path, value in values.items()})
        if name == "ftrl":
            made.save(f"{folder}/ftrl.keras")
    return sorted(names)


if __name__ == "__main__":
    called: Any = {"migrate": migrate, "train": train, "programs": lambda asked: programs(*asked)}
    print(json.dumps([called[what](asked) for one in json.load(sys.stdin) for what, asked in one.items()]))

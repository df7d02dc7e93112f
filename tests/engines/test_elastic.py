"""A run that goes on with another number of replicas: the same batches, the same weights but for rounding."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.job import load_job
from estimator_pipeline.job.tolerances import NAMED
from estimator_pipeline.utils.arrays import compare
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

JOB = """
model:
  name: cnn
  optimizer: {name: momentum, learning_rate: 0.05}
input: {source: tfds, name: digits, scale: 1/16, global_batch_size: 60, seed: 2}
train: {max_steps: 24}
run: {model_dir: nowhere, seed: 1, save_checkpoints_steps: 8}
"""


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)

    def run(folder, engine, steps, devices):
        changes = [f"run.model_dir={tmp_path / folder}", f"run.engine={engine}", f"train.max_steps={steps}"]
        if devices > 1:
            changes += ["run.train_distribute=mirrored", f"run.num_devices={devices}"]
        return run_job(load_job(path, overrides=changes), environ={})

    return run


def variables(checkpoint):
    reader = tf.train.load_checkpoint(checkpoint)
    values = {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}
    return {name: value for name, value in values.items() if getattr(value, "dtype", None) == np.float32}


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_one_then_two_then_three_replicas_come_to_what_one_comes_to(run, engine):
    """20 of 60 records a replica in the end; mid-epoch, for an epoch of digits has 23 steps and 57 records."""
    whole = run("whole", engine, 24, 1)
    for steps, devices in ((8, 1), (16, 2), (24, 3)):
        outcome = run("parts", engine, steps, devices)
        assert outcome.global_step == steps and outcome.tasks["worker:0"].steps == 8
        assert outcome.tasks["worker:0"].records == 8 * 60
    report = compare(variables(whole.checkpoint), variables(outcome.checkpoint), tolerance=NAMED["rounding"])
    assert report.equal, str(report)
    assert len(variables(whole.checkpoint)) >= 10

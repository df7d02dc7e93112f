"""A job that goes on with another number of workers, as real processes: the same records, the same weights."""

from __future__ import annotations

import json

import numpy as np
import pytest

from estimator_pipeline.inputs import ledger
from estimator_pipeline.job.tolerances import NAMED
from estimator_pipeline.utils.arrays import compare
from tests.support.launched_jobs import CONFIGS
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]


def variables(checkpoint):
    reader = tf.train.load_checkpoint(checkpoint)
    values = {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}
    return {name: value for name, value in values.items() if getattr(value, "dtype", None) == np.float32}


@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_two_workers_then_three_then_one(launch, run_python, tmp_path, engine):
    """A batch of 60 is shared by each; 24 steps are more than an epoch, and each change comes in the midst of one."""
    settings = ["run.save_checkpoints_steps=8", "input.global_batch_size=60", "input.seed=2", "run.seed=1",
                "run.ledger=true", f"run.engine={engine}", "model.name=cnn", "eval.exporters=[]",
                "model.optimizer={name: momentum, learning_rate: 0.05}"]  # fmt: skip
    job = CONFIGS / "multi_worker_estimator.yaml"
    for steps, workers in ((8, 2), (16, 3)):
        document = launch(
            job, "--no-evaluator", "--workers", str(workers), settings=[*settings, f"train.max_steps={steps}"]
        )
        assert [task["steps"] for task in document["result"]["tasks"].values()] == [8] * workers

    def alone(folder):
        one = [*settings, "train.max_steps=24", "run.train_distribute=none", "cluster.workers=1",
               "cluster.evaluator=false", f"run.model_dir={folder}"]  # fmt: skip
        done = run_python(["-m", "estimator_pipeline", "train", job, "--json", *(x for s in one for x in ("--set", s))])
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    ended, whole = alone(document["model_dir"]), alone(tmp_path / "whole")
    assert ended["tasks"]["worker:0"]["steps"] == 8 and whole["tasks"]["worker:0"]["steps"] == 24
    report = compare(variables(whole["checkpoint"]), variables(ended["checkpoint"]), tolerance=NAMED["rounding"])
    assert report.equal and len(report.names) >= 10, str(report)
    # Whoever read them: each step had the records that one process alone would have read.
    parts, one = (ledger.read(folder / "ledger") for folder in (document["model_dir"], tmp_path / "whole"))
    assert ledger.check(parts).well, str(ledger.check(parts))
    for step in range(1, 25):
        read = np.concatenate([ids.ravel() for ids in parts.ids(step).values()])
        assert sorted(read.tolist()) == sorted(next(iter(one.ids(step).values())).ravel().tolist()), step


def test_what_began_by_file_goes_on_by_file_in_all_workers(launch):
    """As earlier versions chose it by themselves; one that begins now is read by record."""
    settings = ["run.save_checkpoints_steps=8", "run.ledger=true", "input.cache=false", "input.global_batch_size=60"]
    job = CONFIGS / "multi_worker_estimator.yaml"
    for steps, policy in ((8, "file"), (16, "auto")):
        given = [*settings, f"train.max_steps={steps}", f"input.shard_policy={policy}"]
        document = launch(job, "--no-evaluator", "--workers", "2", settings=given)
    found = ledger.read(document["model_dir"] / "ledger")
    policies = [[segment.facts["plan"]["policy"] for segment in run.segments.values()] for run in found.runs]
    assert policies == [["file", "file"], ["file", "file"]]
    assert ledger.check(found).well, str(ledger.check(found))
    asked = [*settings, "train.max_steps=24", "input.shard_policy=auto"]
    with pytest.raises(AssertionError, match=r"input\.workers was 2 and is 3"):
        launch(job, "--no-evaluator", "--workers", "3", settings=asked)

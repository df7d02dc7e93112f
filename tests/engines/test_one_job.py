"""Tasks that were started with different jobs do not train together: each says what differs, and ends with 2."""

from __future__ import annotations

import sys

import pytest

from tests.support.launched_jobs import CONFIGS
from tests.support.tasks_by_hand import EXEC, Tasks

pytestmark = pytest.mark.cluster

TRAIN = (sys.executable, "-m", "estimator_pipeline", "train")
RATE = "model.optimizer.learning_rate"


def job_file(name, tmp_path, other, settings, *common):
    """`train` of a job file, with further settings for one task ("worker1")."""

    def command(job, index):
        own = [f"run.model_dir={tmp_path / 'model'}", *common, *(settings if f"{job}{index}" == other else ())]
        return [*TRAIN, CONFIGS / name, *(word for setting in own for word in ("--set", setting))]

    return command


def refused(running, codes, *words, error="the tasks of this cluster were started with different jobs"):
    assert running.wait() == codes, running.tails()
    for name, code in codes.items():
        log = running.log(name)
        if code == 2:
            assert f"{error} [cluster/different-jobs]" in log and "Traceback" not in log
            assert all(word in log for word in words), running.tails()


def test_a_worker_of_another_job(tmp_path):
    settings = [f"{RATE}=0.5", "input.seed=7", "train.max_steps=50"]
    command = job_file("digits_cnn_two_workers.yaml", tmp_path, "worker1", settings, "cluster.evaluator=false")
    with Tasks({"worker": 2}, command, tmp_path) as running:
        refused(
            running,
            {"worker0": 2, "worker1": 2},
            f"{RATE}: 0.05 on worker:0, 0.5 on worker:1",
            "input.seed: 1 on worker:0, 7 on worker:1",
            "train.max_steps: ",
        )
    assert not list((tmp_path / "model").glob("*.index")), "no step was trained"


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["keras", pytest.param("keras3", marks=pytest.mark.keras_3)])
def test_the_other_engines(engine, tmp_path):
    common = ["cluster.evaluator=false", f"run.engine={engine}"]
    command = job_file("digits_cnn_two_workers.yaml", tmp_path, "worker1", [f"{RATE}=0.5"], *common)
    with Tasks({"worker": 2}, command, tmp_path) as running:
        refused(running, {"worker0": 2, "worker1": 2}, f"{RATE}: 0.05 on worker:0, 0.5 on worker:1")


@pytest.mark.nightly
def test_a_worker_with_another_model_dir(tmp_path):
    other = [f"run.model_dir={tmp_path / 'other'}"]
    command = job_file("digits_cnn_two_workers.yaml", tmp_path, "worker1", other, "cluster.evaluator=false")
    with Tasks({"worker": 2}, command, tmp_path) as running:
        refused(running, {"worker0": 2, "worker1": 2}, f"run.model_dir: {tmp_path}/model on worker:0, {tmp_path}/other")


@pytest.mark.nightly
def test_an_evaluator_of_another_job_ends_and_training_goes_on(tmp_path):
    common = ["train.max_steps=60", "run.save_checkpoints_steps=20"]
    command = job_file("digits_cnn_two_workers.yaml", tmp_path, "evaluator0", [f"{RATE}=0.5"], *common)
    with Tasks({"worker": 2, "evaluator": 1}, command, tmp_path) as running:
        refused(running, {"worker0": 0, "worker1": 0, "evaluator0": 2}, f"{RATE}: 0.05 on worker:0, 0.5 on evaluator:0")
        assert "the chief evaluates the final checkpoint" in running.log("worker0")


@pytest.mark.nightly
def test_a_worker_of_parameter_servers(tmp_path):
    common = ["train.max_steps=1000000", "cluster.evaluator=false"]
    command = job_file("chief_workers_ps.yaml", tmp_path, "worker1", [f"{RATE}=0.5"], *common)
    soon = {"ESTIMATOR_PIPELINE_PEER_SECS": "5"}
    with Tasks({"chief": 1, "worker": 2, "ps": 1}, command, tmp_path, env=soon) as running:
        assert running.wait() == {"chief0": 2, "worker0": 1, "worker1": 2, "ps0": 1}, running.tails()
        for name in ("chief0", "worker1", "ps0"):
            assert f"{RATE}: 0.1 on chief:0, 0.5 on worker:1" in running.log(name), running.tails()


@pytest.mark.nightly
def test_a_program_with_another_learning_rate(programs, tmp_path):
    """Nothing but the graph tells."""

    def command(job, index):
        return [*EXEC, programs / "legacy_cluster.py", tmp_path / "model", "--rate", 0.1 + 0.1 * index]

    with Tasks({"worker": 2}, command, tmp_path) as running:
        codes = {"worker0": 2, "worker1": 2}
        refused(running, codes, "numbers of the optimizer: [0.1] on worker:0, [0.2] on worker:1")


def test_a_model_fn_that_branches_by_task(programs, tmp_path):
    """The same code, with the same variables and optimizer, and another factor of the loss on one worker."""
    command = [*EXEC, programs / "legacy_cluster.py", tmp_path / "model", "--case", "factor_by_task"]
    with Tasks({"worker": 2}, command, tmp_path) as running:
        error = "the loss is computed differently on the tasks of this cluster"
        refused(
            running,
            {"worker0": 2, "worker1": 2},
            "operations of the loss.number 1.5: not given on worker:0, 1 on worker:1",
            error=error,
        )
    assert not list((tmp_path / "model").glob("*.index")), "no step was trained"


@pytest.mark.nightly
def test_a_program_that_ends_at_another_step(programs, tmp_path):
    def command(job, index):
        return [*EXEC, programs / "legacy_cluster.py", tmp_path / "model", "--max_steps", 40 + index]

    with Tasks({"worker": 2}, command, tmp_path) as running:
        refused(running, {"worker0": 2, "worker1": 2}, "max_steps: 40 on worker:0, 41 on worker:1")

"""The Keras 3 engine as real processes: against the Keras engine step by step, and on clusters of TF_CONFIG."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline.parity.step_records import StepReader
from tests.support.launched_jobs import CONFIGS, SMALL, check
from tests.support.processes import KERAS3_PROCESS, ROOT, tensorflow_with_three_cpus
from tests.support.tasks_by_hand import Tasks

tf = tensorflow_with_three_cpus()

pytestmark = [pytest.mark.cluster, pytest.mark.keras_3]

KERAS_3 = ["--engine", "keras3"]
TRAIN = [sys.executable, "-m", "estimator_pipeline", "train"]
PROCESS = [sys.executable, KERAS3_PROCESS]
MOMENTUM = "model.optimizer={name: momentum, learning_rate: 0.05}"


@pytest.fixture
def parity(run_python, tmp_path):
    """`parity(*options, settings=())`: the engines keras and keras3 compared; exit code and JSON document."""

    def parity(*options, steps=10, settings=()):
        changes = [x for s in settings for x in ("--set", s)]
        command = ["-m", "estimator_pipeline", "parity", CONFIGS / "single.yaml", "--engines", "keras,keras3",
                   "--steps", steps, "--folder", tmp_path / "parity", "--json"]  # fmt: skip
        done = run_python([*command, *options, *changes], timeout=240)
        assert done.returncode in (0, 1) and done.stdout.startswith("{"), done.stderr[-4000:]
        return done.returncode, json.loads(done.stdout)

    return parity


RATE = "{kind: exponential, initial_learning_rate: 0.1, decay_steps: 5, decay_rate: 0.5}"
ADAM_KERAS = "model.optimizer={name: adam, api: keras, learning_rate: 0.001, options: {epsilon: 1.0e-6}}"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ([], [f"model.optimizer={{name: momentum, learning_rate: {RATE}}}"]),
        ([], ["model.name=dnn", ADAM_KERAS, "model.clip_norm=0.5"]),
        ([], ["run.train_distribute=mirrored", "run.num_devices=2", "model.clip_norm=0.1", MOMENTUM]),
        (["--workers", "2"], [MOMENTUM, "model.params={l2: 0.001}"]),
    ],
    ids=["cnn-schedule", "dnn-adam-clipped", "cnn-mirrored-clipped", "cnn-two-workers-l2"],
)
def test_step_by_step_the_numbers_of_keras_2(parity, options, settings):
    """Losses, rates, weights and slots after each step, and the final metrics."""
    code, found = parity(*options, settings=settings)
    assert code == 0 and found["equal"], found["first_fault"]
    assert [step["step"] for step in found["steps"]] == list(range(1, 11)) and not found["only"]
    assert found["initial"]["compared"] >= 13 and found["initial"]["differences"] == []
    assert found["steps"][-1]["losses"][1] < found["steps"][0]["losses"][1]
    if not options and len(settings) == 1:
        assert not [step for step in found["steps"] if step["variables"]["differences"]], "the same bits"


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [1, 2])
def test_batch_normalization_but_for_bessels_correction(parity, tmp_path, workers):
    """Losses, weights, slots and moving means are Keras 2's; the moving variance is not, by the factor N / (N - 1).

    On images Keras 2 moves towards the variance of a sample, Keras 3 towards that of the batch.
    """
    # A smooth activation: where a ReLU falls on the other side of its kink, which step that is depends on the
    # processor, rounding is three orders larger at once.
    smooth = "model.params={activation: tanh}"
    _, found = parity("--workers", workers, settings=["model.name=resnet", smooth, MOMENTUM])
    assert len(found["steps"]) == 10
    assert [(finding["name"], finding["side"]) for finding in found["findings"]] == [("BatchNorm", None)]
    assert "moving_variance" in found["findings"][0]["message"] and "fused=False" in found["findings"][0]["hint"]
    assert all(found["environments"][engine]["tensorflow"] for engine in ("keras", "keras3"))
    for step in found["steps"]:
        assert step["losses"][0] == pytest.approx(step["losses"][1], rel=1e-5)
        faults = {d["name"] for d in step["variables"]["differences"] if "beyond" in d["message"]}
        assert all(name.endswith("/moving_variance") for name in faults), faults
    two, three = (StepReader(tmp_path / "parity" / engine / "record").variables(1) for engine in ("keras", "keras3"))
    assert two.keys() == three.keys() and "batch_normalization_2/moving_variance" in two
    for name in (n for n in two if n.endswith("/moving_variance")):
        # The images are 8x8, and 4x4 from the second stage on; a batch has 64 of them, shared out.
        sides = 8 if name.split("/")[0] in ("batch_normalization", *(f"batch_normalization_{i}" for i in (1, 2))) else 4
        size = 64 // workers * sides * sides
        sample, batch = ((v[name].astype(np.float64) - 0.9) / 0.1 for v in (two, three))
        # What is left of 32 bits where 0.9 was taken off and the rest multiplied by 10.
        np.testing.assert_allclose(sample, batch * size / (size - 1), rtol=2e-5, atol=2e-6, err_msg=name)
    assert any(np.any(two[name] != three[name]) for name in two if name.endswith("/moving_variance"))


SHAPES = [
    pytest.param("multi_worker_estimator", ["--no-evaluator"], ["model.name=resnet", "eval.during_training=true"],
                 "worker:0", id="two_workers"),
    pytest.param("chief_workers", ["--workers", "1", "--evaluator"],
                 ["run.communication.implementation=ring", "eval.during_training=false",
                  "eval.exporters=[{kind: final}]"],
                 "evaluator:0", id="chief_worker_evaluator"),
]  # fmt: skip


@pytest.mark.gate("two_workers")
@pytest.mark.parametrize(("job", "options", "settings", "evaluated_by"), SHAPES)
def test_shape(launch, job, options, settings, evaluated_by):
    document = launch(CONFIGS / f"{job}.yaml", *options, *KERAS_3, settings=[*SMALL, *settings])
    result = check(document, evaluated_by=evaluated_by)
    model_dir = document["model_dir"]
    assert sorted(path.name for path in model_dir.glob("*.index")) == ["keras3-12.index", "keras3-24.index"]
    assert (model_dir / "model.keras").is_file(), result["exports"]
    assert [e["global_step"] for e in result["evaluations"]] == [12, 24]
    if "evaluator" in evaluated_by:
        assert list((model_dir / "export" / "final").iterdir())
    logs = {task["task"]: Path(task["log"]).read_text() for task in document["tasks"]}
    chief = next(iter(logs))
    for task, log in logs.items():
        # D4: the chief alone logs the progress, and each line once.
        assert log.count("Epoch 1 ends with step 12") == (task == chief), task


@pytest.mark.nightly
def test_two_workers_come_to_what_one_process_comes_to(launch, run_python, tmp_path):
    """K14: the global batch is shared out; the same losses, and the same weights at the end."""
    two = launch(CONFIGS / "digits_cnn_two_workers.yaml", "--no-evaluator", *KERAS_3)
    alone = tmp_path / "alone"
    changes = [x for s in [*SMALL, "run.train_distribute=none", "cluster.workers=1", "cluster.evaluator=false",
                           f"run.model_dir={alone}"] for x in ("--set", s)]  # fmt: skip
    command = ["-m", "estimator_pipeline", "train", CONFIGS / "digits_cnn_two_workers.yaml", "--json"]
    done = run_python([*command, *KERAS_3, *changes])
    assert done.returncode == 0, done.stderr[-4000:]
    chief = Path(two["tasks"][0]["log"]).read_text()
    assert losses(chief) == pytest.approx(losses(done.stderr), rel=1e-4)
    ours, theirs = variables(Path(two["model_dir"])), variables(alone)
    assert ours.keys() == theirs.keys() and len(ours) == 13
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=5e-5, err_msg=name)


def losses(log: str) -> list[float]:
    """What was logged at the steps 12 and 24: the loss of all workers' batches together."""
    found = [float(value) for value in re.findall(r"loss = ([\d.e-]+), step = ", log)]
    assert len(found) == 2, log[-2000:]
    return found


def variables(model_dir: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(("model/", "optimizer/"))]
    return {name: reader.get_tensor(name) for name in names}


@pytest.mark.nightly
def test_what_replicas_have_of_their_own_is_averaged(tmp_path):
    """Two workers: moving statistics part while they train, and are the same on both when a checkpoint is written."""
    with Tasks({"worker": 2}, [*PROCESS, "worker", tmp_path], tmp_path, env={"PYTHONPATH": str(ROOT)}) as running:
        assert running.wait(timeout=120) == {"worker0": 0, "worker1": 0}, running.tails()
    before, after = ([dict(np.load(tmp_path / f"{i}-{when}.npz")) for i in (0, 1)] for when in ("before", "after"))
    statistics = [name for name in before[0] if "moving_" in name]
    seeds = [name for name in before[0] if "seed" in name]
    assert len(statistics) == 2 and len(seeds) == 1
    for name, value in before[0].items():
        parted = name in statistics or name in seeds
        assert np.array_equal(value, before[1][name]) != parted, name
        if name in seeds:
            continue
        np.testing.assert_array_equal(after[0][name], after[1][name], err_msg=name)
        mean = (value.astype(np.float64) + before[1][name]) / 2
        np.testing.assert_array_equal(after[0][name], mean.astype(np.float32), err_msg=name)


class KnownFault(Exception):
    """keras-team/keras#20585."""


@pytest.mark.nightly
@pytest.mark.xfail(
    raises=KnownFault, strict=False, reason="keras-team/keras#20585: Model.fit of Keras 3 on two workers"
)
def test_model_fit_of_keras_3_trains_on_two_workers(tmp_path):
    """The reason for a custom loop. Where this passes, Keras has fixed it: then change docs/guides/keras.md."""
    fault = "Attempt to convert a value (PerReplica"
    with Tasks({"worker": 2}, [*PROCESS, "fit"], tmp_path, env={"PYTHONPATH": str(ROOT)}) as running:
        # One that has failed may leave the other waiting for it.
        codes = [process.poll for process in running.processes.values()]
        running.wait_for(
            lambda: fault in running.tails() or all(code() is not None for code in codes), "the fault, or the end",
            timeout=150,
        )  # fmt: skip
        ended = {name: process.poll() for name, process in running.processes.items()}
        logs = [running.log(name) for name in ("worker0", "worker1")]
        if ended == {"worker0": 0, "worker1": 0}:
            assert all("Model.fit of Keras 3 trained 6 steps" in log for log in logs)
            return
    if any(fault in log for log in logs):
        raise KnownFault
    pytest.fail(f"{ended}: {logs[0][-3000:]}")


@pytest.mark.nightly
def test_a_job_whose_chief_is_killed_goes_on_to_the_same_bits(tmp_path):
    """K8, K11, K12: killed after a checkpoint, started again; moving statistics and momentum as well."""
    # The same number of threads, for sums are made in another order with another one.
    settings = ["model.name=resnet", MOMENTUM, "run.save_checkpoints_steps=12", "train.max_steps=180",
                "run.log_step_count_steps=3", "run.engine=keras3",
                "run.threads={intra_op: 1, inter_op: 1}"]  # fmt: skip

    def tasks(model_dir: str, logs: str) -> Tasks:
        (tmp_path / logs).mkdir()
        changes = [x for s in [*settings, f"run.model_dir={tmp_path / model_dir}"] for x in ("--set", s)]
        command = [*TRAIN, CONFIGS / "multi_worker_estimator.yaml", *changes, "--set", "cluster.evaluator=false"]
        env = {"ESTIMATOR_PIPELINE_PEER_SECS": "6"}
        return Tasks({"worker": 2}, command, tmp_path / logs, env=env)

    with tasks("whole", "logs") as running:
        assert running.wait(timeout=120) == {"worker0": 0, "worker1": 0}, running.tails()
    with tasks("killed", "killed-logs") as running:
        running.wait_for(lambda: "step = 27" in running.log("worker0"), "training to come to step 27")
        running.processes["worker0"].kill()
        ended = running.wait(timeout=100)
        assert ended == {"worker0": -signal.SIGKILL, "worker1": 1}, running.tails()
        assert f"worker:0 at {running.cluster['worker'][0]} is gone" in running.log("worker1"), running.tails()
    latest = tf.train.latest_checkpoint(str(tmp_path / "killed"))
    stopped = int(latest.rpartition("-")[2])
    assert 24 <= stopped < 180, latest
    with tasks("killed", "logs-again") as running:
        assert running.wait(timeout=120) == {"worker0": 0, "worker1": 0}, running.tails()
        assert f"step = {stopped}" not in running.log("worker0"), "it did not begin anew"
    one, other = variables(tmp_path / "whole"), variables(tmp_path / "killed")
    assert one.keys() == other.keys() and any("moving_mean" in name for name in one)
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)

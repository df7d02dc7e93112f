"""Clusters whose tasks have each a model directory of their own, as TensorFlow lets them: programs under `exec`, job
files, a second run that goes on from the chief's checkpoint, and who needs a shared one all the same."""

from __future__ import annotations

import json
import re
import signal
import sys

import pytest
import tensorflow as tf

from tests.support.launched_jobs import CONFIGS
from tests.support.tasks_by_hand import EXEC, Tasks

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.nightly]

TRAIN = (sys.executable, "-m", "estimator_pipeline", "train")
SYNCHRONOUS, ASYNCHRONOUS = {"chief": 1, "worker": 2}, {"chief": 1, "worker": 2, "ps": 1}


@pytest.fixture
def program(programs, tmp_path):
    """`program(jobs, *arguments)`: legacy_cluster.py as each task, each with its own folder."""

    def start(jobs, *arguments):
        return Tasks(
            jobs, lambda job, i: [*EXEC, programs / "legacy_cluster.py", tmp_path / f"{job}{i}", *arguments], tmp_path
        )

    return start


def results(running):
    """What train_and_evaluate returned on each task, as the program printed it last."""
    return {name: json.loads(re.findall(r"^result (.+)$", running.log(name), re.M)[-1]) for name in running.processes}


def ended_well(running):
    assert running.wait() == dict.fromkeys(running.processes, 0), running.tails()


def has_no_checkpoints(folder):
    return not list(folder.rglob("*.index"))


@pytest.mark.parametrize(
    ("jobs", "strategy"), [(SYNCHRONOUS, "mwm"), (ASYNCHRONOUS, "classic"), (ASYNCHRONOUS, "ps")], ids=lambda v: str(v)
)
def test_a_program_trains_and_goes_on(jobs, strategy, program, tmp_path):
    for steps in (40, 80):
        with program(jobs, "--strategy", strategy, "--max_steps", steps) as running:
            ended_well(running)
            found = results(running)
            assert steps <= found["chief0"]["global_step"] <= steps + (0 if strategy == "mwm" else 4)
            assert found == dict.fromkeys(running.processes, found["chief0"])
            for name in ("worker0", "worker1"):
                assert f"{tmp_path / name} is not the model_dir of chief:0" in running.log(name)
        assert all(has_no_checkpoints(tmp_path / name) for name in ("worker0", "worker1"))
        assert tf.train.latest_checkpoint(str(tmp_path / "chief0")).endswith(f"-{found['chief0']['global_step']:.0f}")


def test_an_evaluator_leaves_it_to_the_chief(program):
    with program({**SYNCHRONOUS, "evaluator": 1}, "--strategy", "mwm") as running:
        ended_well(running)
        assert "evaluator:0 evaluates nothing" in running.log("evaluator0")
        assert len({json.dumps(found) for found in results(running).values()}) == 1


@pytest.mark.parametrize(
    ("jobs", "strategy"), [(SYNCHRONOUS, "mwm"), (ASYNCHRONOUS, "classic")], ids=["mwm", "classic"]
)
def test_a_worker_that_is_asked_to_end_takes_all_along(jobs, strategy, program, tmp_path):
    far = ("--strategy", strategy, "--max_steps", 1_000_000, "--step_secs", 0.05)
    with program(jobs, *far) as running:
        names = [name for name in running.processes if name != "ps0"]
        running.wait_for(lambda: all("ten steps" in running.log(name) for name in names), "ten steps")
        running.processes["worker1"].send_signal(signal.SIGTERM)
        assert running.wait(timeout=100) == dict.fromkeys(running.processes, 75), running.tails()
    step = int(tf.train.latest_checkpoint(str(tmp_path / "chief0")).rpartition("-")[2])
    with program(jobs, "--strategy", strategy, "--max_steps", step + 20) as running:
        ended_well(running)
        assert results(running)["worker1"]["global_step"] >= step + 20


@pytest.mark.parametrize("failing", ["chief0", "worker1"])
def test_a_task_that_fails_ends_all(failing, program):
    with program(SYNCHRONOUS, "--strategy", "mwm", "--max_steps", 1_000_000, "--case", f"fail:{failing}") as running:
        codes = running.wait()
        assert all(code not in (0, None) for code in codes.values()), running.tails()
        assert "planted failure" in running.log(failing)


@pytest.mark.parametrize("engine", ["estimator", "keras", pytest.param("keras3", marks=pytest.mark.keras_3), "ps"])
def test_a_job_file(engine, tmp_path):
    """`run.model_dir` is the same text, and another folder for each task, as on machines that share none."""

    def own_folder(job, index):
        # Parameter servers write the checkpoint: theirs is the chief's folder, for TensorFlow too.
        folder = tmp_path / ("chief0" if job == "ps" else f"{job}{index}")
        folder.mkdir(exist_ok=True)
        return folder

    def command(job, index, steps):
        settings = [
            "run.model_dir=model",
            f"train.max_steps={steps}",
            "run.save_checkpoints_steps=8",
        ]
        if engine == "ps":
            file = CONFIGS / "chief_workers_ps.yaml"
            settings += ["cluster.evaluator=false"]
        else:
            file = CONFIGS / "digits_cnn_two_workers.yaml"
            settings += [
                "cluster.evaluator=false",
                "cluster.chief=true",
                "input.global_batch_size=63",
                f"run.engine={engine}",
            ]
        return [*TRAIN, file, *(x for s in settings for x in ("--set", s))]

    for steps in (8, 16):
        with Tasks(
            ASYNCHRONOUS if engine == "ps" else SYNCHRONOUS,
            lambda job, i, n=steps: command(job, i, n),
            tmp_path,
            cwd=own_folder,
        ) as running:
            ended_well(running)
            found = {name: re.findall(r"^step (\d+) \(max_steps reached\): (.+)$", running.log(name), re.M)[-1]
                     for name in running.processes}  # fmt: skip
            assert int(found["chief0"][0]) >= steps and set(found.values()) == {found["chief0"]}
        assert has_no_checkpoints(tmp_path / "worker0") and has_no_checkpoints(tmp_path / "worker1")

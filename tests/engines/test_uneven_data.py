"""Workers that have unequal numbers of batches: all end at the last step for which each has one."""

from __future__ import annotations

import json
import re
import sys

import pytest
import yaml

from tests.support.tasks_by_hand import EXEC, Tasks

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]

TRAIN = [sys.executable, "-m", "estimator_pipeline", "train"]
WARNING = re.compile(r"the training data of (.+?) (?:ended after step (\d+)|have no batch for the first step), and")


def ends(running, *, step, task):
    """All tasks have ended well, at this step, and one warning names the task."""
    ended = running.wait(timeout=120)
    assert ended == dict.fromkeys(running.processes, 0), running.tails()
    said = [found for name in running.processes for found in WARNING.findall(running.log(name))]
    assert said == [(task, str(step) if step else "")], running.tails()


@pytest.mark.parametrize(
    ("jobs", "batches", "step", "task", "more"),
    [
        ({"worker": 2}, "10,6", 6, "worker:1", []),
        ({"chief": 1, "worker": 2}, "7,9,5", 5, "worker:1", []),
        ({"worker": 2}, "3,10", 3, "worker:0", ["--steps_per_execution", "8"]),
        ({"worker": 2}, "10,0", 0, "worker:1", ["--repeat"]),
    ],
    ids=["two", "three", "several-at-once", "empty"],
)
def test_an_unchanged_program(jobs, batches, step, task, more, programs, tmp_path):
    command = [*EXEC, programs / "uneven_workers.py", tmp_path / "model", batches, *more]
    with Tasks(jobs, command, tmp_path) as running:
        ends(running, step=step, task=task)
        logs = [running.log(name) for name in running.processes]
        first, *others = [json.loads(text) for log in logs for text in re.findall(r"^result (.+)$", log, re.M)]
        assert others == [first] * (len(logs) - 1)
        assert first["global_step"] == step and first.get("ended", "data ended") == "data ended"
    assert (tmp_path / "model" / f"model.ckpt-{step}.index").exists()


INPUTS = """
import numpy as np
import tensorflow as tf

X = np.random.RandomState(0).rand(200, 8, 8, 1).astype(np.float32)
Y = (X.mean((1, 2, 3)) > 0.5).astype(np.int64)


def data(records):
    return tf.data.Dataset.from_tensor_slices((X[:records], Y[:records]))


def train(input_context=None):
    return data(24 if input_context and input_context.input_pipeline_id else 40).batch(4)


def evaluate(input_context=None):
    return data(40).batch(4)
"""


def test_a_job_of_keras(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(INPUTS)
    job = {
        "model": {"name": "linear", "params": {"classes": 2, "input_shape": [8, 8, 1]}},
        "input": {"source": "function", "train": f"{own}:train", "eval": f"{own}:evaluate", "global_batch_size": 8},
        "train": {"max_steps": 20},
        "run": {"model_dir": str(tmp_path / "model"), "save_checkpoints_steps": 4, "engine": "keras",
                "train_distribute": "multi_worker_mirrored"},
        "cluster": {"workers": 2, "evaluator": False},
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    with Tasks({"worker": 2}, [*TRAIN, tmp_path / "job.yaml"], tmp_path) as running:
        ends(running, step=6, task="worker:1")

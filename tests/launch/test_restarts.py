"""Real clusters that are disturbed under a supervisor: a worker is killed, one is stopped, one diverges."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.launched_jobs import CONFIGS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.nightly, pytest.mark.cluster]

# Worker 1 does to itself, in the first attempt, what an accident would do. A checkpoint stands at step 8.
PROGRAM = """
import os, signal, sys
import estimator_pipeline as ep
import model_fns

case, model_dir = sys.argv[1], sys.argv[2]
tf = ep.compat.install()
task = ep.cluster.from_environ(os.environ)
config = ep.build_run_config(
    model_dir, train_distribute="multi_worker_mirrored", save_checkpoints_steps=8, seed=1)
data = ep.inputs.from_tfds("digits", global_batch_size=64, scale=1 / 16, seed=1)

class Accident(tf.estimator.SessionRunHook):
    steps = 0
    def after_run(self, run_context, run_values):
        self.steps += 1
        if os.environ.get("ESTIMATOR_PIPELINE_ATTEMPT") == "1" and task.rank == 1 and self.steps == 13:
            os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[case])

estimator = tf.estimator.Estimator(
    model_fns.model_fn("linear", optimizer={"name": "adam", "learning_rate": 0.01}), config=config)
train_spec = tf.estimator.TrainSpec(data.train_input_fn, max_steps=24, hooks=[Accident()])
print(ep.train_and_evaluate(estimator, train_spec, tf.estimator.EvalSpec(data.eval_input_fn, steps=None)))
"""

VARIABLES = """
import sys
import tensorflow as tf
found = []
for folder in sys.argv[1:]:
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
    found.append({name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()})
assert len(found[0]) > 4, sorted(found[0])
assert all(one == found[0] for one in found), [n for n in found[0] for one in found if one.get(n) != found[0][n]]
"""


def test_a_killed_and_a_stopped_worker_end_where_an_undisturbed_run_ends(run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    documents = {}
    for case, options in {
        "undisturbed": (),
        "killed": ("--max-restarts", 2, "--backoff", 0.1),
        "stopped": ("--max-restarts", 2, "--backoff", 0.1, "--heartbeat-timeout", 12),
    }.items():
        done = run_python(
            ["-m", "estimator_pipeline", "launch", "--json", "--timeout", 150, "--log-dir", tmp_path / f"{case}-logs",
             *options, "--", sys.executable, program, case, tmp_path / case],
            env={"PYTHONPATH": str(ROOT)},
            timeout=170,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-6000:]
        documents[case] = json.loads(done.stdout)
    assert documents["undisturbed"]["attempts"] == []
    assert documents["undisturbed"]["result"]["global_step"] == 24
    for case, reason in (("killed", "failed"), ("stopped", "hung")):
        first, second = documents[case]["attempts"]
        assert (first["reason"], second["reason"]) == (reason, "done")
        assert first["why"].startswith("worker:1 "), first
        assert second["from_step"] == 8, "from the last checkpoint"
        assert documents[case]["result"]["global_step"] == 24
        logs = {task["log"] for task in documents[case]["tasks"]}
        assert {Path(log).parent.name for log in logs} == {"attempt-2"}
    done = run_python(["-c", VARIABLES, *(tmp_path / case for case in documents)])
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_divergence_is_tried_once_more_and_leaves_no_bad_checkpoint(run_python, tmp_path):
    """At this rate the weights are no numbers any more some steps in."""
    settings = ["model.name=linear", "model.optimizer={name: sgd, learning_rate: 1.0e+38}", "train.max_steps=40",
                "run.save_checkpoints_steps=1", f"run.model_dir={tmp_path}/model"]  # fmt: skip
    done = run_python(
        ["-m", "estimator_pipeline", "launch", CONFIGS / "multi_worker_estimator.yaml", "--no-evaluator", "--json",
         "--max-restarts", 5, "--backoff", 0.1, "--timeout", 150, *(x for s in settings for x in ("--set", s))],
        timeout=170,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr[-6000:]
    document = json.loads(done.stdout)
    assert [one["reason"] for one in document["attempts"]] == ["diverged", "diverged"]
    assert "diverged again" in document["gave_up"]
    assert all(end["why"].startswith("training has diverged: ") for end in document["attempts"]), "no task is named"
    assert "training has diverged: " in "\n".join(document["failure"]["tail"])
    finite = "import sys, numpy as np, tensorflow as tf\n"
    finite += "r = tf.train.load_checkpoint(tf.train.latest_checkpoint(sys.argv[1]))\n"
    finite += "assert all(np.isfinite(r.get_tensor(n)).all() for n in r.get_variable_to_shape_map())"
    done = run_python(["-c", finite, tmp_path / "model"])
    assert done.returncode == 0, done.stderr[-3000:]


JOB = """
model: {name: linear, params: {input_shape: [4], classes: 2}}
input: {source: function, train: "data.py:train", eval: "data.py:evaluation", global_batch_size: 8}
train: {max_steps: 40}
run: {model_dir: model, train_distribute: multi_worker_mirrored}
cluster: {workers: 2}
"""
# In the first attempt, a worker edits the job file and is killed.
DATA = """
import os, pathlib, signal
import tensorflow as tf

def train(input_context=None):
    if os.environ["ESTIMATOR_PIPELINE_ATTEMPT"] == "1" and os.environ["ESTIMATOR_PIPELINE_TASK"] == "worker:1":
        pathlib.Path("job.yaml").write_text("model: [")
        os.kill(os.getpid(), signal.SIGKILL)
    return evaluation().repeat()

def evaluation(input_context=None):
    return tf.data.Dataset.from_tensors((tf.ones([4, 4]), tf.ones([4], tf.int64)))
"""


def test_a_job_file_that_is_edited_changes_no_restart(run_python, tmp_path):
    """Relative paths start at the working directory of `launch`, not at the folder of the resolved job."""
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "job.yaml").write_text(JOB)
    command = ["-m", "estimator_pipeline", "launch", "job.yaml", "--json", "--max-restarts", 2, "--backoff", 0.1,
               "--timeout", 150, "--set", "train.max_steps=12"]  # fmt: skip
    done = run_python(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, timeout=170)
    assert done.returncode == 0, done.stderr[-6000:]
    document = json.loads(done.stdout)
    assert [attempt["reason"] for attempt in document["attempts"]] == ["failed", "done"]
    assert document["result"]["global_step"] == 12
    assert (tmp_path / "job.yaml").read_text() == "model: ["
    assert "max_steps: 12\n" in Path(document["log_dir"], "job.yaml").read_text()

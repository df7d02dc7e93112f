"""A task whose peers do not come: what it says, when it ends, and that it can be ended while it waits."""

from __future__ import annotations

import json

import pytest

from estimator_pipeline.launch import hold_ports

# A program of any kind that makes the strategy, and a signal that it sends itself once its server is there.
PROGRAM = """
import os, signal, sys, threading, time
from estimator_pipeline import compat
from estimator_pipeline.cluster import peers
peers.LINE_SECS = 0.2
tf = compat.install()

def send(own, number):
    while not peers.probe(own, word=1.0)[1]:
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(os.getpid(), number)

if len(sys.argv) > 2:
    threading.Thread(target=send, args=(sys.argv[1], int(sys.argv[2])), daemon=True).start()
tf.distribute.MultiWorkerMirroredStrategy()
print("made")
"""


@pytest.fixture
def wait(run_warm, tmp_path):
    """`wait(index, *arguments, env)`: what becomes of worker `index` of two, whose peer does not come."""

    def run(index, *arguments, env=None):
        with hold_ports(2) as held:
            cluster = {"worker": [f"localhost:{port}" for port in held.ports]}
            tf_config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            told = {"ESTIMATOR_PIPELINE_PROGRESS": str(tmp_path / "told.jsonl"), "TF_GRPC_REUSE_PORT": "1"}
            variables = {"TF_CONFIG": json.dumps(tf_config), **told, **(env or {})}
            done = run_warm(["-c", PROGRAM, cluster["worker"][index], *arguments], env=variables, timeout=60)
        lines = (tmp_path / "told.jsonl").read_text().splitlines() if (tmp_path / "told.jsonl").exists() else []
        return done, cluster["worker"][1 - index], [json.loads(line) for line in lines]

    return run


@pytest.mark.parametrize("index", [0, 1])
def test_it_ends_and_names_who_is_missing(wait, index):
    """It waited for an hour without a word, and no thread of the process could run."""
    done, peer, told = wait(index, env={"ESTIMATOR_PIPELINE_START_SECS": "0.7"})
    missing = f"worker:{1 - index} ({peer})"
    assert done.returncode == 1 and "made" not in done.stdout, done.stderr
    assert f"worker:{index} waited 1 s for the other tasks to join, and {missing} did not" in done.stderr
    assert "ESTIMATOR_PIPELINE_START_SECS" in done.stderr and "Traceback" not in done.stderr
    warnings = [event["text"] for event in told if event["event"] == "warning"]
    assert warnings and all(f"nothing answers at the port of {missing}" in text for text in warnings)
    assert all(("leads the cluster" in text) == (index == 1) for text in warnings)
    end = {"event": "end", "status": "failed", "task": f"worker:{index}", "caused_by": f"worker:{1 - index}"}
    assert told[-1].items() >= end.items() and f"worker:{index} waited 1 s" in told[-1]["error"]


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [(15, 75, "was asked to stop (SIGTERM)"), (2, 130, "was interrupted"), (10, 75, "was asked to stop (SIGUSR1)")],
)
def test_a_signal_ends_it(wait, number, code, says):
    """TensorFlow's own handler dropped SIGTERM, and Python's waited for TensorFlow to come back."""
    env = {"ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS": "SIGTERM,SIGUSR1", "ESTIMATOR_PIPELINE_START_SECS": "20"}
    done, _, told = wait(1, str(number), env=env)
    assert done.returncode == code, done.stderr
    assert (
        f"worker:1 {says}: it was waiting for the other tasks to join" in done.stderr and "Traceback" not in done.stderr
    )
    assert [event["status"] for event in told if event["event"] == "end"] == (["preempted"] if code == 75 else [])


def test_sigterm_that_asks_nobody_ends_it_as_anywhere(wait):
    env = {"ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS": "SIGUSR1", "ESTIMATOR_PIPELINE_START_SECS": "20"}
    done, _, told = wait(1, "15", env=env)
    assert done.returncode == -15 and not [event for event in told if event["event"] == "end"], done.stderr

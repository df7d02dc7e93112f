"""A program whose port is taken, of each kind of cluster: one message, before TensorFlow's server starts."""

from __future__ import annotations

import json
import socket

import pytest

from tests.support.processes import free_ports

_STRATEGY = """
import tensorflow as tf
tf.distribute.MultiWorkerMirroredStrategy()
"""
_SERVERS = """
import tensorflow as tf
estimator = tf.estimator.Estimator(lambda features, labels, mode: None, {model_dir!r})
spec = tf.estimator.TrainSpec(lambda: None, max_steps=1)
tf.estimator.train_and_evaluate(estimator, spec, tf.estimator.EvalSpec(lambda: None))
"""

_RUN = """
import sys
from estimator_pipeline.cluster import own_port
from estimator_pipeline.compat.script_runner import runner
own_port._GRACE_SECS = 0.0
raise SystemExit(runner.run_script(sys.argv[1]))
"""


@pytest.mark.parametrize(("program", "jobs", "task"), [
    (_STRATEGY, ("worker", "worker"), ("worker", 0)),
    (_SERVERS, ("ps", "chief"), ("ps", 0)),
])  # fmt: skip
def test_one_message_and_exit_code_2(program, jobs, task, tmp_path, run_warm, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = [f"127.0.0.1:{port}" for port in (taken.getsockname()[1], *free_ports(1))]
        cluster: dict[str, list[str]] = {}
        for job, address in zip(jobs, addresses, strict=True):
            cluster.setdefault(job, []).append(address)
        path = tmp_path / "program.py"
        path.write_text(program.replace("{model_dir!r}", repr(str(tmp_path / "model"))))
        config = json.dumps({"cluster": cluster, "task": {"type": task[0], "index": task[1]}})
        done = run_warm(["-c", _RUN, path], env={"TF_CONFIG": config})
    assert done.returncode == 2, done.stderr
    assert f"{task[0]}:{task[1]} should listen at {addresses[0]}" in done.stderr
    assert "Traceback" not in done.stderr and "gRPC" not in done.stderr


def test_addresses_that_cannot_work(tmp_path, run_warm):
    """TensorFlow would wait for the other task."""
    path = tmp_path / "program.py"
    path.write_text(_STRATEGY)
    config = json.dumps(
        {"cluster": {"worker": ["localhost:2222", "node2:2222"]}, "task": {"type": "worker", "index": 0}}
    )
    done = run_warm(["-c", _RUN, path], env={"TF_CONFIG": config})
    assert done.returncode == 2, done.stderr
    assert "worker:0 at localhost:2222, and worker:1 at node2:2222. [cluster/bad-address]" in done.stderr
    assert "Traceback" not in done.stderr

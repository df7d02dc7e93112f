"""Ports held for a job: TensorFlow's servers share them, nobody else gets them, then they are free."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence

import pytest

from estimator_pipeline.launch import LaunchShape, hold_ports
from tests.support.launched_jobs import launch_local

_LISTEN = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.socket(family, socket.SOCK_STREAM)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((sys.argv[1], int(sys.argv[2])))
server.listen()
"""

# Each worker starts TensorFlow's own server; worker:0 computes with a constant that lives on worker:1.
_SERVER = """
import json, os, sys, time
import tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
server = tf.distribute.Server(
    tf.train.ClusterSpec(config["cluster"]), job_name=task["type"], task_index=task["index"]
)
done = sys.argv[1]
if task["index"] == 1:
    while not os.path.exists(done):
        time.sleep(0.05)
    sys.exit(0)
with tf.Graph().as_default():
    with tf.device("/job:worker/task:1"):
        far = tf.constant(20.0) + tf.constant(1.0)
    with tf.device("/job:worker/task:0"):
        product = far * 2
    with tf.compat.v1.Session(server.target) as session:
        print("ANSWER", session.run(product), flush=True)
open(done, "w").close()
"""


def _listens(address: str, port: int) -> subprocess.CompletedProcess[str]:
    """Another process tries to serve on the port, as a server without SO_REUSEPORT does."""
    return subprocess.run(
        [sys.executable, "-c", _LISTEN, address, str(port)], capture_output=True, text=True, check=False
    )


def _are_free(ports: Sequence[int]) -> None:
    """Nobody holds these ports any longer. By then the system may have given one of them to some other process."""
    assert len(ports) == 3
    tried = [{address: _listens(address, port) for address in _addresses()} for port in ports]
    assert any(all(one.returncode == 0 for one in of_port.values()) for of_port in tried), tried


def _addresses() -> list[str]:
    return ["0.0.0.0", "127.0.0.1", *(["::", "::1"] if socket.has_dualstack_ipv6() else [])]


def test_held_ports_differ_and_are_refused_to_others_until_released():
    with hold_ports(20) as held:
        assert len(set(held.ports)) == 20
        for address in _addresses():
            refused = _listens(address, held.ports[0])
            assert refused.returncode != 0
            assert "Address already in use" in refused.stderr
    _are_free(held.ports[:3])


def test_two_launchers_never_hold_the_same_port():
    with hold_ports(200) as first, hold_ports(200) as second:
        assert not set(first.ports) & set(second.ports)


def test_a_held_port_takes_no_connection():
    with hold_ports(1) as held, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("localhost", held.ports[0]), timeout=10)


def test_release_may_be_called_twice():
    held = hold_ports(3)
    held.release()
    held.release()
    _are_free(held.ports)


def test_the_ports_of_a_killed_holder_are_free():
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from estimator_pipeline.launch import hold_ports\n"
            "import time\nheld = hold_ports(3)\nprint(*held.ports, flush=True)\ntime.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        ports = [int(port) for port in holder.stdout.readline().split()]
        assert _listens("127.0.0.1", ports[0]).returncode != 0
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    _are_free(ports)


@pytest.mark.nightly
def test_tensorflow_servers_start_on_held_ports_and_talk(tmp_path):
    """So do the servers of each cluster that the tests start; this one is that alone."""
    program = tmp_path / "server.py"
    program.write_text(_SERVER)
    outcome = launch_local(
        [sys.executable, str(program), str(tmp_path / "done")],
        shape=LaunchShape(workers=2),
        log_dir=tmp_path / "logs",
        timeout=120,
    )
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert outcome.ok, outcome.failure
    assert "ANSWER 42.0" in log


@pytest.mark.nightly
def test_a_tensorflow_server_without_the_variable_is_refused_a_held_port():
    # The control of the test above: it is the variable that lets the server in.
    program = textwrap.dedent(
        """
        import sys
        import tensorflow as tf
        tf.distribute.Server({"worker": ["localhost:" + sys.argv[1]]}, job_name="worker", task_index=0)
        """
    )
    environ = {name: value for name, value in os.environ.items() if name != "TF_GRPC_REUSE_PORT"}
    with hold_ports(1) as held:
        refused = subprocess.run(
            [sys.executable, "-c", program, str(held.ports[0])],
            capture_output=True,
            text=True,
            env=environ,
            check=False,
        )
    assert refused.returncode != 0
    assert "Could not start gRPC server" in refused.stderr


def test_the_ports_of_a_launched_job_are_free_after_it(tmp_path):
    program = tmp_path / "serve.py"
    program.write_text(
        textwrap.dedent(
            """
            import json, os, socket
            config = json.loads(os.environ["TF_CONFIG"])
            port = int(config["cluster"]["worker"][config["task"]["index"]].rpartition(":")[2])
            server = socket.socket()
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("0.0.0.0", port))
            server.listen()
            print(port)
            """
        )
    )
    outcome = launch_local([sys.executable, str(program)], shape=LaunchShape(workers=3), log_dir=tmp_path, timeout=60)
    assert outcome.ok, outcome.failure
    _are_free([int(task.log.read_text()) for task in outcome.tasks])

"""A task whose port is taken: who has it, and whether another start can do better."""

from __future__ import annotations

import os
import pickle
import re
import socket
import subprocess
import sys

import pytest

from estimator_pipeline.cluster import own_port
from estimator_pipeline.errors import ClusterError, PortError

_LISTEN = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
input()
"""


@pytest.fixture
def taken():
    """The port at which another process listens, and its number."""
    command = [sys.executable, "-I", "-S", "-c", _LISTEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield int(process.stdout.readline()), process.pid
        process.stdin.close()


@pytest.mark.parametrize(("reuse", "code"), [(None, 2), ("1", 1), ("0", 1)])
def test_the_port_and_who_has_it_are_named(taken, reuse, code, monkeypatch):
    port, pid = taken
    environ = {} if reuse is None else {own_port.REUSE_VARIABLE: reuse}
    monkeypatch.setattr(own_port, "_GRACE_SECS", 0.0)
    with pytest.raises(PortError) as caught:
        own_port.require_free(f"node1:{port}", "worker:1", environ)
    text = str(caught.value)
    assert f"worker:1 should listen at node1:{port}" in text
    assert re.search(rf"found: Address already in use: '.*python.*' \(process {pid}\) listens there", text)
    assert ("a different port for this task in the TF_CONFIG" if code == 2 else "uses a different port") in text
    assert ("cluster.ports: agreed" in text) == (reuse == "0")
    assert caught.value.exit_code == code


def test_one_who_is_just_ending_is_waited_for(taken, monkeypatch):
    port, pid = taken
    # The second look finds it gone.
    monkeypatch.setattr(own_port.time, "sleep", lambda seconds: (os.kill(pid, 9), _until_free(port)))
    own_port.require_free(f"node1:{port}", "worker:1", {})


def _until_free(port):
    while own_port.problem_of(port) is not None:
        pass


def test_the_server_of_this_process_is_no_stranger():
    with socket.create_server(("127.0.0.1", 0)) as server:
        own_port.require_free(f"node1:{server.getsockname()[1]}", "worker:1", {})


def test_a_port_that_its_launcher_holds_is_free_for_the_task():
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("", 0))
        port = held.getsockname()[1]
        assert own_port.problem_of(port) is not None
        assert own_port.problem_of(port, shared=True) is None


def test_the_error_says_the_same_in_another_process():
    error = PortError("a", found="b", hint="c")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "a [cluster/port-in-use]\n  found: b\n  hint: c"


def test_a_host_of_a_different_machine_is_a_warning(logged, monkeypatch):
    """Not an error: a Service, NAT or a port mapping may forward to this machine."""
    monkeypatch.setattr(own_port.threading, "Thread", _AtOnce)
    own_port.require_free("192.0.2.7:1", "worker:1", {})
    assert "worker:1 is at 192.0.2.7:1, which is not an address of this machine" in logged.text
    logged.clear()
    for local in ("127.0.0.1:1", "localhost:1", f"{socket.gethostname()}:1", "0.0.0.0:1", "no-such-host.invalid:1"):
        own_port.require_free(local, "worker:1", {})
    assert not logged.records


class _AtOnce:
    def __init__(self, *, target, args, daemon):
        self.start = lambda: target(*args)


def test_addresses_of_a_server():
    """The rules of TF_CONFIG also apply to a cluster that TensorFlow has read."""
    own_port.check_server({"worker": ["localhost:0"]}, "localhost:0", "worker:0", {})
    for addresses in (["localhost:1", "b:1"], ["localhost:0", "localhost:1"], ["b:1", "B.:01"]):
        with pytest.raises(ClusterError) as caught:
            own_port.check_server({"worker": addresses}, addresses[0], "worker:0", {})
        assert (caught.value.code, caught.value.exit_code) == ("cluster/bad-address", 2)

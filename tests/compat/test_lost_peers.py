"""When a peer counts as lost: TensorFlow has worked with it, and its port is silent while no step is finished."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.repairs import lost_peers
from estimator_pipeline.launch import hold_ports

WATCHING = """
import sys, time, types
from estimator_pipeline.compat.repairs import lost_peers
begun, finished, secs = sys.argv[2] == "begun", int(sys.argv[3]), float(sys.argv[4])
progress = types.SimpleNamespace(begun=begun, finished=finished, ended=False)
with lost_peers.watching("chief:0", {"ps:0": sys.argv[1]}, progress):
    time.sleep(secs)
print("went on")
"""


def watch(begun, finished, secs):
    """A task that waits inside TensorFlow for `secs` seconds; its parameter server's port was never seen open."""
    env = {**os.environ, "ESTIMATOR_PIPELINE_PEER_SECS": "0.5"}
    with hold_ports(1) as held:
        address = f"localhost:{held.ports[0]}"
        command = [sys.executable, "-c", WATCHING, address, begun, str(finished), str(secs)]
        return address, subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.nightly
@pytest.mark.parametrize(("begun", "finished"), [("begun", 0), ("begun", 1)])
def test_a_peer_that_went_before_its_port_was_tried_is_lost(begun, finished):
    """The session stood, so it was there. A chief waited for ever when it went before the first step was finished."""
    address, ended = watch(begun, finished, secs=100)
    assert ended.returncode == 1, ended
    assert f"chief:0 ends: ps:0 at {address} is gone" in ended.stderr


def test_a_port_that_was_never_open_proves_nothing():
    """It may be out of reach from here, or its task has not started yet."""
    _, ended = watch("waits", 0, secs=4)
    assert (ended.returncode, ended.stdout) == (0, "went on\n"), ended


def test_the_session_says_that_all_peers_have_answered():
    tf = compat.install()
    progress = lost_peers._progress_hook()
    assert not progress.begun
    with tf.Graph().as_default():
        tf.compat.v1.train.create_global_step()
        with tf.compat.v1.train.MonitoredSession(hooks=[progress]):
            assert (progress.begun, progress.finished) == (True, 0)

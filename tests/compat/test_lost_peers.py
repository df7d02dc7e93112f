"""When a peer counts as lost: TensorFlow has worked with it, and its port is silent while no step is finished."""

from __future__ import annotations

import os
import threading
import types

import pytest

from estimator_pipeline import compat
from estimator_pipeline.cluster import peers
from estimator_pipeline.compat.patches import lost_peers
from estimator_pipeline.launch import hold_ports

tf = compat.install()
GRACE_SECS = 0.1


@pytest.fixture
def watch(monkeypatch):
    """`watch(secs, begun, finished)`: a task that waits inside TensorFlow for at most `secs` seconds.

    Gives the address of its parameter server, whose port was never seen open, and how the process ended: the message
    and the exit code, or nothing.
    """
    told, ended = [], threading.Event()

    def end(code):
        told.append(code)
        ended.set()

    monkeypatch.setenv("ESTIMATOR_PIPELINE_PEER_SECS", str(GRACE_SECS))
    monkeypatch.setattr(peers.PeerWatch, "INTERVAL_SECS", 0.01)
    monkeypatch.setattr(lost_peers, "before_exit", [told.append])
    monkeypatch.setattr(os, "_exit", end)

    def run(secs, begun, finished):
        progress = types.SimpleNamespace(begun=begun, finished=finished, ended=False)
        with hold_ports(1) as held:
            address = f"localhost:{held.ports[0]}"
            with lost_peers.watching("chief:0", {"ps:0": address}, progress):
                ended.wait(secs)
        return address, told[:2]  # a process ends once

    return run


@pytest.mark.parametrize("finished", [0, 1])
def test_a_peer_that_went_before_its_port_was_tried_is_lost(watch, capsys, finished):
    """The session stood, so it was there. A chief waited for ever when it went before the first step was finished."""
    address, (message, code) = watch(20, True, finished)
    assert f"chief:0 stops: ps:0 at {address} is gone" in message
    assert code == 1 and message in capsys.readouterr().err


def test_a_port_that_was_never_open_proves_nothing(watch):
    """It may be out of reach from here, or its task has not started yet."""
    assert watch(4 * GRACE_SECS, False, 0)[1] == []


def test_the_session_says_that_all_peers_have_answered():
    progress = lost_peers._progress_hook()
    assert not progress.begun
    with tf.Graph().as_default():
        tf.compat.v1.train.create_global_step()
        with tf.compat.v1.train.MonitoredSession(hooks=[progress]):
            assert (progress.begun, progress.finished) == (True, 0)

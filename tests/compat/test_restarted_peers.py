"""A task that dies after it has joined and is started again: the others do not wait for it."""

from __future__ import annotations

import pytest

from estimator_pipeline.compat.internals import coordination_service
from estimator_pipeline.launch import hold_ports

# A process that starts the tasks, each as a copy of itself.
PROGRAM = """
import json, os, signal, sys, time
from estimator_pipeline import compat
from estimator_pipeline.compat.internals import coordination_service
coordination_service._LOOK_SECS = 0.5
ports, dead = sys.argv[1:3], int(sys.argv[3])

def start(index, task):
    pid = os.fork()
    if pid == 0:
        jobs = {"worker": [f"localhost:{port}" for port in ports]}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": jobs, "task": {"type": "worker", "index": index}})
        try:
            compat.install().distribute.MultiWorkerMirroredStrategy()
            task()
        except coordination_service.TaskFailedError as error:
            print(error)
        finally:
            sys.stdout.flush()
            os._exit(1)
    return pid

def code_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def wait():
    # The first worker waits for a word of the second, which waits for a file.
    if dead == 1:
        coordination_service.exchange("word", "", task="worker:0", tasks=["worker:0", "worker:1"], timeout=50.0)
    while True:
        coordination_service.require_all_alive()
        time.sleep(0.1)

survivor, victim = start(1 - dead, wait), start(dead, lambda: os.kill(os.getpid(), signal.SIGKILL))
assert code_of(victim) == -signal.SIGKILL
again = start(dead, wait)
print("survivor", code_of(survivor))
os.kill(again, signal.SIGKILL)
code_of(again)
"""


@pytest.mark.tf
def test_the_listener_for_requests_to_stop_asks_once(monkeypatch):
    """The listener for requests to stop waits during the whole training."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    requests = []

    class Service:
        def get_config_key_value(self, key, milliseconds):
            requests.append((key, milliseconds))
            raise tf.errors.DeadlineExceededError(None, None, "late")

    monkeypatch.setattr(context, "context", Service)
    assert coordination_service.wait_for("stop", 3600.0) is None
    assert requests == [("estimator_pipeline/stop", 3_600_000)]


@pytest.mark.parametrize("dead", [0, 1])
def test_the_others_end_and_name_it(run_warm, dead):
    """The service knew of it and reported nothing: they waited for 30 minutes."""
    with hold_ports(2) as held:
        done = run_warm(["-c", PROGRAM, *held.ports, dead], env={"TF_GRPC_REUSE_PORT": "1"}, timeout=60)
    assert f"worker:{1 - dead} cannot continue: worker:{dead} died, or was started again" in done.stdout, done.stderr
    assert "survivor 1" in done.stdout

"""Limits under which TensorFlow cannot work are one message, before it is loaded."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.local import processes
from estimator_pipeline.utils import system_limits

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture
def limited(monkeypatch):
    """`limited(RLIMIT_...=number)`: what this process may have; and no container."""

    def limit(**limits):
        told = {getattr(resource, name): (number, number) for name, number in limits.items()}
        monkeypatch.setattr(resource, "getrlimit", lambda kind: told.get(kind, (resource.RLIM_INFINITY,) * 2))

    monkeypatch.setattr(system_limits, "_PIDS_MAX", system_limits.Path("/not/there"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)), raising=False)
    limit()
    return limit


@pytest.mark.parametrize(
    ("megabytes", "told", "refused"),
    [
        (2800, {"trains": True}, True),
        (2800, {"trains": True, "sized": True}, False),
        (2800, {"trains": False}, False),
        (1000, {"trains": False}, True),
        (9000, {"trains": True}, False),
    ],
)
def test_too_few_addresses(limited, megabytes, told, refused):
    limited(RLIMIT_AS=megabytes * 2**20)
    if not refused:
        system_limits.require({}, **told)
        return
    with pytest.raises(ConfigError, match=rf"limited to {megabytes:,} MB \(ulimit -v {megabytes * 1024}\)") as caught:
        system_limits.require({}, **told)
    assert "with 4 CPUs" in str(caught.value) and caught.value.exit_code == 2


def test_few_addresses_are_warned_of(limited, logged):
    limited(RLIMIT_AS=4000 * 2**20)
    system_limits.require({}, trains=True)
    assert "limited to 4,000 MB (ulimit -v 4096000). If that is too little" in logged.text
    logged.clear()
    limited(RLIMIT_AS=9000 * 2**20)
    system_limits.require({"OMP_NUM_THREADS": "1"}, trains=True)
    assert not logged.text


def test_too_few_threads(limited, monkeypatch, tmp_path):
    started = system_limits._startable
    assert started(12) == 12
    monkeypatch.setattr(system_limits, "_startable", lambda count: min(count, 20))
    limited(RLIMIT_NPROC=50)
    system_limits.require({"OMP_NUM_THREADS": "1"}, trains=True)
    with pytest.raises(ConfigError, match=r"only 20 of 34 threads could be started here, and .* to train with 4 CPUs"):
        system_limits.require({}, trains=True)
    with pytest.raises(ConfigError, match=r"of 39 threads .* to train 3 tasks .*\n.*of one user \(ulimit -u 50\)"):
        system_limits.require({}, trains=True, tasks=3)
    # A limit that is far away is not tried out.
    limited(RLIMIT_NPROC=5000)
    system_limits.require({}, trains=True)
    (tmp_path / "pids.max").write_text("40\n")
    monkeypatch.setattr(system_limits, "_PIDS_MAX", tmp_path / "pids.max")
    with pytest.raises(ConfigError, match=r"5000\) and 40 in this container"):
        system_limits.require({}, trains=True)


def test_a_program_that_may_not_train_is_warned(limited, monkeypatch, logged):
    monkeypatch.setattr(system_limits, "_startable", lambda count: min(count, 20))
    limited(RLIMIT_NPROC=50)
    system_limits.warn({})
    assert "TensorFlow needs more to train with 4 CPUs (50 processes and threads of one user" in logged.text
    limited(RLIMIT_NPROC=50, RLIMIT_AS=2000 * 2**20)
    system_limits.warn({})
    assert "limited to 2,000 MB" in logged.text


def test_a_launcher_that_can_start_no_process(tmp_path, monkeypatch):
    def full(*_, **__):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(ConfigError, match="no further process can be started here: Resource temporarily unavailable"):
        processes.Process(("true",), environ={}, cores=(), log=tmp_path / "log")


def test_a_tensorflow_that_finds_no_memory(limited):
    assert system_limits.explained(ImportError("No module named 'tensorflow'")) is None
    of_memory = ImportError("a.so: failed to map segment from shared object")
    assert "out of memory. TensorFlow could not be loaded: a.so: failed" in str(system_limits.explained(of_memory))
    limited(RLIMIT_AS=2**31)
    assert "limited to 2,048 MB" in str(system_limits.explained(MemoryError()))


_RUN = "from estimator_pipeline.cli.main import main; main()"


@pytest.mark.nightly
def test_a_command_under_a_limit_of_addresses(tmp_path):
    (tmp_path / "program.py").write_text("import tensorflow\n")
    limit = 900 * 2**20
    done = subprocess.run(
        [sys.executable, "-c", _RUN, "exec", "program.py"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        **{"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": ROOT}, "capture_output": True, "text": True},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the address space of this process is limited to 900 MB (ulimit -v 921600)")
    assert len(done.stderr.splitlines()) == 3

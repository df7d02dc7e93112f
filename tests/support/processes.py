"""Processes that tests start: their environment, ports, and a way to run Python."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

__all__ = ["KERAS3_PROCESS", "ROOT", "environment", "free_ports", "run_python_process", "tensorflow_with_three_cpus"]

ROOT = Path(__file__).resolve().parents[2]
# What a process with Keras 3 does for the tests.
KERAS3_PROCESS = ROOT / "tests" / "support" / "keras3_process.py"

# What the process that runs the tests may have set, and what decides about TensorFlow in a child.
_NOT_INHERITED = ("TF_CONFIG", "TF_USE_LEGACY_KERAS", "TFDS_DATA_DIR", "PYTHONPATH", "PYTHONWARNINGS")
# What a scheduler that runs the tests has set: a child of a test is no task of that job.
_OF_SCHEDULERS = (
    "SLURM",
    "OMPI_",
    "PMI_",
    "LSB_",
    "PBS_",
    "FLUX_",
    "OAR_",
    "AWS_BATCH_",
    "SM_",
    "JOB_COMPLETION_INDEX",
)


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment without what would leak into a test, and with `changes` (None: not set)."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith(_OF_SCHEDULERS)
    }
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    for name, value in (changes or {}).items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = value
    return environ


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago. Nothing holds them, and yet they are to stay free: they lie below those that
    the system gives out by itself, and each process that runs tests begins at another one."""
    found: list[int] = []
    for port in range(10000 + os.getpid() * 16 % 15000, 30000):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("", port))
            found.append(port)
        if len(found) == count:
            break
    return found


def run_python_process(
    args: Iterable[object],
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
    *,
    cwd: str | os.PathLike[str] | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Runs this Python with `args`; on time-out every process that it started is ended, and the test fails."""
    command = [sys.executable, *map(str, args)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(env),
        cwd=cwd or ROOT,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            pytest.fail(f"{' '.join(command)} did not end within {timeout} s\n{out[-4000:]}\n{err[-4000:]}")
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def tensorflow_with_three_cpus() -> Any:
    """The `tensorflow` module, its CPU split into three logical devices.

    For the tests that train in this process. The devices are settled once for a process, so all modules ask for the
    same, and at import: before any test uses TensorFlow.
    """
    from estimator_pipeline import compat
    from estimator_pipeline.distribute import strategies

    tf = compat.install()
    strategies.split_cpu(3)
    return tf

"""What all tests share: a way to run Python as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from estimator_pipeline.compat import versions

# What the process that runs the tests may have set, and what decides about TensorFlow in a child.
_NOT_INHERITED = ("TF_CONFIG", "TF_USE_LEGACY_KERAS", "TFDS_DATA_DIR", "PYTHONPATH", "PYTHONWARNINGS")

ROOT = Path(__file__).resolve().parents[1]


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment without what would leak into a test, and with `changes` (None: not set)."""
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    for name, value in (changes or {}).items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = value
    return environ


def _run_python(
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


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_python(args, env=None, timeout=120, cwd=None, stdin="")` gives back a CompletedProcess, output as text.

    The child does not see this process's TF_CONFIG and TF_USE_LEGACY_KERAS; `env` adds variables, or takes one
    away where its value is None. The working directory is the repository unless `cwd` says otherwise.
    """
    return _run_python


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of legacy programs: what a person wrote for tf.estimator, without a thought of this package."""
    return ROOT / "tests" / "programs"


@pytest.fixture(scope="session")
def records() -> Path:
    """The folder of recorded behaviour."""
    return ROOT / "tests" / "records"


@pytest.fixture(scope="session")
def native() -> bool:
    """Whether the installed TensorFlow brings its own tf.estimator (2.15). Imports no TensorFlow."""
    return versions.minor(versions.tensorflow_version()) < versions.FIRST_WITHOUT_ESTIMATOR


@pytest.fixture
def run_environment() -> dict[str, str]:
    """The environment that `run_python` gives a child, for a test that starts processes by itself."""
    return environment()


def tensorflow_with_three_cpus() -> Any:
    """The `tensorflow` module, its CPU split into three logical devices.

    For the tests that train in this process. The devices are settled once for a process, so all modules ask for the
    same, and at import: before any test uses TensorFlow.
    """
    from estimator_pipeline import compat, strategies

    tf = compat.install()
    strategies.split_cpu(3)
    return tf

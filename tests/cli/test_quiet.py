"""What is written to standard error while TensorFlow is imported is there however the import ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

# In the place of TensorFlow's import.
PROGRAM = """
import os, signal, sys
from estimator_pipeline import compat
from estimator_pipeline.cli import library_logging as quiet

def install():
    os.write(2, b"oneDNN custom operations are on.\\n")
    os.write(2, b"compiled to use AVX\\n" * {lines})
    print("from python", file=sys.stderr)
    {ends}

compat.install = install
with quiet.quiet_libraries():
    print("after it", file=sys.stderr)
"""


def run(ends, *, lines=1, **more):
    environ = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    code = PROGRAM.format(lines=lines, ends=ends)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ, **more)


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("os.abort()", -signal.SIGABRT),
        ("os.kill(os.getpid(), signal.SIGILL)", -signal.SIGILL),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(3)", 3),
        ("sys.exit(4)", 4),
    ],
)
def test_a_process_that_is_aborted_in_the_import_leaves_its_message(ends, code):
    done = run(ends)
    assert done.returncode == code
    assert done.stderr.splitlines() == ["compiled to use AVX", "from python"], done.stderr


def test_a_run_that_ends_well_does_too_in_the_same_order():
    done = run("pass")
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["compiled to use AVX", "from python", "after it"], done.stderr


def test_a_line_is_shown_while_the_import_hangs():
    """Also what a process writes later that the import has started and not waited for."""
    ends = "import subprocess; subprocess.Popen(['sh', '-c', 'read line; echo late >&2']); sys.stdin.readline()"
    environ = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(lines=1, ends=ends)], env=environ, text=True,
                          stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # fmt: skip
        assert process.stderr.readline() == "compiled to use AVX\n"
        process.kill()
        process.wait()
        assert process.stderr.readline() == "from python\n"
        process.stdin.close()
        assert process.stderr.read() == "late\n"


def test_a_long_message_is_whole():
    done = run("os.abort()", lines=20_000)
    assert done.stderr.splitlines() == [*["compiled to use AVX"] * 20_000, "from python"]


def test_without_a_process_beside_it_nothing_is_kept_back(tmp_path):
    code = PROGRAM.format(lines=1, ends="os.abort()").replace(
        "import os", "import os, sys\nsys.executable = '/none'\nimport os", 1
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGABRT and "compiled to use AVX" in done.stderr.splitlines()


@pytest.mark.parametrize("ends", ["pass", "os.abort()"])
def test_no_process_is_left(ends):
    """The one beside it has the standard error of the program: it is at its end when no process has it any more."""
    code = PROGRAM.format(lines=1, ends=ends)
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        assert process.stderr.read()
        process.wait(timeout=10)


@pytest.mark.parametrize("install", ["lambda: None", pytest.param("compat.install", marks=pytest.mark.nightly)])
def test_deprecations_of_tensorflow_are_left_out_and_the_programs_own_are_not(install):
    """TensorFlow tells some of them as if the line that calls it had."""
    code = f"""
import warnings
from estimator_pipeline import compat
from estimator_pipeline.cli import library_logging as quiet
compat.install = {install}
with quiet.quiet_libraries():
    warnings.warn("`tf.layers.dense` is deprecated and will be removed in a future version.", stacklevel=1)
    warnings.warn("`layer.apply` is deprecated and will be removed in a future version.", stacklevel=1)
    warnings.warn("`our.layers` is deprecated", stacklevel=1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "our.layers" in done.stderr, done.stderr
    assert "tf.layers" not in done.stderr and "layer.apply" not in done.stderr, done.stderr

"""glibc keeps the memory of a step, unless the person has said otherwise."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from estimator_pipeline.utils import allocator
from estimator_pipeline.utils.process_state import STATE

# A step that needs 30 blocks of 1 MiB and frees them all; the faults of 20 steps after the first.
STEPS = """
import ctypes, os, resource
from estimator_pipeline.utils import allocator
allocator.keep_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.memset.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def step():
    blocks = [libc.malloc(1 << 20) for _ in range(30)]
    for block in blocks:
        libc.memset(block, 1, 1 << 20)
    for block in blocks:
        libc.free(block)
step()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

SYSTEM = {"ESTIMATOR_PIPELINE_MALLOC": "system"}
SAID = [
    SYSTEM,
    {"MALLOC_TOP_PAD_": "1"},
    {"MALLOC_ARENA_MAX": "2"},
    {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"},
    {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"},
]

# A test in this process may have told glibc before.
UNSAID = dict.fromkeys(variable for _, variable, _ in allocator._PARAMETERS)

glibc = pytest.mark.skipif(allocator._glibc() is None, reason="another allocator")


@glibc
def test_the_memory_of_a_step_is_needed_once(run_python):
    kept, given_back = (int(run_python(["-c", STEPS], env={**UNSAID, **env}).stdout) for env in ({}, SYSTEM))
    # 30 MiB are 7,680 pages.
    assert kept < 200 and given_back > 20 * 7000


@glibc
def test_processes_that_are_started_keep_it_too(run_python):
    told = "import os; print(sorted(name for name in os.environ if name.startswith('MALLOC_')))"
    done = run_python(["-m", "estimator_pipeline", "supervise", "--", sys.executable, "-c", told], env=UNSAID)
    assert "['MALLOC_MMAP_THRESHOLD_', 'MALLOC_TOP_PAD_', 'MALLOC_TRIM_THRESHOLD_']" in done.stdout + done.stderr


@pytest.mark.parametrize("environ", SAID)
def test_what_a_person_has_said_stands(environ):
    given = dict(environ)
    assert not allocator.keep_memory(given) and given == environ


@glibc
def test_settings_of_a_parent_process_are_ours(monkeypatch):
    """A child sets them again, for TensorFlow replaces them in it too; before `keep_memory` nothing is set."""
    calls = []
    libc = SimpleNamespace(mallopt=lambda number, size: calls.append(number))
    monkeypatch.setattr(allocator, "_glibc", lambda: libc)
    monkeypatch.setattr(STATE, "allocator", None)
    allocator.set_again()
    assert not calls
    environ: dict[str, str] = {}
    assert allocator.keep_memory(environ) and allocator.keep_memory(environ)
    allocator.set_again()
    assert calls == [-1, -2, -3] * 3
    assert not allocator.keep_memory({**environ, "MALLOC_ARENA_MAX": "2"})


def test_another_libc_is_left_alone(monkeypatch):
    monkeypatch.setattr(allocator, "_glibc", lambda: None)
    monkeypatch.setattr(STATE, "allocator", None)
    given: dict[str, str] = {}
    assert not allocator.keep_memory(given) and not given

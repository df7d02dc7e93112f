"""Measured processes: started, waited for, ended; pages of files; the simulated sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.suite import measuring, pages
from benchmarks.suite.programs import simulated
from estimator_pipeline.errors import TaskFailedError


def process(tmp_path, code, *, name="one", gives=True):
    out = tmp_path / f"{name}.json"
    return measuring.Started(
        name=name,
        command=(sys.executable, "-c", code, str(out)),
        environ=dict(os.environ),
        cores=(),
        out=out if gives else None,
    )


# Renamed into place, as the programs do it: what is there is whole.
WRITE = (
    "import json, os, sys; part = sys.argv[1] + '.part'; "
    "file = open(part, 'w'); file.write(json.dumps({'pid': os.getpid()})); file.close(); os.replace(part, sys.argv[1])"
)


def test_processes_give_figures_and_are_gone(tmp_path, monkeypatch):
    """One that serves the others, and one that does not end after its figures, are ended."""
    monkeypatch.setattr(measuring, "END_SECS", 0.2)
    serving = process(tmp_path, "import time; time.sleep(600)", name="ps", gives=False)
    staying = process(tmp_path, f"{WRITE}; import time; time.sleep(600)", name="stays")
    found = measuring.run_processes([serving, process(tmp_path, WRITE), staying], folder=tmp_path, timeout=60)
    assert set(found) == {"one", "stays"}
    assert not any(psutil.pid_exists(one["pid"]) for one in found.values())
    assert not [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; print('it is this'); sys.exit(3)", r"\(one\) ended with exit code 3(.|\n)*it is this"),
        ("pass", r"\(one\) ended with exit code 0"),
        ("import time; time.sleep(600)", r"\(one\) gave no figures within 1 s"),
    ],
)
def test_a_measurement_that_fails_says_which_and_why(tmp_path, code, says):
    with pytest.raises(TaskFailedError, match=says):
        measuring.run_processes([process(tmp_path, code)], folder=tmp_path, timeout=1 if "sleep" in code else 60)
    assert not [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


def test_the_environment_is_nobodys(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("ESTIMATOR_PIPELINE_PATCHES", "all")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    found = measuring.environment(tmp_path, MORE="1")
    assert not {"TF_CONFIG", "ESTIMATOR_PIPELINE_PATCHES", "TF_USE_LEGACY_KERAS"} & set(found)
    assert found["CUDA_VISIBLE_DEVICES"] == "-1" and found["MORE"] == "1"
    assert found["XDG_CACHE_HOME"].startswith(str(tmp_path))


def test_tasks_of_a_cluster_have_their_place(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "available_cores", lambda: (3, 5))
    with measuring.task_environments("workers", 2, tmp_path) as places:
        assert [place.cores for place in places.values()] == [(3,), (5,)]
        documents = [json.loads(place.environ["TF_CONFIG"]) for place in places.values()]
    assert [one["task"]["index"] for one in documents] == [0, 1]
    assert len(set(documents[0]["cluster"]["worker"])) == 2 and documents[0]["cluster"] == documents[1]["cluster"]
    with measuring.task_environments("ps", 2, tmp_path) as places:
        assert {name: place.trains for name, place in places.items()} == {
            "chief-0": True,
            "worker-0": True,
            "ps-0": False,
        }
    with measuring.task_environments("single", 1, tmp_path) as places:
        (place,) = places.values()
        assert place.cores == (3,) and "TF_CONFIG" not in place.environ
        assert place.environ["TF_NUM_INTRAOP_THREADS"] == "1"


def test_pages_tell_what_was_read(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(os.urandom(1 << 20))
    (tmp_path / "empty.bin").touch()
    assert pages.resident([str(path), str(tmp_path / "empty.bin")]) == 1 << 20
    # The kernel lets go of pages when they are on the disk.
    deadline = time.monotonic() + 20
    while pages.resident([str(path)]) and time.monotonic() < deadline:
        pages.drop([str(path)])
    if pages.resident([str(path)]):
        pytest.skip("this file system keeps its pages")
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(descriptor, 10, 500_000)
    os.close(descriptor)
    assert 0 < pages.resident([str(path)]) < 1 << 19


def test_simulated_sizes_are_checked_and_grow_along_each_axis():
    found = simulated.run({"largest": {"workers": 16, "records": 10**9, "files": 100, "steps": 1000}})
    sizes = {}
    for row in found["rows"]:
        sizes.setdefault(row["axis"], []).append(row["size"])
        assert row["seconds"] > 0 and row["bytes"] > 0
    assert sizes["workers"] == sizes["a step of all workers"] == [1, 4, 16]
    assert sizes["records"][-1] == 10**9 and sizes["files"] == [10, 100] and sizes["steps"] == [1, 10, 100, 1000]
    assert found["epoch_steps"] == 10**9 // (64 * 16)


def test_a_step_of_4096_workers_over_10_to_the_12_records():
    """Together they read what the step reads, no record twice; the check is planted wrong once, and sees it."""
    simulated._whole_step(10**12, 4096)
    simulated._step(10**12, 4096, 10**9)


def test_the_check_of_simulated_steps_would_see_a_fault(monkeypatch):
    right = simulated._plan
    monkeypatch.setattr(simulated, "_plan", lambda records, workers, worker: right(records, workers, worker // 2 * 2))
    with pytest.raises(Exception, match="simulated: other records"):
        simulated._whole_step(10**6, 4)


def test_a_benchmark_that_is_killed_leaves_nothing(tmp_path):
    """SIGKILL of the process that measures ends what it measures."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nfrom pathlib import Path\nfrom benchmarks.suite import measuring\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "command = (sys.executable, '-c', 'import time; time.sleep(600)')\n"
        "one = measuring.Started(name='one', command=command, environ=dict(os.environ), cores=(), out=folder / 'out')\n"
        "with measuring.started([one], folder=folder) as running:\n"
        "    print(running['one'].pid, flush=True)\n"
        "    import time; time.sleep(600)\n"
    )
    environ = measuring.environment(tmp_path)
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environ) as measures:
        pid = int(measures.stdout.readline())
        assert psutil.pid_exists(pid)
        measures.kill()
        measures.wait(timeout=30)
    deadline = time.monotonic() + 30
    while _runs(pid):
        assert time.monotonic() < deadline, "the measured process outlives the benchmark"
        time.sleep(0.05)


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

"""One measurement: fresh processes, each on its own cores, started, waited for with a deadline, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator_pipeline.cluster import local_cluster
from estimator_pipeline.cluster.ports import REUSE_VARIABLE, hold_ports
from estimator_pipeline.errors import TaskFailedError
from estimator_pipeline.launch.local.cores import available_cores, share_cores, thread_environment
from estimator_pipeline.launch.local.processes import Process, end_name

__all__ = ["Started", "TaskPlace", "child", "environment", "run_processes", "started", "task_environments"]

POLL_SECS = 0.05
# After its figures are there, a process has so long to end by itself: what comes after them (a last checkpoint, its
# evaluation) is no part of what is measured, and plain clusters do not always end.
END_SECS = 0.5
_NOT_INHERITED = ("TF_CONFIG", "TF_USE_LEGACY_KERAS", "PYTHONWARNINGS", "ESTIMATOR_PIPELINE_PATCHES")


@dataclass(frozen=True, kw_only=True)
class Started:
    """A process to start.

    Attributes:
        name: of its log, "worker-0".
        command: the program and its arguments.
        environ: its whole environment.
        cores: the CPUs that it may use.
        out: the file that it writes its figures to; None for one that serves the others (a parameter server).
    """

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    cores: tuple[int, ...]
    out: Path | None = field(default=None)


@dataclass(frozen=True, kw_only=True)
class TaskPlace:
    """Where a task runs.

    Attributes:
        environ: its whole environment.
        cores: its CPUs.
        trains: whether it makes steps.
    """

    environ: Mapping[str, str]
    cores: tuple[int, ...]
    trains: bool


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a measured process: no GPU, no cluster, caches of its own, this repository first."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith(("ESTIMATOR_PIPELINE_", "SLURM"))
    }
    here = str(Path(__file__).resolve().parents[2])
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [here, found.get("PYTHONPATH")]))
    found |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "XDG_CACHE_HOME": str(folder / "cache")}
    return {**found, **more}


def child(program: str, spec: Mapping[str, Any], *, folder: Path, name: str = "process") -> tuple[str, ...]:
    """Return the command of a program of `programs/`; its spec is written into the folder."""
    path = folder / f"{name}.spec.json"
    path.write_text(json.dumps(dict(spec), indent=1))
    return (sys.executable, "-m", "benchmarks.suite.child", program, str(path))


@contextlib.contextmanager
def started(processes: Sequence[Started], *, folder: Path) -> Iterator[dict[str, Process]]:
    """The processes while the block runs; whatever is left of them at its end is killed, with all its children."""
    running: dict[str, Process] = {}
    try:
        for one in processes:
            log = folder / f"{one.name}.log"
            running[one.name] = Process(one.command, environ=one.environ, cores=one.cores, log=log)
        yield running
    finally:
        for process in running.values():
            process.kill()
        deadline = time.monotonic() + 10
        while not all(process.look() for process in running.values()) and time.monotonic() < deadline:
            time.sleep(POLL_SECS)
        for process in running.values():
            process.reap()


def run_processes(
    processes: Sequence[Started],
    *,
    folder: Path,
    timeout: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run processes that belong together until all have written their figures, and end them.

    Args:
        processes: to start, in this order.
        folder: for their logs.
        timeout: seconds for all of it.
        meanwhile: called now and then.

    Returns:
        name -> what the process wrote, for those that write something.

    Raises:
        TaskFailedError: a process failed, or time ran out; with the last lines of the log.
    """
    wanted = {one.name: one.out for one in processes if one.out is not None}
    deadline = time.monotonic() + timeout
    with started(processes, folder=folder) as running:
        while missing := [name for name, out in wanted.items() if not out.exists()]:
            for name, process in running.items():
                if process.look() and (process.exit_code or name in missing) and not _written(wanted.get(name)):
                    raise failed(name, f"ended with {end_name(process.exit_code or 0)}", folder)
            if time.monotonic() > deadline:
                raise failed(missing[0], f"gave no figures within {timeout:g} s", folder)
            meanwhile()
            time.sleep(POLL_SECS)
        grace = time.monotonic() + END_SECS
        while time.monotonic() < grace and not all(running[name].look() for name in wanted):
            time.sleep(POLL_SECS)
    return {name: json.loads(out.read_text()) for name, out in wanted.items()}


def _written(out: Path | None) -> bool:
    return out is not None and out.exists()


def failed(name: str, how: str, folder: Path) -> TaskFailedError:
    log = folder / f"{name}.log"
    lines = log.read_text(errors="replace").splitlines()[-12:] if log.exists() else []
    said = "".join(f"\n    {line}" for line in lines)
    return TaskFailedError(f"a measured process ({name}) {how}", found=f"{log}{said}")


@contextlib.contextmanager
def task_environments(kind: str, workers: int, folder: Path) -> Iterator[dict[str, TaskPlace]]:
    """For each task of a measurement its environment and its cores; a real TF_CONFIG on loopback for a cluster.

    Each training task has a core of its own where there are enough, and threads for as many, whoever trains. One
    process by itself has one core. The ports are held until the block ends.

    Args:
        kind: "single", "workers", or "ps": a chief, workers and one parameter server.
        workers: tasks that train.
        folder: for caches.
    """
    asynchronous = kind == "ps"
    with hold_ports(workers + asynchronous) as held:
        documents = local_cluster(
            workers=workers - asynchronous, chief=asynchronous, ps=int(asynchronous), ports=held.ports, host="127.0.0.1"
        )
        cores = share_cores(list(documents), available_cores()[:workers])
        threads = thread_environment(cores, environ={})
        yield {
            f"{task.type}-{task.index}": TaskPlace(
                environ=environment(
                    folder,
                    **threads[task],
                    **({} if kind == "single" else {"TF_CONFIG": json.dumps(document), REUSE_VARIABLE: "1"}),
                ),
                cores=cores[task],
                trains=task.type != "ps",
            )
            for task, document in documents.items()
        }

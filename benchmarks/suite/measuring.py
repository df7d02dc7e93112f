"""Processes of one measurement: start on separate cores, wait with a deadline, and termination."""

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
from estimator_pipeline.launch.local.cores import share_cores, thread_environment
from estimator_pipeline.launch.local.processes import Process, end_name
from estimator_pipeline.utils.system_limits import available_cores

__all__ = ["Started", "TaskPlace", "child", "environment", "run_processes", "started", "task_environments"]

POLL_SECS = 0.05
# Time in which a process may exit after it has written its figures. The rest (a last checkpoint, its evaluation) is not
# measured, and plain clusters do not always exit.
END_SECS = 0.5
_NOT_INHERITED = ("TF_CONFIG", "TF_USE_LEGACY_KERAS", "PYTHONWARNINGS", "ESTIMATOR_PIPELINE_PATCHES")


@dataclass(frozen=True, kw_only=True)
class Started:
    """A process to start.

    Attributes:
        name: the name of its log, such as "worker-0".
        command: the program and its arguments.
        environ: its complete environment.
        cores: the CPUs that it may use.
        out: the file for its figures; None for a parameter server, which has no figures.
    """

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    cores: tuple[int, ...]
    out: Path | None = field(default=None)


@dataclass(frozen=True, kw_only=True)
class TaskPlace:
    """Environment and cores of a task.

    Attributes:
        environ: its complete environment.
        cores: its CPUs.
        trains: whether it trains.
    """

    environ: Mapping[str, str]
    cores: tuple[int, ...]
    trains: bool


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a measured process: no GPU, no cluster, separate caches, this repository first."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith(("ESTIMATOR_PIPELINE_", "SLURM"))
    }
    here = str(Path(__file__).resolve().parents[2])
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [here, variables.get("PYTHONPATH")]))
    variables |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "XDG_CACHE_HOME": str(folder / "cache")}
    return {**variables, **more}


def child(program: str, spec: Mapping[str, Any], *, folder: Path, name: str = "process") -> tuple[str, ...]:
    """Return the command of a program of `programs/`, and write its spec to the folder."""
    path = folder / f"{name}.spec.json"
    path.write_text(json.dumps(dict(spec), indent=1))
    return (sys.executable, "-m", "benchmarks.suite.child", program, str(path))


@contextlib.contextmanager
def started(processes: Sequence[Started], *, folder: Path) -> Iterator[dict[str, Process]]:
    """Run the processes during the block, and kill them with all their children at its end."""
    running: dict[str, Process] = {}
    try:
        for process in processes:
            log = folder / f"{process.name}.log"
            running[process.name] = Process(process.command, environ=process.environ, cores=process.cores, log=log)
        yield running
    finally:
        for child_process in running.values():
            child_process.kill()
        deadline = time.monotonic() + 10
        while not all(child_process.poll() for child_process in running.values()) and time.monotonic() < deadline:
            time.sleep(POLL_SECS)
        for child_process in running.values():
            child_process.reap()


def run_processes(
    processes: Sequence[Started],
    *,
    folder: Path,
    timeout: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run the processes of a measurement until all have written their figures, and stop them.

    Args:
        processes: The processes, in the order of their start.
        folder: Folder for their logs.
        timeout: Seconds for all processes together.
        meanwhile: Called while waiting.

    Returns:
        Name -> figures of the process, for processes with figures.

    Raises:
        TaskFailedError: A process failed or timed out; the error has the last lines of the log.
    """
    wanted = {process.name: process.out for process in processes if process.out is not None}
    deadline = time.monotonic() + timeout
    with started(processes, folder=folder) as running:
        while missing := [name for name, out in wanted.items() if not out.exists()]:
            for name, task in running.items():
                if task.poll() and (task.exit_code or name in missing) and not _is_written(wanted.get(name)):
                    raise process_error(name, f"ended with {end_name(task.exit_code or 0)}", folder)
            if time.monotonic() > deadline:
                raise process_error(missing[0], f"gave no figures within {timeout:g} s", folder)
            meanwhile()
            time.sleep(POLL_SECS)
        grace = time.monotonic() + END_SECS
        while time.monotonic() < grace and not all(running[name].poll() for name in wanted):
            time.sleep(POLL_SECS)
    return {name: json.loads(out.read_text()) for name, out in wanted.items()}


def _is_written(out: Path | None) -> bool:
    return out is not None and out.exists()


def process_error(name: str, reason: str, folder: Path) -> TaskFailedError:
    """Return the error of a measured process, with the last lines of its log."""
    log = folder / f"{name}.log"
    lines = log.read_text(errors="replace").splitlines()[-12:] if log.exists() else []
    tail = "".join(f"\n    {line}" for line in lines)
    return TaskFailedError(f"a measured process ({name}) {reason}", found=f"{log}{tail}")


@contextlib.contextmanager
def task_environments(kind: str, workers: int, folder: Path) -> Iterator[dict[str, TaskPlace]]:
    """Yield the environment and cores of each task of a measurement, with a TF_CONFIG on loopback for a cluster.

    Each training task has a separate core if there are enough, and as many threads as cores, for every contender.
    A single process has one core. The ports are held until the block ends.

    Args:
        kind: "single", "workers", or "ps": a chief, workers and one parameter server.
        workers: Number of tasks that train.
        folder: Folder for caches.
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

"""Measurement of a supervised job that loses a worker: seconds of its first start and of the restart."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import TaskFailedError
from estimator_pipeline.launch import read_events
from estimator_pipeline.launch.local.processes import Process
from estimator_pipeline.progress.progress_file import ProgressReader

__all__ = ["restart"]

_POLL_SECS = 0.02
# Time for the launcher to stop its tasks.
_END_SECS = 60.0


def restart(
    job: Path,
    engine: str,
    folder: Path,
    *,
    environ: Mapping[str, str],
    fault: signal.Signals = signal.SIGKILL,
    heartbeat: float = 60.0,
    timeout: float = 280,
) -> dict[str, Any]:
    """Launch a job of two workers, kill worker 1 after its first checkpoint, and stop the job after its next step.

    The supervisor's pause before a restart is 0 here; its default is one second.

    Args:
        job: The job file.
        engine: "estimator" or "keras".
        folder: Folder for the model and the logs; must be empty.
        environ: Environment of the launcher.
        fault: Signal to worker 1: SIGKILL, or SIGSTOP for a hang.
        heartbeat: Seconds without a heartbeat after which it counts as hung.
        timeout: Seconds for each of the two starts.

    Returns:
        "cold": seconds from the launch's first process to the first step; "noticed": from the signal to its detection
        by the launcher; "restart": from the detection to the first step of the next attempt; "from_step": the step from
        which the next attempt resumed.

    Raises:
        TaskFailedError: The job did not reach its next step.
    """
    settings = {
        "run.model_dir": folder / "model",
        "run.save_checkpoints_steps": 20,
        "train.max_steps": 100_000,
        "cluster.evaluator": "false",
        "eval.during_training": "false",
    }
    command = [sys.executable, "-m", "estimator_pipeline", "launch", str(job), "--engine", engine]
    command += ["--max-restarts", "1", "--backoff", "0", "--log-dir", str(folder / "logs")]
    command += ["--heartbeat-timeout", f"{heartbeat:g}"]
    command += ["--timeout", str(2 * timeout)]
    command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    # It exits with this process, even after a crash, and its guard stops its tasks.
    launch = Process(tuple(command), environ=environ, cores=(), log=folder / "launch.log")
    logs = folder / "logs"
    try:
        pid = _until(lambda: _pid_of("worker:1", folder / "launch.log"), launch, timeout, folder)
        _until(lambda: _checkpoint(logs / "attempt-1") >= 20, launch, timeout, folder)
        hit = time.time()
        os.kill(pid, fault)
        second = _until(lambda: _event(logs, "first_step", attempt=2), launch, timeout, folder)
    finally:
        launch.terminate()
        deadline = time.monotonic() + _END_SECS
        while not launch.poll() and time.monotonic() < deadline:
            time.sleep(_POLL_SECS)
        launch.kill()
        while not launch.poll():
            time.sleep(_POLL_SECS)
        launch.reap()
    first, began = _event(logs, "first_step", attempt=1), _event(logs, "attempt_started", attempt=1)
    noticed = _event(logs, "failed", attempt=1) or _event(logs, "hung", attempt=1)
    assert first is not None and began is not None and noticed is not None
    return {
        "cold": first["time"] - began["time"],
        "noticed": noticed["time"] - hit,
        "restart": second["lost"],
        "from_step": second["from_step"],
    }


def _pid_of(task: str, log: Path) -> int | None:
    for line in log.read_text(errors="replace").splitlines():
        if f"{task} started, pid " in line:
            with contextlib.suppress(ValueError):
                return int(line.rpartition(" ")[2])
    return None


def _until(look: Callable[[], Any], launch: Process, seconds: float, folder: Path) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := look()):
        if launch.poll() or time.monotonic() > deadline:
            tail = (folder / "launch.log").read_text(errors="replace").splitlines()[-12:]
            raise TaskFailedError(
                "a supervised launch did not reach its next step", found="\n    ".join([str(folder), *tail])
            )
        time.sleep(_POLL_SECS)
    return value


def _event(logs: Path, name: str, *, attempt: int) -> dict[str, Any] | None:
    matches = (event for event in read_events(logs) if (event["event"], event["attempt"]) == (name, attempt))
    return next(matches, None)


def _checkpoint(logs: Path) -> int:
    events = [event for path in logs.glob("*.jsonl") for event in ProgressReader(path).read()]
    steps = [event["step"] for event in events if event["event"] == "checkpoint"]
    return max(steps, default=0)

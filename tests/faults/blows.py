"""The faults: each hits a job, and says whether it landed, and whether the launcher went with it.

In that case the same command is started again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import psutil
from fault_jobs import Job, until


@dataclasses.dataclass(frozen=True)
class Hit:
    """What became of a fault's blow."""

    landed: bool
    launcher: bool = False


Blow = Callable[[Job, random.Random], Hit]


def _send(process: psutil.Process | None, number: int) -> bool:
    """Whether a living process got the signal."""
    if process is None:
        return False
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.send_signal(number)
    except psutil.Error:
        return False
    return True


def _signal(role: str, number: int) -> Blow:
    return lambda job, rng: Hit(_send(job.role(role), number))


def _at_start(job: Job, rng: random.Random) -> Hit:
    """A task dies somewhere between its first instruction and its first step: of the attempt after a kill."""
    _signal("chief", signal.SIGKILL)(job, rng)
    before = job.attempt()
    until("the next attempt", lambda: job.attempt() != before or not job.running)
    time.sleep(rng.uniform(0, 5))
    steps = job.step()
    tasks = job.tasks() if job.running else {}
    return Hit(steps is None and bool(tasks) and _send(tasks[rng.choice(sorted(tasks))], signal.SIGKILL))


def _when(role: str, seen: Callable[[Job], Any], most: float) -> Blow:
    """Kill a role the moment that something is seen, or up to `most` seconds later."""

    def hit(job: Job, rng: random.Random) -> Hit:
        process = job.role(role)
        deadline, found = time.monotonic() + 30, False
        while time.monotonic() < deadline and job.running and not found:
            found = bool(seen(job))
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, most))
        return Hit(_send(process, signal.SIGKILL) and found)

    return hit


def _writing(job: Job) -> bool:
    """Whether files of a checkpoint are there that the state file does not name yet."""
    with contextlib.suppress(OSError):
        names = os.listdir(job.model_dir)
        if any("tempstate" in name or name.endswith("_temp") for name in names):
            return True
    return False


def _exporting(job: Job) -> bool:
    return any((job.model_dir / "export").glob("*/temp-*"))


def _new_checkpoint() -> Callable[[Job], bool]:
    seen: dict[str, int | None] = {}

    def look(job: Job) -> bool:
        first = seen.setdefault("first", job.checkpoint())
        return job.checkpoint() != first

    return look


def _launcher(number: int) -> Blow:
    def hit(job: Job, rng: random.Random) -> Hit:
        landed = job.running
        with contextlib.suppress(ProcessLookupError):
            job.process.send_signal(number)
        until("the launcher's end", lambda: not job.running)
        until("the end of its tasks", lambda: not job.orphans(), seconds=30)
        return Hit(landed, launcher=True)

    return hit


def _torn(job: Job, rng: random.Random) -> Hit:
    """The launcher is killed, and a file of the newest checkpoint is cut off, or has a bit turned."""
    until("two checkpoints", lambda: len(list(job.model_dir.glob("*ckpt-*.index"))) >= 2 or not job.running)
    landed = _launcher(signal.SIGKILL)(job, rng).landed
    step = job.checkpoint()
    files = [*job.model_dir.glob(f"*ckpt-{step}.index"), *job.model_dir.glob(f"*ckpt-{step}.data*"),
             job.model_dir / "checkpoint"]  # fmt: skip
    path = rng.choice([file for file in files if file.exists()])
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    if rng.random() < 0.5 or path.name == "checkpoint":
        content = content[:at]
    else:
        content[at] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return Hit(landed, launcher=True)


def _full(job: Job, rng: random.Random) -> Hit:
    ballast = job.disk / "ballast"

    def failures() -> int:
        return sum(event["event"] == "failed" for event in job.events())

    before = failures()
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 65536)
    try:
        until("the failure on a full disk", lambda: failures() > before or not job.running)
    finally:
        ballast.unlink()
    return Hit(failures() > before)


def _take_port(job: Job, rng: random.Random) -> Hit:
    """A stranger takes a port of the next attempt before the task does."""
    _signal("chief", signal.SIGKILL)(job, rng)
    before = job.attempt()
    until("the next attempt", lambda: job.attempt() != before or not job.running)
    task = job.role("worker") if job.running else None
    if task is None:
        return Hit(False)
    try:
        jobs = json.loads(task.environ()["TF_CONFIG"])["cluster"]
        port = int(rng.choice(jobs["worker"]).rpartition(":")[2])
        with socket.socket() as stranger:
            stranger.bind(("0.0.0.0", port))
            stranger.listen()
            until("the end of the attempt", lambda: job.attempt() is None or job.attempts_ended or not job.running)
    except (psutil.Error, OSError):
        return Hit(False)  # the task was quicker, or has gone
    return Hit(True)


FAULTS: dict[str, Blow] = {
    **{f"kill {role}": _signal(role, signal.SIGKILL) for role in ("chief", "worker", "evaluator", "ps")},
    **{f"stop {role}": _signal(role, signal.SIGSTOP) for role in ("chief", "worker", "evaluator", "ps")},
    **{f"term {role}": _signal(role, signal.SIGTERM) for role in ("chief", "worker", "evaluator", "ps")},
    "kill at start": _at_start,
    "kill in checkpoint": _when("chief", _writing, 0.02),
    "kill in evaluation": lambda job, rng: _when("evaluator", _new_checkpoint(), 0.4)(job, rng),
    "kill in export": lambda job, rng: _when(
        "evaluator" if "evaluator" in job.shape.name else "chief", _exporting, 0.05
    )(job, rng),
    "kill launcher": _launcher(signal.SIGKILL),
    "term launcher": _launcher(signal.SIGTERM),
    "torn checkpoint": _torn,
    "full disk": _full,
    "take port": _take_port,
}

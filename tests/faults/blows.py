"""The faults: each hits a job, and says whether it landed, and whether the launcher went with it.

In that case the same command is started again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from fault_jobs import DEADLINE_SECS, Hang, Job, until

PREEMPTED = 75


@dataclasses.dataclass(frozen=True)
class Hit:
    """What became of a fault's blow.

    Attributes:
        landed: whether it met what it was meant for.
        launcher: whether the launcher has ended, so that the same command is to be started again.
        problem: what a fault has found at once.
    """

    landed: bool
    launcher: bool = False
    problem: str = ""


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


def _asked_twice(job: Job, rng: random.Random) -> Hit:
    """Schedulers repeat themselves: SIGTERM comes a second time while the checkpoint is written."""
    process = job.role(rng.choice(["chief", "worker"]))
    first = _send(process, signal.SIGTERM)
    time.sleep(rng.uniform(0, 0.5))
    return Hit(_send(process, signal.SIGTERM) and first)


def _next_attempt(job: Job) -> None:
    """The chief is killed; until the attempt after it has begun."""
    before = job.attempt()
    _send(job.role("chief"), signal.SIGKILL)
    until("the next attempt", lambda: job.attempt() != before or not job.running)


def _at_start(job: Job, rng: random.Random) -> Hit:
    """A task dies somewhere between its first instruction and its first step: of the attempt after a kill."""
    _next_attempt(job)
    time.sleep(rng.uniform(0, 5))
    steps = job.step()
    tasks = job.tasks() if job.running else {}
    return Hit(steps is None and bool(tasks) and _send(tasks[rng.choice(sorted(tasks))], signal.SIGKILL))


def _when(role: str, seen: Callable[[Job], Any], most: float, number: int = signal.SIGKILL) -> Blow:
    """Send a role a signal the moment that something is seen, or up to `most` seconds later."""

    def hit(job: Job, rng: random.Random) -> Hit:
        process = job.role(role)
        deadline, found = time.monotonic() + 30, False
        while time.monotonic() < deadline and job.running and not found:
            found = bool(seen(job))
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, most))
        return Hit(_send(process, number) and found)

    return hit


def _writing(job: Job) -> bool:
    """Whether files of a checkpoint are there that the state file does not name yet."""
    with contextlib.suppress(OSError):
        names = os.listdir(job.model_dir)
        if any("tempstate" in name or name.endswith("_temp") for name in names):
            return True
    return False


def _new_export() -> Callable[[Job], bool]:
    """An export is being written that was not there: a killed process leaves its half one."""
    seen: dict[str, set[Path]] = {}

    def look(job: Job) -> bool:
        now = set((job.model_dir / "export").glob("*/temp-*"))
        return bool(now - seen.setdefault("first", now))

    return look


def _new_checkpoint() -> Callable[[Job], bool]:
    seen: dict[str, int | None] = {}

    def look(job: Job) -> bool:
        first = seen.setdefault("first", job.checkpoint())
        return job.checkpoint() != first

    return look


def _launcher(number: int) -> Blow:
    """The launcher gets a signal, as a person or a scheduler sends it; its tasks must end by themselves."""

    def hit(job: Job, rng: random.Random) -> Hit:
        landed = job.running
        # One that still imports has nothing to save, and dies of the signal (docs/preemption.md).
        unready = [task for task in job.tasks() if not task.startswith("ps") and not job.has_stepped(task)]
        with contextlib.suppress(ProcessLookupError):
            job.process.send_signal(number)
        job.launches[-1].asked = number
        until("the launcher's end", lambda: not job.running)
        until("the end of its tasks", lambda: not job.orphans(), seconds=30)
        code = job.process.returncode
        if code == 0:
            # It had done all before it was asked.
            job.launches[-1].asked = None
            return Hit(False, launcher=True)
        return Hit(landed, launcher=True, problem=wrong_code(number, code, unready=bool(unready)))

    return hit


def wrong_code(number: int, code: int, *, unready: bool) -> str:
    """What is wrong with the exit code of a launcher that got a signal: docs/preemption.md, docs/restarts.md."""
    if number == signal.SIGTERM:
        allowed = {PREEMPTED} | ({128 + signal.SIGTERM} if unready else set())
    else:
        allowed = {-signal.SIGKILL} if number == signal.SIGKILL else {128 + number}
    if code in allowed:
        return ""
    return f"a launcher that got {signal.Signals(number).name} ended with {code}, not {sorted(allowed)}"


def _torn(job: Job, rng: random.Random) -> Hit:
    """The launcher is killed, and a file of the newest checkpoint is cut off, or has a bit turned."""
    hit = _launcher_gone_after_two(job, rng)
    step = job.checkpoint()
    files = [*job.model_dir.glob(f"*ckpt-{step}.index"), *job.model_dir.glob(f"*ckpt-{step}.data*"),
             job.model_dir / "checkpoint"]  # fmt: skip
    _damage(job, rng.choice([file for file in files if file.exists()]), rng)
    return hit


def _launcher_gone_after_two(job: Job, rng: random.Random) -> Hit:
    until("two checkpoints", lambda: len(list(job.model_dir.glob("*ckpt-*.index"))) >= 2 or not job.running)
    return _launcher(signal.SIGKILL)(job, rng)


def _damage(job: Job, path: Path, rng: random.Random, *, cut: bool = False) -> None:
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    # The state file's newest one is what a run would go on from; a later one that it does not name is not looked at.
    said = re.search(r'model_checkpoint_path: "(.*)"', (job.model_dir / "checkpoint").read_text(errors="replace"))
    if rng.random() < 0.5 or path.name == "checkpoint" or cut:
        content = content[:at]
    else:
        content[at] ^= 1 << rng.randrange(8)
    cut = len(content) == at
    path.write_bytes(content)
    name = "checkpoint" if path.name == "checkpoint" else path.name.rpartition(".")[0]
    job.damaged.add(name)
    if name != "checkpoint" and said and os.path.basename(said[1]) == name and (cut or ".data" in path.name):
        job.cut.add(name)


def _in_rescue(job: Job, rng: random.Random) -> Hit:
    """The newest checkpoint is cut off, and at the start that sets it aside the chief is killed while it does."""
    torn = _launcher_gone_after_two(job, rng)
    if torn.problem or not torn.landed:
        return torn
    step = job.checkpoint()
    (path,) = job.model_dir.glob(f"*ckpt-{step}.index")
    before = _of_rescue(job.model_dir)
    _damage(job, path, rng, cut=True)
    job.start()
    chief = job.role("chief", wait=60)
    until(
        "the rescue of the checkpoint before",
        lambda: _of_rescue(job.model_dir) != before or (job.step() or 0) > 0 or not job.running,
        poll=0.0005,
    )
    time.sleep(rng.uniform(0, 0.004))
    return Hit(_send(chief, signal.SIGKILL) and not job.step())


def _of_rescue(model_dir: Path) -> tuple[Any, ...]:
    """What changes while a damaged checkpoint is set aside."""
    with contextlib.suppress(OSError):
        state = os.stat(model_dir / "checkpoint")
        names = os.listdir(model_dir)
        aside = os.listdir(model_dir / "damaged") if "damaged" in names else []
        return state.st_ino, state.st_mtime_ns, len(aside), any(re.match(r"checkpoint\..*tmp", name) for name in names)
    return ()


def _resized(job: Job, rng: random.Random) -> Hit:
    """The job is asked to end, and goes on with another number of workers."""
    hit = _launcher(signal.SIGTERM)(job, rng)
    job.workers = rng.choice([number for number in (1, 2, 3) if number != job.workers])
    job.resized = True
    return hit


@contextlib.contextmanager
def _filled(disk: Path) -> Iterator[None]:
    """In the block, a disk has no room."""
    ballast = disk / "ballast"
    try:
        with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 65536)
        # And what is less than that.
        with open(ballast, "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0")
        yield
    finally:
        ballast.unlink()


def _full(attempts: int) -> Blow:
    """The disk of the model directory is full until so many attempts have failed of it."""

    def hit(job: Job, rng: random.Random) -> Hit:
        def failures() -> int:
            return sum(event["event"] == "attempt_ended" and event["reason"] == "failed" for event in job.events())

        before = failures()

        def failed() -> bool:
            job.starved.add(str(job.run_id()))
            return failures() >= before + attempts or not job.running

        with _filled(job.disk):
            until("the failure on a full disk", failed, seconds=attempts * DEADLINE_SECS)
        return Hit(failures() >= before + attempts)

    return hit


def _full_logs(job: Job, rng: random.Random) -> Hit:
    """The disk of the logs is full for a while, in which training must go on (docs/restarts.md)."""
    launch, before, tasks = job.launches[-1], job.checkpoint(), set(job.tasks().values())
    launch.log_full = True
    with _filled(job.log_disk):
        # Longer than a heartbeat may miss.
        seconds = time.monotonic() + rng.uniform(0, 15)
        try:
            until(
                "a later checkpoint while the logs have no room",
                lambda: (job.checkpoint() != before and time.monotonic() >= seconds) or not job.running,
            )
        except Hang as hang:
            return Hit(True, problem=f"full log disk: {hang}")
        launch.starved = not job.running
        now = set(job.tasks().values()) if job.running else tasks
    if now - tasks:
        return Hit(True, problem="full log disk: the tasks were started again, though nothing had hit them")
    return Hit(job.checkpoint() != before)


def _take_port(job: Job, rng: random.Random) -> Hit:
    """A stranger takes a port of the next attempt before the task does."""
    _next_attempt(job)
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
    "asked twice": _asked_twice,
    "asked in checkpoint": _when("chief", _writing, 0.02, signal.SIGTERM),
    "kill at start": _at_start,
    "kill in checkpoint": _when("chief", _writing, 0.02),
    "kill in evaluation": lambda job, rng: _when("evaluator", _new_checkpoint(), 0.4)(job, rng),
    "kill in export": lambda job, rng: _when(
        "evaluator" if "evaluator" in job.shape.name else "chief", _new_export(), 0.05
    )(job, rng),
    "kill launcher": _launcher(signal.SIGKILL),
    "term launcher": _launcher(signal.SIGTERM),
    "int launcher": _launcher(signal.SIGINT),
    "resized": _resized,
    "torn checkpoint": _torn,
    "kill in rescue": _in_rescue,
    "full disk": _full(1),
    "start on a full disk": _full(2),
    "full log disk": _full_logs,
    "take port": _take_port,
}

# A training task that is asked to end stops with a checkpoint, and its attempt ends so (docs/preemption.md).
ASKED = frozenset({"term chief", "term worker", "term ps", "asked twice", "asked in checkpoint"})

"""The faults: each hits a job, and says whether it landed, and whether the launcher went with it.

In that case the same command is started again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from fault_hands import Hands
from fault_jobs import DEADLINE_SECS, Hang, Job, until

PREEMPTED, BAD_INPUT = 75, 2
# After how long a silence a peer is lost, among tasks that are started by hand: TensorFlow's own is no shorter.
GRACE_SECS = 10
# What a task says of a peer that it has lost.
LOST = r"{0} at \S+ (is gone|hangs)|training failed on {0}: "
# What one worker is started with, and the other is not.
SKEWS = ("model.optimizer.learning_rate=0.5", "input.seed=9", "train.max_steps=77777")


@dataclasses.dataclass(frozen=True)
class Hit:
    """What became of a fault's blow.

    Attributes:
        landed: whether it met what it was meant for.
        launcher: whether the launcher has ended, so that the same command is to be started again.
        problem: what a fault has found at once.
        goes_on: the step of the checkpoint from which training must go on, or a later one.
    """

    landed: bool
    launcher: bool = False
    problem: str = ""
    goes_on: int = 0


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
        # One that still imports has nothing to save, and dies of the signal (docs/guides/preemption.md).
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
    """What is wrong with the exit code of a launcher that got a signal: docs/guides/preemption.md and restarts.md."""
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
    """The disk of the logs is full for a while, in which training must go on (docs/guides/restarts.md)."""
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


def _zero_exit(job: Job, rng: random.Random) -> Hit:
    """A task leaves with exit code 0, as a library does that ends the process: it is named, and started again."""
    number = _number(job)
    process = job.role(rng.choice(["chief", "worker", "ps"] if "ps" in job.shape.name else ["chief", "worker"]))
    try:
        task = process.environ()["ESTIMATOR_PIPELINE_TASK"]
    except (AttributeError, psutil.Error):
        return Hit(False)
    path = job.leave / task.replace(":", "-")
    path.touch()
    until("the end of an attempt one task of which left", lambda: _ended(job, number) or not job.running)
    if path.exists():
        path.unlink()
        return Hit(False)
    reason = (_ended(job, number) or {}).get("reason")
    if reason == "done":
        return Hit(False)
    said = [
        (event["task"], event["what"])
        for event in job.events()
        if event["event"] == "failed" and event["attempt"] == number
    ]
    if reason == "failed" and any(one == task and f"{task} left with exit code 0" in what for one, what in said):
        return Hit(True)
    return Hit(True, problem=f"{task} left with exit code 0, and attempt {number} ended as {reason}: {said}")


def _number(job: Job) -> int:
    """Of the attempt that runs now."""
    return sum(event["event"] == "attempt_started" for event in job.events())


def _ended(job: Job, number: int) -> dict[str, Any] | None:
    """The end of an attempt, once it is told."""
    ends = [event for event in job.events() if event["event"] == "attempt_ended" and event["attempt"] == number]
    return ends[0] if ends else None


def _stop_again(job: Job, rng: random.Random) -> Hit:
    """While a stop is under way another task is asked too, or the launcher is, or another task is killed.

    No step is lost but by a kill, and then no more than what is said.
    """
    number, attempt, both = _number(job), job.attempt(), ["chief", "worker"]
    rng.shuffle(both)
    first, other = (job.role(role) for role in both)
    stepped = all(job.has_stepped(task) for task in job.tasks() if task.startswith("worker"))
    landed = stepped and _send(first, rng.choice([signal.SIGTERM, signal.SIGUSR1]))
    time.sleep(rng.uniform(0, 0.5))
    how = rng.choice(["other", "launcher", "kill"])
    hit = Hit(landed)
    if how == "launcher":
        hit = _launcher(signal.SIGTERM)(job, rng)
    else:
        again = signal.SIGKILL if how == "kill" else rng.choice([signal.SIGTERM, signal.SIGUSR1])
        hit = Hit(_send(other, again) and landed)
        until("the end of an attempt that was asked to stop", lambda: _ended(job, number) or not job.running)
    end = _ended(job, number) or {}
    if not landed or hit.problem:
        return hit
    return dataclasses.replace(hit, problem=steps_lost(end, _logs(attempt), killed=how == "kill" and hit.landed))


def _logs(attempt: Path | None) -> str:
    return "\n".join(path.read_text(errors="replace") for path in (attempt.glob("*.log") if attempt else ()))


def steps_lost(end: dict[str, Any], logs: str, *, killed: bool) -> str:
    """What is wrong with the end of an attempt that was asked to stop: docs/guides/preemption.md.

    Args:
        end: the event.
        logs: of all its tasks.
        killed: whether one of them was killed meanwhile, which may end the attempt as failed.
    """
    reason = end.get("reason")
    if reason == "done" or (killed and reason == "failed"):
        return ""
    if reason not in ("preempted", "interrupted"):
        return f"an attempt that was asked to stop ended as {reason}"
    lost = (end.get("step") or 0) - (end.get("checkpoint") or 0)
    said = max((int(number) for number in re.findall(r"(\d+) later steps? (?:is|are) lost", logs)), default=0)
    if lost > said or (lost > 0 and not killed):
        return f"a stop lost {lost} steps, and said {said}: {end}"
    return ""


# -- what an attempt finds at its start --------------------------------------------------------------------------------


def _empty_state(job: Job, rng: random.Random) -> Hit:
    """The launcher is killed, and the state file is empty, or garbage, as a power loss leaves it."""
    hit = _launcher_gone_after_two(job, rng)
    (job.model_dir / "checkpoint").write_bytes(rng.choice([b"", rng.randbytes(300)]))
    job.damaged.add("checkpoint")
    return dataclasses.replace(hit, goes_on=job.checkpoint() or 0)


def _kill_chief(job: Job) -> bool:
    """Whether it was killed, and is dead: from then until the next attempt begins nothing is written."""
    chief = job.role("chief")
    if not _send(chief, signal.SIGKILL):
        return False
    until("the chief's death", lambda: not chief.is_running() or chief.status() == psutil.STATUS_ZOMBIE)
    return True


def _refused(job: Job, *words: str) -> str:
    """What is wrong with how the launcher ends, which must be by exit code 2, in these words."""
    launch = job.launches[-1]
    until("the launcher's end", lambda: not job.running)
    until("the end of its tasks", lambda: not job.orphans(), seconds=30)
    launch.refused = True
    said = launch.out.read_text(errors="replace")
    missing = [word for word in words if word not in said]
    if launch.returncode == BAD_INPUT and not missing and "Traceback" not in said:
        return ""
    last = " | ".join(said.strip().splitlines()[-6:])[-600:]
    return f"the launcher ended with {launch.returncode}, not {BAD_INPUT}, or did not say {missing or words}: {last}"


def _vanished(job: Job, rng: random.Random) -> Hit:
    """Between two attempts the model directory goes, or its checkpoints: training does not begin anew."""
    until("a checkpoint that the launcher knows", lambda: job.knows_checkpoint() or not job.running)
    if not _kill_chief(job):
        return Hit(False)
    named, aside = job.named() or 0, job.disk / "aside"
    # A parameter server's workers train until they are ended, and write where the folder was.
    whole = job.shape.exact and rng.random() < 0.5
    if whole:
        job.model_dir.rename(aside)
    else:
        aside.mkdir()
        for path in [*job.model_dir.glob("*ckpt-*"), job.model_dir / "checkpoint"]:
            path.rename(aside / path.name)
    problem = _refused(job, f"the checkpoints of {job.model_dir} are gone")
    if whole:
        shutil.rmtree(job.model_dir, ignore_errors=True)
        aside.rename(job.model_dir)
    else:
        for path in aside.iterdir():
            path.rename(job.model_dir / path.name)
        aside.rmdir()
    return Hit(True, launcher=True, problem=problem, goes_on=named)


def records_of(content: bytes) -> list[bytes]:
    """The records of a TFRecord file, each with its length and its checksums."""
    found, at = [], 0
    while at < len(content):
        end = at + struct.unpack_from("<Q", content, at)[0] + 16
        found.append(content[at:end])
        at = end
    return found


def turned(content: bytes, name: str, rng: random.Random) -> tuple[bytes, list[str]]:
    """A bit of one record's data is another one; and what is said of it."""
    records = records_of(content)
    number = rng.randrange(len(records))
    record = bytearray(records[number])
    record[rng.randrange(12, len(record) - 4)] ^= 1 << rng.randrange(8)
    records[number] = bytes(record)
    return b"".join(records), [f"{name}, record {number}, ", "the data of the record do not match their checksum"]


def replaced(content: bytes, name: str, rng: random.Random) -> tuple[bytes, list[str]]:
    """Another file of the same name, size and number of records; and what is said of it."""
    return b"".join(reversed(records_of(content))), [f"{name} has other content than when this run began"]


def _spoilt(change: Callable[[bytes, str, random.Random], tuple[bytes, list[str]]]) -> Blow:
    """Between two attempts a file of the data is another one, until it is put right."""

    def hit(job: Job, rng: random.Random) -> Hit:
        path = rng.choice(sorted(job.data.glob("train-*.tfrecord")))
        other, words = change(path.read_bytes(), path.name, rng)
        # Before it has trained a step, a run may begin with any data.
        until("a checkpoint", lambda: job.named() or not job.running)
        if not _kill_chief(job):
            return Hit(False)
        named, kept = job.named() or 0, path.with_name("kept")
        # Whoever still reads it has the file that was there.
        path.rename(kept)
        path.write_bytes(other)
        problem = _refused(job, *words)
        kept.replace(path)
        return Hit(True, launcher=True, problem=problem, goes_on=named)

    return hit


# -- tasks of several machines -----------------------------------------------------------------------------------------


def _by_hand(blow: Callable[[Job, random.Random], tuple[bool, str]]) -> Blow:
    """The job is asked to end, and its workers are started by hand for a while; then the launcher goes on.

    The blow gives whether it landed, and what was found.
    """

    def hit(job: Job, rng: random.Random) -> Hit:
        # Where training is nearly over, it would end before anything can happen to it.
        if (job.step() or 0) > 0.7 * job.shape.max_steps:
            return Hit(False)
        stopped = _launcher(signal.SIGTERM)(job, rng)
        if stopped.problem or not stopped.landed:
            return stopped
        landed, problem = blow(job, rng)
        return Hit(landed, launcher=True, problem=problem, goes_on=job.named() or 0)

    return hit


def _skew(job: Job, rng: random.Random) -> tuple[bool, str]:
    """One worker is started with another job than the other: both refuse, say what differs, and nothing is trained."""
    change, other, before = rng.choice(SKEWS), rng.randrange(2), job.checkpoint()
    field, value = change.split("=")
    said, codes = ("the tasks of this cluster were started with different jobs", f"{field}: ", value), [BAD_INPUT] * 2
    if other == 0 and field == "input.seed":
        # The chief holds its job against the checkpoint before it meets anybody (docs/guides/resuming.md).
        said, codes = ("this run is not the one that trained to step", f"{field} was 3 and is {value}"), [BAD_INPUT, 1]
    with Hands(job, changes={other: change}) as hands:
        hands.until_ended("the refusal of tasks with different jobs")
        problems = [hands.wrong(f"worker:{index}", [code], *said) for index, code in enumerate(codes)]
        if hands.steps() or job.checkpoint() != before:
            problems.append(f"tasks with different jobs trained to step {hands.steps()}, {job.checkpoint()}")
    return True, "; ".join(filter(None, problems))


def _missing(job: Job, rng: random.Random) -> tuple[bool, str]:
    """One worker never comes: the other one names it, and ends."""
    own = rng.randrange(2)
    with Hands(job, tasks=[own], environ={"ESTIMATOR_PIPELINE_START_SECS": "8"}) as hands:
        hands.until_ended("the end of a task whose peer does not come")
        words = (f"worker:{own} waited 8 s for the other tasks to join", f"worker:{1 - own}")
        return True, hands.wrong(f"worker:{own}", [1], *words)


def _silence(job: Job, rng: random.Random, *, apart: bool) -> tuple[bool, str]:
    """A process stands still, or the network does: for a moment, and they go on; or for long, and each ends."""
    with Hands(job, environ={"ESTIMATOR_PIPELINE_PEER_SECS": str(GRACE_SECS)}, apart=apart) as hands:
        tasks = list(hands.processes)
        until(
            "the first step of tasks by hand",
            lambda: all(hands.step(task) for task in tasks) or not all(hands.running(task) for task in tasks),
        )
        time.sleep(rng.uniform(0, 1))
        quiet = rng.choice(tasks)
        (other,) = (task for task in tasks if task != quiet)
        short = rng.random() < 0.5
        if not all(hands.running(task) for task in tasks):
            return False, ""
        hands.cut() if apart else hands.send(quiet, signal.SIGSTOP)
        if short:
            time.sleep(rng.uniform(0.5, 4))
        else:
            hands.until_ended("the end of tasks whose peer is silent", *(tasks if apart else [other]))
        hands.join() if apart else hands.send(quiet, signal.SIGCONT)
        if not short:
            hands.until_ended("the end of a task that was stopped, and whose peer has ended")
            said = {task: LOST.format(next(one for one in tasks if one != task)) for task in tasks}
            return True, "; ".join(filter(None, (hands.wrong(task, [1], said[task]) for task in tasks)))
        reached = hands.steps()
        until("a step after a short silence", lambda: hands.steps() > reached or not hands.running())
        hands.ask()
        return True, "; ".join(filter(None, (hands.wrong(task, [0, PREEMPTED]) for task in tasks)))


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
    "zero exit": _zero_exit,
    "stop while stopping": _stop_again,
    "empty state file": _empty_state,
    "vanished folder": _vanished,
    "crc": _spoilt(turned),
    "replaced file": _spoilt(replaced),
    "skew": _by_hand(_skew),
    "missing peer": _by_hand(_missing),
    "hung peer": _by_hand(functools.partial(_silence, apart=False)),
    "partition": _by_hand(functools.partial(_silence, apart=True)),
}

# A training task that is asked to end stops with a checkpoint, and its attempt ends so (docs/guides/preemption.md).
ASKED = frozenset({"term chief", "term worker", "term ps", "asked twice", "asked in checkpoint"})

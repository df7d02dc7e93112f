"""A fault campaign: jobs that are killed, stopped, starved and torn at random moments, and what became of them.

    python tests/faults/campaign.py --faults 200 --seed 7 --results faults.jsonl --report docs/fault-campaign.md

Each job is a real cluster under `estimator-pipeline launch --max-restarts`, on real data, with a ledger. While it
trains, faults hit it at random moments; the seed is printed, and chooses jobs, kinds and delays. The kinds that a shape
of job has met least come first, so that a long campaign has all of them several times. A fault that came too late (the
process had gone, the checkpoint was written) is told, and does not count as landed. When a job has ended it is judged:
does it end at all, before its deadline; is any process of it left; are the final weights those of a job that nobody
disturbed, bit by bit (synchronous jobs); has each record been consumed once at its step (the ledger). The exit code is
0 when nothing was found.

`--results` keeps every fault of a job that has been judged; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
STEPS, EVERY = 1800, 90
# Nothing of a job may take longer than this without an event in its history.
DEADLINE_SECS = 120.0
FAULTS_A_JOB = 10

JOB = f"""
model: {{name: dnn, params: {{hidden_units: [16]}}, optimizer: {{name: momentum, learning_rate: 0.05}}}}
input: {{source: tfds, name: digits, scale: 1/16, global_batch_size: 60, seed: 3}}
train: {{max_steps: {STEPS}}}
eval: {{exporters: [{{kind: latest, exports_to_keep: 2}}]}}
run: {{model_dir: nowhere, seed: 5, save_checkpoints_steps: {EVERY}, ledger: true}}
"""


@dataclasses.dataclass(frozen=True)
class Shape:
    """A kind of job.

    Attributes:
        name: for the report.
        changes: to the job file.
        kinds: the faults that it can meet.
        exact: whether its final weights are those of an undisturbed run.
    """

    name: str
    changes: tuple[str, ...]
    kinds: tuple[str, ...]
    exact: bool = True


_EVERYWHERE = ("kill chief", "kill at start", "kill in checkpoint", "stop chief", "term chief", "kill launcher",
               "term launcher", "torn checkpoint", "full disk")  # fmt: skip
_WORKERS = (*_EVERYWHERE, "kill worker", "stop worker", "term worker", "take port")
_EVALUATOR = ("kill evaluator", "kill in evaluation", "kill in export", "term evaluator", "stop evaluator")
_MWM = ("run.train_distribute=multi_worker_mirrored", "cluster.workers=2")
SHAPES = (
    Shape("two workers, evaluator", (*_MWM, "cluster.evaluator=true"), (*_WORKERS, *_EVALUATOR)),
    Shape("two workers, Keras", (*_MWM, "run.engine=keras", "eval.exporters=[]"), _WORKERS),
    Shape("one process", ("cluster.workers=1",), (*_EVERYWHERE, "kill in export")),
    Shape(
        "chief, worker, ps",
        ("run.train_distribute=parameter_server", "cluster.chief=true", "cluster.workers=1", "cluster.ps=1"),
        (*(kind for kind in _WORKERS if kind != "take port"), "kill ps", "stop ps", "term ps"),
        exact=False,
    ),
)
_WEIGHTS = (4, 2, 2, 2)


@dataclasses.dataclass
class Fault:
    """One fault, and what came of it."""

    number: int
    job: int
    shape: str
    kind: str
    step: int | None = None
    checkpoint: int | None = None
    seconds: float | None = None
    """From the fault to the first step after it."""
    landed: bool = False
    """Whether it met what it was meant for: the process was there, the checkpoint was being written."""
    problem: str = ""


class Job:
    """A job under attack: its command, its history, its processes."""

    def __init__(self, folder: Path, shape: Shape, environ: dict[str, str]) -> None:
        self.folder, self.shape, self.environ = folder, shape, environ
        self.disk = folder / "disk"
        self.disk.mkdir(parents=True)
        self.model_dir = self.disk / "model"
        self.file = folder / "job.yaml"
        self.file.write_text(JOB)
        self.launches = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.mounted = False

    def command(self, *options: str) -> list[str]:
        changes = [*self.shape.changes, f"run.model_dir={self.model_dir}"]
        return [sys.executable, "-m", "estimator_pipeline", "launch", str(self.file), "--log-dir", str(self.logs),
                *options, *(word for change in changes for word in ("--set", change))]  # fmt: skip

    @property
    def logs(self) -> Path:
        return self.folder / f"logs-{self.launches}"

    def start(self) -> None:
        self.launches += 1
        # Ports are let go, so that they can be taken; heartbeats decide about stopped processes within seconds.
        options = ["--max-restarts", "20", "--heartbeat-timeout", "8", "--start-timeout", "90", "--step-timeout", "60",
                   "--backoff", "0.2", "--free-ports"]  # fmt: skip
        self.logs.mkdir()
        with open(self.logs / "launch.out", "wb") as out:
            self.process = subprocess.Popen(
                self.command(*options), stdout=out, stderr=subprocess.STDOUT, env=self.environ, cwd=ROOT
            )

    def events(self) -> list[dict[str, Any]]:
        found = []
        with contextlib.suppress(OSError):
            for line in (self.logs / "events.jsonl").read_text().splitlines():
                # The last one may be read while it is written.
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def attempt(self) -> Path | None:
        """The folder of the attempt that runs now."""
        started = [event for event in self.events() if event["event"] == "attempt_started"]
        return Path(started[-1]["log_dir"]) if started else None

    def step(self) -> int | None:
        """The last step that a task told in the attempt that runs now."""
        folder, found = self.attempt(), None
        for path in folder.glob("*.progress.jsonl") if folder else ():
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event.get("event") == "step" and event.get("step") is not None:
                        found = max(found or 0, event["step"])
        return found

    def checkpoint(self) -> int | None:
        steps = [int(path.stem.rpartition("-")[2]) for path in self.model_dir.glob("*ckpt-*.index")]
        return max(steps, default=None)

    def tasks(self) -> dict[str, psutil.Process]:
        """Task -> its process."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                task = child.environ().get("ESTIMATOR_PIPELINE_TASK")
                if task and child.status() != psutil.STATUS_ZOMBIE and "train" in child.cmdline():
                    found.setdefault(task, child)
        return found

    def role(self, role: str, wait: float = 20.0) -> psutil.Process | None:
        """The process of a role: "chief" is the first task that trains."""
        wanted = {"chief": ("chief:0", "worker:0"), "worker": ("worker:1", "worker:0"), "evaluator": ("evaluator:0",),
                  "ps": ("ps:0",)}[role]  # fmt: skip
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and self.running:
            tasks = self.tasks()
            for task in wanted:
                if task in tasks:
                    return tasks[task]
            time.sleep(0.05)
        return None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def orphans(self) -> list[str]:
        """Processes that still have to do with this job: by their command, their environment, or its run ids (the
        guard has nothing else)."""
        marks = {str(self.folder), *(str(e["run_id"]) for e in self.events() if e["event"] == "attempt_started")}
        found = []
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if one.pid == os.getpid() or one.status() == psutil.STATUS_ZOMBIE:
                    continue
                words = [*one.cmdline(), *one.environ().values()]
                if any(mark in word for word in words for mark in marks):
                    found.append(f"{one.pid} {' '.join(one.cmdline())[:120]}")
        return found

    def end(self) -> None:
        if self.running:
            self.process.kill()
        if self.process is not None:
            self.process.wait(30)

    def mount(self) -> None:
        """The model directory on a disk of its own that can be filled; without the right to mount there is none."""
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", self.disk], capture_output=True)
        self.mounted = made.returncode == 0

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", self.disk], check=False)


class Hang(Exception):
    """Something did not come within the deadline."""


def until(what: str, look: Callable[[], Any], *, seconds: float = DEADLINE_SECS, poll: float = 0.02) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(poll)
    raise Hang(f"{what} did not come within {seconds:.0f} s")


# -- the faults -------------------------------------------------------------------------------------------------------
# Each hits the job, and says whether it landed, and whether the launcher went with it (the same command is then started
# again).


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
            until("the end of the attempt", lambda: job.attempt() is None or _attempts_ended(job) or not job.running)
    except (psutil.Error, OSError):
        return Hit(False)  # the task was quicker, or has gone
    return Hit(True)


def _attempts_ended(job: Job) -> bool:
    events = job.events()
    started = sum(event["event"] == "attempt_started" for event in events)
    return sum(event["event"] == "attempt_ended" for event in events) >= started


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


# -- a job and its end ------------------------------------------------------------------------------------------------


def attack(job: Job, kinds: list[str], rng: random.Random, *, first: int, number: int) -> Iterator[Fault]:
    """Runs a job, and hits it with one fault after the other while it trains."""
    job.start()
    for kind in kinds:
        if not _trains(job):
            return
        time.sleep(rng.uniform(0, 1.5))
        if not job.running:
            return
        fault = Fault(first, number, job.shape.name, kind, job.step(), job.checkpoint())
        first += 1
        steps, hit = _first_steps(job), time.monotonic()
        try:
            blow = FAULTS[kind](job, rng)
            fault.landed = blow.landed
            if blow.launcher:
                job.start()
                steps = 0
            # Without its evaluator an attempt goes on.
            before = (fault.step or 0) if kind == "term evaluator" else math.inf
            until(
                "a step, or the end",
                lambda steps=steps, before=before: (
                    _first_steps(job) > steps or (job.step() or 0) > before or not job.running
                ),
            )
            fault.seconds = round(time.monotonic() - hit, 1)
        except Hang as hang:
            fault.problem = f"hang: {hang}"
            yield fault
            return
        yield fault
    # What the last fault began is let come to its end by the caller.


def _first_steps(job: Job) -> int:
    return sum(event["event"] == "first_step" for event in job.events())


def _is_training(job: Job) -> bool:
    return _first_steps(job) > 0 and not _attempts_ended(job)


def _trains(job: Job) -> bool:
    """Waits until the attempt has made a step; False when the job is over."""
    until("the first step of an attempt", lambda: not job.running or _is_training(job))
    return job.running


def judge(job: Job, reference: Path | None) -> list[str]:
    """What is wrong with a job that has been let come to its end."""
    problems = []
    try:
        until("the job's end", lambda: not job.running, seconds=2 * DEADLINE_SECS)
    except Hang as hang:
        job.end()
        return [f"hang: {hang}"]
    if job.process.returncode != 0:
        return [f"exit code {job.process.returncode}: {_last_lines(job.logs / 'launch.out')}"]
    if left := job.orphans():
        problems.append(f"orphans: {left}")
    asked = [sys.executable, "-m", "estimator_pipeline", "inspect", str(job.file), "--ledger",
             str(job.model_dir / "ledger"),
             *(word for change in (*job.shape.changes, f"run.model_dir={job.model_dir}")
               for word in ("--set", change))]  # fmt: skip
    done = subprocess.run(asked, capture_output=True, text=True, env=job.environ, cwd=ROOT, timeout=120)
    if done.returncode != 0:
        problems.append(f"ledger: {done.stdout.strip()[-500:]} {done.stderr.strip()[-300:]}")
    if reference is not None:
        problems += _differences(reference, job.model_dir)
    return problems


_COMPARE = """
import sys
import numpy as np
import tensorflow as tf
one, other = (tf.train.load_checkpoint(tf.train.latest_checkpoint(folder)) for folder in sys.argv[1:])
names, others = (
    {name for name in each.get_variable_to_shape_map() if "save_counter" not in name and "OBJECT_GRAPH" not in name}
    for each in (one, other)
)
assert names == others, names ^ others
bad = [name for name in sorted(names) if not np.array_equal(one.get_tensor(name), other.get_tensor(name))]
print("differ:", ", ".join(bad) if bad else "nothing")
"""


def _differences(reference: Path, model_dir: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _COMPARE, str(reference), str(model_dir)], capture_output=True, text=True, timeout=120
    )
    if done.returncode != 0:
        return [f"weights: {done.stderr.strip()[-300:]}"]
    told = done.stdout.strip().splitlines()[-1]
    return [] if told == "differ: nothing" else [f"weights {told}"]


def _last_lines(path: Path) -> str:
    return " | ".join(path.read_text(errors="replace").strip().splitlines()[-6:])[-600:]


def undisturbed(folder: Path, shape: Shape, environ: dict[str, str]) -> Path:
    """The model directory of a job of this shape that nobody touches."""
    job = Job(folder, shape, environ)
    job.start()
    problems = judge(job, None)
    job.end()
    if problems:
        raise SystemExit(f"the undisturbed job ({shape.name}) failed: {problems}; see {folder}")
    return job.model_dir


def campaign(
    folder: Path,
    *,
    faults: int,
    seed: int,
    kinds: tuple[str, ...] | None = None,
    shapes: tuple[Shape, ...] = SHAPES,
    changes: tuple[str, ...] = (),
    seconds: float = float("inf"),
    before: Sequence[Fault] = (),
    judged: Callable[[list[Fault]], None] = lambda hits: None,
    tell: Callable[[str], None] = print,
) -> list[Fault]:
    """Runs jobs until `faults` have hit, or time is up; every fault, with what was found.

    Args:
        folder: for the jobs; those in which something was found stay there.
        faults: how many.
        seed: of all choices.
        kinds: of these alone.
        shapes: of jobs.
        changes: to all job files.
        seconds: no new job is begun after so many.
        before: the faults of the same campaign so far; it goes on with the job after theirs.
        judged: gets the faults of each job, when it has been judged.
        tell: gets a line for each fault.
    """
    environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    shapes = tuple(dataclasses.replace(shape, changes=(*shape.changes, *changes)) for shape in shapes)
    references: dict[str, Path] = {}
    found = list(before)
    number, ends = max((fault.job for fault in found), default=0), time.monotonic() + seconds
    tell(f"fault campaign: {faults} faults, seed {seed}" + (f"; {len(found)} are done" if found else ""))
    while len(found) < faults and time.monotonic() < ends:
        number += 1
        rng = random.Random(f"{seed}/{number}")
        shape = rng.choices(shapes, _WEIGHTS[: len(shapes)])[0]
        possible = [kind for kind in shape.kinds if kinds is None or kind in kinds]
        chosen = _least_met(possible, shape, found, rng)[: min(FAULTS_A_JOB, faults - len(found))]
        if shape.exact and shape.name not in references:
            references[shape.name] = undisturbed(folder / f"undisturbed-{len(references)}", shape, environ)
        job = Job(folder / f"job-{number}", shape, environ)
        if "full disk" in chosen:
            job.mount()
            if not job.mounted:
                chosen = [kind for kind in chosen if kind != "full disk"]
        hits: list[Fault] = []
        problems: list[str] = []
        try:
            for fault in attack(job, chosen, rng, first=len(found) + 1, number=number):
                hits.append(fault)
                found.append(fault)
                tell(_line(fault))
            if not any(fault.problem for fault in hits):
                problems = judge(job, references.get(shape.name))
        except Hang as hang:
            problems = [f"hang: {hang}"]
        finally:
            job.end()
            kept = job.folder / "kept"
            if (problems or any(fault.problem for fault in hits)) and job.mounted:
                shutil.copytree(job.disk, kept, dirs_exist_ok=True)
            job.unmount()
        if problems and not hits:
            # Before the first fault: a job that never came to its first step counts as well.
            hits.append(Fault(len(found) + 1, number, shape.name, "none"))
            found += hits
        if hits:
            hits[-1].problem = "; ".join([*filter(None, [hits[-1].problem]), *problems])
        said = "; ".join(problems) or (hits and hits[-1].problem) or "as if nothing had been"
        tell(f"  job {number} ({shape.name}), {len(hits)} faults: {said}")
        judged(hits)
        if hits and not hits[-1].problem:
            shutil.rmtree(job.folder, ignore_errors=True)
    return found


def _least_met(kinds: Sequence[str], shape: Shape, found: Sequence[Fault], rng: random.Random) -> list[str]:
    """The kinds in random order, those that a shape of job has met least before the others."""
    met = collections.Counter(fault.kind for fault in found if fault.shape == shape.name and fault.landed)
    return sorted(kinds, key=lambda kind: (met[kind], rng.random()))


def _line(fault: Fault) -> str:
    again = "" if fault.seconds is None else f", {fault.seconds} s to the next step"
    where = f"at step {fault.step}, checkpoint {fault.checkpoint}"
    late = "" if fault.landed else ", came too late"
    return f"{fault.number:4d} {fault.shape:24s} {fault.kind:20s} {where}{again}{late} {fault.problem}"


def report(found: list[Fault], *, seed: int, versions: str) -> str:
    """The campaign as a document."""
    bad = [fault for fault in found if fault.problem]
    jobs = len({fault.job for fault in found})
    lines = [
        "# The fault campaign",
        "",
        "Made by `make faults` (`tests/faults/campaign.py`, where each fault and how jobs are judged is written).",
        "A job has several faults, one after the other, at random moments. When it has ended, the final weights are",
        "compared with those of a job that nobody disturbed, bit by bit (synchronous jobs), its ledger is checked for",
        "records that were consumed twice or never, and the machine is searched for processes that were left.",
        "",
        f"Seed {seed}; {versions}; two cores. {len(found)} faults in {jobs} jobs; jobs in which something was found: "
        f"{len({fault.job for fault in bad})}.",
        f"`make faults FAULTS={len(found)} SEED={seed}` makes the same choices.",
        "",
        "*Landed* are those that met what they were meant for; the others came too late (the process had just ended,",
        "the checkpoint was written already), and hit the job all the same.",
        "",
        "| fault | number | landed | seconds to the next step, median | longest | found |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    by_kind: dict[str, list[Fault]] = collections.defaultdict(list)
    for fault in found:
        by_kind[fault.kind].append(fault)
    for kind, faults in sorted(by_kind.items()):
        seconds = sorted(fault.seconds for fault in faults if fault.seconds is not None)
        middle = f"{seconds[len(seconds) // 2]:.1f}" if seconds else ""
        longest = f"{seconds[-1]:.1f}" if seconds else ""
        problems = "; ".join(f"job {fault.job}: {fault.problem[:160]}" for fault in faults if fault.problem)
        landed = sum(fault.landed for fault in faults)
        lines.append(f"| {kind} | {len(faults)} | {landed} | {middle} | {longest} | {problems or 'nothing'} |")
    lines += ["", "| job | faults | jobs |", "| --- | --- | --- |"]
    for shape in SHAPES:
        faults = [fault for fault in found if fault.shape == shape.name]
        lines.append(f"| {shape.name} | {len(faults)} | {len({fault.job for fault in faults})} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no job after so many")
    parser.add_argument("--kinds", help="of these alone, with commas between")
    parser.add_argument("--results", type=Path, help="keep each fault here, and go on from it by its seed")
    parser.add_argument("--report", type=Path, help="write the table here")
    parser.add_argument("--keep", type=Path, help="the folder of the jobs; otherwise a temporary one")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="faults-"))
    kinds = tuple(options.kinds.split(",")) if options.kinds else None
    unknown = set(kinds or ()) - set(FAULTS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    shapes = tuple(shape for shape in SHAPES if kinds is None or set(kinds) & set(shape.kinds))
    before: list[Fault] = []
    if options.results and options.results.exists():
        first, *rest = options.results.read_text().splitlines()
        options.seed = json.loads(first)["seed"]
        before = [Fault(**json.loads(line)) for line in rest]
    elif options.results:
        options.results.write_text(json.dumps({"seed": options.seed}) + "\n")

    def judged(hits: list[Fault]) -> None:
        if options.results:
            with open(options.results, "a") as file:
                file.writelines(json.dumps(dataclasses.asdict(fault)) + "\n" for fault in hits)

    found = campaign(
        folder,
        faults=options.faults,
        seed=options.seed,
        kinds=kinds,
        shapes=shapes,
        seconds=60 * options.minutes,
        before=before,
        judged=judged,
        tell=lambda line: print(line, flush=True),
    )
    bad = [fault for fault in found if fault.problem]
    print(
        f"{len(found)} faults, {len(bad)} jobs in which something was found"
        + (f"; they are in {folder}" if bad else "")
    )
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    if options.report:
        from importlib.metadata import version

        told = f"TensorFlow {version('tensorflow')}, Python {sys.version_info.major}.{sys.version_info.minor}"
        options.report.write_text(report(found, seed=options.seed, versions=told))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

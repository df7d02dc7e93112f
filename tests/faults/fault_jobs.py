"""Jobs under attack: kinds of jobs, their processes and history as an observer sees them, and waits with a deadline."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
STEPS, EVERY = 1800, 90
# Nothing of a job may take longer than this without an event in its history.
DEADLINE_SECS = 120.0

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
WEIGHTS = (4, 2, 2, 2)


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

    @property
    def attempts_ended(self) -> bool:
        """Whether no attempt runs now."""
        events = self.events()
        started = sum(event["event"] == "attempt_started" for event in events)
        return sum(event["event"] == "attempt_ended" for event in events) >= started

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

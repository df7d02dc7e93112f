"""Jobs under attack: kinds of jobs, their processes and history as an observer sees them, and waits with a deadline."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
STEPS, EVERY = 3600, 120
# Nothing of a job may take longer than this without an event in its history.
DEADLINE_SECS = 120.0
BATCH, EXPORTS_TO_KEEP = 60, 2

_DIGITS = "source: tfds, name: digits"
# The same records in files of the job's own, as `estimator-pipeline partition` writes them.
_FILES = (
    'source: tfrecord, train: "{0}/train-*.tfrecord", eval: "{0}/eval-*.tfrecord", features_key: image, features: '
    "{{image: {{dtype: uint8, shape: [8, 8, 1], kind: raw}}, label: {{dtype: int64}}}}"
)
JOB = f"""
model: {{name: dnn, params: {{hidden_units: [16]}}, optimizer: {{name: momentum, learning_rate: 0.05}}}}
input: {{DATA, scale: 1/16, global_batch_size: {BATCH}, seed: 3}}
train: {{max_steps: {STEPS}}}
eval: {{exporters: [{{kind: latest, exports_to_keep: {EXPORTS_TO_KEEP}}}]}}
run:
  {{model_dir: nowhere, seed: 5, save_checkpoints_steps: {EVERY}, ledger: true, preemption_signals: [SIGTERM, SIGUSR1]}}
"""


@dataclasses.dataclass(frozen=True)
class Shape:
    """A kind of job.

    Attributes:
        name: for the report.
        changes: to the job file.
        kinds: the faults that it can meet.
        workers: how many there are, before it is resized.
        exact: whether its final weights are those of an undisturbed run.
        weights: how many times as often as others it shall meet some kinds.
        files: whether its data are files of its own.
    """

    name: str
    changes: tuple[str, ...]
    kinds: tuple[str, ...]
    workers: int = 2
    exact: bool = True
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    files: bool = False

    @property
    def exports(self) -> bool:
        """Whether the job promises SavedModels."""
        return "eval.exporters=[]" not in self.changes

    @property
    def max_steps(self) -> int:
        """The step at which training ends."""
        said = [int(change.partition("=")[2]) for change in self.changes if change.startswith("train.max_steps=")]
        return said[-1] if said else STEPS

    @property
    def most_steps(self) -> int:
        """The step that the last update makes it, at the most.

        Chief and workers that step on their own each end one step late where they read the global step before others
        had counted theirs, and are in one more when it is reached.
        """
        return self.max_steps if self.exact else self.max_steps + 2 * (self.workers + 1)


_EVERYWHERE = ("kill chief", "kill at start", "kill in checkpoint", "stop chief", "term chief", "kill launcher",
               "term launcher", "int launcher", "asked twice", "asked in checkpoint", "torn checkpoint",
               "kill in rescue", "full disk", "start on a full disk", "full log disk", "zero exit",
               "empty state file", "vanished folder")  # fmt: skip
_WORKERS = (*_EVERYWHERE, "kill worker", "stop worker", "term worker", "take port")
# Of tasks on several machines: their workers are started by hand, where there is time for it before training ends.
BY_HAND = ("skew", "partition", "hung peer", "missing peer")
_EVALUATOR = ("kill evaluator", "kill in evaluation", "kill in export", "term evaluator", "stop evaluator")
_PS = ("kill ps", "stop ps", "term ps")
_MWM = ("run.train_distribute=multi_worker_mirrored",)
SHAPES = (
    Shape(
        "two workers, evaluator",
        (*_MWM, "cluster.evaluator=true"),
        (*_WORKERS, *BY_HAND, "stop while stopping", "resized", *_EVALUATOR),
    ),
    Shape(
        "two workers, Keras",
        (*_MWM, "run.engine=keras", "eval.exporters=[]"),
        (*_WORKERS, *BY_HAND, "stop while stopping", "resized"),
    ),
    Shape("one process", (), (*_EVERYWHERE, "kill in export"), workers=1),
    Shape(
        "chief, worker, ps",
        ("run.train_distribute=parameter_server", "cluster.chief=true", "cluster.ps=1"),
        (*(kind for kind in _WORKERS if kind != "take port"), *_PS),
        workers=1,
        exact=False,
        weights=dict.fromkeys(_PS, 3.0),
    ),
    Shape("two workers, files", _MWM, ("crc", "replaced file", "kill worker", "vanished folder"), files=True),
)
WEIGHTS = (4, 2, 2, 4, 2)
# The kinds for which the job's folders must be disks of their own.
NEEDS_DISKS = frozenset({"full disk", "start on a full disk", "full log disk"})
# The kind for which tasks must have networks of their own.
NEEDS_NETWORKS = frozenset({"partition"})


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
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    """Of the job's last fault: what was measured of the whole job."""


@dataclasses.dataclass
class Launch:
    """One start of the job's command.

    Attributes:
        logs: the folder of its logs.
        out: what the launcher said.
        process: the launcher; None in tests of the judge.
        returncode: once it has ended.
        asked: the signal that it got from us, if any.
        refused: whether what it found could not be trained with, so that it ended with exit code 2.
        log_full: whether the disk of its logs was full for a while, and what it would have written was lost.
        starved: whether that lasted until its end.
    """

    logs: Path
    out: Path
    process: subprocess.Popen[bytes] | None = None
    returncode: int | None = None
    asked: int | None = None
    refused: bool = False
    log_full: bool = False
    starved: bool = False

    @property
    def killed(self) -> bool:
        return self.asked == signal.SIGKILL


class Job:
    """A job under attack: its command, its history, its processes; and what the judge must know of its faults.

    Attributes:
        launches: every start of its command.
        workers: how many it has now.
        damaged: the checkpoints that faults have damaged, and "checkpoint" for the state file.
        cut: those of them in which nothing but a look at all values could miss the damage: they must be set aside.
        starved: run ids of attempts that had no room on the disk of the model directory.
        resized: whether it went on with another number of workers.
        calm: when the last fault was over, in seconds since 1970; 0 for a job that nobody disturbed.
    """

    def __init__(self, folder: Path, shape: Shape, environ: dict[str, str]) -> None:
        self.folder, self.shape = folder, shape
        self.disk, self.log_disk = folder / "disk", folder / "logs"
        self.disk.mkdir(parents=True)
        self.log_disk.mkdir()
        self.model_dir = self.disk / "model"
        self.file = folder / "job.yaml"
        # A task leaves with exit code 0 when it finds a file of its name here (`leaves/sitecustomize.py`).
        self.leave = folder / "leave"
        self.leave.mkdir()
        path = os.pathsep.join([str(ROOT / "tests" / "faults" / "leaves"), environ.get("PYTHONPATH", "")])
        self.environ = {**environ, "PYTHONPATH": path, "FAULTS_LEAVE": str(self.leave)}
        self.data = folder / "data"
        self.file.write_text(JOB.replace("DATA", _DIGITS))
        if shape.files:
            self._write_files()
        self.launches: list[Launch] = []
        self.workers = shape.workers
        self.damaged: set[str] = set()
        self.cut: set[str] = set()
        self.starved: set[str] = set()
        self.resized = False
        self.calm = 0.0
        self.mounted: list[Path] = []

    @property
    def changes(self) -> list[str]:
        """To the job file, as it is now."""
        return [*self.shape.changes, f"cluster.workers={self.workers}", f"run.model_dir={self.model_dir}"]

    def settings(self, *more: str) -> list[str]:
        """The same, and more of them, as options of a command."""
        return [word for change in (*self.changes, *more) for word in ("--set", change)]

    def command(self, logs: Path, *options: str) -> list[str]:
        return [sys.executable, "-m", "estimator_pipeline", "launch", str(self.file), "--log-dir", str(logs),
                *options, *self.settings()]  # fmt: skip

    def _write_files(self) -> None:
        command = [sys.executable, "-m", "estimator_pipeline", "partition", str(self.file), str(self.data),
                   "--parts", "2"]  # fmt: skip
        subprocess.run(command, env=self.environ, cwd=ROOT, check=True, capture_output=True, timeout=DEADLINE_SECS)
        self.file.write_text(JOB.replace("DATA", _FILES.format(self.data)))

    @property
    def logs(self) -> Path:
        return self.launches[-1].logs

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        return self.launches[-1].process if self.launches else None

    def start(self) -> None:
        number = len(self.launches) + 1
        # Ports are let go, so that they can be taken; heartbeats decide about stopped processes within seconds.
        options = ["--max-restarts", "20", "--heartbeat-timeout", "8", "--start-timeout", "90", "--step-timeout", "60",
                   "--backoff", "0.2", "--free-ports"]  # fmt: skip
        launch = Launch(self.log_disk / str(number), self.folder / f"launch-{number}.out")
        with open(launch.out, "wb") as out:
            launch.process = subprocess.Popen(
                self.command(launch.logs, *options), stdout=out, stderr=subprocess.STDOUT, env=self.environ, cwd=ROOT
            )
        self.launches.append(launch)

    def events(self) -> list[dict[str, Any]]:
        return events_of(self.logs)

    def attempt(self) -> Path | None:
        """The folder of the attempt that runs now."""
        started = [event for event in self.events() if event["event"] == "attempt_started"]
        return Path(started[-1]["log_dir"]) if started else None

    def run_id(self) -> str | None:
        """The id of the attempt that runs now."""
        started = [event for event in self.events() if event["event"] == "attempt_started"]
        return str(started[-1]["run_id"]) if started else None

    @property
    def attempts_ended(self) -> bool:
        """Whether no attempt runs now."""
        events = self.events()
        started = sum(event["event"] == "attempt_started" for event in events)
        return sum(event["event"] == "attempt_ended" for event in events) >= started

    def step(self) -> int | None:
        """The last step that a task told in the attempt that runs now."""
        return max((one for steps in self._told().values() for one in steps), default=None)

    def has_stepped(self, task: str) -> bool:
        """Whether a task has told a step in the attempt that runs now."""
        return bool(self._told().get(task.replace(":", "-")))

    def _told(self) -> dict[str, list[int]]:
        """The steps that each task told in the attempt that runs now."""
        folder = self.attempt()
        return {
            path.name.partition(".")[0]: [
                event["step"]
                for event in lines_of(path)
                if event.get("event") == "step" and event.get("step") is not None
            ]
            for path in (folder.glob("*.progress.jsonl") if folder else ())
        }

    def knows_checkpoint(self) -> bool:
        """Whether a task has told the launcher of a checkpoint."""
        told = (lines_of(path) for path in self.logs.glob("attempt-*/*.progress.jsonl"))
        return any(event.get("event") == "checkpoint" for events in told for event in events)

    def checkpoint(self) -> int | None:
        steps = [int(path.stem.rpartition("-")[2]) for path in self.model_dir.glob("*ckpt-*.index")]
        return max(steps, default=None)

    def named(self) -> int | None:
        """The step of the checkpoint that the state file calls the newest."""
        with contextlib.suppress(OSError):
            said = re.search(r'^model_checkpoint_path: ".*-(\d+)"', (self.model_dir / "checkpoint").read_text(), re.M)
            return int(said[1]) if said else None
        return None

    def tasks(self) -> dict[str, psutil.Process]:
        """Task -> its process."""
        found: dict[str, psutil.Process] = {}
        with contextlib.suppress(psutil.Error):
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
        if self.process is None:
            return False
        self.launches[-1].returncode = self.process.poll()
        return self.launches[-1].returncode is None

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

    def mount(self) -> bool:
        """Model directory and logs on disks of their own that can be filled; False without the right to mount."""
        for disk, size in ((self.disk, "24m"), (self.log_disk, "8m")):
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
            if subprocess.run(command, capture_output=True).returncode != 0:
                return False
            self.mounted.append(disk)
        return True

    def unmount(self) -> None:
        for disk in self.mounted:
            subprocess.run(["umount", "-l", str(disk)], check=False)
        self.mounted = []


def events_of(logs: Path) -> list[dict[str, Any]]:
    """A history's events. The last line may be read while it is written."""
    return lines_of(logs / "events.jsonl")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; what cannot be read is left out."""
    found = []
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    found.append(event)
    return found


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

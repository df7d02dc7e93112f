"""Progress file: events of a running task, one JSON object per line.

The launcher sets ESTIMATOR_PIPELINE_PROGRESS to a separate path for each task. The task appends events:

    {"time": 1700000000.0, "event": "step", "step": 100, "loss": 0.31, "steps_per_sec": 120.3}

| event | fields |
| --- | --- |
| start | task (its name in the cluster): a training begins, which ends with `result`, `end` or `raised`; rank (under |
| | srun), process (the name from `heartbeat_of`), max_steps (the global step of the end) |
| step | step (the global step), loss, steps_per_sec; steps (those of this task, if different) |
| evaluating | none: an evaluation has begun, or evaluated a further batch; once a second |
| evaluation | step, metrics {name: value} |
| checkpoint | step, path |
| export | path |
| stage | text: what this task does before its first step, or which data it trains; from the chief |
| warning | text: a warning for the user, as in the log; task, rank |
| trained | none: this task has made its last step, and waits for the others or evaluates |
| result | status, global_step, metrics, exports [paths], steps (those of this task) |
| heartbeat | none: the process is alive; mostly replaced by touching a file, see below. preempting (the sender of the |
| | stop request) and seconds (the maximum time until it exits), when it stops training with a checkpoint |
| pace | task, step, steps, step_ms, wait_ms, input_ms: see `estimator_pipeline.launch.pace` |
| raised | the training has ended with an exception, which the program may catch: task, error (in one line), echo |
| | (whether a different task's end is the cause, according to the error) |
| end | status: "failed", "diverged" or "preempted"; caused_by (the task whose failure caused this one); |
| | task, rank, error; refusal {code, what, found, hint}: the error of a task that exits with code 2 or 3 |

ESTIMATOR_PIPELINE_PREEMPTED_FILE is for launchers that stop all tasks when one exits with a nonzero code, such as `srun
--kill-on-bad-exit`: a preempted task creates this file and exits with 0 instead of 75.

All fields except `time` and `event` are optional, and further ones may be added. Heartbeats would fill the file in
weeks, so tasks of this package touch a file beside it instead (`heartbeat_path`), every
ESTIMATOR_PIPELINE_HEARTBEAT_SECS; without this variable there are no heartbeats. For programs that write no progress
file, `estimator_pipeline.progress.log_reader` creates the same events from the lines that `tf.estimator` logs.

If one command starts several tasks, such as `srun`, all of them share one progress file. Then each touches a separate
file in the folder ESTIMATOR_PIPELINE_HEARTBEAT_FOLDER, and deletes it when it exits.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator_pipeline.progress.stack_dumps import StackDumps
from estimator_pipeline.utils.jsonable import finite, plain
from estimator_pipeline.utils.process_state import STATE

__all__ = [
    "CHECKPOINT_VARIABLE",
    "EVENTS",
    "HEARTBEAT_FOLDER_VARIABLE",
    "HEARTBEAT_VARIABLE",
    "PREEMPTED_FILE_VARIABLE",
    "PROGRESS_VARIABLE",
    "ProgressReader",
    "ProgressWriter",
    "Tail",
    "TaskState",
    "cause_of",
    "code_of_preemption",
    "forget_preemption",
    "from_environ",
    "given_up_path",
    "heartbeat_of",
    "heartbeat_path",
    "start_heartbeat",
    "stop_heartbeat",
]

PROGRESS_VARIABLE = "ESTIMATOR_PIPELINE_PROGRESS"
HEARTBEAT_VARIABLE = "ESTIMATOR_PIPELINE_HEARTBEAT_SECS"
HEARTBEAT_FOLDER_VARIABLE = "ESTIMATOR_PIPELINE_HEARTBEAT_FOLDER"
# In a restarted attempt: the path of the newest checkpoint that the attempts before have reported.
CHECKPOINT_VARIABLE = "ESTIMATOR_PIPELINE_CHECKPOINT"
PREEMPTED_FILE_VARIABLE = "ESTIMATOR_PIPELINE_PREEMPTED_FILE"
_REFUSAL = ("code", "what", "found", "hint")
EVENTS = (
    *("start", "step", "evaluating", "evaluation", "checkpoint", "export", "warning", "trained", "result"),
    *("stage", "features", "heartbeat", "pace", "raised", "end"),
)


def from_environ(environ: Mapping[str, str]) -> ProgressWriter:
    """Return the writer of this task; without a launcher, it does nothing."""
    return ProgressWriter(environ.get(PROGRESS_VARIABLE) or None)


def code_of_preemption(environ: Mapping[str, str], code: int) -> int:
    """Return the exit code of a preempted task.

    It is `code`, or 0 after creating the preempted file, if one is set.
    """
    path = environ.get(PREEMPTED_FILE_VARIABLE)
    if not path:
        return code
    try:
        Path(path).touch()
    except OSError:
        return code
    return 0


def forget_preemption(environ: Mapping[str, str]) -> None:
    """Delete the preempted file of an earlier attempt; called when a task starts."""
    path = environ.get(PREEMPTED_FILE_VARIABLE)
    if path:
        with contextlib.suppress(OSError):
            Path(path).unlink(missing_ok=True)


def heartbeat_path(progress: str | os.PathLike[str]) -> Path:
    """Return a task's heartbeat file, beside its progress file."""
    path = Path(progress)
    return path.with_name(f"{path.name.removesuffix('.jsonl').removesuffix('.progress')}.heartbeat")


def given_up_path(progress: str | os.PathLike[str], task: str) -> Path:
    """Return the file, beside the progress files of a launch, that exists if the launcher will not start a task again.

    Args:
        progress: The progress file of any task of the launch.
        task: The name of the task, such as "evaluator:0".
    """
    return Path(progress).with_name(f"{task.replace(':', '-')}.given-up")


class _Heart:
    """Loop that touches a file every `interval` seconds until it is stopped.

    Each time it also retries to write events that are pending.
    """

    def __init__(self, path: Path, interval: float, *, leaves: bool, progress: Path) -> None:
        self.pid, self.path, self._progress = os.getpid(), path, progress
        self._interval, self._leaves = interval, leaves
        # For several tasks with one progress file, requests are beside the folder of the heartbeats.
        self._stacks = StackDumps(path.parent.parent if leaves else path.parent, path.name.removesuffix(".heartbeat"))
        self._lock, self._over = threading.Lock(), threading.Event()

    def beat(self) -> None:
        while not self._over.is_set():
            # A full disk must not end the training.
            with contextlib.suppress(OSError), self._lock:
                if not self._over.is_set():
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self.path.touch()
            _outbox_of(self._progress).send()
            self._stacks.poll()
            self._over.wait(self._interval)

    def stop(self) -> None:
        # A forked child inherits the list, but not the thread.
        if self.pid != os.getpid():
            return
        self._over.set()
        with contextlib.suppress(OSError), self._lock:
            if self._leaves:
                self.path.unlink(missing_ok=True)


def start_heartbeat(environ: Mapping[str, str]) -> bool:
    """Start a thread that sends heartbeats, if the launcher requests them.

    Heartbeats stop if the process is suspended, the machine is lost, or a call never releases the GIL. They continue
    if the training hangs. Calling this again has no effect.

    Args:
        environ: The environment with the launcher's variables.

    Returns:
        Whether heartbeats are sent.
    """
    progress, seconds = environ.get(PROGRESS_VARIABLE), environ.get(HEARTBEAT_VARIABLE)
    if not progress or not seconds:
        return False
    try:
        interval = float(seconds)
    except ValueError:
        return False
    if not interval > 0:
        return False
    shared = environ.get(HEARTBEAT_FOLDER_VARIABLE)
    path = heartbeat_of(shared) if shared else heartbeat_path(progress)
    # The key has the process id, since a thread does not survive a fork.
    key = (os.getpid(), str(path))
    if key not in STATE.hearts:
        # Not stopped after the training: a program may train again, and shutting TensorFlow down takes time.
        heart = STATE.hearts[key] = _Heart(path, interval, leaves=bool(shared), progress=Path(progress))
        threading.Thread(target=heart.beat, name="estimator_pipeline-heartbeat", daemon=True).start()
        if shared:
            atexit.register(heart.stop)
    return True


def stop_heartbeat() -> None:
    """Stop the heartbeats before an exit that skips the interpreter's shutdown."""
    for heart in STATE.hearts.values():
        heart.stop()


def heartbeat_of(folder: str | os.PathLike[str]) -> Path:
    """Return this process's heartbeat file "HOST-PROCESS" in a shared folder."""
    return Path(folder) / f"{socket.gethostname()}-{os.getpid()}"


class _Outbox:
    """Pending lines of one progress file in this process.

    On a full disk lines are kept until there is space, so that the launcher learns that training has ended; of
    consecutive steps only the last is kept. Lines are written in the order of `put`, by any thread. A line whose
    writing was interrupted by a signal handler that raises may be written twice.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: deque[tuple[str, bytes]] = deque(maxlen=_KEPT)
        self._torn = self._failed = self._sending = False
        # A forked child has a new outbox with an unlocked lock. The lock is reentrant, since a signal handler may run
        # while its thread holds it.
        self._lock = threading.RLock()

    def put(self, event: str, line: bytes) -> None:
        with self._lock:
            if self._failed and event == "step" and self._lines and self._lines[-1][0] == "step":
                self._lines.pop()
            self._lines.append((event, line))

    def send(self) -> None:
        """Write the pending lines, as far as there is space."""
        with self._lock:
            if self._sending:
                return  # a signal handler during `send`: its line is written afterwards
            self._sending = True
            try:
                while self._lines and self._send(self._lines[0]):
                    pass
            finally:
                self._sending = False

    def _send(self, first: tuple[str, bytes]) -> bool:
        event, line = first
        missing = self._write(line)
        self._failed = bool(missing)
        # A signal handler may have replaced it by a later step.
        if self._lines and self._lines[0] is first:
            if not missing:
                self._lines.popleft()
            elif missing == b"\n":
                # Only the line's end is missing: writing the line again would duplicate it.
                self._lines[0] = (event, b"")
        return not missing

    def _write(self, line: bytes) -> bytes:
        """Append a line; return the part that could not be written."""
        whole = b"\n" + line if self._torn else line
        # If this is interrupted, an unknown part of the line has been written.
        self._torn = True
        try:
            # Opened each time, so that a writer survives fork and pickling; it takes about ten microseconds.
            target = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                # A single write, so that lines of several processes do not mix.
                missing = whole[os.write(target, whole) :]
            finally:
                os.close(target)
        except OSError:
            return whole
        self._torn = bool(missing)
        return missing


_KEPT = 1000


def _outbox_of(path: Path) -> _Outbox:
    """Return the outbox of this process; a parent writes its own pending lines."""
    return STATE.outboxes.setdefault((os.getpid(), str(path)), _Outbox(path))


class ProgressWriter:
    """Writer of events to a progress file.

    It ignores errors of the file, which must not end the training.

    On a full disk events are kept, and written with a later event or heartbeat.

    Args:
        path: The file, created by the first event; None for a writer that does nothing.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)

    @property
    def enabled(self) -> bool:
        """Whether events are written."""
        return self.path is not None

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event.

        Args:
            event: One of `EVENTS`.
            **fields: Its fields. NumPy values and paths are converted to plain values.

        Raises:
            ValueError: `event` is unknown. Errors of the file, such as a full disk, are ignored.
        """
        if event not in EVENTS:
            raise ValueError(f"event is {event!r}; allowed are {', '.join(EVENTS)}.")
        if self.path is None:
            return
        document = finite({"time": time.time(), "event": event, **fields})
        line = json.dumps(document, default=plain).encode() + b"\n"
        outbox = _outbox_of(self.path)
        outbox.put(event, line)
        outbox.send()


class Tail:
    """Reader of the complete lines that were appended to a file since the last call.

    Args:
        path: The file. It may not exist yet.
        offset: The byte to start at.
    """

    def __init__(self, path: str | os.PathLike[str], *, offset: int = 0) -> None:
        self.path = Path(path)
        self._offset = offset
        self._rest = b""

    def lines(self, *, whole: bool = True) -> Iterator[str]:
        """Return the new lines, the last one only when it is complete if `whole`."""
        try:
            with open(self.path, "rb") as source:
                if os.fstat(source.fileno()).st_size < self._offset:
                    self._offset, self._rest = 0, b""  # the file was truncated: start at its beginning
                source.seek(self._offset)
                fresh = source.read()
        except OSError:
            return
        self._offset += len(fresh)
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        if self._rest and not whole:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            yield line.decode("utf-8", "replace")


class ProgressReader:
    """Reader of the new events of a progress file.

    An incomplete last line is read when it is complete; lines that are not events are skipped.

    Args:
        path: The file. It may not exist yet.
        offset: The byte to start at.
    """

    def __init__(self, path: str | os.PathLike[str], *, offset: int = 0) -> None:
        self._tail = Tail(path, offset=offset)

    def read(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        events = []
        for line in self._tail.lines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("event") in EVENTS:
                events.append(event)
        return events


@dataclass
class TaskState:
    """Current state of one task.

    Attributes:
        state: "waiting", "running", "ending" (asked to stop), and at the end "done" (exit code 0), "failed",
            "preempted", "released" (stopped after the training, when it was no longer needed) or "stopped" (by the
            launcher).
        exit_code: The exit code, or minus the number of the signal that ended it, as in `subprocess`.
        seconds: Its run time, if it has ended.
        step: The last reported global step.
        steps: The number of steps that it trained, if reported.
        max_steps: The global step at which training ends, if reported.
        loss: The last reported loss.
        loss_step: Its global step.
        evaluation: The last evaluation: step and metrics.
        checkpoint: The step of the last reported checkpoint.
        exports: Paths of exported models.
        result: The fields of the `result` event, if there is one.
        begun: The tasks that have reported a start of training, and no end since then. Mostly only this task; several
            if all tasks of a command write to one file; "" for a task that did not report its name.
        trained: Whether it has reported that it made its last step.
        caused_by: The task that it reports as the cause of its failure.
        ended_as: The status of the `end` event: "failed", "diverged" or "preempted".
        refusal: The error of bad input or diverged training in the `end` event: code, what, found, hint.
        error: The last reported exception in one line; "" without an exception since training last started.
        echo: Whether it is a consequence of a different task's failure, as far as it is known there.
        preempting: The maximum seconds until it exits, as reported, if it was asked to stop and writes a checkpoint.
    """

    task: str
    pid: int | None = None
    state: str = "waiting"
    exit_code: int | None = None
    seconds: float | None = None
    step: int | None = None
    steps: int | None = None
    steps_per_sec: float | None = None
    max_steps: int | None = None
    loss: float | None = None
    loss_step: int | None = None
    evaluation: dict[str, Any] | None = None
    checkpoint: int | None = None
    exports: list[str] = field(default_factory=list)
    result: dict[str, Any] | None = None
    begun: list[str] = field(default_factory=list)
    trained: bool = False
    caused_by: str | None = None
    ended_as: str | None = None
    refusal: dict[str, str | None] | None = None
    error: str = ""
    echo: bool = False
    preempting: float | None = None

    @property
    def trains(self) -> bool:
        """Whether it is a training task."""
        return not self.task.startswith(("ps:", "evaluator:"))

    @property
    def step_loss(self) -> float | None:
        """The loss of `step`; None if the last reported one is of an earlier step."""
        return self.loss if self.loss_step == self.step else None

    @property
    def preempted(self) -> bool:
        """Whether it has reported that it was preempted."""
        return self.ended_as == "preempted"

    def apply(self, event: Mapping[str, Any]) -> None:
        """Update the state from an event. Fields of a wrong type are ignored."""
        kind = event["event"]
        if kind == "start":
            self.begun.append(str(event.get("task") or ""))
            self.error = ""
            self.max_steps = _number(event.get("max_steps"), int, None)
        if kind in ("start", "trained"):
            self.trained = kind == "trained"
        if kind in ("result", "raised", "end"):
            self.begun.clear()
        if kind in ("step", "checkpoint", "result"):
            key = "global_step" if kind == "result" else "step"
            self.step = _number(event.get(key), int, self.step)
            self.steps = _number(event.get("steps"), int, self.steps)
            if event.get("loss") is not None:
                self.loss, self.loss_step = _number(event["loss"], float, self.loss), self.step
            self.steps_per_sec = _number(event.get("steps_per_sec"), float, self.steps_per_sec)
        if kind == "checkpoint":
            self.checkpoint = self.step
        if kind == "evaluation" and isinstance(event.get("metrics"), Mapping):
            self.evaluation = {"step": event.get("step"), "metrics": dict(event["metrics"])}
        if kind == "export" and event.get("path"):
            self.exports.append(str(event["path"]))
        if kind == "heartbeat" and event.get("preempting"):
            self.preempting = _number(event.get("seconds"), float, 0.0)
        if kind in ("raised", "end") and event.get("error"):
            self.error, self.echo = str(event["error"]), bool(event.get("echo"))
        if kind == "end" and (cause := cause_of(event)):
            self.caused_by = cause
        if kind == "end" and event.get("status"):
            self.ended_as = str(event["status"])
        refusal = event.get("refusal")
        if kind == "end" and isinstance(refusal, Mapping) and refusal.get("what"):
            values = {"hint": refusal.get("mend"), **refusal}  # the key of the hint before 0.1.0
            self.refusal = {name: None if (value := values.get(name)) is None else str(value) for name in _REFUSAL}
        if kind == "result":
            self.result = {key: value for key, value in event.items() if key not in ("time", "event")}


def cause_of(event: Mapping[str, Any]) -> str:
    """Return the task that an `end` event reports as the cause; "" for none.

    In older files the field is "because".
    """
    return str(event.get("caused_by") or event.get("because") or "")


def _number(value: Any, kind: type, otherwise: Any) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise

"""What a running task tells the launcher: one JSON object a line, in a file that the environment names.

The launcher sets ESTIMATOR_PIPELINE_PROGRESS to a path of its own for each task. The task appends events:

    {"time": 1700000000.0, "event": "step", "step": 100, "loss": 0.31, "steps_per_sec": 120.3}

| event | fields |
| --- | --- |
| start | task (its name in the cluster): a training begins, which ends with `result`, `end` or `raised`; rank (under |
| | srun), process (as :func:`heartbeat_of` names it), max_steps (the global step of the end) |
| step | step (the global step), loss, steps_per_sec; steps (this task's own, where they differ) |
| evaluation | step, metrics {name: value} |
| checkpoint | step, path |
| export | path |
| warning | text: what a person should know, in the words of the log |
| trained | none: this task has left its last step, and waits for the others or evaluates |
| result | status, global_step, metrics, exports [paths], steps (this task's own) |
| heartbeat | none: the process is there, whatever it is at; or a touch of the file beside, see below. preempting (who |
| | asked it to end) and seconds (to its end, at the latest), once it stops training with a checkpoint |
| pace | task, step, steps, step_ms, wait_ms, input_ms: see :mod:`~estimator_pipeline.launch.pace` |
| raised | the training has ended with an exception, which the program may catch: task, error (in one line), echo |
| | (whether another task's end is the reason, as far as the error can tell) |
| end | status: "failed", "diverged" or "preempted"; caused_by (the task whose failure was the reason of this one's); |
| | task, rank, error; refusal {code, what, found, hint}: the error of a task that ends with exit code 2 |

ESTIMATOR_PIPELINE_PREEMPTED_FILE is for whoever ends all tasks when one ends with another code than 0, as `srun
--kill-on-bad-exit` does: a task that was asked to end makes this file and ends with 0 in place of 75.

Every field save `time` and `event` may be left out, and further ones may be added. Heartbeats would fill the file in
weeks, so a task of ours touches a file beside it instead (:func:`heartbeat_path`), every
ESTIMATOR_PIPELINE_HEARTBEAT_SECS; where the launcher has not set that, there are none. For programs that know
nothing of this, :mod:`~estimator_pipeline.progress.log_reader` makes the same events from the lines that
`tf.estimator` logs.

Where one command starts several tasks, as a line of `srun` does, all of them have one progress file. Then each has a
file of its own to touch, in the folder ESTIMATOR_PIPELINE_HEARTBEAT_FOLDER, and takes it away when it ends.
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
    "heartbeat_of",
    "heartbeat_path",
    "start_heartbeat",
    "stop_heartbeat",
]

PROGRESS_VARIABLE = "ESTIMATOR_PIPELINE_PROGRESS"
HEARTBEAT_VARIABLE = "ESTIMATOR_PIPELINE_HEARTBEAT_SECS"
HEARTBEAT_FOLDER_VARIABLE = "ESTIMATOR_PIPELINE_HEARTBEAT_FOLDER"
# Of an attempt after the first: the path of the newest checkpoint that those before it have told.
CHECKPOINT_VARIABLE = "ESTIMATOR_PIPELINE_CHECKPOINT"
PREEMPTED_FILE_VARIABLE = "ESTIMATOR_PIPELINE_PREEMPTED_FILE"
EVENTS = (
    *("start", "step", "evaluation", "checkpoint", "export", "warning", "trained", "result", "heartbeat"),
    *("pace", "raised", "end"),
)


def from_environ(environ: Mapping[str, str]) -> ProgressWriter:
    """The writer of this task; one that does nothing where no launcher is listening."""
    return ProgressWriter(environ.get(PROGRESS_VARIABLE) or None)


def code_of_preemption(environ: Mapping[str, str], code: int) -> int:
    """What a task that was asked to end exits with: `code`, or 0 where a file is to say it instead, which is made."""
    path = environ.get(PREEMPTED_FILE_VARIABLE)
    if not path:
        return code
    try:
        Path(path).touch()
    except OSError:
        return code
    return 0


def forget_preemption(environ: Mapping[str, str]) -> None:
    """Takes away what tasks of an earlier attempt said in that file; for a task that starts."""
    path = environ.get(PREEMPTED_FILE_VARIABLE)
    if path:
        with contextlib.suppress(OSError):
            Path(path).unlink(missing_ok=True)


def heartbeat_path(progress: str | os.PathLike[str]) -> Path:
    """The file that a task touches while it lives: "worker-0.heartbeat" beside "worker-0.progress.jsonl"."""
    path = Path(progress)
    return path.with_name(f"{path.name.removesuffix('.jsonl').removesuffix('.progress')}.heartbeat")


class _Heart:
    """Touches a file every `interval` seconds, to the end of this process or until it is stopped.

    What could not be written to the file of events is tried again each time.
    """

    def __init__(self, path: Path, interval: float, *, leaves: bool, progress: Path) -> None:
        self.pid, self.path, self._progress = os.getpid(), path, progress
        self._interval, self._leaves = interval, leaves
        # Of several tasks with one progress file: beside the folder in which they are told apart.
        self._stacks = StackDumps(path.parent.parent if leaves else path.parent, path.name.removesuffix(".heartbeat"))
        self._lock, self._over = threading.Lock(), threading.Event()

    def beat(self) -> None:
        while not self._over.is_set():
            # Training matters more than a full disk.
            with contextlib.suppress(OSError), self._lock:
                if not self._over.is_set():
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self.path.touch()
            _outbox_of(self._progress).send()
            self._stacks.look()
            self._over.wait(self._interval)

    def stop(self) -> None:
        # A forked child has its parent's list, and not its heart.
        if self.pid != os.getpid():
            return
        self._over.set()
        with contextlib.suppress(OSError), self._lock:
            if self._leaves:
                self.path.unlink(missing_ok=True)


_beating: dict[tuple[int, str], _Heart] = {}


def start_heartbeat(environ: Mapping[str, str]) -> bool:
    """Have a thread of this process send heartbeats to its end, where a launcher has asked for them.

    It beats as long as Python runs: a stopped process, a lost machine and a call that never lets go of the
    interpreter end it, a training that merely stands still does not. To call it again does nothing.

    Args:
        environ: Where the launcher's wishes stand.

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
    # With the process: a thread does not survive fork.
    key = (os.getpid(), str(path))
    if key not in _beating:
        # Not stopped with the training: a program may train again, and to tear TensorFlow down takes its time.
        heart = _beating[key] = _Heart(path, interval, leaves=bool(shared), progress=Path(progress))
        threading.Thread(target=heart.beat, name="estimator_pipeline-heartbeat", daemon=True).start()
        if shared:
            atexit.register(heart.stop)
    return True


def stop_heartbeat() -> None:
    """Before a process ends without the interpreter's end: it is not missed afterwards."""
    for heart in _beating.values():
        heart.stop()


def heartbeat_of(folder: str | os.PathLike[str]) -> Path:
    """The file of this process in a folder of several tasks' heartbeats: by its machine and its number there."""
    return Path(folder) / f"{socket.gethostname()}-{os.getpid()}"


class _Outbox:
    """The lines of one progress file that this process has still to write.

    Mostly one line for a moment. On a full disk they are kept until there is room, or else a launcher would never hear
    that training has ended; of steps in a row the last one is enough. Lines come in the order in which they were put,
    whichever thread writes them. A line that was interrupted by a signal's handler that raises may come twice, for
    nobody knows whether it was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: deque[tuple[str, bytes]] = deque(maxlen=_KEPT)
        self._torn = self._failed = self._sending = False
        # One of a process: a fork in the midst leaves no locked one to the child, which has its own outbox. A signal's
        # handler may come while its thread holds it.
        self._lock = threading.RLock()

    def put(self, event: str, line: bytes) -> None:
        with self._lock:
            if self._failed and event == "step" and self._lines and self._lines[-1][0] == "step":
                self._lines.pop()
            self._lines.append((event, line))

    def send(self) -> None:
        """Writes what there is room for."""
        with self._lock:
            if self._sending:
                return  # what a handler has put while its thread was sending goes after what is under way
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
        # A handler may have put a later step in its place.
        if self._lines and self._lines[0] is first:
            if not missing:
                self._lines.popleft()
            elif missing == b"\n":
                # The line is there, and lacks its end: whole again it would be there twice.
                self._lines[0] = (event, b"")
        return not missing

    def _write(self, line: bytes) -> bytes:
        """What is missing of the line then."""
        whole = b"\n" + line if self._torn else line
        # Where this is interrupted nobody knows how much of it is there.
        self._torn = True
        try:
            # Opened each time, so that a writer survives fork and pickling; some ten microseconds.
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
_outboxes: dict[tuple[int, str], _Outbox] = {}


def _outbox_of(path: Path) -> _Outbox:
    """That of this process: what a parent could not write, it writes itself."""
    return _outboxes.setdefault((os.getpid(), str(path)), _Outbox(path))


class ProgressWriter:
    """Appends events to a progress file. Never raises for the file's sake: training matters more.

    What finds no room on the disk is kept, and written with the next event or heartbeat that does.

    Args:
        path: The file, made when it is first written to; None for a writer that does nothing.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)

    @property
    def enabled(self) -> bool:
        """Whether events go anywhere."""
        return self.path is not None

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event.

        Args:
            event: One of :data:`EVENTS`.
            **fields: Its fields. NumPy values and paths are made plain.

        Raises:
            ValueError: `event` is none of them. A full disk, a lost folder and the like raise nothing.
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
    """The whole lines that were appended to a file since the last look.

    Args:
        path: The file, which need not be there yet.
        offset: Where to start, in bytes.
    """

    def __init__(self, path: str | os.PathLike[str], *, offset: int = 0) -> None:
        self.path = Path(path)
        self._offset = offset
        self._rest = b""

    def lines(self) -> Iterator[str]:
        try:
            with open(self.path, "rb") as source:
                if os.fstat(source.fileno()).st_size < self._offset:
                    self._offset, self._rest = 0, b""  # emptied by someone: begin again
                source.seek(self._offset)
                fresh = source.read()
        except OSError:
            return
        self._offset += len(fresh)
        *whole, self._rest = (self._rest + fresh).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")


class ProgressReader:
    """Reads the events of a progress file as they come.

    A half-written last line is kept until the rest of it is there; a line that is no event is left out.

    Args:
        path: The file, which need not be there yet.
        offset: Where to start, in bytes.
    """

    def __init__(self, path: str | os.PathLike[str], *, offset: int = 0) -> None:
        self._tail = Tail(path, offset=offset)

    def read(self) -> list[dict[str, Any]]:
        """The events since the last call."""
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
    """What is known of one task at this moment.

    Attributes:
        state: "waiting", "running", "ending" (asked to end), and then for good "done" (exit code 0),
            "failed" (by itself), "released" (ended after the training, having nothing left to do) or
            "stopped" (ended by the launcher).
        exit_code: As subprocess gives it: minus the signal's number when a signal ended it.
        seconds: How long it ran, once it has ended.
        step: The global step that it last told.
        steps: How many training steps it did itself, where it told that.
        max_steps: The global step at which training ends, where it told that.
        loss: The loss that it last told.
        evaluation: The last evaluation: step and metrics.
        checkpoint: The step of the last checkpoint that it told.
        exports: Paths of exported models.
        result: The `result` event, once it came.
        begun: The tasks that have told that their training began, and since when nobody has told an end. Mostly it is
            this one; several where all tasks of a command tell in one file; "" for one that did not say its name.
        trained: Whether it has told that it left its last step.
        caused_by: The task whose failure this one names as the reason of its own.
        ended_as: The status of the `end` event: "failed", "diverged" or "preempted".
        refusal: What the `end` event of a task that refuses its input tells: code, what, found, hint.
        error: The exception that it has told last, in one line; "" where none was, or it has trained again since.
        preempting: Once it was asked to end and writes a checkpoint: the seconds that it may take, as it told.
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
    preempting: float | None = None

    @property
    def trains(self) -> bool:
        """Whether it is a training task."""
        return not self.task.startswith(("ps:", "evaluator:"))

    @property
    def preempted(self) -> bool:
        """Whether it has told that it ends because it was asked to."""
        return self.ended_as == "preempted"

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take over what an event tells. A field of a wrong kind is left out."""
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
            self.loss = _number(event.get("loss"), float, self.loss)
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
            self.error = str(event["error"])
        if kind == "end" and (cause := cause_of(event)):
            self.caused_by = cause
        if kind == "end" and event.get("status"):
            self.ended_as = str(event["status"])
        refusal = event.get("refusal")
        if kind == "end" and isinstance(refusal, Mapping) and refusal.get("what"):
            # Until 0.1.0 was laid out anew the hint was called "mend".
            refusal = {"hint": refusal.get("mend"), **refusal}
            parts = {name: refusal.get(name) for name in ("code", "what", "found", "hint")}
            self.refusal = {name: None if part is None else str(part) for name, part in parts.items()}
        if kind == "result":
            self.result = {key: value for key, value in event.items() if key not in ("time", "event")}


def cause_of(event: Mapping[str, Any]) -> str:
    """The task whose failure an `end` event names as the reason of its own; "": none.

    Until 0.1.0 was laid out anew the field was called "because".
    """
    return str(event.get("caused_by") or event.get("because") or "")


def _number(value: Any, kind: type, otherwise: Any) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise

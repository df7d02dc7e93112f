"""End of a process whose command has ended, and whose interpreter does not shut down.

Python waits without a limit for threads that are not daemons and for functions of `atexit`. A task of a job that does
nothing there for a minute ends itself, with the exit code of its command: under every launcher, and wherever it runs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from pathlib import Path

import psutil

from estimator_pipeline.launch.stacks.frames import lines_of_every_thread
from estimator_pipeline.progress.stack_dumps import stacks
from estimator_pipeline.progress.task_events import TaskEvents

__all__ = ["end_if_idle"]

_LOOK_SECS = 5.0
# Looks, not a time: a suspended process has not been idle.
_IDLE_LOOKS = 12
# A process that uses less of a processor between two looks is idle, unless it writes: TensorFlow's servers use some
# thousandths, and write some bytes to wake their threads.
_IDLE_SHARE = 0.05
_IDLE_BYTES = 1024
_TRAINING = ("tensorflow_estimator", "keras", "tf_keras")
# The last flush may wait for a thread that will never release its stream.
_FLUSH_SECS = 10.0


def end_if_idle(code: int) -> None:
    """Start a thread that ends this process with `code` if it stays idle for a minute, and reports where it was."""
    events = TaskEvents(os.environ)
    threading.Thread(target=_end, args=(code, events), name="estimator_pipeline-late-exit", daemon=True).start()


def _end(code: int, events: TaskEvents) -> None:
    idle, before = 0, _work()
    while idle < _IDLE_LOOKS or _trains():
        time.sleep(_LOOK_SECS)
        now = _work()
        idle = idle + 1 if _is_idle(before, now) and not _is_runnable() else 0
        before = now
    text = stacks().decode(errors="replace")
    where = "; ".join(lines_of_every_thread(text))
    at = f": it was at {where}" if where else ""
    line = f"the program had ended, and its process did not exit{at}. It was ended with the program's exit code, {code}"
    events.warned(line)
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback_later(_FLUSH_SECS, exit=True)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\nestimator_pipeline: {line}\n".encode(errors="replace"))
    os._exit(code & 0xFF)


def _trains() -> bool:
    """Return whether the program has left a thread that trains, which may wait for other tasks."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = None if thread.daemon else frames.get(thread.ident or 0)
        while frame is not None:
            if str(frame.f_globals.get("__name__")).partition(".")[0] in _TRAINING:
                return True
            frame = frame.f_back
    return False


def _work() -> tuple[float, int, int]:
    """Return the processor time of this process and its children, the bytes that it wrote, and the size of its logs."""
    processor, written = time.process_time() - time.thread_time(), 0  # without this thread's own
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = child.cpu_times()
                processor += times.user + times.system
    with contextlib.suppress(OSError, ValueError):
        counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        written = int(counters.get("wchar", 0))
    logs = 0
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            logs += os.fstat(descriptor).st_size
    return processor, written, logs


def _is_idle(before: tuple[float, int, int], now: tuple[float, int, int]) -> bool:
    processor, written, logs = (new - old for old, new in zip(before, now, strict=True))
    return processor < _IDLE_SHARE * _LOOK_SECS and written < _IDLE_BYTES and logs == 0


def _is_runnable() -> bool:
    """Return whether another thread of this process, or a child, runs or waits for a processor of a busy machine."""
    this, processes = str(threading.get_native_id()), [os.getpid()]
    with contextlib.suppress(psutil.Error):
        processes += [child.pid for child in psutil.Process().children(recursive=True)]
    for process in processes:
        with contextlib.suppress(OSError):
            for status in Path(f"/proc/{process}/task").glob("[0-9]*/stat"):
                # proc(5): the state follows the name of the program, which may contain parentheses.
                if status.parent.name != this and status.read_text().rpartition(")")[2].split()[0] == "R":
                    return True
    return False

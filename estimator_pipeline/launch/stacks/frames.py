"""Search for the current lines of user code in Python stacks.

The stacks are those of a hung process when it is stopped, or of a running one on request
(`estimator_pipeline.progress.stack_dumps`). Python's faulthandler writes the stacks of all threads, the main
thread last, each with the innermost call first. Most of the calls are TensorFlow's.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from estimator_pipeline.launch.local.outcome import end_of

__all__ = ["lines_of_every_thread", "user_lines", "user_lines_in", "waiting_line"]

_LIMIT = 1024 * 1024
_FATAL = "Fatal Python error:"
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
# TensorFlow calls Python from its own threads: a generator of the input, a function of `tf.py_function`.
_CALLED = "/tensorflow/python/ops/script_ops.py"
_INSTALLED = re.compile(r"^<|/(?:site|dist)-packages/|/lib/python3\.\d+/|__autograph_generated_file")
_OURS = str(Path(__file__).resolve().parents[2]) + os.sep

_Frame = tuple[str, str, str]


def user_lines(log: Path, *, offset: int = 0) -> tuple[str, ...]:
    """Apply `user_lines_in` to the stacks at the end of a process's log, which begins at `offset`."""
    _, fatal, stacks = end_of(log, offset=offset, limit=_LIMIT).rpartition(_FATAL)
    return user_lines_in(stacks) if fatal else ()


def lines_of_every_thread(stacks: str) -> tuple[str, ...]:
    """Return the innermost lines of user code in all threads."""
    lines = [_line(frames, place) for frames in _threads(stacks) for place in _user_frames(frames)[:1]]
    return tuple(dict.fromkeys(lines))


def user_lines_in(stacks: str) -> tuple[str, ...]:
    """Return the innermost lines of user code in threads that may block training.

    These are the threads that TensorFlow called, for example for a generator of the input; without user code there,
    the function that TensorFlow called. If there are none, the main thread, unless it waits in TensorFlow. Other
    threads of the program are ignored, as they mostly wait for work.

    Args:
        stacks: The stacks of all threads in the format of faulthandler, the main thread last.

    Returns:
        Lines such as "/home/me/input.py, line 12, in read". Empty without stacks, or if none has such a line.
    """
    threads = _threads(stacks)
    called = [_before_tensorflow(frames) for frames in threads if any(file.endswith(_CALLED) for file, _, _ in frames)]
    lines = [
        _line(frames, user[0] if (user := _user_frames(frames)) else len(frames) - 1) for frames in called if frames
    ]
    if not lines and threads:
        frames = _before_tensorflow(threads[-1])
        lines = [_line(frames, place) for place in _user_frames(frames)[:1]]
    return tuple(dict.fromkeys(lines))


def waiting_line(stacks: str) -> str:
    """Return the main thread's innermost call and the user code that it comes from.

    This is for stacks in which `user_lines_in` finds nothing. Without user code, the line is one of this package.

    Args:
        stacks: See `user_lines_in`.

    Returns:
        Such as "run of session.py, line 9, called by /home/me/train.py, line 3, in main". "" without a main thread.
    """
    frames = next(iter(_threads(stacks)[-1:]), [])
    if not frames:
        return ""
    file, line, function = frames[0]
    ours = [i for i, (name, _, _) in enumerate(_before_tensorflow(frames)) if name.startswith(_OURS)]
    caller = next(iter(_user_frames(frames) or ours), 0)
    called_by = ", called by {}, line {}, in {}".format(*frames[caller]) if caller else ""
    return f"{function} of {os.path.basename(file)}, line {line}{called_by}"


def _threads(stacks: str) -> list[list[_Frame]]:
    return [_FRAME.findall(part) for part in _THREAD.split(stacks)[1:]]


def _before_tensorflow(frames: list[_Frame]) -> list[_Frame]:
    """Return the innermost calls up to the first one of TensorFlow."""
    return frames[: next((i for i, (file, _, _) in enumerate(frames) if "/tensorflow/" in file), len(frames))]


def _user_frames(frames: list[_Frame]) -> list[int]:
    """Return the indices of the calls in user code."""
    return [i for i, (file, _, _) in enumerate(frames) if not _INSTALLED.search(file) and not file.startswith(_OURS)]


def _line(frames: list[_Frame], place: int) -> str:
    file, line, function = frames[place]
    inner = f", which has called {frames[0][2]} of {os.path.basename(frames[0][0])}" if place else ""
    return f"{file}, line {line}, in {function}{inner}"

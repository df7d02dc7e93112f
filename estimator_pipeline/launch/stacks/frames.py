"""Where the code of a job's author stands, in the stacks that Python has written down: a hung one at its end, one
that runs when it is asked (:mod:`~estimator_pipeline.progress.stack_dumps`).

Python's faulthandler writes the stacks of all threads, the main one last, each from its innermost call on. Most of it
is TensorFlow's; who reads it looks for the line of their own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from estimator_pipeline.launch.local.outcome import end_of

__all__ = ["own_lines", "own_lines_in", "waiting_line"]

_LIMIT = 1024 * 1024
_FATAL = "Fatal Python error:"
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
# TensorFlow calls Python from its own threads: a generator of the input, a function of `tf.py_function`.
_CALLED = "/tensorflow/python/ops/script_ops.py"
_INSTALLED = re.compile(r"^<|/(?:site|dist)-packages/|/lib/python3\.\d+/|__autograph_generated_file")
_OURS = str(Path(__file__).resolve().parents[2]) + os.sep

_Frame = tuple[str, str, str]


def own_lines(log: Path, *, offset: int = 0) -> tuple[str, ...]:
    """:func:`own_lines_in` of the stacks at the end of a log.

    Args:
        log: the log of a process that ended with its stacks.
        offset: where its own part begins, in bytes.
    """
    _, fatal, stacks = end_of(log, offset=offset, limit=_LIMIT).rpartition(_FATAL)
    return own_lines_in(stacks) if fatal else ()


def own_lines_in(stacks: str) -> tuple[str, ...]:
    """The innermost lines of the author's own code in each thread that may hold up the training.

    First those that TensorFlow has called, as it calls a generator of the input; where none of the calls there is the
    author's, what TensorFlow has called. Else the main thread, where it does not wait in TensorFlow. Threads that the
    program keeps for itself are left out: they mostly wait for work.

    Args:
        stacks: of all threads, the main one last, as faulthandler writes them.

    Returns:
        Such as "/home/me/input.py, line 12, in read". Empty where there are no stacks, or none has such a line.
    """
    threads = _threads(stacks)
    called = [_before_tensorflow(frames) for frames in threads if any(file.endswith(_CALLED) for file, _, _ in frames)]
    found = [_line(frames, own[0] if (own := _own(frames)) else len(frames) - 1) for frames in called if frames]
    if not found and threads:
        frames = _before_tensorflow(threads[-1])
        found = [_line(frames, place) for place in _own(frames)[:1]]
    return tuple(dict.fromkeys(found))


def waiting_line(stacks: str) -> str:
    """Where the main thread is, and the author's own line that has called it; for stacks without own lines.

    Where no author's line is there, a line of this package that waits by itself.

    Args:
        stacks: see :func:`own_lines_in`.

    Returns:
        Such as "run of session.py, line 9, called by /home/me/train.py, line 3, in main". "" without a main thread.
    """
    frames = next(iter(_threads(stacks)[-1:]), [])
    if not frames:
        return ""
    file, line, function = frames[0]
    ours = [i for i, (name, _, _) in enumerate(_before_tensorflow(frames)) if name.startswith(_OURS)]
    caller = next(iter(_own(frames) or ours), 0)
    called_by = ", called by {}, line {}, in {}".format(*frames[caller]) if caller else ""
    return f"{function} of {os.path.basename(file)}, line {line}{called_by}"


def _threads(stacks: str) -> list[list[_Frame]]:
    return [_FRAME.findall(part) for part in _THREAD.split(stacks)[1:]]


def _before_tensorflow(frames: list[_Frame]) -> list[_Frame]:
    """The calls that are not TensorFlow's, nor made by it further on."""
    return frames[: next((i for i, (file, _, _) in enumerate(frames) if "/tensorflow/" in file), len(frames))]


def _own(frames: list[_Frame]) -> list[int]:
    """Which calls are the author's."""
    return [i for i, (file, _, _) in enumerate(frames) if not _INSTALLED.search(file) and not file.startswith(_OURS)]


def _line(frames: list[_Frame], place: int) -> str:
    file, line, function = frames[place]
    inner = f", which has called {frames[0][2]} of {os.path.basename(frames[0][0])}" if place else ""
    return f"{file}, line {line}, in {function}{inner}"

"""Where the code of a job's author stands, in the stacks that a hung Python has written down at its end.

Python's faulthandler writes the stacks of all threads, the main one last, each from its innermost call on. Most of it
is TensorFlow's; who reads it looks for the line of their own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from estimator_pipeline.launch.outcome import end_of

__all__ = ["own_lines"]

_LIMIT = 1024 * 1024
_FATAL = "Fatal Python error:"
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
# TensorFlow calls Python from its own threads: a generator of the input, a function of `tf.py_function`.
_CALLED = "/tensorflow/python/ops/script_ops.py"
_INSTALLED = re.compile(r"^<|/(?:site|dist)-packages/|/lib/python3\.\d+/|__autograph_generated_file")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_Frame = tuple[str, str, str]


def own_lines(log: Path, *, offset: int = 0) -> tuple[str, ...]:
    """The innermost lines of the author's own code in each thread that may hold up the training.

    First those that TensorFlow has called, as it calls a generator of the input; where none of the calls there is the
    author's, what TensorFlow has called. Else the main thread, where it does not wait in TensorFlow. Threads that the
    program keeps for itself are left out: they mostly wait for work.

    Args:
        log: the log of a process that ended with its stacks.
        offset: where its own part begins, in bytes.

    Returns:
        Such as "/home/me/input.py, line 12, in read". Empty where there are no stacks, or none has such a line.
    """
    _, fatal, stacks = end_of(log, offset=offset, limit=_LIMIT).rpartition(_FATAL)
    threads = [_FRAME.findall(part) for part in _THREAD.split(stacks)[1:]] if fatal else []
    called = [_before_tensorflow(frames) for frames in threads if any(file.endswith(_CALLED) for file, _, _ in frames)]
    found = [_line(frames, own[0] if (own := _own(frames)) else len(frames) - 1) for frames in called if frames]
    if not found and threads:
        frames = _before_tensorflow(threads[-1])
        found = [_line(frames, place) for place in _own(frames)[:1]]
    return tuple(dict.fromkeys(found))


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

"""One-line descriptions of errors, from exceptions or tracebacks in logs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from estimator_pipeline.errors import PipelineError

__all__ = ["described", "error_in", "error_line"]

_LONGEST = 300
# TensorFlow's marks of an operation in a message, and of the stack of a traced function.
_OPERATION, _TRACED = "[[{{node", "in user code:"
_OF_A_LAYER = "Exception encountered when calling "
# A line of such a stack, and the start of a line with an exception.
_FRAME = re.compile(r'File ".+", line \d+')
_AN_ERROR = re.compile(r"[\w.]+:( |$)")
_TRACEBACK = "Traceback (most recent call last):"
# The line of a traceback with the exception; without a message it has only the name.
_RAISED = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?:: (.*)|:?)$")


def error_line(error: BaseException) -> str:
    """Describe an exception in one line; for this package's errors without the type."""
    if isinstance(error, PipelineError):
        return short(f"{error.message.rstrip('.')}: {error.found}" if error.found else error.message)
    return short(described(type(error).__name__, str(error)))


def described(kind: str, text: str) -> str:
    """Describe an exception by its type and the first line of its message.

    For an error in a TensorFlow operation, such as that of a dataset, it is the error that the operation's function
    raised: in the message it follows TensorFlow's stack and precedes the operation. For a traced function it is the
    line after the stack. For a layer of Keras 2, whose message begins with the layer's name, it is the error of `call`.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_OF_A_LAYER)] or lines
    if lines and lines[0].endswith(_TRACED):
        # Each frame of the stack is followed by its line of code.
        places = [number for number, line in enumerate(lines) if _FRAME.match(line)]
        behind = lines[places[-1] + 2 :] if places else lines[1:]
        if raised := next((line for line in behind if _AN_ERROR.match(line)), ""):
            return raised
    ends = [number for number, line in enumerate(lines) if line.startswith(_OPERATION)]
    message = lines[ends[0] - 1] if ends and ends[0] else next(iter(lines), "")
    if ends and _AN_ERROR.match(message):
        return message
    return f"{kind}: {message}" if message else kind


def error_in(lines: Sequence[str]) -> str:
    """Describe the exception of the last traceback in a log; "" without one."""
    begins = [number for number, line in enumerate(lines) if line.rstrip().endswith(_TRACEBACK)]
    for begin in reversed(begins):
        indent = len(lines[begin]) - len(lines[begin].lstrip())
        for number in range(begin + 1, len(lines)):
            line = lines[number][indent:].rstrip()
            # Lines of the stack are indented; a source line may be blank.
            if not line or line[0].isspace():
                continue
            match = _RAISED.match(line)
            if match is None:
                break
            message = "\n".join([match[2] or "", *lines[number + 1 :]]) if match[2] else ""
            return short(described(match[1].rpartition(".")[2], message))
    return ""


def short(text: str) -> str:
    """Shorten a text to one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."

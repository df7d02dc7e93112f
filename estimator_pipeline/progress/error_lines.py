"""An error in one line, from an exception or from the traceback in a log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from estimator_pipeline.errors import PipelineError

__all__ = ["described", "error_in", "error_line"]

_LONGEST = 300
# How TensorFlow marks an operation in its messages, and a stack that it kept while it traced a function.
_OPERATION, _TRACED = "[[{{node", "in user code:"
_OF_A_LAYER = "Exception encountered when calling "
# A line of such a stack, and what a line begins with that tells an exception.
_FRAME = re.compile(r'File ".+", line \d+')
_AN_ERROR = re.compile(r"[\w.]+:( |$)")
_TRACEBACK = "Traceback (most recent call last):"
# The line of a traceback that names the exception; one without a message has the name alone.
_RAISED = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?:: (.*)|:?)$")


def error_line(error: BaseException) -> str:
    """An exception in one line. One of this package says what was wrong and found: its type tells nobody more."""
    if isinstance(error, PipelineError):
        return short(f"{error.message.rstrip('.')}: {error.found}" if error.found else error.message)
    return short(described(type(error).__name__, str(error)))


def described(kind: str, text: str) -> str:
    """An exception by its type, and the first line of what it says.

    Of one that came up in an operation of TensorFlow's, such as those of a dataset, it is what the function in it has
    raised: TensorFlow puts its own stack before that, and the operation behind it. Of a function that TensorFlow has
    traced it is what stands behind the stack. Of a layer of Keras 2, which begins with its name, it is what its `call`
    has raised.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_OF_A_LAYER)] or lines
    if lines and lines[0].endswith(_TRACED):
        # Behind each place in the stack is the line of code that stands there.
        places = [number for number, line in enumerate(lines) if _FRAME.match(line)]
        behind = lines[places[-1] + 2 :] if places else lines[1:]
        if said := next((line for line in behind if _AN_ERROR.match(line)), ""):
            return said
    ends = [number for number, line in enumerate(lines) if line.startswith(_OPERATION)]
    said = lines[ends[0] - 1] if ends and ends[0] else next(iter(lines), "")
    if ends and _AN_ERROR.match(said):
        return said
    return f"{kind}: {said}" if said else kind


def error_in(lines: Sequence[str]) -> str:
    """The exception of the last whole traceback among the lines of a log, in one line; "" where there is none."""
    begins = [number for number, line in enumerate(lines) if line.rstrip().endswith(_TRACEBACK)]
    for begin in reversed(begins):
        indent = len(lines[begin]) - len(lines[begin].lstrip())
        for number in range(begin + 1, len(lines)):
            line = lines[number][indent:].rstrip()
            # Lines of the stack are indented; a blank one may be part of a source line.
            if not line or line[0].isspace():
                continue
            found = _RAISED.match(line)
            if found is None:
                break
            said = "\n".join([found[2] or "", *lines[number + 1 :]]) if found[2] else ""
            return short(described(found[1].rpartition(".")[2], said))
    return ""


def short(text: str) -> str:
    """A text in one line of a bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."
